//! From a graph to an engine on the devices that were chosen: what it would take there, and then the engine itself.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use cuelight_shaders::attention::{KvCache, KvShape};
use cuelight_shaders::cpu::Kernel;
use cuelight_shaders::weight::Weight;

use super::{LoadError, LoadOptions, LoadProgress};
use crate::backend::cpu::{self, CpuStage};
use crate::backend::stage::{Stage, StagedEngine};
use crate::backend::vulkan::{self, Device, DeviceInfo, ExecutionOptions, Footprint, Instance, VulkanStage};
use crate::device::{ComputeDevice, Shares};
use crate::engine::{Engine, EngineLimits};
use crate::graph::{Graph, MemoryLayout, Node};
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
    graph: Graph,
    /// For each layer of the model its cache, without heads where the layer belongs to another part.
    kv_shapes: Vec<KvShape>,
    weights_bytes: u64,
}

/// Divides a model among the devices that were chosen. Nothing is opened yet.
pub(super) fn divide(model: Model, options: &LoadOptions) -> Result<Vec<Part>, LoadError> {
    let (devices, split) = devices_and_split(&model.graph, options)?;
    let targets = devices.iter().map(|device| Target::find(*device, options)).collect::<Result<Vec<_>, _>>()?;
    if targets.len() == 1 {
        let Model { graph, kv_shapes, weights_bytes, .. } = model;
        let alone = (targets[0].let_choose(graph), kv_shapes);
        let part = |(target, (graph, kv_shapes))| Part { target, graph, kv_shapes, weights_bytes };
        return Ok(targets.into_iter().zip([alone]).map(part).collect());
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
        Part { target, kv_shapes, weights_bytes: distinct_bytes(&graph), graph }
    };
    Ok(targets.into_iter().zip(graphs).map(part).collect())
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

/// For people: "cpu (avx2, 2 threads)", or several of them with plus signs.
pub(super) fn describe(parts: &[Part], options: &LoadOptions) -> String {
    parts.iter().map(|part| part.target.describe(options)).collect::<Vec<_>>().join(" + ")
}

/// Plans the memory of all parts: those that share a memory together, and then as many blocks as the smallest has.
///
/// `request` has what does not depend on a device. `unmade` is whether there is a file to give stored weights back to.
pub(super) fn plan_memory(
    parts: &[Part],
    options: &LoadOptions,
    limits: &EngineLimits,
    request: &Request,
    unmade: bool,
) -> Result<MemoryPlan, TooLarge> {
    let footprints: Vec<Footprint> = parts.iter().map(|part| part.footprint(options, limits)).collect();
    let all_blocks: u64 = footprints.iter().map(|footprint| footprint.kv_block).sum();
    // What devices keep a copy of goes back to the file, if there is one, and else stays in the machine's memory.
    let beside: u64 = if unmade { parts.iter().map(|part| part.copied_bytes(options)).sum() } else { 0 };
    let mut memories: Vec<Option<String>> = parts.iter().map(|part| part.target.own_memory()).collect();
    memories.sort();
    memories.dedup();
    if !memories.contains(&None) {
        memory::check(beside, memory::available())?;
    }
    let mut plans = Vec::new();
    for own_memory in memories {
        let here = || parts.iter().zip(&footprints).filter(|(part, _)| part.target.own_memory() == own_memory);
        let block_bytes: u64 = here().map(|(_, footprint)| footprint.kv_block).sum();
        let is_machine = own_memory.is_none();
        let weights: u64 = here().map(|(_, footprint)| footprint.weights).sum();
        let of_kv = |bytes: u64| (u128::from(bytes) * u128::from(block_bytes) / u128::from(all_blocks.max(1))) as u64;
        let plan = memory::plan(&Request {
            weights_bytes: weights + if is_machine { beside } else { 0 },
            scratch_bytes: here().map(|(_, footprint)| footprint.scratch).sum(),
            block_bytes,
            kv_bytes: request.kv_bytes.map(of_kv),
            limit_bytes: request.limit_bytes.filter(|_| is_machine),
            available_bytes: here().filter_map(|(part, _)| part.target.available_bytes()).min(),
            own_memory,
            ..request.clone()
        })?;
        plans.push((plan, block_bytes));
    }
    Ok(MemoryPlan::together(plans))
}

/// The engine of all parts, with its weights where they belong.
pub(super) fn build(
    parts: Vec<Part>,
    options: &LoadOptions,
    limits: EngineLimits,
    progress: &mut dyn FnMut(LoadProgress),
) -> Result<Box<dyn Engine>, LoadError> {
    let total_bytes = parts.iter().map(|part| part.weights_bytes).sum();
    let mut done_bytes = 0;
    progress(LoadProgress { done_bytes, total_bytes });
    // A matrix that serves twice, as embedding and head, is counted once.
    let mut done = |weight: &Weight| {
        done_bytes = (done_bytes + weight.bytes().len() as u64).min(total_bytes);
        progress(LoadProgress { done_bytes, total_bytes });
    };
    let stages = parts.into_iter().map(|part| part.build(options, &limits, &mut done));
    let stages = stages.collect::<Result<Vec<_>, _>>()?;
    progress(LoadProgress { done_bytes: total_bytes, total_bytes });
    Ok(Box::new(StagedEngine::new(stages, limits)))
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
    fn own_memory(&self) -> Option<String> {
        match self {
            Target::Vulkan(info, _) if !info.is_processor() => Some(vulkan::describe(info)),
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
    /// What the part takes on its device. Of the limits only those on steps are looked at.
    fn footprint(&self, options: &LoadOptions, limits: &EngineLimits) -> Footprint {
        let (graph, kv_type) = (&self.graph, options.kv_type);
        if let Target::Vulkan(info, _) = &self.target {
            return Footprint::new(graph, info, limits, &self.kv_shapes, kv_type);
        }
        let (rows, logits_rows) = (limits.max_batched_tokens, limits.max_logits_rows);
        let values = MemoryLayout::new(graph, rows, logits_rows).arena_len();
        let scratch = graph.scratch_len(options.kernel, rows, logits_rows, limits.context_tokens);
        Footprint {
            weights: self.weights_bytes + graph.growth(options.kernel),
            scratch: ((values + scratch) * size_of::<f32>()) as u64,
            kv_block: self.kv_shapes.iter().map(|shape| shape.block_bytes(kv_type)).sum(),
        }
    }

    /// Bytes of the stored weights that the device copies: where no file can take them back they stay in the machine's
    /// memory, beside the footprint.
    fn copied_bytes(&self, options: &LoadOptions) -> u64 {
        match self.target {
            Target::Cpu => replaced(&self.graph, options.kernel).values().sum(),
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
            Target::Cpu => Ok(Box::new(cpu_stage(self.graph, self.kv_shapes, options, limits, done))),
            Target::Vulkan(info, instance) => {
                let device = Device::open(instance, *info, options.vulkan.clone())?;
                let execution =
                    ExecutionOptions { deterministic: options.deterministic, profile_ops: options.profile_ops };
                let cache = (&*self.kv_shapes, options.kv_type);
                Ok(Box::new(VulkanStage::new(self.graph, device, cache, limits.clone(), execution, done)?))
            }
        }
    }
}

fn cpu_stage(
    graph: Graph,
    kv_shapes: Vec<KvShape>,
    options: &LoadOptions,
    limits: &EngineLimits,
    done: &mut dyn FnMut(&Weight),
) -> CpuStage {
    let kv = KvCache::new(kv_shapes, limits.kv_blocks, options.kv_type);
    let kernel = options.kernel;
    // Of a matrix that is also the embedding only some rows are read from the file.
    let replaced = replaced(&graph, kernel);
    let stage = CpuStage::new(graph, kv, kernel, options.threads, limits, &mut |op| {
        for weight in op.weights() {
            if op.replaces(kernel, weight) {
                weight.release();
            } else if !replaced.contains_key(&weight.name) {
                page_in(weight);
            }
            done(weight);
        }
    });
    if options.profile_ops { stage.with_profile() } else { stage }
}

/// The weights of which a kernel keeps a copy of its own, and how many bytes each has as it is stored.
fn replaced(graph: &Graph, kernel: Kernel) -> HashMap<Arc<str>, u64> {
    let of_op = |node: &Node| {
        let replaced = node.op.weights().into_iter().filter(|weight| node.op.replaces(kernel, weight));
        replaced.map(|weight| (Arc::clone(&weight.name), weight.bytes().len() as u64)).collect::<Vec<_>>()
    };
    graph.nodes().iter().flat_map(of_op).collect()
}

/// Touches every page of a weight that is used as it lies in the file, so that the first request does not wait for the
/// disk.
fn page_in(weight: &Weight) {
    const PAGE: usize = 4096;
    std::hint::black_box(weight.bytes().iter().step_by(PAGE).fold(0u8, |sum, byte| sum.wrapping_add(*byte)));
}
