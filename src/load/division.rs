//! Divides a model among the chosen devices, plans the memory of each and builds the engine.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cuelight_shaders::experts::{Experts, Reader};
use cuelight_shaders::layer_state::LayerState;
use cuelight_shaders::op::Op;
use cuelight_shaders::weight::Weight;

use super::error::LoadError;
use super::host_part::{self, HostPart, stored_bytes};
use super::options::LoadOptions;
use super::part::{HostOps, ModelPart, Target};
use super::progress::LoadProgress;
use crate::backend::stage::StagedEngine;
use crate::backend::vulkan::Footprint;
use crate::cancel::LoadCancel;
use crate::device::{ComputeDevice, CpuExperts, ExpertStreaming, Shares};
use crate::engine::{Engine, EngineLimits};
use crate::experts::HostExperts;
use crate::graph::Graph;
use crate::memory::{self, BlockBytes, MemoryBreakdown, MemoryId, MemoryPlan, MemoryRequest, TooLarge};
use crate::model::ModelGraph;
use crate::placement::{self, Split};

/// A model divided among its devices, and the experts that the CPU computes for a device.
pub(super) struct Division {
    pub parts: Vec<ModelPart>,
    pub host: Option<HostPart>,
}

/// How many replicas of a model share each memory, by [`Target::memory`]; 1 for a memory without an entry.
#[derive(Debug, Clone, Default)]
pub(super) struct Sharers(pub HashMap<MemoryId, u64>);

impl Sharers {
    fn of(&self, memory: &MemoryId) -> u64 {
        self.0.get(memory).copied().unwrap_or(1)
    }
}

/// Divides a model among the chosen devices. Opens no device.
pub(super) fn divide(
    model: ModelGraph,
    options: &LoadOptions,
    limits: &EngineLimits,
    request: &MemoryRequest,
) -> Result<Division, LoadError> {
    let (devices, split) = devices_and_split(&model.graph, options)?;
    let mut targets = devices.iter().map(|device| Target::find(*device, options)).collect::<Result<Vec<_>, _>>()?;
    check_expert_cache(&targets, options)?;
    if targets.len() == 1 {
        let ModelGraph { graph, encoder_rows, states, weights_bytes, .. } = model;
        let target = targets.remove(0);
        let (host_ops, graph, states) = host_ops(&target, graph, states);
        let graph = target.fuse(target.with_token_sampling(graph, limits));
        let mut whole = ModelPart { target, graphs: vec![graph], states, host_ops, weights_bytes };
        let host = host_part::take_from(&mut whole, options, limits, request)?;
        whole.graphs.extend(encoder_rows.map(|graph| whole.target.fuse(graph)));
        return Ok(Division { parts: vec![whole], host });
    }
    if model.encoder_rows.is_some() {
        return Err(LoadError::EncoderWithSplit { device: options.device.to_string() });
    }
    if !matches!(options.cpu_experts, CpuExperts::Auto | CpuExperts::Layers(0)) {
        return Err(LoadError::CpuExpertsWithSplit);
    }
    let split = split.unwrap_or_else(|| {
        let free = targets.iter().map(|target| target.available_bytes().map_or(1.0, |bytes| bytes.max(1) as f64));
        Split::Shares(free.collect())
    });
    let cuts = placement::cuts(&model.graph, &split, targets.len())?;
    let mut graphs = model.graph.split(&cuts);
    if let (Some(target), Some(last)) = (targets.last(), graphs.pop()) {
        graphs.push(target.with_token_sampling(last, limits));
    }
    let part = |(target, graph): (Target, Graph)| {
        let states = own_layers(&graph, &model.states);
        let (host_ops, graph, states) = host_ops(&target, graph, states);
        let (weights_bytes, graphs) = (distinct_bytes(&graph), vec![target.fuse(graph)]);
        ModelPart { target, states, host_ops, weights_bytes, graphs }
    };
    Ok(Division { parts: targets.into_iter().zip(graphs).map(part).collect(), host: None })
}

/// Checks that an expert cache has one Vulkan device that has all layers.
fn check_expert_cache(targets: &[Target], options: &LoadOptions) -> Result<(), LoadError> {
    match (options.expert_cache_bytes, targets) {
        (None, _) => match options.expert_streaming {
            ExpertStreaming::FromRows(rows) => Err(LoadError::StreamingWithoutCache { rows }),
            ExpertStreaming::Auto | ExpertStreaming::Off => Ok(()),
        },
        (Some(_), [Target::Vulkan(..)]) if options.deterministic => Err(LoadError::ExpertCacheWithDeterministic),
        (Some(_), [Target::Vulkan(..)]) => Ok(()),
        (Some(_), _) => Err(LoadError::ExpertCacheWithoutDevice),
    }
}

/// The devices and split of the options; no split if the devices' free memory decides.
fn devices_and_split(graph: &Graph, options: &LoadOptions) -> Result<(Vec<ComputeDevice>, Option<Split>), LoadError> {
    let devices = options.device.0.clone();
    let shares = options.split.clone().map(|Shares(shares)| Split::Shares(shares));
    match (options.gpu_layers, &devices[..]) {
        (None, _) => Ok((devices, shares)),
        (Some(_), [ComputeDevice::Vulkan(_)]) if options.split.is_some() => Err(LoadError::GpuLayersWithSplit),
        (Some(0), [ComputeDevice::Vulkan(_)]) => Ok((vec![ComputeDevice::Cpu], None)),
        (Some(count), [ComputeDevice::Vulkan(_)]) if count >= placement::layers(graph) => Ok((devices, None)),
        (Some(count), [device @ ComputeDevice::Vulkan(_)]) => {
            Ok((vec![ComputeDevice::Cpu, *device], Some(Split::LastLayers(count))))
        }
        (Some(_), _) => Err(LoadError::GpuLayersWithoutGpu { device: options.device.to_string() }),
    }
}

/// Divides a graph for another device than the CPU into the ops that run on the host, if it has any, and the others, with what the
/// layers of the others store.
fn host_ops(target: &Target, graph: Graph, states: Vec<LayerState>) -> (Option<HostOps>, Graph, Vec<LayerState>) {
    let count = graph.nodes().iter().take_while(|node| node.op.runs_on_host()).count();
    if count == 0 || matches!(target, Target::Cpu) {
        return (None, graph, states);
    }
    let mut parts = graph.split(&[count]).into_iter();
    let [first, rest] = [parts.next(), parts.next()].map(Option::unwrap_or_default);
    let [of_first, of_rest] = [&first, &rest].map(|graph| own_layers(graph, &states));
    (Some(HostOps { graph: first, states: of_first }), rest, of_rest)
}

/// What a graph's layers store; other layers store nothing.
fn own_layers(graph: &Graph, states: &[LayerState]) -> Vec<LayerState> {
    let own: HashSet<usize> = graph.nodes().iter().filter_map(|node| node.op.state_layer()).collect();
    let state = |(layer, state): (usize, &LayerState)| if own.contains(&layer) { *state } else { LayerState::NONE };
    states.iter().enumerate().map(state).collect()
}

/// Bytes of a graph's weights, each counted once.
fn distinct_bytes(graph: &Graph) -> u64 {
    let weights = graph.nodes().iter().flat_map(|node| node.op.weights());
    let bytes: HashMap<_, _> = weights.map(|weight| (&weight.name, weight.byte_len() as u64)).collect();
    bytes.values().sum()
}

impl Division {
    /// The devices for people: "cpu (avx2, 2 threads)"; several are joined by plus signs.
    pub fn describe(&self, options: &LoadOptions) -> String {
        let parts = self.parts.iter().map(|part| part.target.describe(options));
        let host = self.host.as_ref().map(|host| host.describe(options));
        parts.chain(host).collect::<Vec<_>>().join(" + ")
    }

    /// The memories of its parts, of its draft model and of its encoders, each once. Every model uses the host's: it has the vocabulary, requests and copies of KV blocks.
    pub fn memories(&self, options: &LoadOptions) -> Vec<MemoryId> {
        let of_parts = self.parts.iter().map(|part| part.target.memory(options));
        let of_draft = options.draft.iter().chain(&options.media).map(|companion| companion.memory.clone());
        let mut memories: Vec<MemoryId> = of_parts.chain(of_draft).chain([MemoryId::Host]).collect();
        memories.sort();
        memories.dedup();
        memories
    }

    /// Plans the memory of all parts: first each memory with all parts in it, then as many KV blocks as the smallest allows.
    ///
    /// `request` has the bytes that do not depend on a device. Copied weights that are in no file stay in host memory. Replicas
    /// that share a memory get equal parts of it.
    pub fn plan_memory(
        &self,
        options: &LoadOptions,
        limits: &EngineLimits,
        request: &MemoryRequest,
        sharers: &Sharers,
    ) -> Result<MemoryPlan, TooLarge> {
        let footprints: Vec<Footprint> = self.parts.iter().map(|part| part.footprint(options, limits)).collect();
        let all_blocks: u64 = footprints.iter().map(|footprint| footprint.kv_block.total()).sum();
        let on_host = self.host.as_ref().map(|host| host.footprint(options, limits));
        // Pages of weights that a device copies are released to the file. Without a file they stay in host memory.
        let retained = self.parts.iter().map(|part| part.retained_bytes(options));
        let retained: u64 = retained.chain(self.host.as_ref().map(|host| host.retained_bytes(options))).sum();
        let mut plans = Vec::new();
        for memory in self.memories(options) {
            let is_host = memory == MemoryId::Host;
            let share = |bytes: u64| bytes / sharers.of(&memory);
            let parts = self.parts.iter().zip(&footprints);
            let here = || parts.clone().filter(|(part, _)| part.target.memory(options) == memory);
            let footprints = || here().map(|(_, footprint)| *footprint).chain(on_host.filter(|_| is_host));
            let block_bytes: BlockBytes = footprints().map(|footprint| footprint.kv_block).sum();
            let part = u128::from(block_bytes.total());
            let of_kv = |bytes: u64| (u128::from(bytes) * part / u128::from(all_blocks.max(1))) as u64;
            let weights: u64 = footprints().map(|footprint| footprint.weights).sum();
            let tied: u64 = here().map(|(part, _)| part.tied_bytes(options)).sum();
            let adapters: u64 = footprints().map(|footprint| footprint.adapters).sum();
            let in_host = if is_host { retained + tied } else { 0 };
            let available = here().filter_map(|(part, _)| part.target.available_bytes()).min();
            let used = MemoryBreakdown {
                weights: weights + in_host,
                adapters,
                draft: options.draft.iter().filter(|it| it.memory == memory).map(|it| it.bytes).sum(),
                media: options.media.iter().filter(|it| it.memory == memory).map(|it| it.bytes).sum(),
                scratch: footprints().map(|footprint| footprint.scratch).sum(),
                ..MemoryBreakdown::default()
            };
            let mut plan = memory::plan(&MemoryRequest {
                fixed: if is_host { request.fixed + used } else { used },
                block_bytes,
                slot_bytes: footprints().map(|footprint| footprint.state_slot).sum(),
                kv_bytes: request.kv_bytes.map(of_kv).filter(|_| block_bytes.total() > 0),
                limit_bytes: if is_host { request.limit_bytes } else { options.device_bytes }.map(share),
                available_bytes: available.or_else(|| is_host.then(memory::available).flatten()).map(share),
                memory: memory.clone(),
                ..request.clone()
            })?;
            if block_bytes.total() == 0 && all_blocks > 0 {
                // Another memory has the blocks.
                plan.kv_blocks = usize::MAX;
            }
            plans.push(plan);
        }
        Ok(MemoryPlan::together(plans))
    }

    /// Leaves the experts of some layers in the file, from the last layer backwards and as few as possible, until the rest fits.
    /// They are read from the file when rows use them. `None` if even that is not enough.
    pub fn leave_experts_in_file(
        &mut self,
        options: &LoadOptions,
        limits: &EngineLimits,
        request: &MemoryRequest,
        sharers: &Sharers,
    ) -> Option<MemoryPlan> {
        let on_cpu = |part: &ModelPart| matches!(part.target, Target::Cpu);
        let mut layers = self.experts_in_file().count();
        while layers > 0 {
            layers -= 1;
            if let Some(experts) = self.experts_in_file().nth(layers) {
                experts.leave_in_file();
            }
            for part in self.parts.iter_mut().filter(|part| on_cpu(part)) {
                part.count_weights();
            }
            if let Ok(plan) = self.plan_memory(options, limits, request, sharers) {
                return Some(plan);
            }
        }
        None
    }

    /// The experts on the CPU whose weights are in a file.
    fn experts_in_file(&mut self) -> impl Iterator<Item = &mut Experts> {
        let parts = self.parts.iter_mut().filter(|part| matches!(part.target, Target::Cpu));
        let in_parts = parts.flat_map(|part| part.graphs.iter_mut().flat_map(Graph::experts_mut));
        let all = in_parts.chain(self.host.iter_mut().flat_map(|host| &mut host.layers));
        all.filter(|experts| experts.weights().into_iter().all(Weight::is_in_file))
    }

    /// Bytes of the weights in memory that are mapped from the file.
    pub fn mapped_bytes(&self, options: &LoadOptions) -> u64 {
        self.parts.iter().map(|part| part.mapped_bytes(options)).sum()
    }

    /// Bytes of the experts that are left in the file.
    pub fn in_file_bytes(&self) -> u64 {
        let in_parts = self.parts.iter().flat_map(|part| &part.graphs).flat_map(Graph::nodes);
        let in_parts = in_parts.filter_map(|node| node.op.as_experts());
        let layers = in_parts.chain(self.host.iter().flat_map(|host| &host.layers));
        layers.filter(|layer| layer.is_left_in_file()).map(stored_bytes).sum()
    }

    /// Adds ops that prefetch experts left in the file before they are computed.
    fn add_read_ahead(&mut self, options: &LoadOptions) -> Result<(), LoadError> {
        if self.in_file_bytes() == 0 {
            return Ok(());
        }
        for part in self.parts.iter_mut().filter(|part| matches!(part.target, Target::Cpu)) {
            let reader = Arc::new(Reader::start()?);
            let graphs = part.graphs.drain(..);
            part.graphs = graphs.map(|graph| graph.with_read_ahead(&reader, options.expert_read_ahead)).collect();
        }
        Ok(())
    }

    /// Builds the engine of all parts with its weights loaded, and the experts that it leaves to the host.
    /// `cache_description` says what copies of its cache contain.
    pub fn build(
        mut self,
        options: &LoadOptions,
        limits: EngineLimits,
        cache_description: String,
        cancel: &LoadCancel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(Box<dyn Engine>, Option<HostExperts>), LoadError> {
        let total_bytes = self.parts.iter().map(|part| part.weights_bytes).sum();
        let mut done_bytes = 0;
        progress(LoadProgress { done_bytes, total_bytes });
        self.add_read_ahead(options)?;
        // A matrix used as embedding and head is reported twice but counted once in the total.
        let mut done = |weight: &Weight| {
            done_bytes = (done_bytes + weight.byte_len() as u64).min(total_bytes);
            progress(LoadProgress { done_bytes, total_bytes });
            cancel.check()
        };
        let stages = self.parts.into_iter().map(|part| part.build(options, &limits, &mut done));
        let mut stages = stages.collect::<Result<Vec<_>, _>>()?;
        let (engine, experts): (Box<dyn Engine>, _) = match self.host {
            Some(host) if stages.len() == 1 => {
                let (engine, experts) = host.build(stages.remove(0), options, limits, &mut done)?;
                (Box::new(engine.with_cache_copies(cache_description)), Some(experts))
            }
            _ => {
                let engine = StagedEngine::new(stages, limits)?;
                (Box::new(engine.with_cache_copies(cache_description)), None)
            }
        };
        progress(LoadProgress { done_bytes: total_bytes, total_bytes });
        Ok((engine, experts))
    }
}
