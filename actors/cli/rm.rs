//! `cuelight rm`: a model out of the cache.

use std::io::{self, BufRead, IsTerminal, Write};

use super::{CliError, Context};
use crate::config::ByteSize;
use crate::hub::HubError;
use crate::hub::reference::Wanted;

/// Remove a model from the cache.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The model, as `cuelight list` names it.
    #[arg(value_name = "MODEL")]
    model: String,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

/// Asks, removes, and says how much was freed.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let hub = context.hub();
    let wanted = Wanted::parse(&args.model).ok_or_else(|| HubError::NotCached(args.model.clone()))?;
    let model = hub.cache().find(&wanted).ok_or_else(|| HubError::NotCached(args.model.clone()))?;
    let question = format!("remove {} ({}) from the shared cache?", model.reference(), ByteSize(model.bytes));
    if !args.yes && !confirmed(&question)? {
        context.terminal.notice("nothing was removed");
        return Ok(());
    }
    let freed = hub.cache().remove(&model)?;
    context.terminal.notice(&format!("removed {}, {} freed", model.reference(), ByteSize(freed)));
    Ok(())
}

fn confirmed(question: &str) -> Result<bool, CliError> {
    if !io::stdin().is_terminal() {
        return Err(CliError::Usage(format!("{question} Say so with --yes")));
    }
    eprint!("{question} [y/N] ");
    io::stderr().flush().map_err(CliError::io("ask"))?;
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer).map_err(CliError::io("read the answer"))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}
