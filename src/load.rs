//! A path in, a ready model out, with its memory planned before anything is allocated.

use std::path::PathBuf;
use std::sync::Arc;

use crate::engine::Engine;
use crate::format::chat_template::ChatTemplate;
use crate::format::tokenizer::Tokenizer;

pub use cuelight_shaders::cpu::Kernel;

/// What to load, and how much of the machine it may take.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// The GGUF file, or the first of its shards.
    pub path: PathBuf,
    /// Longest sequence; `None`: the model's own, or less when memory is short of it.
    pub context_tokens: Option<usize>,
    /// Most sequences in a step.
    pub max_sequences: usize,
    /// Most rows in a step.
    pub max_batched_tokens: usize,
    /// Bytes for the KV cache; `None`: enough for `max_sequences` of moderate length, within the memory there is.
    pub kv_bytes: Option<u64>,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// Threads that compute, the executor's own included.
    pub threads: usize,
    /// The instruction set.
    pub kernel: Kernel,
}

/// How keys and values are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvType {
    /// Half precision.
    F16,
    /// Single precision.
    F32,
}

/// What a model takes of the machine, computed from the file's header alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Mapped from the file.
    pub weights_bytes: u64,
    /// The paged KV cache.
    pub kv_bytes: u64,
    /// Activations and logits of the largest step.
    pub scratch_bytes: u64,
    /// What the machine has free.
    pub available_bytes: u64,
    /// Blocks in the KV cache.
    pub kv_blocks: usize,
    /// Longest sequence.
    pub context_tokens: usize,
}

/// Facts about a model for people and for `/v1/models`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelCard {
    /// `general.name`, or the file's stem.
    pub name: String,
    /// `general.architecture`.
    pub architecture: String,
    /// Number of weights.
    pub n_params: u64,
    /// Bytes of all tensors.
    pub size_bytes: u64,
    /// The most common format by bytes, for people: "Q4_K".
    pub quantization: String,
    /// The context the model was trained with.
    pub context_train: usize,
    /// `general.license`, when the file says.
    pub license: Option<String>,
}

/// How far loading is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes ready.
    pub done_bytes: u64,
    /// Bytes in all.
    pub total_bytes: u64,
}

/// A model ready to run.
pub struct LoadedModel<E: Engine> {
    /// Computes.
    pub engine: E,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// How a conversation becomes a prompt, when the file says.
    pub chat_template: Option<Arc<ChatTemplate>>,
    /// Facts.
    pub card: ModelCard,
    /// What it takes.
    pub memory: MemoryPlan,
}
