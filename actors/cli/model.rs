//! From what the person wrote for a model to a cast that runs it.
//!
//! The plan of its memory is said aloud before anything is allocated; loading shows a bar.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cuelight_engine::engine::{BLOCK_TOKENS, Engine};
use cuelight_engine::load::{
    self, Kernel, LoadError, LoadOptions, LoadProgress, LoadedModel, MemoryPlan, Plan, Source, VulkanOptions,
};
use cuelight_engine::memory::format_bytes;
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
        expert_streaming: config.expert_streaming,
        device_bytes: config.vram.map(|size| size.0),
        expert_cache_bytes: config.expert_cache.map(|size| size.0),
        expert_read_ahead: true,
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
        max_requests: config.max_seqs.get() * config.replicas.get() + config.max_queued_requests,
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
    let plan = load::plan(&locate(model, context)?).map_err(CliError::other)?;
    print_plans(std::slice::from_ref(&plan), plan.memory(), context);
    let bar = LoadingBar::new(loading_bar(context.terminal, plan.memory().weights_bytes), 1);
    Ok(GgufSource::new(plan, &bar))
}

/// The same for a model among others, which leave it `limit` bytes, with all its replicas: what makes it, and its first plan.
///
/// # Errors
/// As [`plan`].
pub fn plan_beside(model: &str, limit: Option<u64>, context: &Context) -> Result<(GgufModel, PlannedModel), CliError> {
    let factory = GgufModel::new(locate(model, context)?, context.config.replicas);
    let plans = factory.plans(limit).map_err(CliError::other)?;
    let memory = MemoryPlan::of_replicas(plans.iter().map(Plan::memory));
    print_plans(&plans, &memory, context);
    let bar = loading_bar(context.terminal, memory.weights_bytes);
    Ok((factory, planned(memory, plans, bar)))
}

/// What loads each of the replicas that were planned.
fn planned(memory: MemoryPlan, plans: Vec<Plan>, bar: ProgressBar) -> PlannedModel {
    let bar = LoadingBar::new(bar, plans.len());
    PlannedModel::replicated(memory, plans.into_iter().map(|plan| GgufSource::new(plan, &bar)).collect())
}

fn locate(model: &str, context: &Context) -> Result<LoadOptions, CliError> {
    let path = context.hub().locate(model, &context.terminal.downloads())?;
    load_options(&context.config, Source::File(path))
}

/// Says what a model is and takes; `memory` is that of all its replicas.
fn print_plans(plans: &[Plan], memory: &MemoryPlan, context: &Context) {
    let Some(card) = plans.first().map(Plan::card) else { return };
    let devices: Vec<&str> = plans.iter().map(|plan| plan.limits().device.as_str()).collect();
    let (name, architecture, quantization) = (&card.name, &card.architecture, &card.quantization);
    context.terminal.notice(&format!("{name} ({architecture}, {quantization}) on {}", devices.join(", ")));
    context.terminal.notice(memory.to_string().trim_end());
    if plans.len() > 1 {
        context.terminal.notice(&format!("  for {} replicas:", plans.len()));
        for (plan, device) in plans.iter().zip(devices) {
            let bytes = format_bytes(plan.memory().total_bytes());
            let kv_tokens = plan.memory().kv_blocks * BLOCK_TOKENS;
            context.terminal.notice(&format!("    {bytes:>10}  on {device}, {kv_tokens} tokens of KV cache"));
        }
    }
}

/// A file that a server loads when it is called for, and lets go.
pub struct GgufModel {
    options: LoadOptions,
    replicas: NonZeroUsize,
}

impl GgufModel {
    /// The file at `path`, under the configuration's settings, so many times.
    #[must_use]
    pub fn new(options: LoadOptions, replicas: NonZeroUsize) -> Self {
        GgufModel { options, replicas }
    }

    fn plans(&self, limit: Option<u64>) -> Result<Vec<Plan>, LoadError> {
        let options = LoadOptions { memory_bytes: limit, ..self.options.clone() };
        load::plan_replicas(&options, self.replicas.get())
    }
}

impl ModelFactory for GgufModel {
    fn plan(&self, limit: Option<u64>) -> Result<PlannedModel, PlanError> {
        let plans = self.plans(limit).map_err(|error| match error {
            LoadError::TooLarge { .. } | LoadError::ReplicaTooLarge { .. } => PlanError::TooLarge(with_causes(&error)),
            error => PlanError::Unusable(with_causes(&error)),
        })?;
        let memory = MemoryPlan::of_replicas(plans.iter().map(Plan::memory));
        Ok(planned(memory, plans, ProgressBar::hidden()))
    }
}

/// A planned file, for one cast to load: now, and again should its executor be lost.
pub struct GgufSource {
    options: LoadOptions,
    /// The plan that was made first; a later load makes its own.
    first: Mutex<Option<Plan>>,
    bar: Arc<LoadingBar>,
}

impl GgufSource {
    fn new(plan: Plan, bar: &Arc<LoadingBar>) -> Self {
        let memory = plan.memory();
        // A second load must not come out smaller because the first one still holds its memory: the sizes are settled.
        let (context_tokens, kv_bytes) = (Some(memory.context_tokens), Some(memory.kv_bytes));
        let options = LoadOptions { context_tokens, kv_bytes, ..plan.options().clone() };
        GgufSource { options, first: Mutex::new(Some(plan)), bar: bar.clone() }
    }
}

/// One bar for all that load a model's weights side by side, the first time.
struct LoadingBar {
    bar: ProgressBar,
    /// Who still has not loaded.
    loading: AtomicUsize,
}

impl LoadingBar {
    fn new(bar: ProgressBar, replicas: usize) -> Arc<Self> {
        Arc::new(LoadingBar { bar, loading: AtomicUsize::new(replicas) })
    }

    /// One of them has loaded, or has failed to.
    fn ended(&self) {
        if self.loading.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.bar.finish_and_clear();
        }
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
        let loaded = match first {
            Some(plan) => {
                let mut shown_bytes = 0;
                let loaded = plan.load(&mut |now| {
                    self.bar.bar.inc(now.done_bytes.saturating_sub(shown_bytes));
                    shown_bytes = now.done_bytes;
                    progress(now);
                });
                self.bar.ended();
                loaded
            }
            None => load::plan(&self.options).and_then(|plan| plan.load(progress)),
        };
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
