//! `cuelight stop`: a model out of a running server's memory.

use serde_json::json;

use super::remote::RemoteArgs;
use super::{CliError, Context};

/// Unload a model from a running server.
///
/// Calls in progress end first, for at most the server's drain timeout. The model stays known: the next call that names
/// it loads it again, unless the server was started with --no-autoload.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model, as `cuelight ps` names it.
    #[arg(value_name = "MODEL")]
    model: String,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Asks for it, and waits until the memory is free.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    args.remote.server(&context.config)?.post("/models/unload", &json!({ "model": args.model }))?;
    context.terminal.notice(&format!("{} is unloaded", args.model));
    Ok(())
}
