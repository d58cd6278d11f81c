//! Experts that the processor computes for a model on a device: which ones, what they take, and how they get there.

use cuelight_shaders::experts::Experts;
use cuelight_shaders::op::Op;
use cuelight_shaders::weight::Weight;

use super::expert_cache::{self, PlannedPool};
use super::part::{Part, Target, ready};
use super::{LoadError, LoadOptions};
use crate::backend::cpu;
use crate::backend::offload::{ExpertCache, ExpertPool, OffloadedEngine};
use crate::backend::stage::Stage;
use crate::backend::vulkan::{self, Footprint};
use crate::device::CpuExperts;
use crate::engine::{EngineError, EngineLimits};
use crate::experts::HostExperts;
use crate::graph::{Graph, Handover};
use crate::memory::{self, Request};

/// Experts that the processor computes for a model on a device.
pub(super) struct HostPart {
    pub layers: Vec<Experts>,
    /// Between the pieces of the device's part.
    pub handovers: Vec<Handover>,
    /// Layers with experts in the whole model.
    pub of_layers: usize,
    /// Room on the device for some of them.
    pub pools: Vec<ExpertPool>,
}

impl HostPart {
    pub fn describe(&self, options: &LoadOptions) -> String {
        let (layers, of_layers) = (self.layers.len(), self.of_layers);
        let device = cpu::describe(options.kernel, options.activation_bits, options.threads);
        let experts: usize = self.layers.iter().map(Experts::n_experts).sum();
        let places: usize = self.pools.iter().map(|pool| pool.places - pool.stream_places).sum();
        let at_once = self.pools.iter().map(|pool| pool.stream_places).filter(|places| *places > 0).min();
        let streamed = at_once.map(|places| format!(", {places} more at a time for long prompts")).unwrap_or_default();
        let cached = format!(", and any {places} of these {experts} also in the device's cache{streamed}");
        let cached = if places > 0 { &cached } else { "" };
        format!("the experts of {layers} of {of_layers} layers on {device}{cached}")
    }

    pub fn footprint(&self, options: &LoadOptions, limits: &EngineLimits) -> Footprint {
        let weights = self.layers.iter().filter(|layer| !layer.is_left_in_file()).map(stored_bytes);
        let growth = self.layers.iter().map(|layer| layer.growth(options.kernel));
        let rows = limits.max_batched_tokens;
        let scratch = self.layers.iter().map(|layer| layer.scratch_len(options.kernel, rows, 0)).max();
        let scratch = (scratch.unwrap_or(0) * size_of::<f32>()) as u64 + self.on_their_way(options);
        Footprint { weights: weights.chain(growth).sum(), scratch, kv_block: 0 }
    }

    /// Bytes of the memory through which experts come to the device.
    fn on_their_way(&self, options: &LoadOptions) -> u64 {
        let of_pools = self.pools.iter().flat_map(|pool| &pool.layers);
        let most = of_pools.map(|layer| self.layers[*layer].expert_bytes()).max().unwrap_or(0);
        vulkan::upload_bytes(most) * upload_threads(options) as u64
    }

    pub fn copied_bytes(&self, options: &LoadOptions) -> u64 {
        let replaced =
            |layer: &&Experts| layer.weights().into_iter().any(|weight| layer.replaces(options.kernel, weight));
        self.layers.iter().filter(replaced).map(stored_bytes).sum()
    }

    /// The engine on a device, which hands these experts out, and those who compute them.
    pub fn build(
        self,
        stage: Box<dyn Stage>,
        options: &LoadOptions,
        limits: EngineLimits,
        done: &mut dyn FnMut(&Weight),
    ) -> Result<(OffloadedEngine, HostExperts), LoadError> {
        let rows = limits.max_batched_tokens;
        let experts = HostExperts::new(self.layers, options.kernel, options.threads, rows, &mut |op, weight| {
            ready(op, weight, options.kernel);
            done(weight);
        });
        let experts = experts.with_activation_bits(options.activation_bits);
        if self.pools.is_empty() {
            return Ok((OffloadedEngine::new(stage, self.handovers, limits), experts));
        }
        let lost = |error: EngineError| LoadError::Upload(error.to_string());
        let uploads = (0..upload_threads(options)).map(|_| stage.expert_upload());
        let uploads = uploads.collect::<Result<Vec<_>, _>>().map_err(lost)?;
        let layers = experts.layers().to_vec();
        let streamed = self.pools.iter().filter(|pool| pool.stream_places > 0).flat_map(|pool| &pool.layers);
        let bytes = streamed.map(|layer| (layers[*layer].expert_bytes() * layers[*layer].n_experts()) as u64).sum();
        let cache = ExpertCache::new(layers, self.pools, uploads)?;
        let engine = OffloadedEngine::new(stage, self.handovers, limits);
        Ok((engine.with_cache(cache, options.expert_streaming, bytes), experts))
    }
}

/// Threads that bring experts to a device: few keep any bus busy.
fn upload_threads(options: &LoadOptions) -> usize {
    const MOST: usize = 4;
    options.threads.clamp(1, MOST)
}

impl Part {
    /// Takes out the experts that the options leave to the processor, if any.
    pub fn hand_experts_out(
        &mut self,
        options: &LoadOptions,
        limits: &EngineLimits,
        request: &Request,
    ) -> Result<Option<HostPart>, LoadError> {
        // On the processor they are its own already, unless somebody wants them apart.
        if matches!((&self.target, options.cpu_experts), (Target::Cpu, CpuExperts::Auto)) {
            return Ok(None);
        }
        let Some(graph) = self.graphs.first() else { return Ok(None) };
        let with_experts: Vec<usize> =
            (0..graph.nodes().len()).filter(|index| graph.nodes()[*index].op.as_experts().is_some()).collect();
        let of_layers = with_experts.len();
        let count = match options.cpu_experts {
            CpuExperts::All => of_layers,
            CpuExperts::Layers(count) => count.min(of_layers),
            CpuExperts::Auto => self.fewest_handed_out(&with_experts, options, limits, request),
        };
        if count == 0 {
            return Ok(None);
        }
        let Some(graph) = self.graphs.pop() else { return Ok(None) };
        let cut = graph.cut_out(&with_experts[..count]);
        let layers: Vec<Experts> = cut.removed.iter().filter_map(|op| op.as_experts().cloned()).collect();
        self.graphs = cut.parts;
        self.graphs.extend(cut.beside);
        let pools = self.add_pools(&layers, options)?;
        Ok(Some(HostPart { layers, handovers: cut.handovers, of_layers, pools }))
    }

    /// Adds the pieces of the device's cache of experts, if it is to have one.
    fn add_pools(&mut self, layers: &[Experts], options: &LoadOptions) -> Result<Vec<ExpertPool>, LoadError> {
        let (Some(bytes), Target::Vulkan(info, _)) = (options.expert_cache_bytes, &self.target) else {
            return Ok(Vec::new());
        };
        let mut pools = Vec::new();
        let planned = expert_cache::pools(layers, bytes, info.max_allocation_bytes, options.expert_streaming)?;
        for PlannedPool { experts, places, stream_places, layers } in planned {
            let widths = [experts.hidden_size(), experts.routes_width()];
            pools.push(ExpertPool { piece: self.graphs.len(), places, stream_places, layers });
            self.graphs.push(Graph::of_op(experts, &widths).expect("it takes rows and routes of these widths"));
        }
        Ok(pools)
    }

    /// With how few layers' experts on the processor, the first ones, the rest and a fair KV cache have room on the device.
    fn fewest_handed_out(
        &self,
        experts: &[usize],
        options: &LoadOptions,
        limits: &EngineLimits,
        request: &Request,
    ) -> usize {
        const FAIR_CONTEXT: usize = 8192;
        let whole = self.footprint(options, limits);
        let bytes_of = |index: &usize| vulkan::weights_bytes(&[&*self.graphs[0].nodes()[*index].op]);
        let mut weights = whole.weights;
        // What goes out to the experts and what comes back, with the residual stream both ways and what is made beside.
        let handed_out = |experts: &Experts| {
            let widths = 5 * experts.hidden_size() + 3 * experts.top_k();
            (limits.max_batched_tokens * widths * size_of::<f32>()) as u64
        };
        let handed_out = self.graphs[0].nodes().iter().filter_map(|node| node.op.as_experts()).map(handed_out).max();
        let context = request.context_tokens.unwrap_or(request.context_train).min(FAIR_CONTEXT);
        for (count, layer) in experts.iter().enumerate() {
            let cache = options.expert_cache_bytes.filter(|_| count > 0).unwrap_or(0);
            let plan = memory::plan(&Request {
                weights_bytes: weights + cache,
                scratch_bytes: whole.scratch + if count > 0 { handed_out.unwrap_or(0) } else { 0 },
                block_bytes: whole.kv_block,
                limit_bytes: options.device_bytes,
                available_bytes: self.target.available_bytes(),
                ..request.clone()
            });
            if plan.is_ok_and(|plan| plan.context_tokens >= context) {
                return count;
            }
            weights = weights.saturating_sub(bytes_of(layer));
        }
        experts.len()
    }
}

/// Bytes of a layer's experts as they are stored.
pub(super) fn stored_bytes(experts: &Experts) -> u64 {
    experts.weights().into_iter().map(|weight| weight.bytes().len() as u64).sum()
}
