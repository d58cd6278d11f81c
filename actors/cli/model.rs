//! From the name of a model to a source that the actors load.
//!
//! The memory plan is printed before anything is allocated. Loading shows a progress bar.

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cuelight_engine::engine::{BLOCK_TOKENS, Engine};
use cuelight_engine::load::{
    self, ChatTemplateOptions, ComputeDevice, GivenTemplate, Kernel, LoadCancel, LoadError, LoadOptions, LoadPlan,
    LoadProgress, LoadedModel, MemoryPlan, Recommended, RequestDefaults, Section, Source, TierMemory, VulkanOptions,
};
use cuelight_engine::memory::format_bytes;
use cuelight_engine::sample::PartialSampling;
use indicatif::ProgressBar;

use super::draft::{self, DraftFile};
use super::hints::explain_load;
use super::media::{self, MediaFile};
use super::tuning::Tuned;
use super::{CliError, Context, lora, quantized, template_worker};
use crate::config::{Config, Origin};
use crate::hub::ollama::Published;
use crate::models::{ModelFactory, PlanError, PlannedModel};
use crate::pipeline::adapters::{AdapterSpec, Adapters};
use crate::pipeline::kv_store::KvStoreOptions;
use crate::pipeline::loader::{ModelSource, SourceError};
use crate::pipeline::model_source::{DraftModel, MediaModel};
use crate::pipeline::planned_file::PlannedFile;
use crate::pipeline::policy::PolicyConfig;
use crate::pipeline::runtime::RuntimeOptions;

/// How much of a memory plan is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlanDetail {
    /// One line with the sizes.
    Line,
    /// A table.
    Table,
}

/// The load options of the configuration, for CPU kernels with this tuning.
///
/// # Errors
/// [`CliError::Io`] when the chat template cannot be read.
pub fn load_options(config: &Config, tuned: &Tuned, source: Source) -> Result<LoadOptions, CliError> {
    check_device_flags(config)?;
    Ok(LoadOptions {
        source,
        section: Section::Model,
        draft_of: None,
        takes_embeddings: false,
        returns_hidden: false,
        residuals: Vec::new(),
        context_tokens: config.ctx_size.map(NonZeroUsize::get),
        max_sequences: config.max_seqs.get(),
        max_batched_tokens: config.max_batched_tokens.get(),
        kv_bytes: config.kv_memory.map(|size| size.0),
        state_bytes: config.state_memory.map(|size| size.0),
        memory_bytes: None,
        request_bytes: 0,
        tiers: TierMemory::default(),
        draft: Vec::new(),
        media: Vec::new(),
        kv_type: config.kv_type,
        keeps_windows: false,
        threads: config.threads.map_or(tuned.calibration.threads, NonZeroUsize::get),
        device: config.device.clone(),
        split: config.split.clone(),
        gpu_layers: config.gpu_layers,
        cpu_experts: config.cpu_experts,
        expert_streaming: config.expert_streaming,
        device_bytes: config.vram.map(|size| size.0),
        expert_cache_bytes: config.expert_cache.map(|size| size.0),
        expert_read_ahead: true,
        kernel: config.kernel.unwrap_or_else(Kernel::detect),
        activation_bits: config.activation_bits,
        tuning: tuned.calibration.tuning(),
        vulkan: VulkanOptions { pipeline_cache: Some(config.cache_dir.join("pipelines")), ..VulkanOptions::default() },
        deterministic: config.deterministic,
        chat_template: ChatTemplateOptions {
            given: config.chat_template.as_deref().map(given_template).transpose()?,
            worker: template_worker::program(config.chat_template_timeout, config.chat_template_memory.0),
            parse_special_in_content: config.parse_special_in_content,
        },
        adapters: None,
        recommended: Recommended::default(),
        ignore_model_sampling: config.no_model_sampling,
        defaults: request_defaults(config),
        observer: None,
        profile_ops: config.profile_ops,
    })
}

fn given_template(path: &Path) -> Result<GivenTemplate, CliError> {
    let read = std::fs::read_to_string(path);
    let source = read.map_err(CliError::io(format!("read the chat template {}", path.display())))?;
    Ok(GivenTemplate { path: path.to_owned(), source })
}

/// Refuses flags that have no effect on the chosen devices. A configuration file may have their settings for another device.
fn check_device_flags(config: &Config) -> Result<(), CliError> {
    let devices = &config.device;
    let has_gpu = devices.0.iter().any(|device| matches!(device, ComputeDevice::Vulkan(_)));
    let (on_gpu, on_several) = ("use it with --device vulkan", "name several devices in --device");
    for (setting, is_set, has_effect, advice) in [
        ("vram", config.vram.is_some(), has_gpu, on_gpu),
        ("split", config.split.is_some(), devices.0.len() > 1, on_several),
    ] {
        if let (true, false, Origin::Flag(flag)) = (is_set, has_effect, config.origin(setting)) {
            return Err(CliError::Usage(format!("--{flag} has no effect on {devices} alone; {advice}")));
        }
    }
    Ok(())
}

/// What the settings say about requests that say nothing. A default of a setting is not said: the model's comes before it.
fn request_defaults(config: &Config) -> RequestDefaults {
    let is_set = |name| *config.origin(name) != Origin::Default;
    let sampling = PartialSampling {
        temperature: is_set("temp").then_some(config.temp.0),
        top_k: is_set("top_k").then_some(config.top_k),
        top_p: is_set("top_p").then_some(config.top_p.0),
        min_p: is_set("min_p").then_some(config.min_p.0),
        repetition_penalty: None,
    };
    RequestDefaults { sampling, system: config.system.clone() }
}

/// The scheduling options of the configuration.
#[must_use]
pub fn runtime_options(config: &Config) -> RuntimeOptions {
    let policy = PolicyConfig {
        prefill_chunk_tokens: config.prefill_chunk.map_or(usize::MAX, NonZeroUsize::get),
        inter_token_target: config.itl_target_ms.map(|target| Duration::from_millis(target.get() as u64)),
        prefix_cache: !config.no_prefix_cache,
        speculation: config.speculate,
        max_queued_tokens: config.max_queued_tokens.map_or(usize::MAX, NonZeroUsize::get),
        ..PolicyConfig::default()
    };
    RuntimeOptions {
        max_requests: config.max_seqs.get() * config.replicas.get() + config.max_queued_requests,
        policy,
        client_stall_timeout: config.client_stall_timeout,
        step_timeout: config.step_timeout,
        overlap: config.overlap,
        media_cache_bytes: usize::try_from(config.media_cache.0).unwrap_or(usize::MAX),
        ..RuntimeOptions::default()
    }
}

/// Plans a model for a command that computes one token after the other.
///
/// # Errors
/// When the model cannot be planned, or generates blocks of tokens.
pub fn plan_for_tokens(options: &LoadOptions, command: &str) -> Result<LoadPlan, CliError> {
    let plan = load::plan(options).map_err(CliError::other)?;
    match plan.limits().canvas {
        None => Ok(plan),
        Some(_) => {
            let path = plan.path().display();
            Err(CliError::Failed(format!(
                "{path}: cuelight {command} cannot measure models that generate blocks of tokens"
            )))
        }
    }
}

/// Finds a model's file, plans its memory, prints the plan, and returns the source that the actors load.
///
/// # Errors
/// [`CliError`] when the model is not found, cannot run or does not fit.
pub fn plan(model: &str, detail: PlanDetail, context: &Context) -> Result<GgufSource, CliError> {
    let (specs, adapters) = lora::of_config(&context.config)?.unzip();
    if specs.as_ref().is_some_and(|specs: &Vec<AdapterSpec>| specs.len() > 1) {
        return Err(CliError::Usage("a conversation has one adapter: name one with --lora".to_owned()));
    }
    let options = LoadOptions { adapters, ..file_options(model, context)? };
    let found = media::of_config(model, &options, context)?;
    let options = media::with_media(options, found.as_deref(), NonZeroUsize::MIN);
    let (options, draft) = with_draft(options, context)?;
    let plan = load::plan(&options).map_err(CliError::other)?;
    check_vocabulary(draft.as_deref(), &plan)?;
    match detail {
        PlanDetail::Line => print_line(&plan, context),
        PlanDetail::Table => print_table(std::slice::from_ref(&plan), plan.memory(), context),
    }
    warn_of_context(&plan, context);
    let bar = LoadingBar::new(loading_bar(plan.memory(), context), 1);
    let adapters = specs.map(|specs| Arc::new(Adapters::new(specs)));
    Ok(GgufSource { adapters, draft, media: found, ..GgufSource::new(plan, &bar) })
}

/// Plans a model with all of its replicas within `limit` bytes of host memory, which other models leave to it. Of these,
/// `request_bytes` are for requests. Returns what makes the model, and its first plan.
///
/// # Errors
/// As [`plan`].
pub fn plan_within(
    model: &str,
    limit: Option<u64>,
    request_bytes: u64,
    context: &Context,
) -> Result<(GgufModel, PlannedModel), CliError> {
    let replicas = context.config.replicas.get() as u64;
    let (specs, adapters) = lora::of_config(&context.config)?.unzip();
    let options = file_options(model, context)?;
    let tiers = tier_memory(&context.config);
    let options = LoadOptions { request_bytes: request_bytes / replicas, tiers, adapters, ..options };
    let found = media::of_config(model, &options, context)?;
    let options = media::with_media(options, found.as_deref(), context.config.replicas);
    let (options, draft) = with_draft(options, context)?;
    let factory = GgufModel { adapters: specs, draft, ..GgufModel::new(options, context.config.replicas) };
    let factory = factory.with_media(found);
    let plans = factory.plans(limit).map_err(CliError::other)?;
    if let Some(plan) = plans.first() {
        check_vocabulary(factory.draft.as_deref(), plan)?;
    }
    let memory = MemoryPlan::of_replicas(plans.iter().map(LoadPlan::memory));
    print_table(&plans, &memory, context);
    if let Some(plan) = plans.first() {
        warn_of_context(plan, context);
    }
    let bar = loading_bar(&memory, context);
    let planned = factory.planned(memory, plans, bar);
    Ok((factory, planned))
}

/// Host memory for copies of KV blocks and recurrent states of each replica of a model that is served.
#[must_use]
pub fn tier_memory(config: &Config) -> TierMemory {
    let host_bytes = config.kv_host_memory.map_or(0, |size| size.0);
    KvStoreOptions::reserved(host_bytes, config.kv_disk.is_some() || !config.kv_peer.is_empty(), config.replicas.get())
}

/// The draft model of the configuration, and the options of the model with the memory that it uses.
fn with_draft(options: LoadOptions, context: &Context) -> Result<(LoadOptions, Option<Arc<DraftFile>>), CliError> {
    let draft = draft::of_config(&options, context)?.map(Arc::new);
    let memory = draft.iter().flat_map(|draft| draft.memory()).cloned().collect();
    let returns_hidden = draft.as_ref().is_some_and(|draft| draft.reads_hidden());
    let residuals = draft.as_ref().map_or_else(Vec::new, |draft| draft.residuals().to_vec());
    Ok((LoadOptions { draft: memory, returns_hidden, residuals, ..options }, draft))
}

fn check_vocabulary(draft: Option<&DraftFile>, model: &LoadPlan) -> Result<(), CliError> {
    draft.map_or(Ok(()), |draft| draft.check_vocabulary(model))
}

fn file_options(model: &str, context: &Context) -> Result<LoadOptions, CliError> {
    let source = quantized::source(context.locate(model)?, context)?;
    let options = load_options(&context.config, context.tuned(), source)?;
    with_recommended(with_windows(options, &context.config), model, context)
}

/// The options of a model whose steps the pipeline forms: layers with windows keep no more than these. Copies of blocks hold what all
/// layers have of a token, so that models with lower tiers keep everything.
#[must_use]
pub fn with_windows(options: LoadOptions, config: &Config) -> LoadOptions {
    let is_copied = config.kv_host_memory.is_some() || config.kv_disk.is_some();
    let is_sent = config.kv_share.is_some() || !config.kv_peer.is_empty();
    LoadOptions { keeps_windows: !(config.kv_full || is_copied || is_sent), ..options }
}

/// The options with what the publisher of the model recommends next to its file. Settings come first.
///
/// # Errors
/// [`CliError`] when it cannot be read.
pub fn with_recommended(options: LoadOptions, model: &str, context: &Context) -> Result<LoadOptions, CliError> {
    Ok(recommended_by(context.hub().published(model)?, options))
}

/// The options with what a publisher recommends. Settings come first.
#[must_use]
pub fn recommended_by(published: Published, options: LoadOptions) -> LoadOptions {
    let Published { recommended, context_tokens, .. } = published;
    LoadOptions { recommended, context_tokens: options.context_tokens.or(context_tokens), ..options }
}

/// Prints the model and its memory in one line.
fn print_line(plan: &LoadPlan, context: &Context) {
    let memory = plan.memory();
    let (total, uses, tokens) = (format_bytes(memory.total_bytes()), memory.used.in_one_line(), memory.context_tokens);
    let model = describe(std::slice::from_ref(plan));
    context.terminal.notice(&format!("{model}: {total} of memory ({uses}) for {tokens} tokens"));
}

/// Prints the model and its memory plan as a table; `memory` is that of all replicas.
fn print_table(plans: &[LoadPlan], memory: &MemoryPlan, context: &Context) {
    context.terminal.notice(&describe(plans));
    context.terminal.notice(memory.to_string().trim_end());
    if plans.len() > 1 {
        context.terminal.notice(&format!("  for {} replicas:", plans.len()));
        for plan in plans {
            let (bytes, device) = (format_bytes(plan.memory().total_bytes()), &plan.limits().device);
            let kv_tokens = plan.memory().kv_blocks * BLOCK_TOKENS;
            context.terminal.notice(&format!("    {bytes:>10}  on {device}, {kv_tokens} tokens of KV cache"));
        }
    }
}

/// Warns of a context that is longer than the one of the model's training.
fn warn_of_context(plan: &LoadPlan, context: &Context) {
    let (tokens, trained) = (plan.limits().context_tokens, plan.card().context_train);
    if trained > 0 && tokens > trained {
        context.terminal.notice(&format!(
            "warning: the model was trained for {trained} tokens; answers beyond them may be wrong (--ctx-size {tokens})"
        ));
    }
}

/// "SmolLM2 135M Instruct (llama, Q4_1) on cpu (avx2, 2 threads)".
fn describe(plans: &[LoadPlan]) -> String {
    let devices: Vec<&str> = plans.iter().map(|plan| plan.limits().device.as_str()).collect();
    let card = plans.first().map(LoadPlan::card);
    let model = card.map(|card| format!("{} ({}, {})", card.name, card.architecture, card.quantization));
    format!("{} on {}", model.unwrap_or_default(), devices.join(", "))
}

/// A file that a server loads on request and unloads again.
pub struct GgufModel {
    options: LoadOptions,
    replicas: NonZeroUsize,
    /// The adapters that are loaded with it; `None` for a model without adapters.
    adapters: Option<Vec<AdapterSpec>>,
    /// The model that drafts tokens for it.
    draft: Option<Arc<DraftFile>>,
    /// Its encoders of media.
    media: Option<Arc<MediaFile>>,
}

impl GgufModel {
    /// The file that the options name, loaded `replicas` times.
    #[must_use]
    pub fn new(options: LoadOptions, replicas: NonZeroUsize) -> Self {
        GgufModel { options, replicas, adapters: None, draft: None, media: None }
    }

    /// The model with encoders of media, whose memory the options have.
    #[must_use]
    pub fn with_media(self, media: Option<Arc<MediaFile>>) -> Self {
        GgufModel { media, ..self }
    }

    /// A source for each of the planned replicas. They share their adapters.
    fn planned(&self, memory: MemoryPlan, plans: Vec<LoadPlan>, bar: ProgressBar) -> PlannedModel {
        let bar = LoadingBar::new(bar, plans.len());
        let adapters = self.adapters.clone().map(|specs| Arc::new(Adapters::new(specs)));
        let source = |plan| GgufSource {
            adapters: adapters.clone(),
            draft: self.draft.clone(),
            media: self.media.clone(),
            ..GgufSource::new(plan, &bar)
        };
        PlannedModel::replicated(memory, plans.into_iter().map(source).collect())
    }

    /// The names of the adapters that are loaded with it.
    #[must_use]
    pub fn adapter_names(&self) -> Vec<String> {
        self.adapters.iter().flatten().map(|spec| spec.name.clone()).collect()
    }

    fn plans(&self, limit: Option<u64>) -> Result<Vec<LoadPlan>, LoadError> {
        let options = LoadOptions { memory_bytes: limit, ..self.options.clone() };
        load::plan_replicas(&options, self.replicas.get())
    }
}

impl ModelFactory for GgufModel {
    fn plan(&self, limit: Option<u64>) -> Result<PlannedModel, PlanError> {
        let plans = self.plans(limit).map_err(|error| match error {
            LoadError::TooLarge { .. } | LoadError::ReplicaTooLarge { .. } => PlanError::TooLarge(explain_load(&error)),
            error => PlanError::Unusable(explain_load(&error)),
        })?;
        let memory = MemoryPlan::of_replicas(plans.iter().map(LoadPlan::memory));
        Ok(self.planned(memory, plans, ProgressBar::hidden()))
    }
}

/// A planned file that one actor tree loads, with what the command line adds to it.
pub struct GgufSource {
    file: PlannedFile,
    bar: Arc<LoadingBar>,
    adapters: Option<Arc<Adapters>>,
    draft: Option<Arc<DraftFile>>,
    media: Option<Arc<MediaFile>>,
}

impl GgufSource {
    fn new(plan: LoadPlan, bar: &Arc<LoadingBar>) -> Self {
        GgufSource { file: PlannedFile::new(plan), bar: bar.clone(), adapters: None, draft: None, media: None }
    }

    fn load_first(
        &self,
        plan: LoadPlan,
        cancel: &LoadCancel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedModel<Box<dyn Engine>>, LoadError> {
        for warning in &plan.card().sampling.warnings {
            tracing::warn!("{warning}");
        }
        let mut shown_bytes = 0;
        let loaded = plan.load_cancellable(cancel, &mut |now| {
            self.bar.bar.inc(now.done_bytes.saturating_sub(shown_bytes));
            shown_bytes = now.done_bytes;
            progress(now);
        });
        self.bar.ended();
        loaded
    }
}

/// One progress bar for all replicas that load at the same time, on their first load.
struct LoadingBar {
    bar: ProgressBar,
    /// Replicas that are still loading.
    loading: AtomicUsize,
}

impl LoadingBar {
    fn new(bar: ProgressBar, replicas: usize) -> Arc<Self> {
        Arc::new(LoadingBar { bar, loading: AtomicUsize::new(replicas) })
    }

    /// One replica has loaded, or failed to load.
    fn ended(&self) {
        if self.loading.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.bar.finish_and_clear();
        }
    }
}

/// The engine that serves a model.
#[cfg(not(debug_assertions))]
pub type ServedEngine = Box<dyn Engine>;
/// The engine that serves a model, with faults that tests inject.
#[cfg(debug_assertions)]
pub type ServedEngine = crate::pipeline::faults::Faulty<Box<dyn Engine>>;

#[cfg(not(debug_assertions))]
fn served(loaded: LoadedModel<Box<dyn Engine>>) -> LoadedModel<ServedEngine> {
    loaded
}

#[cfg(debug_assertions)]
fn served(loaded: LoadedModel<Box<dyn Engine>>) -> LoadedModel<ServedEngine> {
    loaded.map_engine(crate::pipeline::faults::Faulty)
}

impl ModelSource for GgufSource {
    type Engine = ServedEngine;

    fn adapters(&self) -> Option<Arc<Adapters>> {
        self.adapters.clone()
    }

    fn draft_model(&self) -> Option<Arc<dyn DraftModel>> {
        self.draft.clone().map(|draft| draft as Arc<dyn DraftModel>)
    }

    fn media_model(&self) -> Option<Arc<dyn MediaModel>> {
        self.media.clone().map(|media| media as Arc<dyn MediaModel>)
    }

    fn load(
        &self,
        cancel: &LoadCancel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedModel<ServedEngine>, SourceError> {
        let loaded = match self.file.take_plan() {
            Some(plan) => self.load_first(plan, cancel, progress),
            None => self.file.load_again(cancel, progress),
        };
        if let (Ok(LoadedModel { adapters: Some(model), .. }), Some(adapters)) = (&loaded, &self.adapters) {
            adapters.attach(model).map_err(|error| SourceError::Failed(error.to_string()))?;
        }
        loaded.map(served).map_err(|error| SourceError::of_load(&error, explain_load))
    }
}

/// A progress bar for the bytes of the weights.
fn loading_bar(memory: &MemoryPlan, context: &Context) -> ProgressBar {
    context.terminal.bytes_bar("loading", memory.used.weights)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::environment::Environment;
    use crate::config::{Given, Raw, resolve};

    #[test]
    fn flags_without_an_effect_on_the_devices_are_refused() {
        let check = |values: &[(&'static str, &str)], origin: fn(&str) -> Origin| {
            let raw = |(name, text): &(&'static str, &str)| (*name, (Raw::Text((*text).to_owned()), origin(name)));
            let environment = [("HOME", "/home")].into_iter().collect();
            check_device_flags(&resolve(None, &environment, values.iter().map(raw).collect()).unwrap().config)
        };
        let flag = |name: &str| Origin::Flag(name.replace('_', "-"));
        for (name, value) in [("vram", "8GiB"), ("split", "1,2")] {
            let error = check(&[(name, value)], flag).unwrap_err().to_string();
            assert!(
                error.starts_with(&format!("--{} has no effect on cpu alone; ", name.replace('_', "-"))),
                "{error}"
            );
            check(&[(name, value)], |name| Origin::Variable(name.to_owned())).unwrap();
            check(&[(name, value), ("device", "vulkan:0,vulkan:1")], flag).unwrap();
        }
        check(&[("vram", "auto")], flag).unwrap();
    }

    #[test]
    fn a_setting_applies_to_requests_only_if_it_is_set() {
        let flag = |text: &str| (Raw::Text(text.to_owned()), Origin::Flag("flag".to_owned()));
        // The value of the default, but set.
        let given: Given = [("temp", flag("0.7")), ("system", flag("Be brief."))].into_iter().collect();
        let environment = [("HOME", "/home")].into_iter().collect::<Environment>();
        let set = request_defaults(&resolve(None, &environment, given).unwrap().config);
        assert_eq!(set.sampling, PartialSampling { temperature: Some(0.7), ..PartialSampling::default() });
        assert_eq!(set.system.unwrap(), "Be brief.");
        let unset = resolve(None, &environment, Given::new()).unwrap().config;
        assert_eq!(request_defaults(&unset), RequestDefaults::default());
    }
}
