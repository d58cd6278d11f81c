//! `cuelight load` and `cuelight stop`: load and unload a model of a running server.

use serde_json::json;

use super::remote::RemoteArgs;
use super::{CliError, Context};

/// Load a model of a running server before the first request for it.
#[derive(Debug, clap::Args)]
pub struct LoadArgs {
    /// The model's name, as shown by `cuelight ps --all`.
    #[arg(value_name = "MODEL")]
    model: String,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Unload a model from a running server.
///
/// Requests in progress finish first, within the server's drain timeout. The server keeps the model in its list: the
/// next request for it loads it again, unless the server was started with --no-autoload.
#[derive(Debug, clap::Args)]
pub struct StopArgs {
    /// The model's name, as shown by `cuelight ps`.
    #[arg(value_name = "MODEL")]
    model: String,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Runs `cuelight load`; returns when the model is ready.
pub fn load(args: &LoadArgs, context: &Context) -> Result<(), CliError> {
    request(&args.remote, "load", &args.model, context)?;
    context.terminal.notice(&format!("{} is ready", args.model));
    Ok(())
}

/// Runs `cuelight stop`; returns when the memory is free.
pub fn stop(args: &StopArgs, context: &Context) -> Result<(), CliError> {
    request(&args.remote, "unload", &args.model, context)?;
    context.terminal.notice(&format!("{} is unloaded", args.model));
    Ok(())
}

fn request(remote: &RemoteArgs, action: &str, model: &str, context: &Context) -> Result<(), CliError> {
    let server = remote.server(&context.config)?;
    server.post(&format!("/models/{action}"), &json!({ "model": model }))?;
    Ok(())
}
