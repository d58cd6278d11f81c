//! From a graph to an engine on the device that was chosen: what it would take there, and then the engine itself.

use std::collections::HashMap;
use std::sync::Arc;

use cuelight_shaders::attention::KvCache;
use cuelight_shaders::cpu::Kernel;
use cuelight_shaders::weight::Weight;

use super::{LoadError, LoadOptions, LoadProgress};
use crate::backend::cpu::{self, CpuEngine};
use crate::backend::vulkan::{self, Device, DeviceInfo, ExecutionOptions, Footprint, Instance, VulkanEngine};
use crate::device::ComputeDevice;
use crate::engine::{Engine, EngineLimits};
use crate::graph::{Graph, MemoryLayout, Node};
use crate::memory;
use crate::model::Model;

/// The device that a model is planned for.
pub(super) enum Target {
    Cpu,
    Vulkan(Box<DeviceInfo>, Arc<Instance>),
}

impl Target {
    /// Looks at the device; nothing is opened yet.
    pub fn find(options: &LoadOptions) -> Result<Self, LoadError> {
        match options.device {
            ComputeDevice::Cpu if options.kernel.is_supported() => Ok(Target::Cpu),
            ComputeDevice::Cpu => Err(LoadError::Kernel { kernel: options.kernel }),
            ComputeDevice::Vulkan(index) => {
                let instance = Instance::load(options.vulkan.instance())?;
                let info = DeviceInfo::find(&instance, index)?;
                Ok(Target::Vulkan(Box::new(info), instance))
            }
        }
    }

    /// For people: "cpu (avx2, 2 threads)".
    pub fn describe(&self, options: &LoadOptions) -> String {
        match self {
            Target::Cpu => cpu::describe(options.kernel, options.threads),
            Target::Vulkan(info, _) => vulkan::describe(info),
        }
    }

    /// The device's name where its memory is its own and not the machine's.
    pub fn own_memory(&self) -> Option<String> {
        match self {
            Target::Vulkan(info, _) if !info.is_processor() => Some(vulkan::describe(info)),
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

    /// What a model takes there. Of the limits only those on steps are looked at.
    pub fn footprint(&self, model: &Model, options: &LoadOptions, limits: &EngineLimits) -> Footprint {
        let (graph, kv_type) = (&model.graph, options.kv_type);
        if let Target::Vulkan(info, _) = self {
            return Footprint::new(graph, info, limits, &model.kv_shapes, kv_type);
        }
        let (rows, logits_rows) = (limits.max_batched_tokens, limits.max_logits_rows);
        let values = MemoryLayout::new(graph, rows, logits_rows).arena_len();
        let scratch = graph.scratch_len(options.kernel, rows, logits_rows, limits.context_tokens);
        Footprint {
            weights: model.weights_bytes + graph.growth(options.kernel),
            scratch: ((values + scratch) * size_of::<f32>()) as u64,
            kv_block: model.kv_shapes.iter().map(|shape| shape.block_bytes(kv_type)).sum(),
        }
    }

    /// Bytes of the stored weights that the device copies: where no file can take them back they stay in the machine's
    /// memory, beside the footprint.
    pub fn copied_bytes(&self, model: &Model, options: &LoadOptions) -> u64 {
        match self {
            Target::Cpu => replaced(&model.graph, options.kernel).values().sum(),
            Target::Vulkan(..) => model.weights_bytes,
        }
    }

    /// The engine, with its weights where they belong.
    pub fn build(
        self,
        model: Model,
        options: &LoadOptions,
        limits: EngineLimits,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Box<dyn Engine>, LoadError> {
        let total_bytes = model.weights_bytes;
        let mut done_bytes = 0;
        progress(LoadProgress { done_bytes, total_bytes });
        // A matrix that serves twice, as embedding and head, is counted once.
        let mut done = |weight: &Weight| {
            done_bytes = (done_bytes + weight.bytes().len() as u64).min(total_bytes);
            progress(LoadProgress { done_bytes, total_bytes });
        };
        let engine: Box<dyn Engine> = match self {
            Target::Cpu => Box::new(cpu_engine(model, options, limits, &mut done)),
            Target::Vulkan(info, instance) => {
                let device = Device::open(instance, *info, options.vulkan.clone())?;
                let execution =
                    ExecutionOptions { deterministic: options.deterministic, profile_ops: options.profile_ops };
                let cache = (&*model.kv_shapes, options.kv_type);
                Box::new(VulkanEngine::new(model.graph, device, cache, limits, execution, &mut done)?)
            }
        };
        progress(LoadProgress { done_bytes: total_bytes, total_bytes });
        Ok(engine)
    }
}

fn cpu_engine(model: Model, options: &LoadOptions, limits: EngineLimits, done: &mut dyn FnMut(&Weight)) -> CpuEngine {
    let kv = KvCache::new(model.kv_shapes, limits.kv_blocks, options.kv_type);
    let (graph, kernel) = (model.graph, options.kernel);
    // Of a matrix that is also the embedding only some rows are read from the file.
    let replaced = replaced(&graph, kernel);
    let engine = CpuEngine::new(graph, kv, kernel, options.threads, limits, &mut |op| {
        for weight in op.weights() {
            if op.replaces(kernel, weight) {
                weight.release();
            } else if !replaced.contains_key(&weight.name) {
                page_in(weight);
            }
            done(weight);
        }
    });
    if options.profile_ops { engine.with_profile() } else { engine }
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
