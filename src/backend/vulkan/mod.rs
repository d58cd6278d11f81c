//! The Vulkan backend: a [`Stage`] that runs a graph on a GPU.
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
//! - `transfer`: values on their way in and out
//! - [`roofline`]: what a device can do at most
//! - this file: a step from its rows to what it gives
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
pub mod roofline;
#[cfg(test)]
mod tests;
mod transfer;

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use cuelight_shaders::attention::{KvShape, KvType};
use cuelight_shaders::choose_token;
use cuelight_shaders::cpu::Kernel;
use cuelight_shaders::gpu::StepLayout;
use cuelight_shaders::op::Batch;
use cuelight_shaders::weight::Weight;

pub use device::{Device, VulkanOptions};
pub use error::VulkanError;
pub use instance::{Instance, InstanceOptions};
pub use probe::DeviceInfo;

use self::memory::{Buffer, Place};
use crate::backend::ragged::{RaggedRows, node_cost, wanted};
use crate::backend::stage::{Stage, StageOutput};
use crate::engine::{BLOCK_TOKENS, Chosen, EngineError, EngineLimits, Step};
use crate::graph::{Graph, MemoryLayout};
use crate::profile::{Cost, Profiler};
use plan::{Bucket, Plan};
use record::{CommandPool, Recorder};
use resident::{DeviceCache, DeviceWeights};
use transfer::{LogitsTransfer, Transfer};

/// A model, or a part of one, on a Vulkan device.
pub struct VulkanStage {
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
    /// What the graph takes, on its way to `work`.
    taken: Transfer,
    /// What it gives, on its way back, but for logits from which tokens are chosen.
    given: Transfer,
    /// Those of them that nobody chose from.
    logits: Option<LogitsTransfer>,
    /// The rows, as written last; kept for its memory.
    words: Vec<u32>,
}

impl Footprint {
    /// What `graph` takes on a device for steps within the limits (whose number of KV blocks is not known yet).
    #[must_use]
    pub fn new(graph: &Graph, info: &DeviceInfo, limits: &EngineLimits, shapes: &[KvShape], kv_type: KvType) -> Self {
        let layout = MemoryLayout::new(graph, limits.max_batched_tokens, limits.max_logits_rows);
        let values = (layout.arena_len() * size_of::<f32>()) as u64;
        let transfers =
            transfer::bytes(graph, graph.inputs(), limits) + transfer::bytes(graph, &graph.outputs(), limits);
        let scratch = plan::scratch_bytes(graph, &info.limits, limits);
        Footprint {
            weights: resident::weights_bytes(&graph.ops()),
            scratch: arena::total_bytes([values, scratch, transfers, 2 * step_layout(limits).bytes()]),
            kv_block: resident::kv_block_bytes(shapes, kv_type),
        }
    }
}

fn step_layout(limits: &EngineLimits) -> StepLayout {
    let blocks_of_sequence = limits.context_tokens.div_ceil(BLOCK_TOKENS);
    let table_entries = limits.max_sequences * blocks_of_sequence;
    StepLayout::new(limits.max_batched_tokens, limits.max_logits_rows, limits.max_sequences, table_entries)
}

impl VulkanStage {
    /// A stage for steps within `limits`; brings the weights to the device, and tells `progress` of each that is there.
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
        let buffers = StepBuffers::new(&device, &pool, &graph, &layout, scratch, &step_layout, &limits)?;
        let has_clock = device.info.timestamp_ns > 0.0;
        let profiler = (options.profile_ops && has_clock).then(|| Profiler::new(&graph));
        Ok(VulkanStage {
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

    /// Runs the flattened step, and returns what it gives and what each op took.
    fn compute(&mut self, step: &Step, inputs: &[Vec<f32>]) -> Result<StageOutput, VulkanError> {
        let block_tables = step.block_tables();
        let batch = self.rows.batch(&block_tables);
        let written = self.step_layout.write(&batch, &mut self.buffers.words);
        let upload = self.buffers.write_step(&self.device, &written)?;
        let choices = self.graph.token_choice().map(|_| choice_words(step));
        let taken = inputs.iter().map(Vec::as_slice).chain(choices.as_deref());
        self.buffers.taken.write(&mut self.buffers.work, taken);
        let rows_back = unchosen_rows(step);
        let download = match &self.buffers.logits {
            Some(logits) => logits.record(&self.device, &self.buffers.work, &rows_back)?,
            None => None,
        };
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
        plan.run(&self.device, upload, download)?;
        let ops = match &mut self.profiler {
            Some(profiler) => {
                for ((start, elapsed), cost) in plan.times(&self.device)?.into_iter().zip(costs) {
                    profiler.note_elapsed(start, elapsed, cost);
                }
                profiler.finish()
            }
            None => Vec::new(),
        };
        let mut values = self.buffers.given.read(&self.buffers.work, &batch);
        let mut chosen = Vec::new();
        if let Some(logits) = &self.buffers.logits {
            let tokens = values.pop().unwrap_or_default();
            let of_sequence =
                |(rows, choice): (Range<usize>, Option<_>)| choice.map(|_| Chosen::of_value(tokens[rows.start]));
            chosen.extend(wanted(step).map(of_sequence));
            values.push(logits.read(&self.buffers.work, &rows_back));
        }
        Ok(StageOutput { values, chosen, ops })
    }

    /// The least that each op of a step has to do.
    fn costs(&self, batch: &Batch<'_>) -> Vec<Cost> {
        let of_node = |node| node_cost(&self.graph, node, Kernel::Scalar, *batch, &self.cache.position_bytes);
        self.graph.nodes().iter().map(of_node).collect()
    }
}

/// What each selected row of a step asks for, as a graph takes it that chooses tokens.
fn choice_words(step: &Step) -> Vec<f32> {
    let of_rows =
        |(rows, choice): (Range<usize>, Option<_>)| rows.flat_map(move |_| choose_token::words(choice.as_ref()));
    wanted(step).flat_map(of_rows).collect()
}

/// The selected rows from which no token is chosen here, in stretches.
fn unchosen_rows(step: &Step) -> Vec<Range<usize>> {
    wanted(step).filter(|(_, choice)| choice.is_none()).map(|(rows, _)| rows).collect()
}

impl StepBuffers {
    fn new(
        device: &Arc<Device>,
        pool: &CommandPool,
        graph: &Graph,
        layout: &MemoryLayout,
        scratch_bytes: u64,
        step_layout: &StepLayout,
        limits: &EngineLimits,
    ) -> Result<Self, VulkanError> {
        let scratch_start = ((layout.arena_len() * size_of::<f32>()) as u64).next_multiple_of(256);
        let work = Buffer::new(device, "the values between ops", scratch_start + scratch_bytes, Place::Device)?;
        let mut work = work;
        let is_written = work.mapped().is_some();
        let taken = Transfer::new(device, graph, layout, graph.inputs(), limits, is_written)?;
        let is_read = work.readable().is_some();
        let choice = graph.token_choice();
        let outputs = choice.map_or_else(|| graph.outputs(), |choice| vec![choice.tokens]);
        let given = Transfer::new(device, graph, layout, &outputs, limits, is_read)?;
        let logits =
            choice.map(|choice| LogitsTransfer::new(device, pool, graph, (choice.logits, layout), limits, is_read));
        let logits = logits.transpose()?;
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
        let mut buffers = StepBuffers { work, scratch_start, step, step_stage, taken, given, logits, words };
        let all = Range { start: 0, end: buffers.words.len() };
        if let Some(commands) = buffers.write_step(device, &[all])? {
            device.wait(device.submit(&[commands])?)?;
        }
        Ok(buffers)
    }

    /// Brings stretches of `words` to the device: at once, or by the commands it returns.
    fn write_step(
        &mut self,
        device: &Device,
        written: &[Range<usize>],
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

impl Stage for VulkanStage {
    fn run(&mut self, step: &Step, inputs: &[Vec<f32>]) -> Result<StageOutput, EngineError> {
        self.rows.fill(step);
        self.compute(step, inputs).map_err(|error| EngineError::DeviceLost(error.to_string()))
    }

    fn cost(&self, step: &Step) -> Cost {
        let mut rows = RaggedRows::default();
        rows.fill(step);
        self.costs(&rows.batch(&step.block_tables())).into_iter().sum()
    }
}

impl Drop for VulkanStage {
    fn drop(&mut self) {
        // A device that is lost has nothing left to wait for.
        let _ = self.device.wait_for_all();
    }
}

/// What a device is called in reports: "vulkan:0 (NVIDIA H200)".
#[must_use]
pub fn describe(info: &DeviceInfo) -> String {
    format!("vulkan:{} ({})", info.index, info.name)
}
