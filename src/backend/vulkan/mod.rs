//! The Vulkan backend: an [`Engine`] that runs a graph on a GPU.
//!
//! It has no code per op: an op says what it runs as data ([`Op::dispatches`]), and one recorder makes command
//! buffers of that. In reading order:
//!
//! - `instance`, `probe`: the loader, and what devices there are and can do
//! - `device`: a device in use: its queue and what it waits for
//! - `memory`, `arena`: few large buffers, and things in them
//! - `resident`: weights, tables and the KV cache, from load to unload
//! - `pipeline`, `record`: shaders made ready, dispatches into command buffers
//! - `plan`: a graph recorded once for a bucket of steps, to be replayed
//! - this file: a step from its rows to its logits
//!
//! [`Op::dispatches`]: cuelight_shaders::op::Op::dispatches

mod arena;
mod device;
mod error;
mod instance;
mod memory;
mod pipeline;
mod plan;
mod probe;
mod record;
mod resident;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Instant;

use cuelight_shaders::attention::{KvShape, KvType};
use cuelight_shaders::cpu::Kernel;
use cuelight_shaders::gpu::StepLayout;
use cuelight_shaders::op::Batch;
use cuelight_shaders::weight::Weight;

pub use device::{Device, VulkanOptions};
pub use error::VulkanError;
pub use instance::{Instance, InstanceOptions};
pub use probe::DeviceInfo;

use self::memory::{Buffer, Place};
use crate::backend::ragged::{RaggedRows, node_cost, validate};
use crate::engine::{BLOCK_TOKENS, Engine, EngineError, EngineLimits, ExpertResult, Progress, Step, StepOutput};
use crate::graph::{Graph, MemoryLayout};
use crate::profile::{Cost, OpSpan, Profiler};
use plan::{Bucket, Plan};
use record::{CommandPool, Recorder};
use resident::{DeviceCache, DeviceWeights};

/// A model on a Vulkan device.
pub struct VulkanEngine {
    graph: Graph,
    layout: MemoryLayout,
    step_layout: StepLayout,
    limits: EngineLimits,
    options: ExecutionOptions,
    rows: RaggedRows,
    plans: HashMap<Bucket, Plan>,
    weights: DeviceWeights,
    cache: DeviceCache,
    buffers: StepBuffers,
    pool: CommandPool,
    /// Puts what the device's clock says into words; where ops are measured.
    profiler: Option<Profiler>,
    device: Arc<Device>,
}

/// How steps are run.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExecutionOptions {
    /// A row's bits never depend on its batch; costs speed with many rows.
    pub deterministic: bool,
    /// Measure each op.
    pub profile_ops: bool,
}

/// What a model takes on a device, in bytes, known before anything is allocated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Weights as they are packed there.
    pub weights: u64,
    /// Values between ops, logits, and the step's own tables.
    pub scratch: u64,
    /// One KV block over all layers.
    pub kv_block: u64,
}

/// The memory of the step in progress.
struct StepBuffers {
    /// All values, then the ops' scratch.
    work: Buffer,
    scratch_start: u64,
    /// The step's rows (see [`StepLayout`]).
    step: Buffer,
    /// Where the rows are written when the processor does not reach `step`, and the commands that bring them there.
    step_stage: Option<(Buffer, ash::vk::CommandBuffer)>,
    /// Where logits go when the processor does not read `work` fast.
    logits: Option<Buffer>,
    /// The rows, as written last; kept for its memory.
    words: Vec<u32>,
}

impl Footprint {
    /// What `graph` takes on a device for steps within the limits (whose number of KV blocks is not known yet).
    #[must_use]
    pub fn new(graph: &Graph, info: &DeviceInfo, limits: &EngineLimits, shapes: &[KvShape], kv_type: KvType) -> Self {
        let layout = MemoryLayout::new(graph, limits.max_batched_tokens, limits.max_logits_rows);
        let values = (layout.arena_len() * size_of::<f32>()) as u64;
        let logits = (limits.max_logits_rows * limits.vocab_size * size_of::<f32>()) as u64;
        let scratch = plan::scratch_bytes(graph, &info.limits, limits);
        Footprint {
            weights: resident::weights_bytes(&graph.ops()),
            scratch: arena::total_bytes([values, scratch, logits, 2 * step_layout(limits).bytes()]),
            kv_block: resident::kv_block_bytes(shapes, kv_type),
        }
    }
}

fn step_layout(limits: &EngineLimits) -> StepLayout {
    let blocks_of_sequence = limits.context_tokens.div_ceil(BLOCK_TOKENS);
    let table_entries = limits.max_sequences * blocks_of_sequence;
    StepLayout::new(limits.max_batched_tokens, limits.max_logits_rows, limits.max_sequences, table_entries)
}

impl VulkanEngine {
    /// An engine for steps within `limits`; brings the weights to the device, and tells `progress` of each that is there.
    ///
    /// # Errors
    /// [`VulkanError`] when memory is short, or the driver refuses something.
    ///
    /// # Panics
    /// When the graph has no output.
    pub fn new(
        graph: Graph,
        device: Arc<Device>,
        (shapes, kv_type): (&[KvShape], KvType),
        limits: EngineLimits,
        options: ExecutionOptions,
        progress: &mut dyn FnMut(&Weight),
    ) -> Result<Self, VulkanError> {
        assert!(graph.output().is_some(), "the graph has no ops");
        let weights = DeviceWeights::load(&device, &graph.ops(), progress)?;
        let cache = DeviceCache::new(&device, shapes, limits.kv_blocks, kv_type)?;
        let layout = MemoryLayout::new(&graph, limits.max_batched_tokens, limits.max_logits_rows);
        let step_layout = step_layout(&limits);
        let pool = CommandPool::new(&device)?;
        let scratch = plan::scratch_bytes(&graph, &device.info.limits, &limits);
        let buffers = StepBuffers::new(&device, &pool, &layout, scratch, &step_layout, &limits)?;
        let has_clock = device.info.timestamp_ns > 0.0;
        let profiler = (options.profile_ops && has_clock).then(|| Profiler::new(&graph));
        Ok(VulkanEngine {
            graph,
            layout,
            step_layout,
            limits,
            options,
            rows: RaggedRows::default(),
            plans: HashMap::new(),
            weights,
            cache,
            buffers,
            pool,
            profiler,
            device,
        })
    }

    /// Runs the flattened step, and returns its logits and what each op took.
    fn run(&mut self, step: &Step) -> Result<(Vec<f32>, Vec<OpSpan>), VulkanError> {
        let block_tables = step.block_tables();
        let batch = self.rows.batch(&block_tables);
        let written = self.step_layout.write(&batch, &mut self.buffers.words);
        let upload = self.buffers.write_step(&self.device, &written)?;
        let bucket = Bucket::of(&batch, &self.limits);
        let costs: Vec<Cost> = self.costs(&batch);
        let plan = match self.plans.remove(&bucket) {
            Some(plan) if plan.is_cut_well() => plan,
            found => {
                let plan = Plan::record(self, bucket, &costs, found.as_ref())?;
                if let Some(old) = found {
                    self.pool.free(&old.submissions);
                }
                self.device.pipelines.save(&self.device.raw);
                plan
            }
        };
        let plan = self.plans.entry(bucket).or_insert(plan);
        plan.run(&self.device, upload)?;
        let ops = match &mut self.profiler {
            Some(profiler) => {
                for ((start, elapsed), cost) in plan.times(&self.device)?.into_iter().zip(costs) {
                    profiler.note_elapsed(start, elapsed, cost);
                }
                profiler.finish()
            }
            None => Vec::new(),
        };
        Ok((self.read_logits(batch.selected.len() * self.limits.vocab_size), ops))
    }

    /// The least that each op of a step has to do.
    fn costs(&self, batch: &Batch<'_>) -> Vec<Cost> {
        let of_node = |node| node_cost(&self.graph, node, Kernel::Scalar, *batch, &self.cache.position_bytes);
        self.graph.nodes().iter().map(of_node).collect()
    }

    /// Where the logits are in `work`, in bytes.
    fn logits_start(&self) -> u64 {
        let output = self.graph.output().map_or(0, |output| self.layout.offset(output));
        (output * size_of::<f32>()) as u64
    }

    fn read_logits(&self, count: usize) -> Vec<f32> {
        let (buffer, start) = match &self.buffers.logits {
            Some(logits) => (logits, 0),
            None => (&self.buffers.work, self.logits_start() as usize),
        };
        let bytes = buffer.readable().unwrap_or_default();
        let bytes = &bytes[start..start + count * size_of::<f32>()];
        bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
    }
}

impl StepBuffers {
    fn new(
        device: &Arc<Device>,
        pool: &CommandPool,
        layout: &MemoryLayout,
        scratch_bytes: u64,
        step_layout: &StepLayout,
        limits: &EngineLimits,
    ) -> Result<Self, VulkanError> {
        let scratch_start = ((layout.arena_len() * size_of::<f32>()) as u64).next_multiple_of(256);
        let work = Buffer::new(device, "the values between ops", scratch_start + scratch_bytes, Place::Device)?;
        let logits_bytes = (limits.max_logits_rows * limits.vocab_size * size_of::<f32>()) as u64;
        let logits = match work.readable() {
            Some(_) => None,
            None => Some(Buffer::new(device, "the logits", logits_bytes, Place::Host)?),
        };
        let mut step = Buffer::new(device, "the rows of a step", step_layout.bytes(), Place::Device)?;
        let step_stage = match step.mapped() {
            Some(_) => None,
            None => {
                let stage = Buffer::new(device, "the rows of a step", step_layout.bytes(), Place::Host)?;
                Some((stage, pool.allocate()?))
            }
        };
        let mut words = vec![0; step_layout.bytes() as usize / size_of::<u32>()];
        step_layout.write_header(step.region.address, &mut words);
        let mut buffers = StepBuffers { work, scratch_start, step, step_stage, logits, words };
        let all = std::ops::Range { start: 0, end: buffers.words.len() };
        if let Some(commands) = buffers.write_step(device, &[all])? {
            device.wait(device.submit(&[commands])?)?;
        }
        Ok(buffers)
    }

    /// Brings stretches of `words` to the device: at once, or by the commands it returns.
    fn write_step(
        &mut self,
        device: &Device,
        written: &[std::ops::Range<usize>],
    ) -> Result<Option<ash::vk::CommandBuffer>, VulkanError> {
        const WORD: usize = size_of::<u32>();
        let target = match &mut self.step_stage {
            Some((stage, _)) => stage,
            None => &mut self.step,
        };
        let bytes = target.mapped().unwrap_or_default();
        for range in written {
            for (bytes, word) in
                bytes[range.start * WORD..range.end * WORD].as_chunks_mut().0.iter_mut().zip(&self.words[range.clone()])
            {
                *bytes = word.to_le_bytes();
            }
        }
        let Some((stage, commands)) = &self.step_stage else { return Ok(None) };
        let mut recorder = Recorder::begin(device, *commands)?;
        for range in written {
            let start = (range.start * WORD) as u64;
            recorder.copy((stage, start), (&self.step, start), (range.len() * WORD) as u64);
        }
        recorder.end().map(Some)
    }
}

impl Engine for VulkanEngine {
    fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        let started = Instant::now();
        validate(&step, &self.limits).map_err(|reason| EngineError::InvalidStep { step: step.id, reason })?;
        self.rows.fill(&step);
        let (logits, ops) = if self.rows.tokens.is_empty() {
            (Vec::new(), Vec::new())
        } else {
            self.run(&step).map_err(|error| EngineError::DeviceLost(error.to_string()))?
        };
        Ok(Progress::Done(StepOutput { id: step.id, logits, elapsed: started.elapsed(), ops }))
    }

    fn cost(&self, step: &Step) -> Option<Cost> {
        let mut rows = RaggedRows::default();
        rows.fill(step);
        Some(self.costs(&rows.batch(&step.block_tables())).into_iter().sum())
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        let reason = "no step of this engine waits for experts".to_owned();
        Err(EngineError::InvalidStep { step: result.step, reason })
    }
}

impl Drop for VulkanEngine {
    fn drop(&mut self) {
        // A device that is lost has nothing left to wait for.
        let _ = self.device.wait_for_all();
    }
}

/// What an engine on a device is called in reports: "vulkan:0 (NVIDIA H200)".
#[must_use]
pub fn describe(info: &DeviceInfo) -> String {
    format!("vulkan:{} ({})", info.index, info.name)
}
