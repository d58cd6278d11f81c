//! Writes the GGUF file of a planned quantization, with a progress bar.

use std::num::NonZeroUsize;
use std::path::Path;

use cuelight_engine::cancel::LoadCancel;
use cuelight_engine::quantize::{QuantizeError, QuantizePlan};

use super::tuning::Tuned;
use super::{CliError, Context, async_runtime};
use crate::config::Config;

/// The number of threads that quantize, unless it is given.
pub(super) fn threads(config: &Config) -> usize {
    config.threads.map_or_else(|| Tuned::known(config).calibration.threads, NonZeroUsize::get)
}

/// For `map_err` on a plan; `remedy` is how to go on with a model that is quantized already.
pub(super) fn refused(remedy: &'static str) -> impl FnOnce(QuantizeError) -> CliError {
    move |error| match error {
        QuantizeError::AlreadyQuantized { .. } => CliError::Failed(format!("{error}, or {remedy}")),
        error => CliError::other(error),
    }
}

/// Writes the file, with a progress bar. Ctrl-C ends it and leaves a partial file, with which the next run continues. `None` when
/// another process writes it.
pub(super) fn write(plan: &QuantizePlan<'_>, out: &Path, context: &Context) -> Result<Option<u64>, CliError> {
    let bar = context.terminal.bytes_bar("writing", plan.bytes().0);
    let cancel = LoadCancel::default();
    let written = async_runtime::until_stopped(&cancel, || {
        plan.write(out, &cancel, &mut |progress| bar.set_position(progress.done_bytes))
    });
    bar.finish_and_clear();
    match written? {
        Err(QuantizeError::Cancelled) => Err(CliError::Interrupted),
        Err(QuantizeError::Locked { .. }) => Ok(None),
        written => written.map(Some).map_err(CliError::other),
    }
}
