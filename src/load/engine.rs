//! From a graph to an engine on the devices that were chosen: what it would take there, and then the engine itself.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cuelight_shaders::attention::{KvCache, KvShape};
use cuelight_shaders::cpu::Kernel;
use cuelight_shaders::experts::Experts;
use cuelight_shaders::op::Op;
use cuelight_shaders::weight::Weight;

use super::{LoadError, LoadOptions, LoadProgress};
use crate::backend::cpu::{self, CpuStage};
use crate::backend::offload::OffloadedEngine;
use crate::backend::stage::{Stage, StagedEngine};
use crate::backend::vulkan::{self, Device, DeviceInfo, ExecutionOptions, Footprint, Instance, VulkanStage};
use crate::device::{ComputeDevice, CpuExperts, Shares};
use crate::engine::{Engine, EngineLimits};
use crate::experts::HostExperts;
use crate::graph::{Graph, Handover, MemoryLayout, Node};
use crate::memory::{self, MemoryPlan, Request, TooLarge};
use crate::model::Model;
use crate::placement::{self, Split};

/// A device that a model, or a part of one, is planned for.
enum Target {
    Cpu,
    Vulkan(Box<DeviceInfo>, Arc<Instance>),
}

/// A part of a model, and the device that computes it.
pub(super) struct Part {
    target: Target,
    /// Its pieces: more than one where experts between them are computed elsewhere.
    graphs: Vec<Graph>,
    /// For each layer of the model its cache, without heads where the layer belongs to another part.
    kv_shapes: Vec<KvShape>,
    weights_bytes: u64,
}

/// A model divided among what computes it.
pub(super) struct Division {
    parts: Vec<Part>,
    host: Option<HostPart>,
}

/// Experts that the processor computes for a model on a device.
struct HostPart {
    layers: Vec<Experts>,
    /// Between the pieces of the device's part.
    handovers: Vec<Handover>,
    /// Layers with experts in the whole model.
    of_layers: usize,
}

/// Divides a model among the devices that were chosen. Nothing is opened yet.
pub(super) fn divide(
    model: Model,
    options: &LoadOptions,
    limits: &EngineLimits,
    request: &Request,
) -> Result<Division, LoadError> {
    let (devices, split) = devices_and_split(&model.graph, options)?;
    let mut targets = devices.iter().map(|device| Target::find(*device, options)).collect::<Result<Vec<_>, _>>()?;
    if targets.len() == 1 {
        let Model { graph, kv_shapes, weights_bytes, .. } = model;
        let target = targets.remove(0);
        let graph = target.let_choose(graph);
        let mut whole = Part { target, graphs: vec![graph], kv_shapes, weights_bytes };
        let host = whole.hand_experts_out(options, limits, request);
        return Ok(Division { parts: vec![whole], host });
    }
    if !matches!(options.cpu_experts, CpuExperts::Auto | CpuExperts::Layers(0)) {
        return Err(LoadError::ExpertsBesideSplit);
    }
    let split = split.unwrap_or_else(|| {
        let free = targets.iter().map(|target| target.available_bytes().map_or(1.0, |bytes| bytes.max(1) as f64));
        Split::Shares(free.collect())
    });
    let cuts = placement::cuts(&model.graph, &split, targets.len())?;
    let mut graphs = model.graph.split(&cuts);
    if let (Some(target), Some(last)) = (targets.last(), graphs.pop()) {
        graphs.push(target.let_choose(last));
    }
    let part = |(target, graph): (Target, Graph)| {
        let kv_shapes = own_layers(&graph, &model.kv_shapes);
        Part { target, kv_shapes, weights_bytes: distinct_bytes(&graph), graphs: vec![graph] }
    };
    Ok(Division { parts: targets.into_iter().zip(graphs).map(part).collect(), host: None })
}

/// What the options ask for; no split where the devices' free memory decides.
fn devices_and_split(graph: &Graph, options: &LoadOptions) -> Result<(Vec<ComputeDevice>, Option<Split>), LoadError> {
    let devices = options.device.0.clone();
    let shares = options.split.clone().map(|Shares(shares)| Split::Shares(shares));
    match (options.gpu_layers, &devices[..]) {
        (None, _) => Ok((devices, shares)),
        (Some(_), [ComputeDevice::Vulkan(_)]) if options.split.is_some() => Err(LoadError::GpuLayersBesideSplit),
        (Some(0), [ComputeDevice::Vulkan(_)]) => Ok((vec![ComputeDevice::Cpu], None)),
        (Some(count), [ComputeDevice::Vulkan(_)]) if count >= placement::layers(graph) => Ok((devices, None)),
        (Some(count), [device @ ComputeDevice::Vulkan(_)]) => {
            Ok((vec![ComputeDevice::Cpu, *device], Some(Split::LastLayers(count))))
        }
        (Some(_), _) => Err(LoadError::GpuLayersWithoutGpu { device: options.device.to_string() }),
    }
}

/// The caches of the layers that a graph has, and none for the others.
fn own_layers(graph: &Graph, shapes: &[KvShape]) -> Vec<KvShape> {
    let own: HashSet<usize> = graph.nodes().iter().filter_map(|node| node.op.kv_layer()).collect();
    let shape = |(layer, shape): (usize, &KvShape)| {
        if own.contains(&layer) { *shape } else { KvShape { n_kv_heads: 0, ..*shape } }
    };
    shapes.iter().enumerate().map(shape).collect()
}

fn distinct_bytes(graph: &Graph) -> u64 {
    let weights = graph.nodes().iter().flat_map(|node| node.op.weights());
    let bytes: HashMap<_, _> = weights.map(|weight| (&weight.name, weight.bytes().len() as u64)).collect();
    bytes.values().sum()
}

impl Division {
    /// For people: "cpu (avx2, 2 threads)", or several of them with plus signs.
    pub fn describe(&self, options: &LoadOptions) -> String {
        let parts = self.parts.iter().map(|part| part.target.describe(options));
        let host = self.host.as_ref().map(|host| host.describe(options));
        parts.chain(host).collect::<Vec<_>>().join(" + ")
    }

    /// Plans the memory of all parts: those that share a memory together, and then as many blocks as the smallest has.
    ///
    /// `request` has what does not depend on a device. `unmade` is whether there is a file to give stored weights back to.
    pub fn plan_memory(
        &self,
        options: &LoadOptions,
        limits: &EngineLimits,
        request: &Request,
        unmade: bool,
    ) -> Result<MemoryPlan, TooLarge> {
        let footprints: Vec<Footprint> = self.parts.iter().map(|part| part.footprint(options, limits)).collect();
        let all_blocks: u64 = footprints.iter().map(|footprint| footprint.kv_block).sum();
        let on_host = self.host.as_ref().map(|host| host.footprint(options, limits));
        // What devices keep a copy of goes back to the file, if there is one, and else stays in the machine's memory.
        let copied = self.parts.iter().map(|part| part.copied_bytes(options));
        let copied: u64 = copied.chain(self.host.as_ref().map(|host| host.copied_bytes(options))).sum();
        let beside = if unmade { copied } else { 0 };
        let mut memories: Vec<Option<String>> =
            self.parts.iter().map(|part| part.target.own_memory(options)).chain(on_host.map(|_| None)).collect();
        memories.sort();
        memories.dedup();
        if !memories.contains(&None) {
            memory::check(beside, memory::available())?;
        }
        let mut plans = Vec::new();
        for own_memory in memories {
            let is_machine = own_memory.is_none();
            let parts = self.parts.iter().zip(&footprints);
            let here = || parts.clone().filter(|(part, _)| part.target.own_memory(options) == own_memory);
            let footprints = || here().map(|(_, footprint)| *footprint).chain(on_host.filter(|_| is_machine));
            let block_bytes: u64 = footprints().map(|footprint| footprint.kv_block).sum();
            let of_kv =
                |bytes: u64| (u128::from(bytes) * u128::from(block_bytes) / u128::from(all_blocks.max(1))) as u64;
            let weights: u64 = footprints().map(|footprint| footprint.weights).sum();
            let available = here().filter_map(|(part, _)| part.target.available_bytes()).min();
            let plan = memory::plan(&Request {
                weights_bytes: weights + if is_machine { beside } else { 0 },
                scratch_bytes: footprints().map(|footprint| footprint.scratch).sum(),
                block_bytes,
                kv_bytes: request.kv_bytes.map(of_kv).filter(|_| block_bytes > 0),
                limit_bytes: if is_machine { request.limit_bytes } else { options.device_bytes },
                available_bytes: available.or_else(|| is_machine.then(memory::available).flatten()),
                own_memory,
                ..request.clone()
            })?;
            plans.push((plan, block_bytes));
        }
        Ok(MemoryPlan::together(plans))
    }

    /// Leaves the experts of as few layers as possible in the file, the last ones, so that the rest has room: they are read
    /// from there as rows use them. `None`: even that would not help.
    pub fn leave_experts_in_file(
        &mut self,
        options: &LoadOptions,
        limits: &EngineLimits,
        request: &Request,
    ) -> Option<MemoryPlan> {
        let on_cpu = |part: &Part| matches!(part.target, Target::Cpu);
        let mut layers = self.experts_on_cpu().count();
        while layers > 0 {
            layers -= 1;
            if let Some(experts) = self.experts_on_cpu().nth(layers) {
                experts.leave_in_file();
            }
            for part in self.parts.iter_mut().filter(|part| on_cpu(part)) {
                part.count_weights();
            }
            if let Ok(plan) = self.plan_memory(options, limits, request, false) {
                return Some(plan);
            }
        }
        None
    }

    fn experts_on_cpu(&mut self) -> impl Iterator<Item = &mut Experts> {
        let parts = self.parts.iter_mut().filter(|part| matches!(part.target, Target::Cpu));
        let in_parts = parts.flat_map(|part| part.graphs.iter_mut().flat_map(Graph::experts_mut));
        in_parts.chain(self.host.iter_mut().flat_map(|host| &mut host.layers))
    }

    /// Bytes of the experts that are left in the file.
    pub fn in_file_bytes(&self) -> u64 {
        let in_parts = self.parts.iter().flat_map(|part| &part.graphs).flat_map(Graph::nodes);
        let in_parts = in_parts.filter_map(|node| node.op.as_experts());
        let layers = in_parts.chain(self.host.iter().flat_map(|host| &host.layers));
        layers.filter(|layer| layer.is_left_in_file()).map(stored_bytes).sum()
    }

    /// The engine of all parts, with its weights where they belong, and the experts that it hands out.
    pub fn build(
        self,
        options: &LoadOptions,
        limits: EngineLimits,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(Box<dyn Engine>, Option<HostExperts>), LoadError> {
        let total_bytes = self.parts.iter().map(|part| part.weights_bytes).sum();
        let mut done_bytes = 0;
        progress(LoadProgress { done_bytes, total_bytes });
        // A matrix that serves twice, as embedding and head, is counted once.
        let mut done = |weight: &Weight| {
            done_bytes = (done_bytes + weight.bytes().len() as u64).min(total_bytes);
            progress(LoadProgress { done_bytes, total_bytes });
        };
        let stages = self.parts.into_iter().map(|part| part.build(options, &limits, &mut done));
        let mut stages = stages.collect::<Result<Vec<_>, _>>()?;
        let host = self.host.map(|host| host.build(options, &limits, &mut done));
        progress(LoadProgress { done_bytes: total_bytes, total_bytes });
        match host {
            Some((experts, handovers)) if stages.len() == 1 => {
                let engine = OffloadedEngine::new(stages.remove(0), handovers, limits);
                Ok((Box::new(engine), Some(experts)))
            }
            _ => Ok((Box::new(StagedEngine::new(stages, limits)), None)),
        }
    }
}

impl HostPart {
    fn describe(&self, options: &LoadOptions) -> String {
        let (layers, of_layers) = (self.layers.len(), self.of_layers);
        let device = cpu::describe(options.kernel, options.threads);
        format!("the experts of {layers} of {of_layers} layers on {device}")
    }

    fn footprint(&self, options: &LoadOptions, limits: &EngineLimits) -> Footprint {
        let weights = self.layers.iter().filter(|layer| !layer.is_left_in_file()).map(stored_bytes);
        let growth = self.layers.iter().map(|layer| layer.growth(options.kernel));
        let rows = limits.max_batched_tokens;
        let scratch = self.layers.iter().map(|layer| layer.compute_scratch_len(options.kernel, rows)).max();
        let scratch = (scratch.unwrap_or(0) * size_of::<f32>()) as u64;
        Footprint { weights: weights.chain(growth).sum(), scratch, kv_block: 0 }
    }

    fn copied_bytes(&self, options: &LoadOptions) -> u64 {
        let replaced =
            |layer: &&Experts| layer.weights().into_iter().any(|weight| layer.replaces(options.kernel, weight));
        self.layers.iter().filter(replaced).map(stored_bytes).sum()
    }

    fn build(
        self,
        options: &LoadOptions,
        limits: &EngineLimits,
        done: &mut dyn FnMut(&Weight),
    ) -> (HostExperts, Vec<Handover>) {
        let rows = limits.max_batched_tokens;
        let experts = HostExperts::new(self.layers, options.kernel, options.threads, rows, &mut |op, weight| {
            if op.replaces(options.kernel, weight) {
                weight.release()
            } else {
                page_in(weight)
            }
            done(weight);
        });
        (experts, self.handovers)
    }
}

impl Target {
    fn find(device: ComputeDevice, options: &LoadOptions) -> Result<Self, LoadError> {
        match device {
            ComputeDevice::Cpu if options.kernel.is_supported() => Ok(Target::Cpu),
            ComputeDevice::Cpu => Err(LoadError::Kernel { kernel: options.kernel }),
            ComputeDevice::Vulkan(index) => {
                let instance = Instance::load(options.vulkan.instance())?;
                let info = DeviceInfo::find(&instance, index)?;
                Ok(Target::Vulkan(Box::new(info), instance))
            }
        }
    }

    /// The last part's graph as this device runs it: from its memory a token comes back more easily than a row of logits.
    fn let_choose(&self, graph: Graph) -> Graph {
        match self {
            Target::Cpu => graph,
            Target::Vulkan(..) => graph.with_token_choice(),
        }
    }

    fn describe(&self, options: &LoadOptions) -> String {
        match self {
            Target::Cpu => cpu::describe(options.kernel, options.threads),
            Target::Vulkan(info, _) => vulkan::describe(info),
        }
    }

    /// The device's name where its memory is its own and not the machine's.
    fn own_memory(&self, options: &LoadOptions) -> Option<String> {
        match self {
            // A limit of its own makes any memory one's own.
            Target::Vulkan(info, _) if !info.is_processor() || options.device_bytes.is_some() => {
                Some(vulkan::describe(info))
            }
            Target::Cpu | Target::Vulkan(..) => None,
        }
    }

    /// Bytes free there, where the system says.
    fn available_bytes(&self) -> Option<u64> {
        match self {
            Target::Cpu => memory::available(),
            Target::Vulkan(info, instance) => Some(info.available_bytes(instance)),
        }
    }
}

impl Part {
    /// Counts the weights anew: but for experts that are left in the file.
    fn count_weights(&mut self) {
        let in_memory = |node: &&Node| !node.op.as_experts().is_some_and(Experts::is_left_in_file);
        let nodes = self.graphs.iter().flat_map(Graph::nodes).filter(in_memory);
        let weights = nodes.flat_map(|node| node.op.weights());
        let bytes: HashMap<_, _> = weights.map(|weight| (&weight.name, weight.bytes().len() as u64)).collect();
        self.weights_bytes = bytes.values().sum();
    }

    /// What the part takes on its device. Of the limits only those on steps are looked at.
    fn footprint(&self, options: &LoadOptions, limits: &EngineLimits) -> Footprint {
        let (graphs, kv_type) = (&self.graphs, options.kv_type);
        if let Target::Vulkan(info, _) = &self.target {
            return Footprint::new(graphs, info, limits, &self.kv_shapes, kv_type);
        }
        let (rows, logits_rows) = (limits.max_batched_tokens, limits.max_logits_rows);
        let values = |graph| MemoryLayout::new(graph, rows, logits_rows).arena_len();
        let scratch = |graph: &Graph| graph.scratch_len(options.kernel, rows, logits_rows, limits.context_tokens);
        let values = graphs.iter().map(values).max().unwrap_or(0) + graphs.iter().map(scratch).max().unwrap_or(0);
        Footprint {
            weights: self.weights_bytes + graphs.iter().map(|graph| graph.growth(options.kernel)).sum::<u64>(),
            scratch: (values * size_of::<f32>()) as u64,
            kv_block: self.kv_shapes.iter().map(|shape| shape.block_bytes(kv_type)).sum(),
        }
    }

    /// Takes out the experts that the options leave to the processor, if any.
    fn hand_experts_out(
        &mut self,
        options: &LoadOptions,
        limits: &EngineLimits,
        request: &Request,
    ) -> Option<HostPart> {
        // On the processor they are its own already, unless somebody wants them apart.
        if matches!((&self.target, options.cpu_experts), (Target::Cpu, CpuExperts::Auto)) {
            return None;
        }
        let graph = self.graphs.pop()?;
        let with_experts: Vec<usize> =
            (0..graph.nodes().len()).filter(|index| graph.nodes()[*index].op.as_experts().is_some()).collect();
        let of_layers = with_experts.len();
        let count = match options.cpu_experts {
            CpuExperts::All => of_layers,
            CpuExperts::Layers(count) => count.min(of_layers),
            CpuExperts::Auto => {
                self.graphs.push(graph);
                let count = self.fewest_handed_out(&with_experts, options, limits, request);
                let graph = self.graphs.pop()?;
                return self.hand_out(graph, &with_experts[..count], of_layers);
            }
        };
        self.hand_out(graph, &with_experts[..count], of_layers)
    }

    fn hand_out(&mut self, graph: Graph, experts: &[usize], of_layers: usize) -> Option<HostPart> {
        let cut = graph.cut_out(experts);
        self.graphs = cut.parts;
        let layers = cut.removed.iter().filter_map(|op| op.as_experts().cloned()).collect();
        (!experts.is_empty()).then_some(HostPart { layers, handovers: cut.handovers, of_layers })
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
        // What goes out to the experts and what comes back, with the residual stream both ways.
        let handed_out = |experts: &Experts| {
            let widths = 4 * experts.hidden_size() + 2 * experts.top_k();
            (limits.max_batched_tokens * widths * size_of::<f32>()) as u64
        };
        let handed_out = self.graphs[0].nodes().iter().filter_map(|node| node.op.as_experts()).map(handed_out).max();
        let context = request.context_tokens.unwrap_or(request.context_train).min(FAIR_CONTEXT);
        for count in 0..experts.len() {
            let plan = memory::plan(&Request {
                weights_bytes: weights,
                scratch_bytes: whole.scratch + if count > 0 { handed_out.unwrap_or(0) } else { 0 },
                block_bytes: whole.kv_block,
                limit_bytes: options.device_bytes,
                available_bytes: self.target.available_bytes(),
                ..request.clone()
            });
            if plan.is_ok_and(|plan| plan.context_tokens >= context) {
                return count;
            }
            weights = weights.saturating_sub(bytes_of(&experts[count]));
        }
        experts.len()
    }

    /// Bytes of the stored weights that the device copies: where no file can take them back they stay in the machine's
    /// memory, beside the footprint.
    fn copied_bytes(&self, options: &LoadOptions) -> u64 {
        match self.target {
            Target::Cpu => replaced(&self.graphs, options.kernel).values().sum(),
            Target::Vulkan(..) => self.weights_bytes,
        }
    }

    fn build(
        self,
        options: &LoadOptions,
        limits: &EngineLimits,
        done: &mut dyn FnMut(&Weight),
    ) -> Result<Box<dyn Stage>, LoadError> {
        match self.target {
            Target::Cpu => Ok(Box::new(cpu_stage(self.graphs, self.kv_shapes, options, limits, done))),
            Target::Vulkan(info, instance) => {
                let device = Device::open(instance, *info, options.vulkan.clone())?;
                let execution =
                    ExecutionOptions { deterministic: options.deterministic, profile_ops: options.profile_ops };
                let cache = (&*self.kv_shapes, options.kv_type);
                Ok(Box::new(VulkanStage::new(self.graphs, device, cache, limits.clone(), execution, done)?))
            }
        }
    }
}

fn cpu_stage(
    graphs: Vec<Graph>,
    kv_shapes: Vec<KvShape>,
    options: &LoadOptions,
    limits: &EngineLimits,
    done: &mut dyn FnMut(&Weight),
) -> CpuStage {
    let kv = KvCache::new(kv_shapes, limits.kv_blocks, options.kv_type);
    let kernel = options.kernel;
    // Of a matrix that is also the embedding only some rows are read from the file.
    let replaced = replaced(&graphs, kernel);
    let stage = CpuStage::new(graphs, kv, kernel, options.threads, limits, &mut |op| {
        for weight in op.weights() {
            if !replaced.contains_key(&weight.name) || op.replaces(kernel, weight) {
                ready(op, weight, kernel);
            }
            done(weight);
        }
    });
    if options.profile_ops { stage.with_profile() } else { stage }
}

/// The weights of which a kernel keeps a copy of its own, and how many bytes each has as it is stored.
fn replaced(graphs: &[Graph], kernel: Kernel) -> HashMap<Arc<str>, u64> {
    let of_op = |node: &Node| {
        let replaced = node.op.weights().into_iter().filter(|weight| node.op.replaces(kernel, weight));
        replaced.map(|weight| (Arc::clone(&weight.name), weight.bytes().len() as u64)).collect::<Vec<_>>()
    };
    graphs.iter().flat_map(Graph::nodes).flat_map(of_op).collect()
}

/// Bytes of a layer's experts as they are stored.
fn stored_bytes(experts: &Experts) -> u64 {
    experts.weights().into_iter().map(|weight| weight.bytes().len() as u64).sum()
}

/// Gives a weight that an op has copied back to its file, and fetches one that it reads there; but experts that are left in
/// the file stay there until a row uses them.
fn ready(op: &dyn Op, weight: &Weight, kernel: Kernel) {
    if op.replaces(kernel, weight) {
        weight.release();
    } else if !op.as_experts().is_some_and(Experts::is_left_in_file) {
        page_in(weight);
    }
}

/// Touches every page of a weight that is used as it lies in the file, so that the first request does not wait for the
/// disk.
fn page_in(weight: &Weight) {
    const PAGE: usize = 4096;
    std::hint::black_box(weight.bytes().iter().step_by(PAGE).fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
}
