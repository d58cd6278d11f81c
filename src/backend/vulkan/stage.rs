//! A stage of the model on a Vulkan device: runs steps from their rows to their outputs.

use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;

use cuelight_shaders::attention::KvType;
use cuelight_shaders::cpu::Kernel;
use cuelight_shaders::gpu::StepLayout;
use cuelight_shaders::layer_state::LayerState;
use cuelight_shaders::op::{Batch, Op};
use cuelight_shaders::sample_token;
use cuelight_shaders::weight::Weight;

use super::adapters::AdapterSlots;
use super::bucket::Bucket;
use super::cache_copies::CacheCopies;
use super::device::Device;
use super::error::VulkanError;
use super::expert_upload::DeviceUpload;
use super::footprint::step_layout;
use super::plan::{CommandPlan, RecordContext};
use super::record::CommandPool;
use super::resident::{DeviceCache, DeviceWeights};
use super::segment::Segment;
use super::step_buffers::StepBuffers;
use crate::backend::ragged::{OfSequences, RaggedRows, node_cost, wanted};
use crate::backend::stage::{ExpertUpload, PipelineStage, StageOutput};
use crate::cancel::LoadCancelled;
use crate::engine::{CacheUnit, EngineError, EngineLimits, SampledToken, Step, UnitBytes};
use crate::graph::Graph;
use crate::profile::Cost;

/// A model, or a part of one, on a Vulkan device.
pub struct VulkanStage {
    segments: Vec<Segment>,
    step_layout: StepLayout,
    limits: EngineLimits,
    options: ExecutionOptions,
    rows: RaggedRows,
    /// By the segment's index and the bucket.
    plans: HashMap<(usize, Bucket), CommandPlan>,
    weights: DeviceWeights,
    cache: DeviceCache,
    adapters: AdapterSlots,
    buffers: StepBuffers,
    cache_copies: CacheCopies,
    pool: CommandPool,
    device: Arc<Device>,
}

/// Options of the execution of steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ExecutionOptions {
    /// The result of a row never depends on the other rows of its batch, bit for bit. Slower with many rows.
    pub deterministic: bool,
    /// Measure each op.
    pub profile_ops: bool,
}

impl VulkanStage {
    /// A stage with one segment per graph, for steps within `limits`. Uploads the weights and calls `progress` after each.
    ///
    /// # Errors
    /// [`VulkanError`] when memory is short or a call of the driver fails.
    pub fn new(
        graphs: Vec<Graph>,
        device: Arc<Device>,
        (states, kv_type): (&[LayerState], KvType),
        limits: EngineLimits,
        options: ExecutionOptions,
        progress: &mut dyn FnMut(&Weight) -> Result<(), LoadCancelled>,
    ) -> Result<Self, VulkanError> {
        let ops: Vec<&dyn Op> = graphs.iter().flat_map(Graph::ops).collect();
        let weights = DeviceWeights::load(&device, &ops, progress)?;
        let cache = DeviceCache::new(&device, states, (limits.block_counts(), limits.state_slots), kv_type)?;
        let adapters = AdapterSlots::new(&device, &ops, limits.adapters.slots)?;
        let step_layout = step_layout(&limits);
        let pool = CommandPool::new(&device)?;
        let buffers = StepBuffers::new(&device, &pool, &graphs, &limits, &step_layout)?;
        let has_clock = device.info.timestamp_ns > 0.0;
        let mut first_op = 0;
        let segment = |graph: Graph| {
            let first = first_op;
            first_op += graph.nodes().len();
            Segment::new((&device, &pool), (graph, first), &limits, &buffers.work, options.profile_ops && has_clock)
        };
        let segments = graphs.into_iter().map(segment).collect::<Result<_, VulkanError>>()?;
        Ok(VulkanStage {
            segments,
            step_layout,
            limits,
            options,
            rows: RaggedRows::default(),
            plans: HashMap::new(),
            weights,
            cache,
            adapters,
            buffers,
            cache_copies: CacheCopies::default(),
            pool,
            device,
        })
    }

    /// Runs a segment for the flattened step; returns its outputs and the time of each op.
    fn compute(&mut self, number: usize, step: &Step, inputs: &[Vec<f32>]) -> Result<StageOutput, VulkanError> {
        let of_sequences = OfSequences::new(step);
        let slots = self.adapters.place(&of_sequences.adapters)?;
        let batch = Batch { adapter_slots: &slots, ..self.rows.batch(&of_sequences) };
        let written = self.step_layout.write(&batch, &mut self.buffers.words);
        let upload = self.buffers.write_step(&self.device, &written)?;
        let segment = &self.segments[number];
        let sampling = segment.graph.token_sampling().map(|_| sampling_words(step));
        let inputs = inputs.iter().map(Vec::as_slice).chain(sampling.as_deref());
        let StepBuffers { work, input_staging, .. } = &mut self.buffers;
        segment.inputs.write(work, input_staging.as_mut(), inputs);
        let logits_rows = unsampled_rows(step);
        let download = match &segment.logits {
            Some(logits) => logits.record(&self.device, &self.buffers.work, &logits_rows)?,
            None => None,
        };
        let bucket = Bucket::of(&batch, &self.limits);
        let costs: Vec<Cost> = self.costs(&segment.graph, &batch);
        let plan = match self.plans.remove(&(number, bucket)) {
            Some(plan) if plan.is_cut_well() => plan,
            found => {
                let plan = CommandPlan::record(self.record_context(), segment, bucket, &costs, found.as_ref())?;
                if let Some(old) = found {
                    self.pool.free(&old.submissions);
                }
                self.device.pipelines.save(&self.device.raw);
                plan
            }
        };
        let plan = self.plans.entry((number, bucket)).or_insert(plan);
        plan.run(&self.device, upload, download)?;
        let segment = &mut self.segments[number];
        let ops = match &mut segment.profiler {
            Some(profiler) => {
                for ((start, elapsed), cost) in plan.times(&self.device)?.into_iter().zip(costs) {
                    profiler.record_elapsed(start, elapsed, cost);
                }
                profiler.finish()
            }
            None => Vec::new(),
        };
        let mut values = segment.outputs.read(&self.buffers.work, self.buffers.output_staging.as_ref(), &batch);
        // The hidden values are the first output.
        let hidden = if segment.graph.hidden().is_some() { values.remove(0) } else { Vec::new() };
        let mut sampled = Vec::new();
        if let Some(logits) = &segment.logits {
            let tokens = values.pop().unwrap_or_default();
            let of_sequence = |(rows, sampling): (Range<usize>, Option<_>)| {
                sampling.map(|_| SampledToken::of_value(tokens[rows.start]))
            };
            sampled.extend(wanted(step).map(of_sequence));
            values.push(logits.read(&self.buffers.work, &logits_rows));
        }
        Ok(StageOutput { values, hidden, sampled, ops })
    }

    fn record_context(&self) -> RecordContext<'_> {
        RecordContext {
            device: &self.device,
            pool: &self.pool,
            weights: &self.weights,
            cache: &self.cache,
            adapters: &self.adapters.regions,
            buffers: &self.buffers,
            deterministic: self.options.deterministic,
        }
    }

    /// The minimum work of each op of a graph for a step.
    fn costs(&self, graph: &Graph, batch: &Batch<'_>) -> Vec<Cost> {
        let of_node = |node| node_cost(graph, node, Kernel::Scalar, *batch, &self.cache.position_bytes);
        graph.nodes().iter().map(of_node).collect()
    }
}

/// The sampling parameters of each selected row of a step, encoded as the input of a graph that samples tokens.
fn sampling_words(step: &Step) -> Vec<f32> {
    let of_rows =
        |(rows, sampling): (Range<usize>, Option<_>)| rows.flat_map(move |_| sample_token::words(sampling.as_ref()));
    wanted(step).flat_map(of_rows).collect()
}

/// The ranges of selected rows from which the device samples no token.
fn unsampled_rows(step: &Step) -> Vec<Range<usize>> {
    wanted(step).filter(|(_, sampling)| sampling.is_none()).map(|(rows, _)| rows).collect()
}

impl PipelineStage for VulkanStage {
    fn run(&mut self, segment: usize, step: &Step, inputs: &[Vec<f32>]) -> Result<StageOutput, EngineError> {
        self.rows.fill(step);
        self.compute(segment, step, inputs).map_err(|error| EngineError::DeviceLost(error.to_string()))
    }

    fn expert_upload(&self) -> Result<Box<dyn ExpertUpload>, EngineError> {
        let pools = self.segments.iter().enumerate().filter_map(|(number, segment)| {
            let pool = segment.graph.nodes().first()?.op.as_experts().filter(|pool| pool.uses_slots())?;
            Some((number, self.weights.pool_buffers(segment.first_op, pool)))
        });
        let upload = DeviceUpload::new(&self.device, &self.weights.arena, pools.collect());
        upload.map(|upload| Box::new(upload) as _).map_err(|error| EngineError::DeviceLost(error.to_string()))
    }

    fn segments(&self) -> usize {
        self.segments.len()
    }

    fn cost(&self, segment: usize, step: &Step) -> Cost {
        let mut rows = RaggedRows::default();
        rows.fill(step);
        let of_sequences = OfSequences::new(step);
        let batch = rows.batch(&of_sequences);
        self.costs(&self.segments[segment].graph, &batch).into_iter().sum()
    }

    fn unit_bytes(&self) -> UnitBytes {
        self.cache.unit_bytes()
    }

    fn read_units(&mut self, copies: &mut [(CacheUnit, &mut [u8])]) -> Result<(), EngineError> {
        let read = self.cache_copies.read(&self.device, &self.cache, copies);
        read.map_err(|error| EngineError::DeviceLost(error.to_string()))
    }

    fn write_units(&mut self, contents: &[(CacheUnit, &[u8])]) -> Result<(), EngineError> {
        let written = self.cache_copies.write(&self.device, &self.cache, contents);
        written.map_err(|error| EngineError::DeviceLost(error.to_string()))
    }
}

impl Drop for VulkanStage {
    fn drop(&mut self) {
        self.device.settle();
    }
}
