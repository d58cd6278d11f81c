//! A part of a model and the device that computes it: what it takes there, and how it gets there.

use std::collections::HashMap;
use std::sync::Arc;

use cuelight_shaders::attention::{KvCache, KvShape};
use cuelight_shaders::cpu::Kernel;
use cuelight_shaders::experts::Experts;
use cuelight_shaders::op::Op;
use cuelight_shaders::weight::Weight;

use super::{LoadError, LoadOptions};
use crate::backend::cpu::{self, CpuStage};
use crate::backend::stage::Stage;
use crate::backend::vulkan::{self, Device, DeviceInfo, ExecutionOptions, Footprint, Instance, VulkanStage};
use crate::device::ComputeDevice;
use crate::engine::EngineLimits;
use crate::graph::{Graph, MemoryLayout, Node};
use crate::memory;

/// A device that a model, or a part of one, is planned for.
pub(super) enum Target {
    Cpu,
    Vulkan(Box<DeviceInfo>, Arc<Instance>),
}

/// A part of a model, and the device that computes it.
pub(super) struct Part {
    pub target: Target,
    /// Its pieces: more than one where experts between them are computed elsewhere.
    pub graphs: Vec<Graph>,
    /// For each layer of the model its cache, without heads where the layer belongs to another part.
    pub kv_shapes: Vec<KvShape>,
    pub weights_bytes: u64,
}

impl Target {
    pub fn find(device: ComputeDevice, options: &LoadOptions) -> Result<Self, LoadError> {
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
    pub fn let_choose(&self, graph: Graph) -> Graph {
        match self {
            Target::Cpu => graph,
            Target::Vulkan(..) => graph.with_token_choice(),
        }
    }

    /// A part's graph as this device runs it: a GPU computes some neighbouring ops together.
    pub fn fuse(&self, graph: Graph) -> Graph {
        match self {
            Target::Cpu => graph,
            Target::Vulkan(..) => graph.fused(),
        }
    }

    pub fn describe(&self, options: &LoadOptions) -> String {
        match self {
            Target::Cpu => cpu::describe(options.kernel, options.activation_bits, options.threads),
            Target::Vulkan(info, _) => vulkan::describe(info),
        }
    }

    /// The device's name where its memory is its own and not the machine's.
    pub fn own_memory(&self, options: &LoadOptions) -> Option<String> {
        match self {
            // A limit of its own makes any memory one's own.
            Target::Vulkan(info, _) if !info.is_processor() || options.device_bytes.is_some() => {
                Some(vulkan::describe(info))
            }
            Target::Cpu | Target::Vulkan(..) => None,
        }
    }

    /// Bytes free there, where the system says.
    pub fn available_bytes(&self) -> Option<u64> {
        match self {
            Target::Cpu => memory::available(),
            Target::Vulkan(info, instance) => Some(info.available_bytes(instance)),
        }
    }
}

impl Part {
    /// Counts the weights anew: but for experts that are left in the file.
    pub fn count_weights(&mut self) {
        let in_memory = |node: &&Node| !node.op.as_experts().is_some_and(Experts::is_left_in_file);
        let nodes = self.graphs.iter().flat_map(Graph::nodes).filter(in_memory);
        let weights = nodes.flat_map(|node| node.op.weights());
        let bytes: HashMap<_, _> = weights.map(|weight| (&weight.name, weight.bytes().len() as u64)).collect();
        self.weights_bytes = bytes.values().sum();
    }

    /// What the part takes on its device. Of the limits only those on steps are looked at.
    pub fn footprint(&self, options: &LoadOptions, limits: &EngineLimits) -> Footprint {
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

    /// Bytes of the stored weights that the device copies: where no file can take them back they stay in the machine's
    /// memory, beside the footprint.
    pub fn copied_bytes(&self, options: &LoadOptions) -> u64 {
        match self.target {
            Target::Cpu => replaced(&self.graphs, options.kernel).values().sum(),
            Target::Vulkan(..) => self.weights_bytes,
        }
    }

    pub fn build(
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
    let stage = stage.with_activation_bits(options.activation_bits);
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

/// Gives a weight that an op has copied back to its file, and fetches one that it reads there, so that the first request does
/// not wait for the disk; but experts that are left in
/// the file stay there until a row uses them.
pub(super) fn ready(op: &dyn Op, weight: &Weight, kernel: Kernel) {
    if op.replaces(kernel, weight) {
        weight.release();
    } else if !op.as_experts().is_some_and(Experts::is_left_in_file) {
        weight.page_in();
    }
}
