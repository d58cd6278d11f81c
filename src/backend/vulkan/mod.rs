//! The Vulkan backend: a [`Stage`] that runs a graph on a GPU.
//!
//! It has no code per op: an op says what it runs as data ([`Op::dispatches`]), and one recorder makes command
//! buffers of that. In reading order:
//!
//! - `instance`, `probe`: the loader, and what devices there are and can do
//! - `device`: a device in use: its queue and what it waits for
//! - `memory`, `arena`: few large buffers, and things in them
//! - `resident`: weights, tables and the KV cache, from load to unload
//! - `expert_upload`: experts that come to it in between
//! - `pipeline`, `record`: shaders made ready, dispatches into command buffers
//! - `plan`: a graph recorded once for a bucket of steps, to be replayed
//! - `transfer`: values on their way in and out
//! - [`roofline`]: what a device can do at most
//! - this file: a step from its rows to what it gives
//!

mod arena;
mod device;
mod error;
mod expert_upload;
#[cfg(feature = "fault-injection")]
pub mod faults;
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
use cuelight_shaders::op::{Batch, Op};
use cuelight_shaders::weight::Weight;

pub use device::{Device, VulkanOptions};
pub use error::VulkanError;
pub use instance::{Instance, InstanceOptions};
pub use probe::DeviceInfo;

use self::memory::{Buffer, Place};
use crate::backend::ragged::{RaggedRows, node_cost, wanted};
use crate::backend::stage::{ExpertUpload, Stage, StageOutput};
use crate::engine::{BLOCK_TOKENS, Chosen, EngineError, EngineLimits, Step};
use crate::graph::{Graph, MemoryLayout, ValueId};
use crate::profile::{Cost, Profiler};
use expert_upload::DeviceUpload;
use plan::{Bucket, Plan};
use record::{CommandPool, Recorder};
use resident::{DeviceCache, DeviceWeights};
use transfer::{LogitsTransfer, Transfer};

/// A model, or a part of one, on a Vulkan device.
pub struct VulkanStage {
    pieces: Vec<Piece>,
    step_layout: StepLayout,
    limits: EngineLimits,
    options: ExecutionOptions,
    rows: RaggedRows,
    /// Of each piece, by its number.
    plans: HashMap<(usize, Bucket), Plan>,
    weights: DeviceWeights,
    cache: DeviceCache,
    buffers: StepBuffers,
    pool: CommandPool,
    device: Arc<Device>,
}

/// A graph that runs without interruption. All pieces share the memory for values.
struct Piece {
    graph: Graph,
    layout: MemoryLayout,
    /// The number of its first op among those of all pieces.
    first_op: usize,
    /// What the graph takes, on its way to the values.
    taken: Transfer,
    /// What it gives, on its way back, but for logits from which tokens are chosen.
    given: Transfer,
    /// Those of them that nobody chose from.
    logits: Option<LogitsTransfer>,
    /// Puts what the device's clock says into words; where ops are measured.
    profiler: Option<Profiler>,
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
    /// What a piece takes and gives goes through these, where the processor does not reach the values themselves.
    taken_stage: Option<Buffer>,
    given_stage: Option<Buffer>,
    /// The rows, as written last; kept for its memory.
    words: Vec<u32>,
}

impl Footprint {
    /// What graphs take on a device for steps within the limits (whose number of KV blocks is not known yet).
    #[must_use]
    pub fn new(
        graphs: &[Graph],
        info: &DeviceInfo,
        limits: &EngineLimits,
        shapes: &[KvShape],
        kv_type: KvType,
    ) -> Self {
        let values = values_bytes(graphs, limits);
        let logits = graphs
            .iter()
            .filter_map(|graph| graph.token_choice().map(|choice| transfer::bytes(graph, &[choice.logits], limits)));
        let transfers = taken_bytes(graphs, limits) + given_bytes(graphs, limits) + logits.sum::<u64>();
        let scratch = scratch_bytes(graphs, info, limits);
        let ops: Vec<&dyn Op> = graphs.iter().flat_map(Graph::ops).collect();
        Footprint {
            weights: resident::weights_bytes(&ops),
            scratch: arena::total_bytes([values, scratch, transfers, 2 * step_layout(limits).bytes()]),
            kv_block: resident::kv_block_bytes(shapes, kv_type),
        }
    }
}

/// Bytes of the values of any of the graphs.
fn values_bytes(graphs: &[Graph], limits: &EngineLimits) -> u64 {
    let of_graph = |graph| MemoryLayout::new(graph, limits.max_batched_tokens, limits.max_logits_rows).arena_len();
    graphs.iter().map(of_graph).max().unwrap_or(0) as u64 * size_of::<f32>() as u64
}

/// Bytes that any of the graphs takes.
fn taken_bytes(graphs: &[Graph], limits: &EngineLimits) -> u64 {
    graphs.iter().map(|graph| transfer::bytes(graph, graph.inputs(), limits)).max().unwrap_or(0)
}

/// Bytes that any of the graphs gives, but for logits from which tokens are chosen.
fn given_bytes(graphs: &[Graph], limits: &EngineLimits) -> u64 {
    graphs.iter().map(|graph| transfer::bytes(graph, &given_values(graph), limits)).max().unwrap_or(0)
}

/// What a graph gives, or of the values that it chooses tokens by, the tokens.
fn given_values(graph: &Graph) -> Vec<ValueId> {
    graph.token_choice().map_or_else(|| graph.outputs(), |choice| vec![choice.tokens])
}

/// Bytes of scratch of any of their ops.
fn scratch_bytes(graphs: &[Graph], info: &DeviceInfo, limits: &EngineLimits) -> u64 {
    graphs.iter().map(|graph| plan::scratch_bytes(graph, &info.limits, limits)).max().unwrap_or(0)
}

fn step_layout(limits: &EngineLimits) -> StepLayout {
    let blocks_of_sequence = limits.context_tokens.div_ceil(BLOCK_TOKENS);
    let table_entries = limits.max_sequences * blocks_of_sequence;
    StepLayout::new(limits.max_batched_tokens, limits.max_logits_rows, limits.max_sequences, table_entries)
}

impl VulkanStage {
    /// A stage of these pieces for steps within `limits`; brings the weights to the device, and tells `progress` of each that
    /// is there.
    ///
    /// # Errors
    /// [`VulkanError`] when memory is short, or the driver refuses something.
    ///
    /// # Panics
    /// When a graph gives nothing.
    pub fn new(
        graphs: Vec<Graph>,
        device: Arc<Device>,
        (shapes, kv_type): (&[KvShape], KvType),
        limits: EngineLimits,
        options: ExecutionOptions,
        progress: &mut dyn FnMut(&Weight),
    ) -> Result<Self, VulkanError> {
        assert!(graphs.iter().all(|graph| !graph.outputs().is_empty()), "a graph gives nothing");
        let ops: Vec<&dyn Op> = graphs.iter().flat_map(Graph::ops).collect();
        let weights = DeviceWeights::load(&device, &ops, progress)?;
        let cache = DeviceCache::new(&device, shapes, limits.kv_blocks, kv_type)?;
        let step_layout = step_layout(&limits);
        let pool = CommandPool::new(&device)?;
        let buffers = StepBuffers::new(&device, &pool, &graphs, &limits, &step_layout)?;
        let has_clock = device.info.timestamp_ns > 0.0;
        let is_read = buffers.work.readable().is_some();
        let mut first_op = 0;
        let piece = |graph: Graph| {
            let layout = MemoryLayout::new(&graph, limits.max_batched_tokens, limits.max_logits_rows);
            let taken = Transfer::new(&graph, &layout, graph.inputs(), &limits);
            let given = Transfer::new(&graph, &layout, &given_values(&graph), &limits);
            let logits = graph
                .token_choice()
                .map(|choice| LogitsTransfer::new(&device, &pool, &graph, (choice.logits, &layout), &limits, is_read));
            let logits = logits.transpose()?;
            let profiler = (options.profile_ops && has_clock).then(|| Profiler::new(&graph));
            let first = first_op;
            first_op += graph.nodes().len();
            Ok(Piece { graph, layout, first_op: first, taken, given, logits, profiler })
        };
        let pieces = graphs.into_iter().map(piece).collect::<Result<_, VulkanError>>()?;
        Ok(VulkanStage {
            pieces,
            step_layout,
            limits,
            options,
            rows: RaggedRows::default(),
            plans: HashMap::new(),
            weights,
            cache,
            buffers,
            pool,
            device,
        })
    }

    /// Runs a piece for the flattened step, and returns what it gives and what each op took.
    fn compute(&mut self, number: usize, step: &Step, inputs: &[Vec<f32>]) -> Result<StageOutput, VulkanError> {
        let block_tables = step.block_tables();
        let batch = self.rows.batch(&block_tables);
        let written = self.step_layout.write(&batch, &mut self.buffers.words);
        let upload = self.buffers.write_step(&self.device, &written)?;
        let piece = &self.pieces[number];
        let choices = piece.graph.token_choice().map(|_| choice_words(step));
        let taken = inputs.iter().map(Vec::as_slice).chain(choices.as_deref());
        let StepBuffers { work, taken_stage, .. } = &mut self.buffers;
        piece.taken.write(work, taken_stage.as_mut(), taken);
        let rows_back = unchosen_rows(step);
        let download = match &piece.logits {
            Some(logits) => logits.record(&self.device, &self.buffers.work, &rows_back)?,
            None => None,
        };
        let bucket = Bucket::of(&batch, &self.limits);
        let costs: Vec<Cost> = self.costs(&self.pieces[number].graph, &batch);
        let plan = match self.plans.remove(&(number, bucket)) {
            Some(plan) if plan.is_cut_well() => plan,
            found => {
                let plan = Plan::record(self, &self.pieces[number], bucket, &costs, found.as_ref())?;
                if let Some(old) = found {
                    self.pool.free(&old.submissions);
                }
                self.device.pipelines.save(&self.device.raw);
                plan
            }
        };
        let plan = self.plans.entry((number, bucket)).or_insert(plan);
        plan.run(&self.device, upload, download)?;
        let piece = &mut self.pieces[number];
        let ops = match &mut piece.profiler {
            Some(profiler) => {
                for ((start, elapsed), cost) in plan.times(&self.device)?.into_iter().zip(costs) {
                    profiler.note_elapsed(start, elapsed, cost);
                }
                profiler.finish()
            }
            None => Vec::new(),
        };
        let mut values = piece.given.read(&self.buffers.work, self.buffers.given_stage.as_ref(), &batch);
        let mut chosen = Vec::new();
        if let Some(logits) = &piece.logits {
            let tokens = values.pop().unwrap_or_default();
            let of_sequence =
                |(rows, choice): (Range<usize>, Option<_>)| choice.map(|_| Chosen::of_value(tokens[rows.start]));
            chosen.extend(wanted(step).map(of_sequence));
            values.push(logits.read(&self.buffers.work, &rows_back));
        }
        Ok(StageOutput { values, chosen, ops })
    }

    /// The least that each op of a graph has to do for a step.
    fn costs(&self, graph: &Graph, batch: &Batch<'_>) -> Vec<Cost> {
        let of_node = |node| node_cost(graph, node, Kernel::Scalar, *batch, &self.cache.position_bytes);
        graph.nodes().iter().map(of_node).collect()
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
        graphs: &[Graph],
        limits: &EngineLimits,
        step_layout: &StepLayout,
    ) -> Result<Self, VulkanError> {
        let scratch_start = values_bytes(graphs, limits).next_multiple_of(256);
        let work_bytes = scratch_start + scratch_bytes(graphs, &device.info, limits);
        let mut work = Buffer::new(device, "the values between ops", work_bytes, Place::Device)?;
        let taken_stage = transfer::stage(device, taken_bytes(graphs, limits), work.mapped().is_some())?;
        let given_stage = transfer::stage(device, given_bytes(graphs, limits), work.readable().is_some())?;
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
        let mut buffers = StepBuffers { work, scratch_start, step, step_stage, taken_stage, given_stage, words };
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
    fn run(&mut self, piece: usize, step: &Step, inputs: &[Vec<f32>]) -> Result<StageOutput, EngineError> {
        self.rows.fill(step);
        self.compute(piece, step, inputs).map_err(|error| EngineError::DeviceLost(error.to_string()))
    }

    fn expert_upload(&self) -> Result<Box<dyn ExpertUpload>, EngineError> {
        let pools = self.pieces.iter().enumerate().filter_map(|(number, piece)| {
            let pool = piece.graph.nodes().first()?.op.as_experts().filter(|pool| pool.is_placed())?;
            Some((number, self.weights.pool_parts(piece.first_op, pool)))
        });
        let upload = DeviceUpload::new(&self.device, &self.weights.arena, pools.collect());
        upload.map(|upload| Box::new(upload) as _).map_err(|error| EngineError::DeviceLost(error.to_string()))
    }

    fn cost(&self, step: &Step) -> Cost {
        let mut rows = RaggedRows::default();
        rows.fill(step);
        let block_tables = step.block_tables();
        let batch = rows.batch(&block_tables);
        self.pieces.iter().flat_map(|piece| self.costs(&piece.graph, &batch)).sum()
    }
}

impl Drop for VulkanStage {
    fn drop(&mut self) {
        self.device.settle();
    }
}

/// Bytes that the weights and tables of ops take on a device.
#[must_use]
pub fn weights_bytes(ops: &[&dyn Op]) -> u64 {
    resident::weights_bytes(ops)
}

/// Bytes of the machine's memory that somebody takes who brings experts of so many bytes to a device.
#[must_use]
pub fn upload_bytes(expert_bytes: usize) -> u64 {
    expert_upload::upload_bytes(expert_bytes)
}

/// What a device is called in reports: "vulkan:0 (NVIDIA H200)".
#[must_use]
pub fn describe(info: &DeviceInfo) -> String {
    format!("vulkan:{} ({})", info.index, info.name)
}
