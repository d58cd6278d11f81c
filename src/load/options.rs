//! What to load and how.

use std::path::PathBuf;

use cuelight_shaders::attention::KvType;
use cuelight_shaders::cpu::{ActivationBits, Kernel};
use cuelight_shaders::tuning::Tuning;

use super::recommended::{Recommended, RequestDefaults};
use crate::backend::cpu::{self, SharedObserver};
use crate::backend::vulkan::VulkanOptions;
use crate::checkpoint::{self, Checkpoint, OpenError};
use crate::device::{ComputeDevice, CpuExperts, Devices, ExpertStreaming, Shares};
use crate::engine::AdapterLimits;
use crate::format::chat_template::worker::WorkerProgram;
use crate::memory::{MemoryBreakdown, MemoryId, MemoryPlan, Pool};
use crate::model::Section;
use crate::synthetic::Synthetic;
use crate::synthetic::generate::PendingWeights;

/// Where a model comes from.
#[derive(Debug, Clone)]
pub enum Source {
    /// A GGUF file, one of its shards, or a Hugging Face directory.
    File(PathBuf),
    /// A model whose tensors are read from a copy with fewer bits, a GGUF file.
    Quantized {
        /// The model.
        original: PathBuf,
        /// The copy.
        copy: PathBuf,
    },
    /// Random weights, generated in memory.
    Synthetic(Synthetic),
}

impl Source {
    /// Opens the model. The weights of a synthetic model are still to be generated.
    pub(super) fn open(&self) -> Result<(Box<dyn Checkpoint>, Option<PendingWeights>), OpenError> {
        match self {
            Source::File(path) => Ok((checkpoint::open(path)?, None)),
            Source::Quantized { original, copy } => Ok((checkpoint::quantized::open(original, copy)?, None)),
            Source::Synthetic(synthetic) => {
                let (gguf, pending_weights) = synthetic.outline()?;
                Ok((Box::new(gguf), Some(pending_weights)))
            }
        }
    }
}

/// A chat template from a file of its own.
#[derive(Debug, Clone)]
pub struct GivenTemplate {
    /// The file, for messages.
    pub path: PathBuf,
    /// The template.
    pub source: String,
}

/// Which chat template to use, and how to render it.
#[derive(Debug, Clone, Default)]
pub struct ChatTemplateOptions {
    /// A template to use instead of the file's.
    pub given: Option<GivenTemplate>,
    /// The program that renders; `None` to render in this process, where nothing bounds a template's memory.
    pub worker: Option<WorkerProgram>,
    /// Whether the spellings of special tokens in untrusted messages become special tokens.
    pub parse_special_in_content: bool,
}

/// What a draft model, or the encoders of media, use of one memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CompanionMemory {
    /// The memory.
    pub memory: MemoryId,
    /// All that it uses there.
    pub bytes: u64,
}

impl CompanionMemory {
    /// The memories of a planned draft model, which is loaded without its tokenizer.
    #[must_use]
    pub fn of_plan(plan: &MemoryPlan) -> Vec<Self> {
        let memory = |pool: &Pool| {
            let bytes = MemoryBreakdown { text: 0, ..pool.used }.total();
            CompanionMemory { memory: pool.memory.clone(), bytes }
        };
        plan.pools.iter().map(memory).collect()
    }
}

/// What to load, and how much of the machine to use.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Where the model comes from.
    pub source: Source,
    /// Which of its layers.
    pub section: Section,
    /// The model whose tokens it drafts, for a draft model that computes with the residuals of that model.
    pub draft_of: Option<Source>,
    /// Whether steps may return the hidden values of all rows, not only of one row of each sequence.
    pub returns_hidden: bool,
    /// The layers whose inputs these values include, for a draft model that computes with them ([`ModelCard::residuals`]).
    ///
    /// [`ModelCard::residuals`]: super::ModelCard::residuals
    pub residuals: Vec<usize>,
    /// Whether a step may give the embeddings of rows, as those of images.
    pub takes_embeddings: bool,
    /// The longest sequence in tokens; `None` for the model's own limit, or less if memory is short.
    pub context_tokens: Option<usize>,
    /// Most sequences in a step.
    pub max_sequences: usize,
    /// Most rows in a step.
    pub max_batched_tokens: usize,
    /// Bytes of the KV cache; `None` for one whole context and a share for each further sequence, within the free memory.
    pub kv_bytes: Option<u64>,
    /// Bytes of the recurrent state of sequences and its checkpoints, for models that have it; `None` for as much as is useful
    /// and fits.
    pub state_bytes: Option<u64>,
    /// Most bytes of host memory in total, independent of what is free; `None` for what is free, minus a reserve.
    pub memory_bytes: Option<u64>,
    /// Bytes of host memory for the texts and results of requests.
    pub request_bytes: u64,
    /// Host memory for copies of KV blocks and recurrent states.
    pub tiers: TierMemory,
    /// The memories of a draft model that is loaded with this one; none without a draft model.
    pub draft: Vec<CompanionMemory>,
    /// The memories of encoders of media that are loaded with this model, with the rows that are kept; none without.
    pub media: Vec<CompanionMemory>,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// Whether layers that attend to a window may keep fewer positions than the others. Steps must then have
    /// [window tables](crate::engine::SequenceRows::window_table).
    pub keeps_windows: bool,
    /// Threads for CPU kernels, including the executor's own.
    pub threads: usize,
    /// The devices. Several devices share the layers.
    pub device: Devices,
    /// The relative share of each of several devices; `None` for shares by free memory.
    pub split: Option<Shares>,
    /// With one Vulkan device: how many layers, counted from the last, run there. The CPU computes the others.
    pub gpu_layers: Option<usize>,
    /// For which layers the CPU computes the routed experts of a model on a Vulkan device.
    pub cpu_experts: CpuExperts,
    /// Most bytes on a Vulkan device; `None` for what is free there.
    pub device_bytes: Option<u64>,
    /// Bytes of a Vulkan device that cache frequently used experts of the host; `None` for no cache.
    pub expert_cache_bytes: Option<u64>,
    /// For which steps all experts of the host are streamed to the device, through a part of that cache.
    pub expert_streaming: ExpertStreaming,
    /// Whether experts that stay in the file are read while the previous layer is computed, as far as they can be predicted.
    pub expert_read_ahead: bool,
    /// The instruction set of CPU kernels.
    pub kernel: Kernel,
    /// The precision to which integer CPU kernels round the inputs of products.
    pub activation_bits: ActivationBits,
    /// What CPU kernels adapt to the CPU. It changes no result.
    pub tuning: Tuning,
    /// How a Vulkan device is used.
    pub vulkan: VulkanOptions,
    /// On a Vulkan device: whether a row's bits never depend on its batch. On the CPU they never do.
    pub deterministic: bool,
    /// The adapters that the model may have; `None` for a model without adapters.
    pub adapters: Option<AdapterLimits>,
    /// The chat template, and how it is rendered.
    pub chat_template: ChatTemplateOptions,
    /// What the publisher of the model recommends next to its file.
    pub recommended: Recommended,
    /// Whether to ignore how the publisher of the model recommends to sample.
    pub ignore_model_sampling: bool,
    /// What applies where a request says nothing, before what the publisher of the model recommends.
    pub defaults: RequestDefaults,
    /// On the CPU: what sees the inputs of all matrices; `None` for nothing.
    pub observer: Option<SharedObserver>,
    /// Whether to measure each op of each step ([`StepOutput::ops`](crate::engine::StepOutput::ops)).
    pub profile_ops: bool,
}

/// Host memory for copies of KV blocks and recurrent states.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierMemory {
    /// Bytes, whatever the model.
    pub bytes: u64,
    /// Recurrent states of the model for which there is memory in addition.
    pub states: usize,
}

impl TierMemory {
    /// Bytes for a model whose recurrent state takes `slot_bytes`.
    #[must_use]
    pub fn total(&self, slot_bytes: u64) -> u64 {
        self.bytes + self.states as u64 * slot_bytes
    }
}

impl LoadOptions {
    /// The defaults for a file: the model's own context, on all threads of the CPU.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        LoadOptions {
            source: Source::File(path.into()),
            section: Section::default(),
            draft_of: None,
            returns_hidden: false,
            residuals: Vec::new(),
            takes_embeddings: false,
            context_tokens: None,
            max_sequences: 16,
            max_batched_tokens: 512,
            kv_bytes: None,
            state_bytes: None,
            memory_bytes: None,
            request_bytes: 0,
            tiers: TierMemory::default(),
            keeps_windows: false,
            draft: Vec::new(),
            media: Vec::new(),
            kv_type: KvType::F16,
            threads: cpu::default_threads(),
            device: ComputeDevice::Cpu.into(),
            split: None,
            gpu_layers: None,
            cpu_experts: CpuExperts::Auto,
            device_bytes: None,
            expert_cache_bytes: None,
            expert_streaming: ExpertStreaming::Auto,
            expert_read_ahead: true,
            kernel: Kernel::detect(),
            activation_bits: ActivationBits::default(),
            tuning: Tuning::default(),
            vulkan: VulkanOptions::default(),
            deterministic: false,
            adapters: None,
            chat_template: ChatTemplateOptions::default(),
            recommended: Recommended::default(),
            ignore_model_sampling: false,
            defaults: RequestDefaults::default(),
            observer: None,
            profile_ops: false,
        }
    }
}
