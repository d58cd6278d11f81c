//! The part of a model on one device: its memory there, and how it is built.

use std::collections::HashMap;
use std::sync::Arc;

use cuelight_shaders::attention::KvCache;
use cuelight_shaders::cpu::Kernel;
use cuelight_shaders::experts::Experts;
use cuelight_shaders::layer_state::LayerState;
use cuelight_shaders::op::Op;
use cuelight_shaders::recurrent::StateCache;
use cuelight_shaders::weight::{PIECE_BYTES, Weight};

use super::error::LoadError;
use super::options::LoadOptions;
use crate::backend::cpu::{self, CpuStage};
use crate::backend::host_ops::AfterHostOps;
use crate::backend::stage::PipelineStage;
use crate::backend::vulkan::{self, Device, DeviceInfo, ExecutionOptions, Footprint, Instance, VulkanStage};
use crate::cancel::LoadCancelled;
use crate::device::ComputeDevice;
use crate::engine::EngineLimits;
use crate::graph::{Graph, MemoryLayout, Node};
use crate::memory::{self, BlockBytes, MemoryId};

/// The device of a model part.
pub(crate) enum Target {
    Cpu,
    Vulkan(Box<DeviceInfo>, Arc<Instance>),
}

/// A part of a model, and its device.
pub(crate) struct ModelPart {
    pub target: Target,
    /// Its graphs: more than one where the CPU computes experts between them, or where the rows of an encoder have their own.
    pub graphs: Vec<Graph>,
    /// What each layer of the model stores of a sequence; nothing for a layer of another part.
    pub states: Vec<LayerState>,
    /// What the CPU computes in every step before the first graph of another device.
    pub host_ops: Option<HostOps>,
    /// Bytes of the weights that the part keeps in memory.
    pub weights_bytes: u64,
}

/// Ops on the CPU, whose outputs the first graph of a part takes.
pub(crate) struct HostOps {
    pub graph: Graph,
    /// What they store of a sequence, as [`ModelPart::states`].
    pub states: Vec<LayerState>,
}

impl Target {
    /// Finds a device.
    ///
    /// # Errors
    /// [`LoadError::Kernel`] or [`LoadError::Vulkan`] when the machine does not have it.
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

    /// The last part's graph for this device. A GPU samples tokens itself: copying a token back is cheaper than copying a row of
    /// logits. Rows of canvases have their own sampling.
    pub fn with_token_sampling(&self, graph: Graph, limits: &EngineLimits) -> Graph {
        match (self, limits.canvas) {
            (Target::Vulkan(..), None) => graph.with_token_sampling(),
            (Target::Cpu, _) | (_, Some(_)) => graph,
        }
    }

    /// A part's graph for this device. A GPU fuses some neighbouring ops.
    pub fn fuse(&self, graph: Graph) -> Graph {
        match self {
            Target::Cpu => graph,
            Target::Vulkan(..) => graph.fused(),
        }
    }

    /// The device for people.
    pub fn describe(&self, options: &LoadOptions) -> String {
        match self {
            Target::Cpu => cpu::describe(options.kernel, options.activation_bits, options.threads),
            Target::Vulkan(info, _) => vulkan::describe(info),
        }
    }

    /// Its memory: the host's, unless the device's memory is planned separately.
    pub fn memory(&self, options: &LoadOptions) -> MemoryId {
        match self {
            // With its own limit, a device's memory is planned separately even if it is host memory.
            Target::Vulkan(info, _) if !info.uses_host_memory() || options.device_bytes.is_some() => {
                MemoryId::Device(vulkan::describe(info))
            }
            Target::Cpu | Target::Vulkan(..) => MemoryId::Host,
        }
    }

    /// Free bytes of its memory, if the system reports them.
    pub fn available_bytes(&self) -> Option<u64> {
        match self {
            Target::Cpu => memory::available(),
            Target::Vulkan(info, instance) => Some(info.available_bytes(instance)),
        }
    }
}

impl ModelPart {
    /// Updates `weights_bytes`: experts that are left in the file do not count.
    pub fn count_weights(&mut self) {
        let in_memory = |node: &&Node| !node.op.as_experts().is_some_and(Experts::is_left_in_file);
        let nodes = self.graphs.iter().flat_map(Graph::nodes).filter(in_memory);
        let weights = nodes.flat_map(|node| node.op.weights());
        let bytes: HashMap<_, _> = weights.map(|weight| (&weight.name, weight.byte_len() as u64)).collect();
        self.weights_bytes = bytes.values().sum();
    }

    /// The part's memory on its device. Uses only the limits on steps.
    pub fn footprint(&self, options: &LoadOptions, limits: &EngineLimits) -> Footprint {
        let (graphs, kv_type) = (&self.graphs, options.kv_type);
        if let Target::Vulkan(info, _) = &self.target {
            return Footprint::new(graphs, info, limits, &self.states, kv_type);
        }
        let most = limits.most_rows();
        let values = |graph| MemoryLayout::new(graph, most).arena_len();
        let scratch = |graph: &Graph| graph.scratch_len(options.kernel, most, limits.context_tokens);
        let values = graphs.iter().map(values).max().unwrap_or(0) + graphs.iter().map(scratch).max().unwrap_or(0);
        let scratch = (values * size_of::<f32>()) as u64 + handed_over_bytes(options, limits);
        Footprint {
            weights: self.weights_bytes
                + graphs.iter().map(|graph| graph.repack_overhead_bytes(options.kernel)).sum::<u64>(),
            // The CPU computes with the matrices in host memory.
            adapters: 0,
            // Before the first step, the same memory is used for the piece of a weight that is being repacked.
            scratch: scratch.max(PIECE_BYTES as u64),
            kv_block: self.states.iter().map(|state| BlockBytes::of_layer(state, state.block_bytes(kv_type))).sum(),
            state_slot: self.states.iter().map(LayerState::slot_bytes).sum(),
        }
    }

    /// Bytes of the weights in a file that one op repacks and another reads as they are stored, such as an embedding that is also
    /// the head: they are in memory twice.
    pub fn tied_bytes(&self, options: &LoadOptions) -> u64 {
        let repacked =
            if matches!(self.target, Target::Cpu) { repacked(&self.graphs, options.kernel) } else { HashMap::new() };
        read_in_place(&self.graphs, options.kernel)
            .iter()
            .filter(|(name, weight)| weight.is_in_file && repacked.contains_key(*name))
            .map(|(_, weight)| weight.bytes)
            .sum()
    }

    /// Bytes of the weights that the CPU reads as they are stored, in the mapped file.
    pub fn mapped_bytes(&self, options: &LoadOptions) -> u64 {
        match self.target {
            Target::Cpu => {
                let weights = read_in_place(&self.graphs, options.kernel);
                weights.values().filter(|weight| weight.is_in_file).map(|weight| weight.bytes).sum()
            }
            Target::Vulkan(..) => 0,
        }
    }

    /// Bytes of the stored weights that the device copies and that are in no file to which their memory could be released: they
    /// stay in host memory in addition to the footprint.
    pub fn retained_bytes(&self, options: &LoadOptions) -> u64 {
        let copied = match self.target {
            Target::Cpu => repacked(&self.graphs, options.kernel),
            Target::Vulkan(..) => weights_where(&self.graphs, |_, _| true),
        };
        copied.values().filter(|weight| !weight.is_in_file).map(|weight| weight.bytes).sum()
    }

    /// Builds the part on its device. `done` is called for each weight that is loaded.
    ///
    /// # Errors
    /// [`LoadError::Vulkan`] when the device fails, [`LoadError::Cancelled`] when `done` returns an error.
    pub fn build(
        self,
        options: &LoadOptions,
        limits: &EngineLimits,
        done: &mut dyn FnMut(&Weight) -> Result<(), LoadCancelled>,
    ) -> Result<Box<dyn PipelineStage>, LoadError> {
        match self.target {
            Target::Cpu => Ok(Box::new(cpu_stage(self.graphs, &self.states, options, limits, done)?)),
            Target::Vulkan(info, instance) => {
                let device = Device::open(instance, *info, options.vulkan.clone())?;
                let execution =
                    ExecutionOptions { deterministic: options.deterministic, profile_ops: options.profile_ops };
                let cache = (&*self.states, options.kv_type);
                let stage = VulkanStage::new(self.graphs, device, cache, limits.clone(), execution, done)?;
                match self.host_ops {
                    Some(ops) => Ok(Box::new(AfterHostOps::new(host_stage(ops, options, limits)?, stage))),
                    None => Ok(Box::new(stage)),
                }
            }
        }
    }
}

/// The stage of ops on the CPU for another device. They read few bytes, so few threads are as fast as many.
fn host_stage(ops: HostOps, options: &LoadOptions, limits: &EngineLimits) -> Result<CpuStage, LoadCancelled> {
    const MOST_THREADS: usize = 4;
    let caches =
        (KvCache::empty(), StateCache::new(ops.states.iter().map(|state| state.recurrent_len), limits.state_slots));
    let threads = options.threads.min(MOST_THREADS);
    let stage = CpuStage::new(vec![ops.graph], caches, options.kernel, threads, limits, &mut |_| Ok(()))?;
    Ok(if options.profile_ops { stage.with_profile() } else { stage })
}

fn cpu_stage(
    graphs: Vec<Graph>,
    states: &[LayerState],
    options: &LoadOptions,
    limits: &EngineLimits,
    done: &mut dyn FnMut(&Weight) -> Result<(), LoadCancelled>,
) -> Result<CpuStage, LoadCancelled> {
    let kv = KvCache::with_index_keys(states.iter().map(LayerState::shapes), limits.block_counts(), options.kv_type);
    let recurrent = StateCache::new(states.iter().map(|state| state.recurrent_len), limits.state_slots);
    let kernel = options.kernel;
    // If one op repacks a weight, other ops read only some rows of the stored copy (an embedding that is also the head), so
    // the stored copy is not paged in for them.
    let repacked = repacked(&graphs, kernel);
    let stage = CpuStage::new(graphs, (kv, recurrent), kernel, options.threads, limits, &mut |op| {
        for weight in op.weights() {
            if !repacked.contains_key(&weight.name) || op.repacks(kernel, weight) {
                make_resident(op, weight, kernel);
            }
            done(weight)?;
        }
        Ok(())
    })?;
    let stage = stage.with_activation_bits(options.activation_bits).with_tuning(options.tuning);
    let stage = stage.with_observer(options.observer.clone());
    Ok(if options.profile_ops { stage.with_profile() } else { stage })
}

/// A weight as it is stored.
struct StoredWeight {
    bytes: u64,
    is_in_file: bool,
}

/// The weights of the ops for which `choose` is true, by name.
fn weights_where(graphs: &[Graph], choose: impl Fn(&dyn Op, &Weight) -> bool) -> HashMap<Arc<str>, StoredWeight> {
    let stored = |weight: &Weight| StoredWeight { bytes: weight.byte_len() as u64, is_in_file: weight.is_in_file() };
    let of_op = |node: &Node| {
        let chosen = node.op.weights().into_iter().filter(|weight| choose(&*node.op, weight));
        chosen.map(|weight| (Arc::clone(&weight.name), stored(weight))).collect::<Vec<_>>()
    };
    graphs.iter().flat_map(Graph::nodes).flat_map(of_op).collect()
}

/// The weights that a kernel repacks into its own copy.
fn repacked(graphs: &[Graph], kernel: Kernel) -> HashMap<Arc<str>, StoredWeight> {
    weights_where(graphs, |op, weight| op.repacks(kernel, weight))
}

/// The weights that an op reads as they are stored. Experts that are left in the file do not count.
fn read_in_place(graphs: &[Graph], kernel: Kernel) -> HashMap<Arc<str>, StoredWeight> {
    let is_in_memory = |op: &dyn Op| !op.as_experts().is_some_and(Experts::is_left_in_file);
    weights_where(graphs, |op, weight| is_in_memory(op) && !op.repacks(kernel, weight))
}

/// Bytes of the logits and hidden values that leave the engine: those of the step that was computed last, and of the one before,
/// whose tokens are being sampled. And what sampling needs: a changed copy of a row and its candidates, in each of its threads.
fn handed_over_bytes(options: &LoadOptions, limits: &EngineLimits) -> u64 {
    const STEPS: usize = 2;
    const CANDIDATE_BYTES: usize = 16;
    let logits = STEPS * limits.max_logits_rows * limits.vocab_size * size_of::<f32>();
    let hidden = STEPS * limits.hidden.max_rows * limits.hidden.row_width() * size_of::<f32>();
    let sampling = options.threads.min(limits.max_sequences) * limits.vocab_size * (size_of::<f32>() + CANDIDATE_BYTES);
    (logits + hidden + sampling) as u64
}

/// Releases the pages of a weight that an op has copied, and reads in those of a weight that it uses in place, so that the first
/// request does not wait for the disk. Experts that are left in the file are not read until a row uses them.
pub(super) fn make_resident(op: &dyn Op, weight: &Weight, kernel: Kernel) {
    if op.repacks(kernel, weight) {
        weight.release();
    } else if !op.as_experts().is_some_and(Experts::is_left_in_file) {
        weight.page_in();
    }
}
