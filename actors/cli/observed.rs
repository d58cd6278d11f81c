//! Computes a text on the CPU while an observer sees what matrices multiply.
//!
//! Like `perplexity`, it drives the engine directly, without actors.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use cuelight_engine::backend::cpu::SharedObserver;
use cuelight_engine::load::{ComputeDevice, CpuExperts, ExpertStreaming, LoadOptions, Source};
use cuelight_engine::perplexity::{Perplexity, Scored, Scorer, Text};

use super::tuning::Tuned;
use super::{CliError, Context, model};

/// How a text is computed.
pub(super) struct Settings {
    /// The command, for errors.
    pub command: &'static str,
    /// Tokens in a window.
    pub window_tokens: NonZeroUsize,
    /// Most windows to compute; `None` for all.
    pub windows: Option<NonZeroUsize>,
    /// The number of threads; `None` for that of the configuration.
    pub threads: Option<NonZeroUsize>,
}

/// Computes the windows of the text; returns how many, and their perplexity.
///
/// # Errors
/// [`CliError`] when the text is too short, or the model does not run on the CPU.
pub(super) fn compute(
    settings: &Settings,
    path: PathBuf,
    text: &str,
    observer: SharedObserver,
    context: &Context,
) -> Result<(usize, Perplexity), CliError> {
    let plan = model::plan_for_tokens(&options(settings, path, observer, context)?, settings.command)?;
    let mut loaded = plan.load(&mut |_| {}).map_err(CliError::other)?;
    let text = Text::new(&loaded.tokenizer, text).map_err(CliError::other)?;
    let mut windows = text.windows(settings.window_tokens.get(), Scored::LaterHalf).map_err(CliError::other)?;
    windows.truncate(settings.windows.map_or(usize::MAX, NonZeroUsize::get));
    let bar = context.terminal.count_bar("measuring", windows.len(), "windows");
    let (mut scorer, mut perplexity) = (Scorer::new(&mut loaded.engine), Perplexity::default());
    for window in &windows {
        scorer.score(window, &mut perplexity).map_err(CliError::other)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    Ok((windows.len(), perplexity))
}

/// The options of a model on the CPU alone, which the observer sees.
fn options(
    settings: &Settings,
    path: PathBuf,
    observer: SharedObserver,
    context: &Context,
) -> Result<LoadOptions, CliError> {
    let configured = model::load_options(&context.config, &Tuned::known(&context.config), Source::File(path))?;
    Ok(LoadOptions {
        context_tokens: Some(settings.window_tokens.get()),
        max_sequences: 1,
        kv_bytes: None,
        state_bytes: None,
        threads: settings.threads.map_or(configured.threads, NonZeroUsize::get),
        device: ComputeDevice::Cpu.into(),
        split: None,
        gpu_layers: None,
        cpu_experts: CpuExperts::Auto,
        expert_cache_bytes: None,
        expert_streaming: ExpertStreaming::Auto,
        observer: Some(observer),
        ..configured
    })
}
