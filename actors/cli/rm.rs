//! `cuelight rm`: removes a model from this machine.

use std::io::{self, BufRead, IsTerminal, Write};
use std::path::Path;

use super::{CliError, Context};
use crate::config::ByteSize;
use crate::hub::HubError;
use crate::hub::ollama::OllamaName;
use crate::hub::reference::Wanted;

/// Remove a downloaded model from this machine.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model, as shown by `cuelight list`.
    #[arg(value_name = "MODEL")]
    model: String,
    /// Remove without asking.
    #[arg(long, short)]
    yes: bool,
}

/// Asks, removes, and prints how much space is free again.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    match args.model.as_str() {
        "demo" => remove_demo(args, context),
        name if OllamaName::is_meant_by(name) => remove_ollama(args, context),
        _ => remove_cached(args, context),
    }
}

fn remove_demo(args: &Args, context: &Context) -> Result<(), CliError> {
    let path = context.hub().kept_demo().ok_or_else(|| HubError::NotCached(args.model.clone()))?;
    let remove = |path: &Path| format!("remove {}", path.display());
    let bytes = path.metadata().map_err(CliError::io(remove(&path)))?.len();
    if is_confirmed(args, &format!("remove demo ({})?", ByteSize(bytes)), context)? {
        std::fs::remove_file(&path).map_err(CliError::io(remove(&path)))?;
        context.terminal.notice(&format!("removed demo, {} freed", ByteSize(bytes)));
    }
    Ok(())
}

fn remove_cached(args: &Args, context: &Context) -> Result<(), CliError> {
    let hub = context.hub();
    let wanted = Wanted::parse(&args.model).ok_or_else(|| HubError::NotCached(args.model.clone()))?;
    let model = hub.cache().find(&wanted).ok_or_else(|| HubError::NotCached(args.model.clone()))?;
    let question = format!("remove {} ({}) from the shared cache?", model.reference(), ByteSize(model.bytes));
    if is_confirmed(args, &question, context)? {
        let freed = hub.cache().remove(&model)?;
        context.terminal.notice(&format!("removed {}, {} freed", model.reference(), ByteSize(freed)));
    }
    Ok(())
}

fn remove_ollama(args: &Args, context: &Context) -> Result<(), CliError> {
    let hub = context.hub();
    let model = hub.find_ollama(&OllamaName::parse(&args.model)?);
    let model = model.ok_or_else(|| HubError::NotCached(args.model.clone()))?;
    if is_confirmed(args, &format!("remove {} ({})?", model.name, ByteSize(model.bytes)), context)? {
        let freed = hub.ollama().remove(&model)?;
        context.terminal.notice(&format!("removed {}, {} freed", model.name, ByteSize(freed)));
    }
    Ok(())
}

/// Whether to remove the model: with --yes, or after the user agreed.
fn is_confirmed(args: &Args, question: &str, context: &Context) -> Result<bool, CliError> {
    let is_confirmed = args.yes || ask(question)?;
    if !is_confirmed {
        context.terminal.notice("nothing was removed");
    }
    Ok(is_confirmed)
}

fn ask(question: &str) -> Result<bool, CliError> {
    if !io::stdin().is_terminal() {
        return Err(CliError::Usage(format!("{question} Confirm with --yes")));
    }
    eprint!("{question} [y/N] ");
    io::stderr().flush().map_err(CliError::io("ask"))?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(CliError::io("read the answer"))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
