//! From what the person wrote for a model to a cast that runs it.
//!
//! The plan of its memory is said aloud before anything is allocated; loading shows a bar.

use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::time::Duration;

use cuelight_engine::engine::Engine;
use cuelight_engine::load::{
    self, Kernel, LoadError, LoadOptions, LoadProgress, LoadedModel, Plan, Source, VulkanOptions,
};
use indicatif::ProgressBar;

use super::terminal::Terminal;
use super::{CliError, Context};
use crate::causes::with_causes;
use crate::config::Config;
use crate::loader::ModelSource;
use crate::models::{ModelFactory, PlanError, PlannedModel};
use crate::policy::PolicyConfig;
use crate::runtime::RuntimeOptions;

/// How the configuration wants a model loaded.
///
/// # Errors
/// [`CliError::Io`] when the chat template cannot be read.
pub fn load_options(config: &Config, source: Source) -> Result<LoadOptions, CliError> {
    let chat_template = config.chat_template.as_ref().map(|file| {
        std::fs::read_to_string(file).map_err(CliError::io(format!("read the chat template {}", file.display())))
    });
    Ok(LoadOptions {
        source,
        context_tokens: config.ctx_size.map(NonZeroUsize::get),
        max_sequences: config.max_seqs.get(),
        max_batched_tokens: config.max_batched_tokens.get(),
        kv_bytes: config.kv_memory.map(|size| size.0),
        memory_bytes: None,
        kv_type: config.kv_type,
        threads: config.thread_count(),
        device: config.device.clone(),
        split: config.split.clone(),
        gpu_layers: config.gpu_layers,
        cpu_experts: config.cpu_experts,
        device_bytes: config.vram.map(|size| size.0),
        expert_cache_bytes: config.expert_cache.map(|size| size.0),
        kernel: config.kernel.unwrap_or_else(Kernel::detect),
        activation_bits: config.activation_bits,
        vulkan: VulkanOptions { pipeline_cache: Some(config.cache_dir.join("pipelines")), ..VulkanOptions::default() },
        deterministic: config.deterministic,
        chat_template: chat_template.transpose()?,
        profile_ops: config.profile_ops,
    })
}

/// How the configuration wants requests scheduled.
#[must_use]
pub fn runtime_options(config: &Config) -> RuntimeOptions {
    let policy = PolicyConfig {
        prefill_chunk_tokens: config.prefill_chunk.map_or(usize::MAX, NonZeroUsize::get),
        inter_token_target: config.itl_target_ms.map(|target| Duration::from_millis(target.get() as u64)),
        prefix_cache: !config.no_prefix_cache,
        max_queued_tokens: config.max_queued_tokens.map_or(usize::MAX, NonZeroUsize::get),
        ..PolicyConfig::default()
    };
    RuntimeOptions {
        max_requests: config.max_seqs.get() + config.max_queued_requests,
        policy,
        client_stall_timeout: config.client_stall_timeout,
        step_timeout: config.step_timeout,
        overlap: config.overlap,
        ..RuntimeOptions::default()
    }
}

/// Finds a model's file, plans its memory, prints the plan, and returns what the cast will load.
///
/// # Errors
/// [`CliError`] when there is no such model, or it cannot run or will not fit.
pub fn plan(model: &str, context: &Context) -> Result<GgufSource, CliError> {
    let options = locate(model, context)?;
    let plan = load::plan(&options).map_err(CliError::other)?;
    print_plan(&plan, context);
    let bar = loading_bar(context.terminal, plan.memory().weights_bytes);
    Ok(GgufSource::new(options, plan, bar))
}

/// The same for a model among others, which leave it `limit` bytes: what makes it, and its first plan.
///
/// # Errors
/// As [`plan`].
pub fn plan_beside(model: &str, limit: Option<u64>, context: &Context) -> Result<(GgufModel, PlannedModel), CliError> {
    let factory = GgufModel { options: locate(model, context)? };
    let options = LoadOptions { memory_bytes: limit, ..factory.options.clone() };
    let plan = load::plan(&options).map_err(CliError::other)?;
    print_plan(&plan, context);
    let bar = loading_bar(context.terminal, plan.memory().weights_bytes);
    Ok((factory, PlannedModel::new(plan.memory().clone(), GgufSource::new(options, plan, bar))))
}

fn locate(model: &str, context: &Context) -> Result<LoadOptions, CliError> {
    let path = context.hub().locate(model, &context.terminal.downloads())?;
    load_options(&context.config, Source::File(path))
}

fn print_plan(plan: &Plan, context: &Context) {
    let card = plan.card();
    let device = &plan.limits().device;
    context.terminal.notice(&format!("{} ({}, {}) on {device}", card.name, card.architecture, card.quantization));
    context.terminal.notice(plan.memory().to_string().trim_end());
}

/// A file that a server loads when it is called for, and lets go.
pub struct GgufModel {
    options: LoadOptions,
}

impl GgufModel {
    /// The file at `path`, under the configuration's settings.
    #[must_use]
    pub fn new(options: LoadOptions) -> Self {
        GgufModel { options }
    }
}

impl ModelFactory for GgufModel {
    fn plan(&self, limit: Option<u64>) -> Result<PlannedModel, PlanError> {
        let options = LoadOptions { memory_bytes: limit, ..self.options.clone() };
        let plan = load::plan(&options).map_err(|error| match error {
            LoadError::TooLarge { .. } => PlanError::TooLarge(with_causes(&error)),
            error => PlanError::Unusable(with_causes(&error)),
        })?;
        Ok(PlannedModel::new(plan.memory().clone(), GgufSource::new(options, plan, ProgressBar::hidden())))
    }
}

/// A planned file, for the cast to load: now, and again should its executor be lost.
pub struct GgufSource {
    options: LoadOptions,
    /// The plan that was made first; a later load makes its own.
    first: Mutex<Option<Plan>>,
    bar: ProgressBar,
}

impl GgufSource {
    fn new(options: LoadOptions, plan: Plan, bar: ProgressBar) -> Self {
        let memory = plan.memory();
        // A second load must not come out smaller because the first one still holds its memory: the sizes are settled.
        let options =
            LoadOptions { context_tokens: Some(memory.context_tokens), kv_bytes: Some(memory.kv_bytes), ..options };
        GgufSource { options, first: Mutex::new(Some(plan)), bar }
    }
}

/// What computes a model.
#[cfg(not(feature = "fault-injection"))]
pub type ServedEngine = Box<dyn Engine>;
/// What computes a model, or fails to when a test says so.
#[cfg(feature = "fault-injection")]
pub type ServedEngine = crate::faults::Faulty<Box<dyn Engine>>;

#[cfg(not(feature = "fault-injection"))]
fn served(loaded: LoadedModel<Box<dyn Engine>>) -> LoadedModel<ServedEngine> {
    loaded
}

#[cfg(feature = "fault-injection")]
fn served(loaded: LoadedModel<Box<dyn Engine>>) -> LoadedModel<ServedEngine> {
    loaded.map_engine(crate::faults::Faulty)
}

impl ModelSource for GgufSource {
    type Engine = ServedEngine;

    fn load(&self, progress: &mut dyn FnMut(LoadProgress)) -> Result<LoadedModel<ServedEngine>, String> {
        let first = self.first.lock().ok().and_then(|mut first| first.take());
        let plan = first.map_or_else(|| load::plan(&self.options), Ok);
        let loaded = plan.and_then(|plan| {
            plan.load(&mut |now| {
                self.bar.set_position(now.done_bytes);
                progress(now);
            })
        });
        self.bar.finish_and_clear();
        loaded.map(served).map_err(|error| with_causes(&error))
    }
}

/// A bar for the bytes of the weights.
pub fn loading_bar(terminal: Terminal, weights_bytes: u64) -> ProgressBar {
    terminal.bytes_bar("loading", weights_bytes)
}

/// The runtime that actors and connections share. Computing has threads of its own.
///
/// # Errors
/// [`CliError::Io`].
pub fn tokio_runtime() -> Result<tokio::runtime::Runtime, CliError> {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.enable_all().build().map_err(CliError::io("start the threads"))
}

/// Resolves when the person presses Ctrl-C. From the first call on, Ctrl-C does nothing else.
///
/// # Errors
/// [`CliError::Io`] when signals cannot be heard.
pub async fn interrupt() -> Result<(), CliError> {
    tokio::signal::ctrl_c().await.map_err(CliError::io("listen to signals"))
}

/// Resolves when the process is asked to stop, by Ctrl-C or SIGTERM.
///
/// # Errors
/// [`CliError::Io`] when signals cannot be heard.
pub async fn stop_signal() -> Result<(), CliError> {
    #[cfg(unix)]
    {
        use tokio::signal::unix::{SignalKind, signal};
        let mut terminate = signal(SignalKind::terminate()).map_err(CliError::io("listen to signals"))?;
        tokio::select! {
            result = interrupt() => result,
            _ = terminate.recv() => Ok(()),
        }
    }
    #[cfg(not(unix))]
    interrupt().await
}
