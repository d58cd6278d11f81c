//! `cuelight run`: one answer, or a chat.

pub mod command;
mod conversation;
mod repl;
mod session;

use std::io::{self, IsTerminal, Read};

use self::conversation::Conversation;
use self::session::{Ended, Mode, Session};
use super::terminal::print;
use super::{CliError, Context, model};
use crate::config::Given;
use crate::config::flags::{Flags, HubFlags, ModelFlags, SamplingFlags};
use crate::runtime::Runtime;

/// Chat with a model, or answer one prompt.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight run demo                                   chat; /help lists the commands
  cuelight run demo \"Why is the sky blue?\"            one answer
  cuelight run demo \"Sum this up:\" < letter.txt       with what comes from standard input
  git diff | cuelight run org/repo \"Review this:\" --temp 0
  cuelight run ./base-model.gguf --raw \"Once upon a\"  go on with a text, without a chat template

Only the answer goes to standard output. Ctrl-C stops an answer; in a chat the conversation goes on.")]
pub struct Args {
    /// The model.
    #[arg(value_name = "MODEL")]
    model: String,
    /// The prompt; unset: standard input if it is a file or a pipe, else a chat.
    #[arg(value_name = "PROMPT")]
    prompt: Option<String>,
    /// Give the model the text as it is, without a chat template.
    #[arg(long)]
    raw: bool,
    /// Print statistics after each answer, also where nobody looks.
    #[arg(long, short)]
    verbose: bool,
    #[command(flatten)]
    sampling: Flags<SamplingFlags>,
    #[command(flatten)]
    model_flags: Flags<ModelFlags>,
    #[command(flatten)]
    hub: Flags<HubFlags>,
}

impl Args {
    pub(super) fn given(&self) -> Given {
        [self.sampling.given(), self.model_flags.given(), self.hub.given()].into_iter().flatten().collect()
    }
}

/// Answers or chats.
pub fn execute(args: Args, context: &Context) -> Result<(), CliError> {
    let prompt = prompt(args.prompt.clone())?;
    let source = model::plan(&args.model, context)?;
    let tokio = model::tokio_runtime()?;
    let (runtime, model) = tokio.block_on(async {
        let runtime = Runtime::start(source, model::runtime_options(&context.config)).await.map_err(CliError::other)?;
        let model = tokio::select! {
            ready = runtime.wait_ready() => ready.map_err(session::not_ready)?,
            signal = model::interrupt() => { signal?; return Err(CliError::Interrupted) }
        };
        Ok((runtime, model))
    })?;
    let mode = match (&model.chat_template, args.raw) {
        (Some(_), false) => Mode::Chat,
        (None, false) => {
            let notice = "this model has no chat template, so it goes on with your text as it is (as with --raw); \
                          --chat-template FILE gives it one";
            context.terminal.notice(notice);
            Mode::Raw
        }
        (_, true) => Mode::Raw,
    };
    let verbose = args.verbose || context.terminal.talks;
    let conversation = Conversation::new(context.config.system.clone());
    let session = Session::new(runtime, model, mode, conversation, &context.config, verbose, context.terminal);
    let result = match prompt {
        Some(prompt) => answer_once(session.clone_handle(), session, &prompt, &tokio),
        None => repl::chat(session, &args.model, context, &tokio),
    };
    // Threads that compute are not waited for: nobody is interested in what they would still find out.
    tokio.shutdown_background();
    result
}

/// What to answer; `None` to chat.
fn prompt(given: Option<String>) -> Result<Option<String>, CliError> {
    if io::stdin().is_terminal() {
        return Ok(given);
    }
    let mut bytes = Vec::new();
    io::stdin().lock().read_to_end(&mut bytes).map_err(CliError::io("read standard input"))?;
    let piped =
        String::from_utf8(bytes).map_err(|_| CliError::Failed("standard input is not UTF-8 text".to_owned()))?;
    let piped = piped.trim_end_matches(['\n', '\r']);
    match (given, piped.is_empty()) {
        (given, true) if given.as_ref().is_some_and(|prompt| !prompt.is_empty()) => Ok(given),
        (_, true) => {
            Err(CliError::Usage("the prompt is empty: give one as an argument or on standard input".to_owned()))
        }
        (Some(given), false) => Ok(Some(format!("{given}\n\n{piped}"))),
        (None, false) => Ok(Some(piped.to_owned())),
    }
}

fn answer_once(
    runtime: Runtime,
    mut session: Session,
    prompt: &str,
    tokio: &tokio::runtime::Runtime,
) -> Result<(), CliError> {
    let ended = tokio.block_on(session.answer(prompt, print))?;
    print("\n")?;
    session.print_statistics(&ended);
    tokio.block_on(runtime.shutdown(std::time::Duration::ZERO));
    match ended {
        Ended::Interrupted => Err(CliError::Interrupted),
        Ended::Finished { .. } => Ok(()),
    }
}
