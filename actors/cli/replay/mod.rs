//! `cuelight replay`: the requests of a recording again, and whether their answers are the same.

mod player;

use std::num::NonZeroUsize;
use std::path::PathBuf;

use serde_json::json;

use self::player::{Difference, Outcome, Player};
use super::run::start::{self, Started};
use super::terminal::print;
use super::{CliError, Context, async_runtime, model, model_help};
use crate::config::Given;
use crate::config::flags::{Flags, ModelFlags};
use crate::core::error_chain::error_chain;
use crate::recording::{self, Entry, Recorded};

/// Repeat the requests that `cuelight serve --record` wrote, and compare the answers.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight serve ./model.gguf --record ./requests --record-texts
  cuelight replay ./requests ./model.gguf         are all answers the same?
  cuelight replay ./requests ./model.gguf --pace  at the recorded times

Of requests that were recorded without texts, only the lengths, the times and the common beginnings of prompts are repeated, with \
random tokens. The exit code is 1 if an answer differs.")]
pub struct Args {
    /// The recording: a file, or a directory of files.
    #[arg(value_name = "RECORDING")]
    recording: PathBuf,
    #[arg(value_name = "MODEL", help = format!("The model that answers again: {}", model_help::FORMS))]
    model: String,
    /// Repeat only the requests that were for the model of this name.
    #[arg(long, value_name = "NAME")]
    only: Option<String>,
    /// Requests that are answered at the same time.
    #[arg(long, value_name = "N", default_value = "8")]
    parallel: NonZeroUsize,
    /// Send each request at the time at which it came in the recording, instead of as soon as possible.
    #[arg(long)]
    pace: bool,
    /// Print the result as JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: Flags<ModelFlags>,
}

impl Args {
    pub(super) fn given(&self) -> Given {
        self.flags.given()
    }
}

/// Repeats the requests.
///
/// # Errors
/// [`CliError`] when the recording or the model cannot be read, or an answer differs.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    let Recorded { entries, invalid } = entries_of(args)?;
    let tokio = async_runtime::tokio_runtime()?;
    let started = start::start(&args.model, model::PlanDetail::Line, context, &tokio)?;
    let player = Player { parallel: args.parallel.get(), keeps_pace: args.pace };
    let outcomes = tokio.block_on(async {
        tokio::select! {
            outcomes = player.play(&started, &entries) => Ok(outcomes),
            signal = async_runtime::interrupt() => { signal?; Err(CliError::Interrupted) }
        }
    });
    tokio.shutdown_background();
    // After the others, so that each outcome of an entry has its index.
    let failed = invalid.iter().map(|line| Outcome::Failed(error_chain(line)));
    let outcomes: Vec<Outcome> = outcomes?.into_iter().chain(failed).collect();
    report(args, &entries, &outcomes, &started)
}

/// The entries of one model, and the lines that are none.
fn entries_of(args: &Args) -> Result<Recorded, CliError> {
    let Recorded { mut entries, invalid } = recording::read(&args.recording).map_err(CliError::other)?;
    let mut names: Vec<String> = entries.iter().map(|entry| entry.model.clone()).collect();
    names.sort();
    names.dedup();
    match &args.only {
        Some(name) => entries.retain(|entry| entry.model == *name),
        None if names.len() > 1 => {
            let message =
                format!("the recording has requests for several models; choose one with --only: {}", names.join(", "));
            return Err(CliError::Usage(message));
        }
        None => {}
    }
    match &args.only {
        Some(name) if entries.is_empty() => {
            Err(CliError::Usage(format!("the recording has no requests for {name}, only for {}", names.join(", "))))
        }
        _ => Ok(Recorded { entries, invalid }),
    }
}

fn report(args: &Args, entries: &[Entry], outcomes: &[Outcome], started: &Started) -> Result<(), CliError> {
    let count = |is: fn(&Outcome) -> bool| outcomes.iter().filter(|outcome| is(outcome)).count();
    let equal = count(|outcome| matches!(outcome, Outcome::Equal));
    let differ = count(|outcome| matches!(outcome, Outcome::Differs(_)));
    let not_compared = count(|outcome| matches!(outcome, Outcome::NotCompared));
    let failed = count(|outcome| matches!(outcome, Outcome::Failed(_)));
    let first = outcomes.iter().enumerate().find_map(|(index, outcome)| problem(entries, index, outcome, started));
    if args.json {
        let result = json!({
            "requests": outcomes.len(), "equal": equal, "differ": differ, "not_compared": not_compared, "failed": failed,
            "first_problem": first,
        });
        print(&format!("{result:#}\n"))?;
    } else {
        print(&format!(
            "{} requests: {equal} equal, {differ} different, {not_compared} without texts, {failed} failed\n",
            outcomes.len()
        ))?;
    }
    first.map_or(Ok(()), |problem| Err(CliError::Failed(problem)))
}

/// What is wrong with an answer, as one sentence.
fn problem(entries: &[Entry], index: usize, outcome: &Outcome, started: &Started) -> Option<String> {
    let id = entries.get(index).and_then(|entry| entry.request_id.as_deref());
    let name = id.map_or_else(|| format!("request {}", index + 1), |id| format!("request {} ({id})", index + 1));
    match outcome {
        Outcome::Equal | Outcome::NotCompared => None,
        Outcome::Failed(reason) => Some(format!("{name} could not be repeated: {reason}")),
        Outcome::Differs(Difference::Token { at, recorded, repeated }) => {
            let text = |token: &Option<u32>| match token {
                Some(token) => format!("{token} {:?}", started.model.tokenizer.token_text(*token)),
                None => "its end".to_owned(),
            };
            let (recorded, repeated) = (text(recorded), text(repeated));
            Some(format!(
                "{name} differs at token {at} of the answer: {recorded} was recorded, and now it is {repeated}"
            ))
        }
        Outcome::Differs(Difference::Reason { recorded, repeated }) => {
            Some(format!("{name} has the same tokens, but it ended with {recorded}, and now with {repeated}"))
        }
    }
}
