//! The chat: a line is read, a command obeyed or a question answered, until the person leaves.

use std::path::Path;

use rustyline::completion::Completer;
use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Editor, Helper};

use super::command::{self, Command, HELP, Line};
use super::conversation::Conversation;
use super::session::{Ended, Session};
use crate::causes::with_causes;
use crate::cli::terminal::print;
use crate::cli::{CliError, Context};
use crate::config::ByteSize;

/// Keeps reading lines while a message in `"""` is open.
struct Multiline;

impl Helper for Multiline {}
impl Highlighter for Multiline {}
impl Completer for Multiline {
    type Candidate = String;
}
impl Hinter for Multiline {
    type Hint = String;
}

impl Validator for Multiline {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        let unfinished = command::is_unfinished(context.input());
        Ok(if unfinished { ValidationResult::Incomplete } else { ValidationResult::Valid(None) })
    }
}

/// Whether the chat goes on.
#[derive(PartialEq, Eq)]
enum Next {
    Line,
    Leave,
}

/// Chats until `/bye` or Ctrl-D.
pub fn chat(session: Session, model: &str, context: &Context, tokio: &tokio::runtime::Runtime) -> Result<(), CliError> {
    let history = &context.config.history_file;
    let mut editor = editor(history).map_err(CliError::other)?;
    context.terminal.notice(&format!("chatting with {model}; /help lists the commands, Ctrl-D ends"));
    let mut chat = Chat { session, context, tokio };
    loop {
        let entered = match editor.readline(">>> ") {
            Ok(entered) => entered,
            Err(ReadlineError::Interrupted) => {
                context.terminal.notice("Ctrl-D or /bye ends the chat");
                continue;
            }
            Err(ReadlineError::Eof) => break,
            Err(error) => return Err(CliError::other(error)),
        };
        // A history that cannot be kept is no reason to stop talking.
        let _ = editor.add_history_entry(entered.as_str());
        if !history.as_os_str().is_empty() {
            let _ = editor.append_history(history);
        }
        match chat.turn(command::parse(&entered)) {
            Ok(Next::Line) => {}
            Ok(Next::Leave) => break,
            // The terminal is gone.
            Err(error @ CliError::Output(_)) => return Err(error),
            Err(error) => eprintln!("error: {}", with_causes(&error)),
        }
    }
    Ok(())
}

fn editor(history: &Path) -> rustyline::Result<Editor<Multiline, FileHistory>> {
    let config = rustyline::Config::builder().auto_add_history(false).bracketed_paste(true).build();
    let mut editor = Editor::with_config(config)?;
    editor.set_helper(Some(Multiline));
    editor.set_max_history_size(1000)?;
    if !history.as_os_str().is_empty() {
        if let Some(directory) = history.parent() {
            let _ = std::fs::create_dir_all(directory);
        }
        // There is none the first time.
        let _ = editor.load_history(history);
    }
    Ok(editor)
}

struct Chat<'a> {
    session: Session,
    context: &'a Context,
    tokio: &'a tokio::runtime::Runtime,
}

impl Chat<'_> {
    fn turn(&mut self, line: Line) -> Result<Next, CliError> {
        match line {
            Line::Empty => {}
            Line::Wrong(reason) => return Err(CliError::Failed(reason)),
            Line::Text(text) => self.answer(&text)?,
            Line::Command(Command::Bye) => return Ok(Next::Leave),
            Line::Command(command) => self.obey(command)?,
        }
        Ok(Next::Line)
    }

    fn answer(&mut self, text: &str) -> Result<(), CliError> {
        let result = self.tokio.block_on(self.session.answer(text, print));
        print("\n\n")?;
        let ended = result?;
        if ended == Ended::Interrupted {
            self.context.terminal.notice("stopped; the conversation goes on");
        }
        self.session.print_statistics(&ended);
        Ok(())
    }

    fn obey(&mut self, command: Command) -> Result<(), CliError> {
        let session = &mut self.session;
        match command {
            Command::Help => print(HELP),
            Command::Clear => {
                session.conversation.clear();
                self.context.terminal.notice("the conversation is forgotten");
                Ok(())
            }
            Command::Set(change) => {
                session.change(change);
                Ok(())
            }
            Command::Save(path) => session.conversation.save(Path::new(&path)),
            Command::Load(path) => {
                session.conversation = Conversation::load(Path::new(&path))?;
                let count = session.conversation.len();
                self.context.terminal.notice(&format!("going on after {count} messages"));
                Ok(())
            }
            Command::ShowParameters => print(&parameters(session)),
            Command::ShowInfo => print(&info(session)),
            Command::ShowLicense => {
                let license = session.model.card.license.as_deref().unwrap_or("the file does not say");
                print(&format!("{license}\n"))
            }
            Command::ShowSystem => {
                print(&format!("{}\n", session.conversation.system.as_deref().unwrap_or("there is no system prompt")))
            }
            Command::ShowTemplate => {
                let template = session.model.chat_template.as_ref().map(|template| template.source());
                print(&format!("{}\n", template.unwrap_or("the model has no chat template")))
            }
            // It ends the loop before it comes here.
            Command::Bye => Ok(()),
        }
    }
}

fn parameters(session: &Session) -> String {
    let sampling = &session.sampling;
    let seed = sampling.seed.map_or_else(|| "random".to_owned(), |seed| seed.to_string());
    let max_tokens = session.max_tokens.map_or_else(|| "none".to_owned(), |count| count.to_string());
    format!(
        "temperature         {}\ntop_k               {}\ntop_p               {}\nmin_p               {}\n\
         repetition_penalty  {}\nseed                {seed}\nmax_tokens          {max_tokens}\nverbose             {}\n",
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        if session.verbose { "on" } else { "off" },
    )
}

fn info(session: &Session) -> String {
    let (card, limits) = (&session.model.card, &session.model.limits);
    format!(
        "name          {}\narchitecture  {}\nparameters    {:.1} M\nsize          {}\nquantization  {}\n\
         context       {} tokens (trained with {})\nvocabulary    {} tokens\ndevice        {}\n",
        card.name,
        card.architecture,
        card.n_params as f64 / 1e6,
        ByteSize(card.size_bytes),
        card.quantization,
        limits.context_tokens,
        card.context_train,
        limits.vocab_size,
        limits.device,
    )
}
