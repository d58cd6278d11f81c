//! Plans a load: reads headers, divides the model among devices and plans their memory, before anything large is allocated.

use std::panic::resume_unwind;
use std::path::Path;
use std::sync::Arc;

use cuelight_shaders::layer_state::LayerState;
use cuelight_shaders::pages::check_available;

use super::cache_layout;
use super::card::ModelCard;
use super::division::{self, Division, Sharers};
use super::error::LoadError;
use super::guarded::GuardedEngine;
use super::options::{LoadOptions, Source, TierMemory};
use super::progress::LoadProgress;
use super::text::{chat_template, tokenizer_bytes, tokenizer_cancellable};
use crate::adapters::AdapterModel;
use crate::backend::offload::WithExperts;
use crate::cancel::LoadCancel;
use crate::checkpoint::Checkpoint;
use crate::checkpoint::drafter::{self, Drafter};
use crate::embedding::{EmbeddingSpec, Pooling};
use crate::engine::{
    AdapterLimits, CanvasLimits, EmbeddingLimits, Engine, EngineLimits, HiddenInput, HiddenLimits, LogitTokens,
    WindowLimits,
};
use crate::experts::HostExperts;
use crate::format::chat_template::ChatTemplate;
use crate::format::hugging_face::HeadCounts;
use crate::format::tokenizer::Tokenizer;
use crate::mapped_file::ModelFiles;
use crate::memory::{self, BlockBytes, MemoryBreakdown, MemoryId, MemoryPlan, MemoryRequest, StateSlots, WindowNeeds};
use crate::model::hyperparameters::HyperParameters;
use crate::model::layer::{DeltaLayer, MixerSpec};
use crate::model::{BuildOptions, ModelGraph, Section};
use crate::synthetic::generate::PendingWeights;

/// A model ready to run.
pub struct LoadedModel<E: Engine> {
    /// Computes steps.
    pub engine: E,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// Renders a conversation to a prompt, if the model has a template.
    pub chat_template: Option<Arc<ChatTemplate>>,
    /// The experts that the engine leaves to the host, if any.
    pub experts: Option<HostExperts>,
    /// Facts about the model.
    pub card: ModelCard,
    /// Its memory.
    pub memory: MemoryPlan,
    /// Its files, which must not change while it runs.
    pub files: ModelFiles,
    /// What its adapters must fit; `None` for a model without adapters.
    pub adapters: Option<Arc<AdapterModel>>,
}

impl<E: Engine> LoadedModel<E> {
    /// The same model with its engine wrapped in another.
    pub fn map_engine<F: Engine>(self, wrap: impl FnOnce(E) -> F) -> LoadedModel<F> {
        let LoadedModel { engine, tokenizer, chat_template, experts, card, memory, files, adapters } = self;
        LoadedModel { engine: wrap(engine), tokenizer, chat_template, experts, card, memory, files, adapters }
    }
}

/// A load whose memory is planned and fits.
pub struct LoadPlan {
    options: LoadOptions,
    checkpoint: Arc<dyn Checkpoint>,
    /// Weights to generate while loading.
    pending_weights: Option<PendingWeights>,
    division: Division,
    memory: MemoryPlan,
    limits: EngineLimits,
    card: ModelCard,
    adapters: Option<Arc<AdapterModel>>,
}

/// Most bytes of logits in a step. A step with more sequences than fit still gets one row per sequence. A prompt whose tokens are
/// all scored is computed in pieces of as many rows.
const LOGITS_BYTES: usize = 16 << 20;

/// Reads the headers and plans the memory. Allocates nothing of the model's size.
///
/// # Errors
/// [`LoadError`] when the file is not a model that can run on these devices, or does not fit.
pub fn plan(options: &LoadOptions) -> Result<LoadPlan, LoadError> {
    divide(options)?.plan(&Sharers::default())
}

/// A model divided among its devices, whose memory is not planned yet.
pub(super) struct DividedModel {
    pub(super) options: LoadOptions,
    checkpoint: Box<dyn Checkpoint>,
    pending_weights: Option<PendingWeights>,
    pub(super) division: Division,
    limits: EngineLimits,
    request: MemoryRequest,
    card: ModelCard,
    adapters: Option<Arc<AdapterModel>>,
}

/// Reads the headers and divides the model among its devices.
pub(super) fn divide(options: &LoadOptions) -> Result<DividedModel, LoadError> {
    for (setting, value) in [
        ("the number of sequences in a step", options.max_sequences),
        ("the number of tokens in a step", options.max_batched_tokens),
        ("the number of threads", options.threads),
    ] {
        if value == 0 {
            return Err(LoadError::ZeroSetting { setting });
        }
    }
    let (checkpoint, pending_weights) = open(options)?;
    let model = ModelGraph::build_with(&*checkpoint, &build_options(options))?;
    check_canvases(&model, &*checkpoint, options)?;
    if model.encoder_rows.is_some() && !options.takes_embeddings {
        return Err(LoadError::NoEncoder { architecture: model.hyperparameters.architecture });
    }
    let card = ModelCard::read(&*checkpoint, &model, options)?;
    let mut limits = limits(&model, options);
    let adapters = options.adapters.map(|limits| Arc::new(adapter_model(&model, limits)));
    let mut request = memory_request(&model, options, &limits);
    request.fixed.text = tokenizer_bytes(&*checkpoint)?;
    request.fixed.adapters = adapters.as_ref().map_or(0, |adapters| adapters.reserved_bytes());
    let division = division::divide(model, options, &limits, &request)?;
    if options.adapters.is_some_and(|adapters| adapters.experts) && division.host.is_some() {
        return Err(LoadError::ExpertAdaptersOnHost { device: options.device.to_string() });
    }
    limits.device = division.describe(options);
    Ok(DividedModel {
        options: options.clone(),
        checkpoint,
        pending_weights,
        division,
        limits,
        request,
        card,
        adapters,
    })
}

/// Opens the model; a draft model with what it uses of the model whose tokens it drafts.
fn open(options: &LoadOptions) -> Result<(Box<dyn Checkpoint>, Option<PendingWeights>), LoadError> {
    let (checkpoint, pending_weights) = options.source.open()?;
    let Some(model) = &options.draft_of else { return Ok((checkpoint, pending_weights)) };
    let (model, pending_of_model) = model.open()?;
    Ok((Box::new(Drafter::new(checkpoint, model)?), pending_weights.or(pending_of_model)))
}

/// Whether a model is a draft model that computes with the residuals of another model. Reads its header.
///
/// # Errors
/// [`LoadError`] when it cannot be opened.
pub fn is_drafter(source: &Source) -> Result<bool, LoadError> {
    Ok(drafter::is_drafter(&*source.open()?.0)?)
}

/// Checks that a model that generates blocks has no draft model, and space for a block.
fn check_canvases(model: &ModelGraph, checkpoint: &dyn Checkpoint, options: &LoadOptions) -> Result<(), LoadError> {
    let path = || checkpoint.path().display().to_string();
    let context_tokens = options.context_tokens.unwrap_or(model.hyperparameters.context_train);
    match model.hyperparameters.denoising {
        Some(_) if !options.draft.is_empty() => Err(LoadError::DraftOfBlocks { path: path() }),
        Some(rule) if rule.tokens >= context_tokens => {
            Err(LoadError::BlockBeyondContext { path: path(), tokens: rule.tokens, context_tokens })
        }
        _ => Ok(()),
    }
}

/// What is built of the checkpoint.
fn build_options(options: &LoadOptions) -> BuildOptions {
    let LoadOptions { section, context_tokens, adapters, takes_embeddings, .. } = *options;
    BuildOptions { section, context_tokens, adapters, takes_embeddings, residuals: options.residuals.clone() }
}

/// What adapters of a model must fit.
fn adapter_model(model: &ModelGraph, limits: AdapterLimits) -> AdapterModel {
    let heads = model.hyperparameters.layers.iter().map(|layer| {
        let attention = layer.mixer.attention();
        let (query, key) = attention.map_or((0, 0), |of| (of.heads.n_heads, of.heads.n_kv_heads));
        let rotated = attention.map_or(0, |of| if of.rotates_by_images() { of.heads.rotary_dim } else { 0 });
        let delta = match &layer.mixer {
            MixerSpec::GatedDelta(DeltaLayer { shape, .. }) => [shape.key_heads, shape.value_heads, shape.key_dim],
            _ => [0; 3],
        };
        HeadCounts { query, key, delta, rotated, ..HeadCounts::default() }
    });
    let architecture = &model.hyperparameters.architecture;
    AdapterModel::new(architecture, model.projections.clone(), heads.collect(), limits)
}

/// Weights of attention that a step returns, in bytes. They are wanted seldom, and more are returned by several steps.
const ATTENTION_BYTES: usize = 4 << 20;

/// The limits of the engine, as far as they are known before the memory is planned.
fn limits(model: &ModelGraph, options: &LoadOptions) -> EngineLimits {
    let h = &model.hyperparameters;
    let max_sequences = options.max_sequences.min(options.max_batched_tokens);
    let whole_sequences = h.layers.iter().filter_map(|layer| layer.mixer.attention()).any(|layer| layer.sees_later);
    // Models that see the whole text, or have an embedding for each position, know no longer texts than in training.
    let is_bounded = whole_sequences || h.learns_positions;
    let context_tokens = options.context_tokens.unwrap_or(h.context_train);
    let context_tokens = if is_bounded { context_tokens.min(h.context_train) } else { context_tokens };
    // The longest text that is seen as a whole must fit a step.
    let longest = if whole_sequences { context_tokens } else { 0 };
    let block = h.denoising.map_or(0, |rule| rule.tokens);
    // A step has space for prompts next to a block.
    let max_batched_tokens = options.max_batched_tokens.max(longest).max(2 * block);
    let logits_rows_that_fit = LOGITS_BYTES / (h.n_logits().max(1) * size_of::<f32>());
    let max_logits_rows = match h.denoising {
        Some(_) => whole_blocks(logits_rows_that_fit.min(max_batched_tokens / 2), block),
        None => logits_rows_that_fit.clamp(max_sequences, max_batched_tokens.max(max_sequences)),
    };
    let EmbeddingSpec { pooling, is_only, attention, .. } = model.embedding;
    let width = model.embedding.hidden_width();
    let all_rows = pooling == Pooling::Mean || options.returns_hidden;
    let max_rows = match attention {
        Some(_) => (ATTENTION_BYTES / (width * size_of::<f32>())).clamp(1, max_batched_tokens),
        None if all_rows => max_batched_tokens,
        None => max_sequences,
    };
    let residuals = options.residuals.len() * h.hidden_size;
    let reads = match (&h.drafter, options.section) {
        (Some(spec), _) => spec.input(h.hidden_size),
        (None, Section::Prediction) => HiddenInput { of_model: width, own: 0 },
        (None, _) => HiddenInput::default(),
    };
    let logit_tokens = h.drafter.as_ref().and_then(|spec| spec.tokens.clone());
    EngineLimits {
        adapters: options.adapters.unwrap_or_default(),
        vocab_size: h.n_logits(),
        logit_tokens: logit_tokens.map(|tokens| LogitTokens { tokens, vocab_size: h.vocab_size }),
        context_tokens,
        kv_blocks: 0,
        window: window_limits(h, options),
        state_slots: 0,
        max_batched_tokens,
        max_sequences,
        max_logits_rows: if is_only { 0 } else { max_logits_rows },
        hidden: HiddenLimits { width, residuals, max_rows, whole_sequences, all_rows: options.returns_hidden, reads },
        canvas: h.denoising.map(|rule| CanvasLimits { tokens: rule.tokens, width: h.hidden_size }),
        embeddings: options.takes_embeddings.then(|| EmbeddingLimits {
            width: h.hidden_size,
            deep_layers: h.deep_layers,
            leading_rows: h.encoder_rows(),
        }),
        device: String::new(),
    }
}

/// The windows that layers keep instead of everything; their blocks are not known yet. Blocks with copies in other memories keep
/// everything, and so does a model whose steps replace what earlier ones have stored.
fn window_limits(h: &HyperParameters, options: &LoadOptions) -> Option<WindowLimits> {
    let windows = h.layers.iter().filter_map(|layer| layer.mixer.attention()?.kept_window());
    let keeps_windows = options.keeps_windows && options.tiers == TierMemory::default() && h.denoising.is_none();
    windows.max().filter(|_| keeps_windows).map(|positions| WindowLimits { positions, blocks: 0 })
}

/// As many rows of whole blocks as fit, at least those of one.
fn whole_blocks(rows: usize, block: usize) -> usize {
    (rows / block).max(1) * block
}

/// What the model requests of every memory, without the bytes that depend on a device.
fn memory_request(model: &ModelGraph, options: &LoadOptions, limits: &EngineLimits) -> MemoryRequest {
    let slot_bytes = model.states.iter().map(LayerState::slot_bytes).sum();
    MemoryRequest {
        fixed: MemoryBreakdown {
            requests: options.request_bytes,
            tiers: options.tiers.total(slot_bytes),
            ..MemoryBreakdown::default()
        },
        block_bytes: BlockBytes::default(),
        window: limits.window.map(|window| WindowNeeds {
            positions: window.positions,
            max_sequences: limits.max_sequences,
            max_batched_tokens: limits.max_batched_tokens,
        }),
        slot_bytes: 0,
        slots: StateSlots::wanted(slot_bytes, limits.max_sequences, options.state_bytes),
        context_train: model.hyperparameters.context_train,
        context_tokens: options.context_tokens.map(|tokens| tokens.min(limits.context_tokens)),
        max_sequences: limits.max_sequences,
        kv_bytes: options.kv_bytes,
        limit_bytes: options.memory_bytes,
        available_bytes: None,
        memory: MemoryId::Host,
    }
}

impl DividedModel {
    /// Plans the memory. Replicas that share a memory get equal parts of it.
    pub(super) fn plan(self, sharers: &Sharers) -> Result<LoadPlan, LoadError> {
        let DividedModel { options, checkpoint, pending_weights, mut division, mut limits, request, card, adapters } =
            self;
        let planned = division
            .plan_memory(&options, &limits, &request, sharers)
            .or_else(|too_large| division.leave_experts_in_file(&options, &limits, &request, sharers).ok_or(too_large));
        let memory = planned.map_err(|source| LoadError::TooLarge {
            path: checkpoint.path().to_owned(),
            cache_bytes: options.expert_cache_bytes,
            source,
        })?;
        let memory = MemoryPlan {
            in_file_bytes: division.in_file_bytes(),
            mapped_bytes: division.mapped_bytes(&options),
            program_bytes: memory::of_program(),
            limit: memory::limit(),
            ..memory
        };
        limits.context_tokens = memory.context_tokens;
        limits.kv_blocks = memory.kv_blocks;
        let window = limits.window.zip(memory.window_blocks);
        limits.window = window.map(|(window, blocks)| WindowLimits { blocks, ..window });
        limits.state_slots = memory.state_slots;
        Ok(LoadPlan {
            options,
            checkpoint: checkpoint.into(),
            pending_weights,
            division,
            memory,
            limits,
            card,
            adapters,
        })
    }
}

impl LoadPlan {
    /// The model's file, or the description of a synthetic model.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.checkpoint.path()
    }

    /// The options of the load.
    #[must_use]
    pub fn options(&self) -> &LoadOptions {
        &self.options
    }

    /// The memory that the model will use.
    #[must_use]
    pub fn memory(&self) -> &MemoryPlan {
        &self.memory
    }

    /// Facts about the model.
    #[must_use]
    pub fn card(&self) -> &ModelCard {
        &self.card
    }

    /// The limits of its engine.
    #[must_use]
    pub fn limits(&self) -> &EngineLimits {
        &self.limits
    }

    /// The model's files; none for a synthetic model.
    #[must_use]
    pub fn files(&self) -> &ModelFiles {
        self.checkpoint.files()
    }

    /// The model's tokenizer. Building it takes some tenths of a second for a large vocabulary.
    ///
    /// # Errors
    /// [`LoadError`] when it cannot be used.
    pub fn tokenizer(&self) -> Result<Tokenizer, LoadError> {
        tokenizer_cancellable(&*self.checkpoint, &LoadCancel::default())
    }

    /// What adapters of the model must fit; `None` for a model without adapters.
    #[must_use]
    pub fn adapters(&self) -> Option<&Arc<AdapterModel>> {
        self.adapters.as_ref()
    }

    /// Builds the tokenizer and, at the same time, loads the weights and reserves the planned memory.
    ///
    /// # Errors
    /// [`LoadError`] when the tokenizer or chat template cannot be used, the device fails, or the file changes meanwhile.
    pub fn load(self, progress: &mut dyn FnMut(LoadProgress)) -> Result<LoadedModel<Box<dyn Engine>>, LoadError> {
        self.load_cancellable(&LoadCancel::default(), progress)
    }

    /// [`LoadPlan::load`] that ends early, between two tensors, when it is cancelled.
    ///
    /// # Errors
    /// Also [`LoadError::Cancelled`].
    pub fn load_cancellable(
        self,
        cancel: &LoadCancel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedModel<Box<dyn Engine>>, LoadError> {
        let (checkpoint, given) = (Arc::clone(&self.checkpoint), self.options.chat_template.clone());
        let (card, memory, files) = (self.card.clone(), self.memory.clone(), self.files().clone());
        let adapters = self.adapters.clone();
        // The text side needs one CPU thread, while the engine mostly waits for memory and disk.
        let (text, engine) = std::thread::scope(|scope| {
            let text = scope.spawn(move || -> Result<_, LoadError> {
                let tokenizer = tokenizer_cancellable(&*checkpoint, cancel)?;
                let chat_template = chat_template(&*checkpoint, &given, &tokenizer)?;
                checkpoint.release_header();
                Ok((tokenizer, chat_template))
            });
            let engine = self.load_weights(cancel, progress);
            (text.join().unwrap_or_else(|panic| resume_unwind(panic)), engine)
        });
        // An error that was found in a file that changed meanwhile means nothing.
        files.check()?;
        let ((tokenizer, chat_template), (engine, experts)) = (text?, engine?);
        let engine = guarded(engine, &files);
        Ok(LoadedModel {
            engine,
            experts,
            tokenizer: Arc::new(tokenizer),
            chat_template: chat_template.map(Arc::new),
            card,
            memory,
            files,
            adapters,
        })
    }

    /// Loads the engine without tokenizer and chat template, for benchmarks and tests that use token ids. The engine computes
    /// all experts itself.
    ///
    /// # Errors
    /// [`LoadError`] when the device fails.
    pub fn load_engine(self, progress: &mut dyn FnMut(LoadProgress)) -> Result<Box<dyn Engine>, LoadError> {
        self.load_engine_cancellable(&LoadCancel::default(), progress)
    }

    /// [`LoadPlan::load_engine`] that ends early, between two tensors, when it is cancelled.
    ///
    /// # Errors
    /// Also [`LoadError::Cancelled`].
    pub fn load_engine_cancellable(
        self,
        cancel: &LoadCancel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<Box<dyn Engine>, LoadError> {
        let files = self.files().clone();
        let (engine, experts) = self.load_weights(cancel, progress)?;
        let engine = match experts {
            Some(experts) => Box::new(WithExperts::new(engine, experts)),
            None => engine,
        };
        Ok(guarded(engine, &files))
    }

    /// Checks that the system gives what is reserved in host memory before the first step. A process may be allowed less than is
    /// free.
    fn check_host_memory(&self) -> Result<(), LoadError> {
        let of_host = self.memory.pools.iter().filter(|pool| pool.memory == MemoryId::Host);
        let bytes = of_host.map(|pool| pool.used.kv + pool.used.state + pool.used.scratch).sum();
        let path = || self.path().to_owned();
        check_available(bytes).map_err(|source| LoadError::NotGiven { path: path(), bytes, source })
    }

    fn load_weights(
        self,
        cancel: &LoadCancel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<(Box<dyn Engine>, Option<HostExperts>), LoadError> {
        self.check_host_memory()?;
        if let Some(pending_weights) = self.pending_weights {
            pending_weights.make(self.options.threads);
        }
        let description = cache_layout::describe(&self.division, &self.options);
        self.division.build(&self.options, self.limits, description, cancel, progress)
    }
}

/// The engine, with checks of its files if it has any.
fn guarded(engine: Box<dyn Engine>, files: &ModelFiles) -> Box<dyn Engine> {
    if files.is_empty() { engine } else { Box::new(GuardedEngine { engine, files: files.clone() }) }
}
