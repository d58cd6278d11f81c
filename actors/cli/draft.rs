//! The draft model of the configuration: a file, or the layer of the model that predicts one more token. A file may be a draft model
//! that computes with the residuals of the model (EAGLE-3).

use cuelight_engine::engine::Engine;
use cuelight_engine::format::tokenizer::Tokenizer;
use cuelight_engine::load::{
    self, CompanionMemory, LoadCancel, LoadError, LoadOptions, LoadPlan, Section, Source, TierMemory,
};
use cuelight_engine::memory::{MemoryId, format_bytes};

use super::hints::explain_load;
use super::{CliError, Context};
use crate::pipeline::drafter::HIDDEN_BYTES;
use crate::pipeline::loader::SourceError;
use crate::pipeline::model_source::DraftModel;
use crate::pipeline::policy::SpeculationMode;

/// One token in this number may have another text in the vocabulary of the draft model. Models of one family differ in a few
/// control tokens, which drafts rarely contain.
const OTHER_TOKENS: usize = 100;

/// The name of the model's own layer for multi-token prediction, instead of a draft model.
const PREDICTION: &str = "mtp";

/// A file with a draft model, or with the layer of the model that drafts for it.
pub struct DraftFile {
    options: LoadOptions,
    memory: Vec<CompanionMemory>,
    /// The layers of the model whose inputs it computes with.
    residuals: Vec<usize>,
    /// `None` for a layer of the model and for one that computes with its residuals, which have the vocabulary of the model.
    tokenizer: Option<Tokenizer>,
}

/// The draft model of the configuration, if there is one and it is used: its file is found and its memory planned, with the
/// options of the model whose tokens it drafts. Prints the plan.
///
/// # Errors
/// [`CliError`] when the model is not found, does not fit, or cannot be a draft model.
pub fn of_config(of_model: &LoadOptions, context: &Context) -> Result<Option<DraftFile>, CliError> {
    let config = &context.config;
    let Some(draft) = &config.draft else {
        return match config.speculate {
            SpeculationMode::Draft => {
                Err(CliError::Usage("--speculate draft needs a draft model or mtp: add --draft".to_owned()))
            }
            _ => Ok(None),
        };
    };
    if matches!(config.speculate, SpeculationMode::Off | SpeculationMode::Ngram) {
        return Ok(None);
    }
    let device = config.draft_device.or_else(|| config.device.0.first().copied());
    let options = LoadOptions {
        context_tokens: None,
        kv_bytes: Some(config.draft_kv_memory.0),
        device: device.map_or_else(|| config.device.clone(), Into::into),
        split: None,
        gpu_layers: None,
        device_bytes: None,
        expert_cache_bytes: None,
        request_bytes: 0,
        tiers: TierMemory::default(),
        keeps_windows: false,
        adapters: None,
        media: Vec::new(),
        takes_embeddings: false,
        profile_ops: false,
        ..of_model.clone()
    };
    let options = with_source(draft, options, context)?;
    let plan = load::plan(&options).map_err(CliError::other)?;
    let file = DraftFile::new(&plan)?;
    context.terminal.notice(&describe(&plan, &file.memory));
    Ok(Some(file))
}

/// The options of the model's own layer, or of a file. A draft model that computes with residuals is opened with the model.
fn with_source(draft: &str, options: LoadOptions, context: &Context) -> Result<LoadOptions, CliError> {
    if draft == PREDICTION {
        return Ok(LoadOptions { section: Section::Prediction, returns_hidden: true, ..options });
    }
    let source = Source::File(context.locate(draft)?);
    if !load::is_drafter(&source).map_err(CliError::other)? {
        return Ok(LoadOptions { source, ..options });
    }
    let draft_of = Some(options.source.clone());
    Ok(LoadOptions { source, section: Section::Drafter, draft_of, returns_hidden: true, ..options })
}

/// "layer for multi-token prediction on cpu (2 threads): 310.2 MiB of memory, KV cache for 11008 tokens", or "draft model SmolLM2
/// 135M (llama, Q4_1) on cpu (2 threads): 310.2 MiB of memory, KV cache for 11008 tokens".
fn describe(plan: &LoadPlan, memory: &[CompanionMemory]) -> String {
    let (card, limits) = (plan.card(), plan.limits());
    let bytes = format_bytes(memory.iter().map(|memory| memory.bytes).sum());
    let (name, architecture, quantization) = (&card.name, &card.architecture, &card.quantization);
    let what = match plan.options().section {
        Section::Model | Section::Drafter => format!("draft model {name} ({architecture}, {quantization})"),
        Section::Prediction => "layer for multi-token prediction".to_owned(),
    };
    format!(
        "{what} on {}: {bytes} of memory, KV cache for {} tokens",
        limits.device,
        plan.memory().kv_blocks * cuelight_engine::engine::BLOCK_TOKENS
    )
}

impl DraftFile {
    fn new(plan: &LoadPlan) -> Result<Self, CliError> {
        if plan.limits().state_slots > 0 {
            return Err(CliError::Usage(format!(
                "{} cannot be a draft model: it has recurrent state, and a draft that was wrong cannot be taken back; choose \
                 a model with attention only",
                plan.path().display()
            )));
        }
        let mut memory = CompanionMemory::of_plan(plan.memory());
        let reads_hidden = plan.options().section != Section::Model;
        if reads_hidden {
            memory.push(CompanionMemory { memory: MemoryId::Host, bytes: HIDDEN_BYTES as u64 });
        }
        // Keep the size of the context for later loads: there may be less memory then.
        let options = LoadOptions { context_tokens: Some(plan.memory().context_tokens), ..plan.options().clone() };
        let tokenizer = (!reads_hidden).then(|| plan.tokenizer()).transpose().map_err(CliError::other)?;
        Ok(DraftFile { options, memory, residuals: plan.card().residuals.clone(), tokenizer })
    }

    /// Whether it computes with the hidden values of the model.
    #[must_use]
    pub fn reads_hidden(&self) -> bool {
        self.options.section != Section::Model
    }

    /// The layers of the model whose inputs it computes with; none if it computes with what follows the last layer.
    #[must_use]
    pub fn residuals(&self) -> &[usize] {
        &self.residuals
    }

    /// What it uses of each memory.
    #[must_use]
    pub fn memory(&self) -> &[CompanionMemory] {
        &self.memory
    }

    /// Checks that the draft model has the vocabulary of the model.
    ///
    /// # Errors
    /// [`CliError::Usage`] when its tokens differ. The text names the first one.
    pub fn check_vocabulary(&self, model: &LoadPlan) -> Result<(), CliError> {
        let Some(own) = &self.tokenizer else { return Ok(()) };
        let tokenizer = model.tokenizer().map_err(CliError::other)?;
        difference(&tokenizer, own).map_or(Ok(()), |difference| {
            Err(CliError::Usage(format!(
                "the draft model does not have the vocabulary of {}: {difference}; choose a smaller model of the same family",
                model.path().display()
            )))
        })
    }
}

/// How the vocabularies of a model and a draft model differ; `None` if nearly all tokens are the same.
fn difference(model: &Tokenizer, draft: &Tokenizer) -> Option<String> {
    let (larger, common) = (model.vocab_size().max(draft.vocab_size()), model.vocab_size().min(draft.vocab_size()));
    let of = |tokenizer: &Tokenizer, index: usize| tokenizer.token_text(u32::try_from(index).unwrap_or(u32::MAX));
    let differing: Vec<_> = (0..common).filter(|&index| of(model, index) != of(draft, index)).collect();
    match differing.first() {
        Some(&first) if differing.len() * OTHER_TOKENS > common => {
            Some(format!("token {first} is {:?} there and {:?} here", of(model, first), of(draft, first)))
        }
        _ if (larger - common) * OTHER_TOKENS > larger => {
            Some(format!("it has {} tokens there and {} here", model.vocab_size(), draft.vocab_size()))
        }
        _ => None,
    }
}

impl DraftModel for DraftFile {
    fn load(&self, cancel: &LoadCancel) -> Result<Box<dyn Engine>, SourceError> {
        let load = || load::plan(&self.options)?.load_engine_cancellable(cancel, &mut |_| {});
        load().map_err(|error: LoadError| match error {
            error if error.is_cancelled() => SourceError::Cancelled,
            error => SourceError::Failed(explain_load(&error)),
        })
    }
}
