//! A path in, a ready model out, with its memory planned before anything is allocated.
//!
//! [`plan`] reads headers only and answers what the model would take, or why it does not fit; [`Plan::load`] then does it.

mod engine;
mod expert_cache;
mod host_part;
mod part;
mod replicas;

use std::panic::resume_unwind;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::backend::cpu;
use crate::backend::offload::WithExperts;
use crate::backend::vulkan::VulkanError;
use crate::engine::{Engine, EngineLimits};
use crate::experts::HostExperts;
use crate::format::chat_template::{ChatTemplate, ChatTemplateError};
use crate::format::gguf::{Gguf, GgufError};
use crate::format::tokenizer::{Tokenizer, TokenizerError};
use crate::memory::{Request, TooLarge, format_bytes};
use crate::model::{Model, ModelError};
use crate::placement::SplitError;
use crate::synthetic::Synthetic;
use crate::synthetic::making::Unmade;
use engine::{Division, Sharers};

pub use crate::backend::vulkan::VulkanOptions;
pub use crate::device::{ComputeDevice, CpuExperts, Devices, ExpertStreaming, Shares, UnevenDevices};
pub use crate::memory::MemoryPlan;
pub use cuelight_shaders::attention::KvType;
pub use cuelight_shaders::cpu::{ActivationBits, Kernel};
pub use replicas::plan_replicas;

/// Where a model comes from.
#[derive(Debug, Clone)]
pub enum Source {
    /// A GGUF file, or one of its shards.
    File(PathBuf),
    /// Random weights, made in memory.
    Synthetic(Synthetic),
}

impl Source {
    /// The model's file; a synthetic one's weights are still to be made.
    fn open(&self) -> Result<(Gguf, Option<Unmade>), GgufError> {
        match self {
            Source::File(path) => Ok((Gguf::open(path)?, None)),
            Source::Synthetic(synthetic) => synthetic.outline().map(|(gguf, unmade)| (gguf, Some(unmade))),
        }
    }
}

/// That a cache of experts could be smaller, where there is one.
fn beside_the_cache(cache_bytes: Option<u64>) -> String {
    let smaller = |bytes| format!(", or a smaller --expert-cache, which is {} of the weights", format_bytes(bytes));
    cache_bytes.map(smaller).unwrap_or_default()
}

/// What to load, and how much of the machine it may take.
#[derive(Debug, Clone)]
pub struct LoadOptions {
    /// Where it comes from.
    pub source: Source,
    /// Longest sequence; `None`: the model's own, or less when memory is short of it.
    pub context_tokens: Option<usize>,
    /// Most sequences in a step.
    pub max_sequences: usize,
    /// Most rows in a step.
    pub max_batched_tokens: usize,
    /// Bytes for the KV cache; `None`: a whole context and something for each further sequence, within what is free.
    pub kv_bytes: Option<u64>,
    /// Bytes that all of it may take, whatever is free now; `None`: what is free, but for a reserve.
    pub memory_bytes: Option<u64>,
    /// How keys and values are stored.
    pub kv_type: KvType,
    /// Threads that compute, the executor's own included.
    pub threads: usize,
    /// What computes; several share the layers.
    pub device: Devices,
    /// What each of several devices gets, in proportion; `None`: by their free memory.
    pub split: Option<Shares>,
    /// With one Vulkan device, so many layers, the last ones, are computed there, and the others on the processor.
    pub gpu_layers: Option<usize>,
    /// Whose routed experts the processor computes for a Vulkan device.
    pub cpu_experts: CpuExperts,
    /// Bytes that the model may take on a Vulkan device, as if it had no more; `None`: what is free there.
    pub device_bytes: Option<u64>,
    /// Bytes of a Vulkan device that keep experts which the processor has, as they are used; `None`: none.
    pub expert_cache_bytes: Option<u64>,
    /// For which steps all experts that the host has come to the device, through a part of that memory.
    pub expert_streaming: ExpertStreaming,
    /// Experts that stay in the file are read while the layer before is computed, as far as they can be foreseen.
    pub expert_read_ahead: bool,
    /// The instruction set of the processor's kernels.
    pub kernel: Kernel,
    /// What the processor's integer kernels round the inputs of products to.
    pub activation_bits: ActivationBits,
    /// How a Vulkan device is used.
    pub vulkan: VulkanOptions,
    /// On a Vulkan device, a row's bits never depend on its batch, as they never do on the processor.
    pub deterministic: bool,
    /// A chat template to use instead of the file's.
    pub chat_template: Option<String>,
    /// Measure each op of each step ([`StepOutput::ops`](crate::engine::StepOutput::ops)).
    pub profile_ops: bool,
}

impl LoadOptions {
    /// The defaults for a file: one conversation of the model's own length on all threads.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        LoadOptions {
            source: Source::File(path.into()),
            context_tokens: None,
            max_sequences: 16,
            max_batched_tokens: 512,
            kv_bytes: None,
            memory_bytes: None,
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
            vulkan: VulkanOptions::default(),
            deterministic: false,
            chat_template: None,
            profile_ops: false,
        }
    }
}

/// Why a model cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file is at fault.
    #[error(transparent)]
    Gguf(#[from] GgufError),
    /// The file is not a model that can run here.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// Its tokenizer cannot be used.
    #[error("{}: {source}", path.display())]
    Tokenizer {
        /// The file.
        path: PathBuf,
        /// Why.
        source: TokenizerError,
    },
    /// Its chat template, or the one given instead, cannot be used.
    #[error("{}: the chat template is broken: {source}; give another with --chat-template", path.display())]
    ChatTemplate {
        /// The file.
        path: PathBuf,
        /// Why.
        source: ChatTemplateError,
    },
    /// It takes more memory than there is.
    #[error("{}: {source}{}", path.display(), beside_the_cache(*cache_bytes))]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// What was asked for to keep experts on the device, which counts among the weights there.
        cache_bytes: Option<u64>,
        /// The numbers, and what would help.
        source: TooLarge,
    },
    /// A replica takes more memory than its share of what there is.
    #[error("{source}; {sharers} replicas share that memory, and this is what each can have of it")]
    ReplicaTooLarge {
        /// The numbers.
        source: Box<LoadError>,
        /// How many share the memory at most.
        sharers: u64,
    },
    /// The replicas do not get as many devices each.
    #[error(transparent)]
    UnevenDevices(#[from] UnevenDevices),
    /// It cannot be divided among the devices as was asked for.
    #[error(transparent)]
    Split(#[from] SplitError),
    /// Layers for a GPU, and none to compute them, or several.
    #[error(
        "--gpu-layers needs one Vulkan device, as with --device vulkan, and not {device}; several share layers by --split"
    )]
    GpuLayersWithoutGpu {
        /// The devices that were chosen.
        device: String,
    },
    /// Two ways of dividing.
    #[error("--gpu-layers and --split both say how layers are divided; give one of them")]
    GpuLayersBesideSplit,
    /// Experts on the processor, and layers on several devices.
    #[error(
        "--cpu-experts needs one Vulkan device that has all layers; without --split and --gpu-layers it can be used"
    )]
    ExpertsBesideSplit,
    /// A cache of experts, and nowhere to have it.
    #[error("--expert-cache needs one Vulkan device that has all layers, as with --device vulkan")]
    ExpertCacheWithoutDevice,
    /// A cache of experts, and bits that must not depend on what it has.
    #[error(
        "with --expert-cache it depends on what was asked before which experts the device computes, and so does rounding; \
         with --deterministic it must not: give one of them"
    )]
    ExpertCacheBesideDeterministic,
    /// Experts that come to the device, and no room for them there.
    #[error("--expert-streaming {rows} needs room for experts on the device: --expert-cache SIZE")]
    StreamingWithoutCache {
        /// From how many rows on they were to come.
        rows: usize,
    },
    /// Room for less than one expert.
    #[error(
        "--expert-cache {} has no room for an expert, which takes {}", format_bytes(*bytes), format_bytes(*least_bytes)
    )]
    ExpertCacheTooSmall {
        /// The bytes that were given.
        bytes: u64,
        /// What an expert takes.
        least_bytes: u64,
    },
    /// The device refuses what brings experts to it.
    #[error("experts cannot be brought to the device: {0}")]
    Upload(String),
    /// A thread cannot be started.
    #[error("the system starts no thread: {0}")]
    Thread(#[from] std::io::Error),
    /// The Vulkan device cannot be used, or failed.
    #[error(transparent)]
    Vulkan(#[from] VulkanError),
    /// The machine lacks the instruction set.
    #[error("this machine cannot run the {kernel} kernel; without --kernel the fastest that it can is taken")]
    Kernel {
        /// The kernel.
        kernel: Kernel,
    },
    /// An option has an impossible value.
    #[error("{option} must be at least 1")]
    ZeroOption {
        /// The option, as the user knows it.
        option: &'static str,
    },
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
    /// The most common format by bytes: "Q4_K".
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
    /// The experts that the engine hands out, if it does.
    pub experts: Option<HostExperts>,
    /// Facts.
    pub card: ModelCard,
    /// What it takes.
    pub memory: MemoryPlan,
}

impl<E: Engine> LoadedModel<E> {
    /// The same with another engine around its engine.
    pub fn map_engine<F: Engine>(self, wrap: impl FnOnce(E) -> F) -> LoadedModel<F> {
        let LoadedModel { engine, tokenizer, chat_template, experts, card, memory } = self;
        LoadedModel { engine: wrap(engine), tokenizer, chat_template, experts, card, memory }
    }
}

/// A model that was looked at and fits.
pub struct Plan {
    options: LoadOptions,
    gguf: Arc<Gguf>,
    /// Weights that are made when the engine is.
    unmade: Option<Unmade>,
    division: Division,
    memory: MemoryPlan,
    limits: EngineLimits,
    card: ModelCard,
}

/// Most bytes of logits in a step; a step with more sequences than this allows still gets one row for each.
const LOGITS_BYTES: usize = 64 << 20;

/// Reads the headers and plans the memory. Allocates nothing of the model's size.
///
/// # Errors
/// [`LoadError`] when the file is not a model that can run here, or does not fit.
pub fn plan(options: &LoadOptions) -> Result<Plan, LoadError> {
    draft(options)?.plan(&Sharers::default())
}

/// A model that was looked at; its memory is still to be planned.
struct Draft {
    options: LoadOptions,
    gguf: Gguf,
    unmade: Option<Unmade>,
    division: Division,
    limits: EngineLimits,
    request: Request,
    card: ModelCard,
}

/// Reads the headers and divides the model among its devices.
fn draft(options: &LoadOptions) -> Result<Draft, LoadError> {
    for (option, value) in [
        ("max-seqs", options.max_sequences),
        ("max-batched-tokens", options.max_batched_tokens),
        ("threads", options.threads),
    ] {
        if value == 0 {
            return Err(LoadError::ZeroOption { option });
        }
    }
    let (gguf, unmade) = options.source.open()?;
    let model = Model::build(&gguf)?;
    let h = &model.hyperparameters;
    let max_sequences = options.max_sequences.min(options.max_batched_tokens);
    let logits_rows_that_fit = LOGITS_BYTES / (h.vocab_size * size_of::<f32>());
    let max_logits_rows = logits_rows_that_fit.clamp(max_sequences, options.max_batched_tokens.max(max_sequences));
    let (vocab_size, context_train) = (h.vocab_size, h.context_train);
    let card = ModelCard::read(&gguf, &model)?;
    let mut limits = EngineLimits {
        vocab_size,
        context_tokens: options.context_tokens.unwrap_or(context_train),
        kv_blocks: 0,
        max_batched_tokens: options.max_batched_tokens,
        max_sequences,
        max_logits_rows,
        device: String::new(),
    };
    let request = Request {
        weights_bytes: 0,
        scratch_bytes: 0,
        block_bytes: 0,
        context_train,
        context_tokens: options.context_tokens,
        max_sequences,
        kv_bytes: options.kv_bytes,
        limit_bytes: options.memory_bytes,
        available_bytes: None,
        own_memory: None,
    };
    let division = engine::divide(model, options, &limits, &request)?;
    limits.device = division.describe(options);
    Ok(Draft { options: options.clone(), gguf, unmade, division, limits, request, card })
}

impl Draft {
    /// Plans the memory, as one of so many that share each.
    fn plan(self, sharers: &Sharers) -> Result<Plan, LoadError> {
        let Draft { options, gguf, unmade, mut division, mut limits, request, card } = self;
        let memory = match division.plan_memory(&options, &limits, &request, unmade.is_some(), sharers) {
            // Experts may stay in their file, where there is one.
            Err(too_large) if unmade.is_none() => {
                division.leave_experts_in_file(&options, &limits, &request, sharers).ok_or(too_large)
            }
            planned => planned,
        };
        let memory = memory.map_err(|source| LoadError::TooLarge {
            path: gguf.path().to_owned(),
            cache_bytes: options.expert_cache_bytes,
            source,
        })?;
        let memory = MemoryPlan { in_file_bytes: division.in_file_bytes(), ..memory };
        limits.context_tokens = memory.context_tokens;
        limits.kv_blocks = memory.kv_blocks;
        Ok(Plan { options, gguf: Arc::new(gguf), unmade, division, memory, limits, card })
    }
}

impl Plan {
    /// The model's file, or the description of a synthetic one.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.gguf.path()
    }

    /// What it was planned with.
    #[must_use]
    pub fn options(&self) -> &LoadOptions {
        &self.options
    }

    /// What the model takes.
    #[must_use]
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    /// Facts about it.
    #[must_use]
    pub fn card(&self) -> &ModelCard {
        &self.card
    }

    /// What its engine will take.
    #[must_use]
    pub fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    /// Makes the tokenizer, brings the weights into memory and reserves the rest, side by side.
    ///
    /// # Errors
    /// [`LoadError`] when the tokenizer or chat template cannot be used, or the device refuses.
    pub fn load(self, progress: &mut dyn FnMut(LoadProgress)) -> Result<LoadedModel<Box<dyn Engine>>, LoadError> {
        let (gguf, given) = (Arc::clone(&self.gguf), self.options.chat_template.clone());
        let (card, memory) = (self.card.clone(), self.memory.clone());
        // The text side computes on one thread, and while it does the engine mostly waits for memory.
        let (text, engine) = std::thread::scope(|scope| {
            let text = scope.spawn(move || -> Result<_, LoadError> {
                let tokenizer = tokenizer(&gguf)?;
                let chat_template = chat_template(&gguf, given.as_deref(), &tokenizer)?;
                Ok((tokenizer, chat_template))
            });
            let engine = self.load_parts(progress);
            (text.join().unwrap_or_else(|panic| resume_unwind(panic)), engine)
        });
        let ((tokenizer, chat_template), (engine, experts)) = (text?, engine?);
        Ok(LoadedModel {
            engine,
            experts,
            tokenizer: Arc::new(tokenizer),
            chat_template: chat_template.map(Arc::new),
            card,
            memory,
        })
    }

    /// The same without the text side, for benchmarks and tests that speak in token ids. The engine computes all experts
    /// itself.
    ///
    /// # Errors
    /// [`LoadError`] when the device refuses.
    pub fn load_engine(self, progress: &mut dyn FnMut(LoadProgress)) -> Result<Box<dyn Engine>, LoadError> {
        let (engine, experts) = self.load_parts(progress)?;
        Ok(match experts {
            Some(experts) => Box::new(WithExperts::new(engine, experts)),
            None => engine,
        })
    }

    fn load_parts(
        self,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(Box<dyn Engine>, Option<HostExperts>), LoadError> {
        if let Some(unmade) = self.unmade {
            unmade.make(self.options.threads);
        }
        self.division.build(&self.options, self.limits, progress)
    }
}

/// The file's tokenizer.
///
/// # Errors
/// [`LoadError`] when the file has none, or one that is not known here.
pub fn tokenizer(gguf: &Gguf) -> Result<Tokenizer, LoadError> {
    Tokenizer::from_gguf(gguf).map_err(|error| match error {
        TokenizerError::Gguf(error) => LoadError::Gguf(error),
        source => LoadError::Tokenizer { path: gguf.path().to_owned(), source },
    })
}

/// The template given, else the file's, else none.
///
/// # Errors
/// [`LoadError::ChatTemplate`] when it does not compile.
pub fn chat_template(
    gguf: &Gguf,
    given: Option<&str>,
    tokenizer: &Tokenizer,
) -> Result<Option<ChatTemplate>, LoadError> {
    // A template that was given replaces all of the file's.
    let (source, tool_use) = match given {
        Some(given) => (Some(given), None),
        None => (gguf.optional_str("tokenizer.chat_template")?, gguf.optional_str("tokenizer.chat_template.tool_use")?),
    };
    let text = |token: Option<u32>| token.map(|token| tokenizer.token_text(token)).unwrap_or_default();
    let compile = |source: &str| {
        let template = ChatTemplate::new(source, &text(tokenizer.bos()), &text(tokenizer.eos()))?;
        match tool_use {
            Some(tool_use) => template.with_tool_use(tool_use),
            None => Ok(template),
        }
    };
    source.map(compile).transpose().map_err(|source| LoadError::ChatTemplate { path: gguf.path().to_owned(), source })
}

impl ModelCard {
    fn read(gguf: &Gguf, model: &Model) -> Result<Self, LoadError> {
        let mut bytes_of_format: Vec<(String, u64)> = Vec::new();
        for tensor in gguf.tensors() {
            let format = tensor.format().map_or_else(|| format!("type {}", tensor.ggml_type), |f| f.name().to_owned());
            let bytes = tensor.n_bytes.unwrap_or(0);
            match bytes_of_format.iter_mut().find(|(name, _)| *name == format) {
                Some((_, sum)) => *sum += bytes,
                None => bytes_of_format.push((format, bytes)),
            }
        }
        let quantization = bytes_of_format.iter().max_by_key(|(_, bytes)| *bytes);
        Ok(ModelCard {
            name: gguf.optional_str("general.name")?.map_or_else(|| stem(gguf.path()), str::to_owned),
            architecture: model.hyperparameters.architecture.clone(),
            n_params: gguf.tensors().iter().map(|tensor| tensor.n_elements()).sum(),
            size_bytes: bytes_of_format.iter().map(|(_, bytes)| bytes).sum(),
            quantization: quantization.map_or_else(String::new, |(name, _)| name.clone()),
            context_train: model.hyperparameters.context_train,
            license: gguf.optional_str("general.license")?.map(str::to_owned),
        })
    }
}

fn stem(path: &Path) -> String {
    path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned())
}
