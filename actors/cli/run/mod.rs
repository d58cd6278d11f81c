//! `cuelight run`: one answer, or a chat.
//!
//! # Layout, in the order of a chat
//!
//! - [`start`]: loads the model
//! - [`repl`] with [`completion`] and [`command`]: reads lines and runs commands
//! - [`question`] with [`rounds`] and [`tools`]: answers a question, and runs the tools that the model calls
//! - [`session`] with [`conversation`] and [`turn`]: sends the messages and gets the answer, by [`answer_stream`]
//! - [`offered_tools`]: what the model knows of tools
//! - [`media_file`]: images and audio of messages
//! - [`prompt_bar`]: shows how much of a long prompt is computed
//! - [`sampling`]: how tokens are chosen
//! - [`answer_format`]: what the user asks of every answer
//! - [`answer_printer`] with [`markdown`] and [`block_start`]: prints the answer, wrapped at the width of the terminal
//! - [`statistics`]: what is said about an answer after it

mod answer_format;
mod answer_printer;
mod answer_stream;
mod block_start;
pub mod command;
mod completion;
mod conversation;
mod markdown;
mod media_file;
mod offered_tools;
mod prompt_bar;
mod question;
mod repl;
mod rounds;
mod sampling;
mod session;
pub mod start;
mod statistics;
mod tools;
mod turn;

use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;

use self::answer_format::FormatFlags;
use self::answer_stream::Ended;
use self::session::{Mode, Session};
use self::tools::asker::{Asks, terminal_asker};
use self::tools::toolbox::Toolbox;
use super::model::PlanDetail;
use super::terminal::print;
use super::{CliError, Context, async_runtime, model_help};
use crate::config::flags::{Flags, RunFlags};
use crate::config::{Given, Origin};
use crate::pipeline::runtime::ServedModel;
use cuelight_engine::embedding::Product;
use cuelight_engine::media::MediaKind;

/// The settings that a chat user needs first; `run --help` shows them above the others.
pub const FIRST_SETTINGS: [&str; 5] = ["system", "temp", "max_tokens", "ctx_size", "device"];

/// Chat with a model, or answer one prompt.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  cuelight run demo                            chat; /help lists the commands
  cuelight run demo Why is the sky blue        one answer
  cuelight run demo \"Summarize:\" < letter.txt  the prompt, then the text
  cuelight run org/repo --image cat.jpg \"What is this?\"
  cuelight run org/repo --audio call.wav \"Summarize the call\"
  cuelight run ./base.gguf --raw Once upon a   continue a text
  git diff | cuelight run org/repo \"Review this:\" --temp 0
  cuelight run demo \"Name a cat\" --json-schema cat.json
  cuelight run org/repo --mcp tools.json       chat with tools of MCP servers

Only the answer is written to standard output. Ctrl-C stops an answer; a chat continues after it.")]
pub struct Args {
    #[arg(value_name = "MODEL", help = model_help::model())]
    model: String,
    /// The prompt; several words need no quotes. Without it: standard input if that is a file or a pipe, else a chat.
    #[arg(value_name = "PROMPT")]
    prompt: Vec<String>,
    /// Image to ask about, a PNG, JPEG, WebP, GIF or BMP file, for a model with a vision tower; repeat the flag for several.
    #[arg(long, value_name = "FILE")]
    image: Vec<PathBuf>,
    /// Audio to ask about, a WAV, MP3, FLAC, Ogg Vorbis, Opus, WebM or AAC file, for a model with an audio encoder; repeat the flag for
    /// several.
    #[arg(long, value_name = "FILE")]
    audio: Vec<PathBuf>,
    /// Send the text to the model as it is, without the chat template.
    #[arg(long)]
    raw: bool,
    /// Print the whole memory plan, and statistics after each answer even when standard error is not a terminal.
    #[arg(long, short)]
    verbose: bool,
    /// Print answers as the model writes them; without it, Markdown is rendered on a terminal with colours.
    #[arg(long)]
    no_markdown: bool,
    #[command(flatten)]
    format: FormatFlags,
    #[command(flatten)]
    flags: Flags<RunFlags>,
}

impl Args {
    pub(super) fn given(&self) -> Given {
        self.flags.given()
    }
}

/// Answers or chats.
///
/// # Errors
/// [`CliError`] when there is no prompt, no model or no answer.
pub fn execute(args: &Args, context: &Context) -> Result<(), CliError> {
    if args.raw {
        check_no_system(context)?;
    }
    let format = args.format.read()?;
    let prompt = prompt(&args.prompt)?;
    let context = Context { config: start::for_one_user(context.config.clone()), ..context.clone() };
    let detail = if args.verbose { PlanDetail::Table } else { PlanDetail::Line };
    let tokio = async_runtime::tokio_runtime()?;
    let started = start::start(&args.model, detail, &context, &tokio)?;
    let mode = mode(args, &started.model, &context)?;
    let format = format.compile(&started.model, mode == Mode::Chat)?;
    let context = with_tools(context, mode, &started.model)?;
    let mut toolbox = Toolbox::start(&context, &tokio)?;
    let verbose = args.verbose || context.terminal.talks;
    let mut session = Session::new(started, mode, format, &context.config, verbose, context.terminal);
    let images = args.image.iter().map(|path| (MediaKind::Image, path));
    for (kind, path) in images.chain(args.audio.iter().map(|path| (MediaKind::Audio, path))) {
        tokio.block_on(session.attach(kind, path))?;
    }
    session.markdown = mode == Mode::Chat && !args.no_markdown && context.terminal.colored;
    let result = match prompt {
        Some(prompt) => answer_once(session, toolbox.as_mut(), &prompt, &context, &tokio),
        None => repl::chat(session, toolbox.as_mut(), &args.model, context, &tokio),
    };
    if let Some(toolbox) = toolbox {
        tokio.block_on(toolbox.stop());
    }
    // Do not wait for compute threads: their results are no longer needed.
    tokio.shutdown_background();
    result
}

/// How a text becomes a prompt: as with `--raw` for a model without a chat template, with a notice.
///
/// # Errors
/// [`CliError`] for a model that generates no text, or a system prompt that no template would use.
fn mode(args: &Args, model: &ServedModel, context: &Context) -> Result<Mode, CliError> {
    if model.card.embedding.is_only {
        let advice = match model.card.embedding.product() {
            Product::Vectors => {
                "makes embeddings and generates no text; `cuelight serve` answers /v1/embeddings with it"
            }
            Product::Relevance => "is a reranker and generates no text; `cuelight serve` answers /v1/rerank with it",
            Product::Classes => "classifies texts and generates none; `cuelight serve` answers /classify with it",
            Product::Alignment => "generates no text",
        };
        return Err(CliError::Failed(format!("{} {advice}", args.model)));
    }
    if model.chat_template.is_some() && !args.raw {
        return Ok(Mode::Chat);
    }
    check_no_system(context)?;
    if !args.raw {
        let notice = "this model has no chat template: it continues your text, as with --raw; --chat-template FILE \
                      sets a template";
        context.terminal.notice(notice);
    }
    Ok(Mode::Raw)
}

/// Refuses a system prompt of the command line that would be dropped. One of a configuration file is for other models.
fn check_no_system(context: &Context) -> Result<(), CliError> {
    match context.config.origin("system") {
        Origin::Flag(_) => Err(CliError::Usage("--system needs a chat template".to_owned())),
        _ => Ok(()),
    }
}

/// The context without a file of tools that the model cannot call. One that the command line names is for this model, others are
/// for other models too.
fn with_tools(mut context: Context, mode: Mode, model: &ServedModel) -> Result<Context, CliError> {
    if context.config.mcp.is_none() || (mode == Mode::Chat && offered_tools::calls_tools(model)) {
        return Ok(context);
    }
    let reason = match mode {
        Mode::Raw => "without a chat template, no tools can be called",
        Mode::Chat => "this model cannot call tools: its chat template does not show how it would call them",
    };
    if let Origin::Flag(_) = context.config.origin("mcp") {
        return Err(CliError::Usage(format!("--mcp: {reason}; leave it out")));
    }
    context.terminal.notice(&format!("{reason}; those of the configuration are left out"));
    context.config.mcp = None;
    Ok(context)
}

/// The prompt to answer; `None` to chat.
fn prompt(words: &[String]) -> Result<Option<String>, CliError> {
    let given = (!words.is_empty()).then(|| words.join(" "));
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
    mut session: Session,
    toolbox: Option<&mut Toolbox>,
    prompt: &str,
    context: &Context,
    tokio: &tokio::runtime::Runtime,
) -> Result<(), CliError> {
    let mut asker = terminal_asker()?;
    let asker = asker.as_mut().map(|asker| asker as &mut dyn Asks);
    let tools = toolbox.map(|toolbox| (toolbox, asker));
    let ended = question::answer(&mut session, tools, prompt, context, tokio)?;
    print("\n")?;
    session.print_statistics(&ended);
    tokio.block_on(session.stop());
    match (&ended, session.cut_off(&ended)) {
        (Ended::Interrupted, _) => Err(CliError::Interrupted),
        (Ended::TooManyRounds, _) => Err(CliError::Failed(rounds::TOO_MANY.to_owned())),
        // The beginning of an answer matches no schema and no grammar.
        (_, Some(reason)) if session.format.constraint.is_some() => Err(CliError::Failed(reason.to_owned())),
        (_, Some(reason)) => {
            context.terminal.notice(reason);
            Ok(())
        }
        (_, None) => Ok(()),
    }
}
