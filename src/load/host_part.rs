//! Experts that the CPU computes for a model on a device: their choice, their memory, and how they are built.

use cuelight_shaders::experts::Experts;
use cuelight_shaders::op::Op;
use cuelight_shaders::weight::Weight;

use super::error::LoadError;
use super::expert_cache::{self, PlannedPool};
use super::options::LoadOptions;
use super::part::{ModelPart, Target, make_resident};
use crate::backend::cpu;
use crate::backend::offload::{ExpertCache, ExpertPool, OffloadedEngine};
use crate::backend::stage::PipelineStage;
use crate::backend::vulkan::{self, Footprint};
use crate::cancel::LoadCancelled;
use crate::device::CpuExperts;
use crate::engine::{EngineError, EngineLimits};
use crate::experts::HostExperts;
use crate::graph::{Graph, Handover};
use crate::memory::{self, BlockBytes, MemoryBreakdown, MemoryRequest};

/// Experts that the CPU computes for a model on a device.
pub(super) struct HostPart {
    pub layers: Vec<Experts>,
    /// How values pass between the graphs of the device's part.
    pub handovers: Vec<Handover>,
    /// Number of layers with experts in the whole model.
    pub of_layers: usize,
    /// The pools of the device's expert cache.
    pub pools: Vec<ExpertPool>,
}

impl HostPart {
    pub fn describe(&self, options: &LoadOptions) -> String {
        let (layers, of_layers) = (self.layers.len(), self.of_layers);
        let device = cpu::describe(options.kernel, options.activation_bits, options.threads);
        let experts: usize = self.layers.iter().map(Experts::n_experts).sum();
        let slots: usize = self.pools.iter().map(|pool| pool.slots - pool.stream_slots).sum();
        let at_once = self.pools.iter().map(|pool| pool.stream_slots).filter(|slots| *slots > 0).min();
        let streamed = at_once.map(|slots| format!(", {slots} more at a time for long prompts")).unwrap_or_default();
        let cached = format!(", and any {slots} of these {experts} also in the device's cache{streamed}");
        let cached = if slots > 0 { &cached } else { "" };
        format!("the experts of {layers} of {of_layers} layers on {device}{cached}")
    }

    pub fn footprint(&self, options: &LoadOptions, limits: &EngineLimits) -> Footprint {
        let weights = self.layers.iter().filter(|layer| !layer.is_left_in_file()).map(stored_bytes);
        let overhead = self.layers.iter().map(|layer| layer.repack_overhead_bytes(options.kernel));
        let rows = limits.max_batched_tokens;
        let scratch = self.layers.iter().map(|layer| layer.scratch_len(options.kernel, rows, 0)).max();
        let scratch = (scratch.unwrap_or(0) * size_of::<f32>()) as u64 + self.upload_buffer_bytes(options);
        Footprint {
            weights: weights.chain(overhead).sum(),
            scratch,
            adapters: 0,
            kv_block: BlockBytes::default(),
            state_slot: 0,
        }
    }

    /// Bytes of the staging buffers for expert uploads.
    fn upload_buffer_bytes(&self, options: &LoadOptions) -> u64 {
        let of_pools = self.pools.iter().flat_map(|pool| &pool.layers);
        let most = of_pools.map(|layer| self.layers[*layer].expert_bytes()).max().unwrap_or(0);
        vulkan::upload_bytes(most) * upload_threads(options) as u64
    }

    /// Bytes of the stored weights that the kernels repack, and so copy, and that are in no file to which their memory could be
    /// released.
    pub fn retained_bytes(&self, options: &LoadOptions) -> u64 {
        let weights =
            self.layers.iter().flat_map(|layer| layer.weights().into_iter().map(move |weight| (layer, weight)));
        let retained = weights.filter(|(layer, weight)| layer.repacks(options.kernel, weight) && !weight.is_in_file());
        retained.map(|(_, weight)| weight.byte_len() as u64).sum()
    }

    /// Builds the engine on the device, which leaves these experts to the host, and the experts on the host.
    pub fn build(
        self,
        stage: Box<dyn PipelineStage>,
        options: &LoadOptions,
        limits: EngineLimits,
        done: &mut dyn FnMut(&Weight) -> Result<(), LoadCancelled>,
    ) -> Result<(OffloadedEngine, HostExperts), LoadError> {
        let rows = limits.max_batched_tokens;
        let experts = HostExperts::new(self.layers, options.kernel, options.threads, rows, &mut |op, weight| {
            make_resident(op, weight, options.kernel);
            done(weight)
        })?;
        let experts = experts.with_activation_bits(options.activation_bits).with_tuning(options.tuning);
        if self.pools.is_empty() {
            return Ok((OffloadedEngine::new(stage, self.handovers, limits), experts));
        }
        let upload_error = |error: EngineError| LoadError::Upload(error.to_string());
        let uploads = (0..upload_threads(options)).map(|_| stage.expert_upload());
        let uploads = uploads.collect::<Result<Vec<_>, _>>().map_err(upload_error)?;
        let layers = experts.layers().to_vec();
        let streamed = self.pools.iter().filter(|pool| pool.stream_slots > 0).flat_map(|pool| &pool.layers);
        let bytes = streamed.map(|layer| (layers[*layer].expert_bytes() * layers[*layer].n_experts()) as u64).sum();
        let cache = ExpertCache::new(layers, self.pools, uploads)?;
        let engine = OffloadedEngine::new(stage, self.handovers, limits);
        Ok((engine.with_cache(cache, options.expert_streaming, bytes), experts))
    }
}

/// Threads that upload experts to a device. A few saturate any bus.
fn upload_threads(options: &LoadOptions) -> usize {
    const MOST: usize = 4;
    options.threads.clamp(1, MOST)
}

/// Removes the experts that the options leave to the CPU from a part, if there are any.
pub(super) fn take_from(
    part: &mut ModelPart,
    options: &LoadOptions,
    limits: &EngineLimits,
    request: &MemoryRequest,
) -> Result<Option<HostPart>, LoadError> {
    // On the CPU the part computes its own experts, unless the options request them to be separate.
    if matches!((&part.target, options.cpu_experts), (Target::Cpu, CpuExperts::Auto)) {
        return Ok(None);
    }
    let Some(graph) = part.graphs.first() else { return Ok(None) };
    let with_experts: Vec<usize> =
        (0..graph.nodes().len()).filter(|index| graph.nodes()[*index].op.as_experts().is_some()).collect();
    let of_layers = with_experts.len();
    let count = match options.cpu_experts {
        CpuExperts::All => of_layers,
        CpuExperts::Layers(count) => count.min(of_layers),
        CpuExperts::Auto => fewest_on_host(part, &with_experts, options, limits, request),
    };
    if count == 0 {
        return Ok(None);
    }
    let Some(graph) = part.graphs.pop() else { return Ok(None) };
    let cut = graph.cut_out(&with_experts[..count]);
    let layers: Vec<Experts> = cut.removed.iter().filter_map(|op| op.as_experts().cloned()).collect();
    part.graphs = cut.parts;
    part.graphs.extend(cut.parallel);
    let pools = add_pools(part, &layers, options)?;
    Ok(Some(HostPart { layers, handovers: cut.handovers, of_layers, pools }))
}

/// Adds the graphs of the device's expert cache to a part, if the options request a cache.
fn add_pools(part: &mut ModelPart, layers: &[Experts], options: &LoadOptions) -> Result<Vec<ExpertPool>, LoadError> {
    let (Some(bytes), Target::Vulkan(info, _)) = (options.expert_cache_bytes, &part.target) else {
        return Ok(Vec::new());
    };
    let mut pools = Vec::new();
    let planned = expert_cache::pools(layers, bytes, info.max_allocation_bytes, options.expert_streaming)?;
    for PlannedPool { experts, slots, stream_slots, layers } in planned {
        let widths = [experts.hidden_size(), experts.routes_width()];
        pools.push(ExpertPool { segment: part.graphs.len(), slots, stream_slots, layers });
        part.graphs.push(Graph::of_op(experts, &widths).expect("experts take rows and routes of these widths"));
    }
    Ok(pools)
}

/// The fewest layers, counted from the first, whose experts must move to the CPU so that the rest and a KV cache of a fair
/// size fit on the device. `experts` are the indices of the expert ops.
fn fewest_on_host(
    part: &ModelPart,
    experts: &[usize],
    options: &LoadOptions,
    limits: &EngineLimits,
    request: &MemoryRequest,
) -> usize {
    const FAIR_CONTEXT: usize = 8192;
    let whole = part.footprint(options, limits);
    let bytes_of = |index: &usize| vulkan::weights_bytes(&[&*part.graphs[0].nodes()[*index].op]);
    let mut weights = whole.weights;
    // Rows and routes to the experts, their outputs, the residual stream both ways, and values computed in the meantime.
    let exchanged = |experts: &Experts| {
        let widths = 5 * experts.hidden_size() + 3 * experts.top_k();
        (limits.max_batched_tokens * widths * size_of::<f32>()) as u64
    };
    let exchanged = part.graphs[0].nodes().iter().filter_map(|node| node.op.as_experts()).map(exchanged).max();
    let context = request.context_tokens.unwrap_or(request.context_train).min(FAIR_CONTEXT);
    for (count, layer) in experts.iter().enumerate() {
        let cache = options.expert_cache_bytes.filter(|_| count > 0).unwrap_or(0);
        let plan = memory::plan(&MemoryRequest {
            fixed: MemoryBreakdown {
                weights: weights + cache,
                adapters: whole.adapters,
                scratch: whole.scratch + if count > 0 { exchanged.unwrap_or(0) } else { 0 },
                ..request.fixed
            },
            block_bytes: whole.kv_block,
            slot_bytes: whole.state_slot,
            limit_bytes: options.device_bytes,
            available_bytes: part.target.available_bytes(),
            ..request.clone()
        });
        if plan.is_ok_and(|plan| plan.context_tokens >= context) {
            return count;
        }
        weights = weights.saturating_sub(bytes_of(layer));
    }
    experts.len()
}

/// Bytes of a layer's experts in their stored format.
pub(super) fn stored_bytes(experts: &Experts) -> u64 {
    experts.weights().into_iter().map(|weight| weight.byte_len() as u64).sum()
}
