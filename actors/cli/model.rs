//! From what the person wrote for a model to a plan of its memory, said aloud before anything is allocated.

use std::num::NonZeroUsize;
use std::path::Path;

use cuelight_engine::load::{self, Kernel, LoadOptions, Plan};

use super::{CliError, Context};
use crate::config::Config;

/// How the configuration wants a file loaded.
#[must_use]
pub fn load_options(config: &Config, path: &Path) -> LoadOptions {
    LoadOptions {
        path: path.to_owned(),
        context_tokens: config.ctx_size.map(NonZeroUsize::get),
        max_sequences: config.max_seqs.get(),
        max_batched_tokens: config.max_batched_tokens.get(),
        kv_bytes: config.kv_memory.map(|size| size.0),
        kv_type: config.kv_type,
        threads: config.thread_count(),
        kernel: config.kernel.unwrap_or_else(Kernel::detect),
    }
}

/// Finds a model's file, plans its memory and prints the plan.
///
/// # Errors
/// [`CliError`] when there is no such model, or it cannot or will not fit.
pub fn plan(model: &str, context: &Context) -> Result<Plan, CliError> {
    let path = context.hub().locate(model, &context.terminal.downloads())?;
    let plan = load::plan(&load_options(&context.config, &path)).map_err(CliError::other)?;
    context.terminal.notice(plan.memory().to_string().trim_end());
    Ok(plan)
}
