//! Loading the model of `cuelight run`, and loading it again with another context length.

use std::num::NonZeroUsize;
use std::sync::Arc;

use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::{async_runtime, model};
use crate::config::{Config, Origin};
use crate::pipeline::runtime::{Runtime, ServedModel, Status};

/// A loaded model and the actors that run it.
pub struct Started {
    /// The actors.
    pub runtime: Runtime,
    /// The model.
    pub model: Arc<ServedModel>,
}

/// The configuration with the defaults for one user: KV cache for one sequence, not for those of a server.
#[must_use]
pub fn for_one_user(mut config: Config) -> Config {
    if *config.origin("max_seqs") == Origin::Default {
        config.max_seqs = NonZeroUsize::MIN;
    }
    config
}

/// Plans and loads the model, and waits until it is ready or the user presses Ctrl-C.
///
/// # Errors
/// [`CliError`] when the model is not found, cannot run or does not fit.
pub fn start(
    model: &str,
    detail: model::PlanDetail,
    context: &Context,
    tokio: &tokio::runtime::Runtime,
) -> Result<Started, CliError> {
    let source = model::plan(model, detail, context)?;
    tokio.block_on(async {
        let runtime = Runtime::start(source, model::runtime_options(&context.config)).await.map_err(CliError::other)?;
        let model = tokio::select! {
            ready = runtime.wait_ready() => ready.map_err(not_ready)?,
            signal = async_runtime::interrupt() => { signal?; return Err(CliError::Interrupted) }
        };
        Ok(Started { runtime, model })
    })
}

/// Why the model is not ready.
fn not_ready(status: Status) -> CliError {
    match status {
        Status::Failed(reason) | Status::FileChanged(reason) => CliError::Failed(reason),
        _ => CliError::Failed("the model was stopped before it was ready".to_owned()),
    }
}
