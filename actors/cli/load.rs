//! `cuelight load`: a model into a running server's memory.

use serde_json::json;

use super::remote::RemoteArgs;
use super::{CliError, Context};

/// Load a model of a running server before anybody calls it.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model, as `cuelight ps --all` names it.
    #[arg(value_name = "MODEL")]
    model: String,
    #[command(flatten)]
    remote: RemoteArgs,
}

/// Asks for it, and waits until it is ready.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    args.remote.server(&context.config)?.post("/models/load", &json!({ "model": args.model }))?;
    context.terminal.notice(&format!("{} is ready", args.model));
    Ok(())
}
