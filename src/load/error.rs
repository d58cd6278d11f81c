//! Why a model cannot be loaded.

use std::path::PathBuf;

use cuelight_shaders::cpu::Kernel;

use crate::backend::vulkan::VulkanError;
use crate::cancel::LoadCancelled;
use crate::checkpoint::OpenError;
use crate::checkpoint::drafter::DrafterError;
use crate::device::UnevenDevices;
use crate::format::chat_template::ChatTemplateError;
use crate::format::gguf::GgufError;
use crate::format::tokenizer::TokenizerError;
use crate::mapped_file::FileChange;
use crate::memory::{TooLarge, format_bytes};
use crate::model::ModelError;
use crate::placement::SplitError;
use crate::tower::error::TowerError;

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is damaged, or lacks a key or tensor.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The checkpoint cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The file is not a model that can run.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The draft model was not made for the model.
    #[error(transparent)]
    Drafter(#[from] DrafterError),
    /// The file has no encoder of images or audio that can be computed.
    #[error(transparent)]
    Tower(#[from] TowerError),
    /// Its tokenizer cannot be used.
    #[error("{}: {source}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// Why.
        source: TokenizerError,
    },
    /// Its chat template, or the one given instead, does not compile.
    #[error("{}: the chat template is broken: {source}", path.display())]
    ChatTemplate {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ChatTemplateError,
    },
    /// It needs more memory than is available.
    #[error("{}: {source}{}", path.display(), including_the_cache(*cache_bytes))]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// The bytes of the expert cache, which count as weights of the device.
        cache_bytes: Option<u64>,
        /// The numbers.
        source: TooLarge,
    },
    /// The system does not give the process memory that is free.
    #[error(
        "{}: the system does not give this process {} for the KV cache and working memory; `ulimit -v` shows its limit",
        path.display(), format_bytes(*bytes)
    )]
    NotGiven {
        /// The file.
        path: PathBuf,
        /// The bytes.
        bytes: u64,
        /// The system's reason.
        source: std::io::Error,
    },
    /// A replica needs more memory than its equal part of what is available.
    #[error("{source}; {sharers} replicas share that memory, and each gets an equal part")]
    ReplicaTooLarge {
        /// The numbers of one replica.
        source: Box<LoadError>,
        /// The largest number of replicas that share one memory.
        sharers: u64,
    },
    /// The devices cannot be divided evenly among the replicas.
    #[error(transparent)]
    UnevenDevices(#[from] UnevenDevices),
    /// The layers cannot be divided among the devices as requested.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// A number of GPU layers was set, but not exactly one GPU.
    #[error("computing only the last layers on a GPU needs exactly one Vulkan device, but the device is {device}")]
    GpuLayersWithoutGpu {
        /// The chosen devices.
        device: String,
    },
    /// Both a number of GPU layers and shares per device were set.
    #[error("a number of layers for the GPU and shares for several devices cannot both be set")]
    GpuLayersWithSplit,
    /// Experts on the CPU were requested for a model on several devices.
    #[error("computing experts on the CPU needs one Vulkan device that has all layers")]
    CpuExpertsWithSplit,
    /// A model that attends to the rows of an encoder was to be divided among devices.
    #[error("a model that attends to the rows of its encoder needs one device for all of its layers, not {device}")]
    EncoderWithSplit {
        /// The chosen devices.
        device: String,
    },
    /// The model attends to the rows of an encoder, but is loaded without one.
    #[error("the architecture {architecture:?} writes what its encoder hears, so it is of no use without the encoder")]
    NoEncoder {
        /// The architecture.
        architecture: String,
    },
    /// An expert cache was requested without a device to hold it.
    #[error("an expert cache needs one Vulkan device that has all layers")]
    ExpertCacheWithoutDevice,
    /// Both an expert cache and deterministic results were requested.
    #[error(
        "an expert cache and deterministic results cannot both be set: earlier requests decide which experts the device \
         computes, and the device rounds differently from the CPU"
    )]
    ExpertCacheWithDeterministic,
    /// Experts are to be streamed to the device, but no device memory is reserved for them.
    #[error("streaming experts for steps of {rows} rows or more needs an expert cache on the device")]
    StreamingWithoutCache {
        /// The fewest rows of a step that uses streaming.
        rows: usize,
    },
    /// The expert cache is smaller than one expert.
    #[error(
        "an expert cache of {} cannot hold one expert, which needs {}", format_bytes(*bytes), format_bytes(*least_bytes)
    )]
    ExpertCacheTooSmall {
        /// The requested size.
        bytes: u64,
        /// The size of one expert.
        least_bytes: u64,
    },
    /// Adapters of experts were requested, but some experts are computed by the CPU next to the device that has the other layers.
    #[error("adapters of experts need all experts on {device}, but some of them are left to the CPU")]
    ExpertAdaptersOnHost {
        /// The chosen devices.
        device: String,
    },
    /// A model that generates blocks of tokens has a draft model.
    #[error("{path}: a draft model is of no use to a model that generates blocks of tokens")]
    DraftOfBlocks {
        /// The model.
        path: String,
    },
    /// The context has no space for a block of a model that generates blocks of tokens.
    #[error(
        "{path}: a block has {tokens} tokens, and a prompt before it, but the context holds {context_tokens}; make it larger"
    )]
    BlockBeyondContext {
        /// The model.
        path: String,
        /// Tokens of a block.
        tokens: usize,
        /// Tokens of the context.
        context_tokens: usize,
    },
    /// The device does not accept expert uploads.
    #[error("experts cannot be uploaded to the device: {0}")]
    Upload(String),
    /// A thread cannot be started.
    #[error("the system cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The Vulkan device cannot be used, or failed.
    #[error(transparent)]
    Vulkan(#[from] VulkanError),
    /// The file changed while it was being loaded.
    #[error(transparent)]
    FileChanged(#[from] FileChange),
    /// The load was ended early.
    #[error(transparent)]
    Cancelled(#[from] LoadCancelled),
    /// The machine lacks the instruction set.
    #[error("this machine does not support the {kernel} kernel")]
    Kernel {
        /// The kernel.
        kernel: Kernel,
    },
    /// A setting is 0 that must be at least 1.
    #[error("{setting} must be at least 1")]
    ZeroSetting {
        /// The setting in words.
        setting: &'static str,
    },
}

impl LoadError {
    /// Whether the load was ended early, as requested.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        matches!(self, LoadError::Cancelled(_) | LoadError::Vulkan(VulkanError::Cancelled(_)))
    }
}

/// The part of the message about the expert cache, where there is one.
fn including_the_cache(cache_bytes: Option<u64>) -> String {
    cache_bytes
        .map(|bytes| format!("; {} of the weights are the expert cache", format_bytes(bytes)))
        .unwrap_or_default()
}
