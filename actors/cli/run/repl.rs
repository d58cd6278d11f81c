//! The chat: read a line, run a command or answer a question, until the user leaves.

use std::num::NonZeroUsize;
use std::path::Path;

use cuelight_engine::media::MediaKind;
use rustyline::config::Configurer;
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{CompletionType, Editor};

use super::answer_stream::Ended;
use super::command::{self, Command, HELP, Line};
use super::completion::ChatHelper;
use super::conversation::Conversation;
use super::question;
use super::rounds;
use super::session::{AnswerError, Session};
use super::start;
use super::tools::asker::Asks;
use super::tools::toolbox::Toolbox;
use crate::cli::context::Context;
use crate::cli::error::CliError;
use crate::cli::model::PlanDetail;
use crate::cli::terminal::print;
use crate::config::ByteSize;
use crate::core::error_chain::error_chain;

/// The prompt of a message.
const PROMPT: &str = ">>> ";

/// The prompt of further lines between `"""`.
const CONTINUATION: &str = "... ";

type LineEditor = Editor<ChatHelper, FileHistory>;

/// What the chat does after a line.
#[derive(PartialEq, Eq)]
enum Next {
    Line,
    Leave,
}

/// Chats until `/exit` or Ctrl-D.
///
/// # Errors
/// [`CliError`] when the terminal cannot be read or written.
pub fn chat(
    session: Session,
    toolbox: Option<&mut Toolbox>,
    model: &str,
    context: Context,
    tokio: &tokio::runtime::Runtime,
) -> Result<(), CliError> {
    let history = context.config.history_file.clone();
    let editor = editor(&history).map_err(CliError::other)?;
    if let Some(toolbox) = &toolbox {
        context.terminal.notice(&format!("{}; /tools lists them", toolbox.summary()));
    }
    context.terminal.notice(&format!("chatting with {model}; /help lists the commands, Ctrl-D ends the chat"));
    let mut chat = Chat { session, toolbox, model, context, tokio, editor };
    loop {
        let entered = match read_message(&mut chat.editor) {
            Ok(entered) => entered,
            Err(ReadlineError::Interrupted) => {
                chat.context.terminal.notice("press Ctrl-D or enter /exit to end the chat");
                continue;
            }
            Err(ReadlineError::Eof) => return Ok(()),
            Err(error) => return Err(CliError::other(error)),
        };
        chat.remember(&entered, &history);
        match chat.handle(command::parse(&entered)) {
            Ok(Next::Line) => {}
            Ok(Next::Leave) => return Ok(()),
            // The terminal is closed.
            Err(error @ CliError::Output(_)) => return Err(error),
            Err(error) => eprintln!("error: {}", error_chain(&error)),
        }
    }
}

fn editor(history: &Path) -> rustyline::Result<LineEditor> {
    let config = rustyline::Config::builder()
        .auto_add_history(false)
        .bracketed_paste(true)
        .completion_type(CompletionType::List)
        .build();
    let mut editor = Editor::with_config(config)?;
    editor.set_helper(Some(ChatHelper::new()));
    editor.set_max_history_size(1000)?;
    if !history.as_os_str().is_empty() {
        if let Some(directory) = history.parent() {
            let _ = std::fs::create_dir_all(directory);
        }
        // The file does not exist before the first chat.
        let _ = editor.load_history(history);
    }
    Ok(editor)
}

/// Reads a line, or several between `"""`.
fn read_message(editor: &mut LineEditor) -> rustyline::Result<String> {
    let mut entered = editor.readline(PROMPT)?;
    while command::is_unfinished(&entered) {
        entered.push('\n');
        entered.push_str(&editor.readline(CONTINUATION)?);
    }
    Ok(entered)
}

struct Chat<'a> {
    session: Session,
    toolbox: Option<&'a mut Toolbox>,
    /// The model as the user named it.
    model: &'a str,
    context: Context,
    tokio: &'a tokio::runtime::Runtime,
    editor: LineEditor,
}

impl Chat<'_> {
    /// Adds a message to the history. The chat continues without a history that cannot be written.
    fn remember(&mut self, entered: &str, history: &Path) {
        let _ = self.editor.add_history_entry(entered);
        if !history.as_os_str().is_empty() {
            let _ = self.editor.append_history(history);
        }
    }

    fn handle(&mut self, line: Line) -> Result<Next, CliError> {
        match line {
            Line::Empty => {}
            Line::Wrong(reason) => return Err(CliError::Failed(reason)),
            Line::Text(text) => self.ask(&text)?,
            Line::Command(Command::Exit) => return Ok(Next::Leave),
            Line::Command(command) => self.execute(command)?,
        }
        Ok(Next::Line)
    }

    /// Answers a question. When the context is full, offers to drop the oldest exchanges, and answers then.
    fn ask(&mut self, text: &str) -> Result<(), CliError> {
        // Terminals write the path of a file that is dropped on them.
        for (kind, path) in command::media_in(text) {
            if self.session.model.takes(kind) {
                self.attach(kind, &path)?;
            }
        }
        match self.answer(text) {
            Err(AnswerError::ContextFull { prompt_tokens, context_tokens }) => {
                if self.drop_oldest(text, prompt_tokens, context_tokens)? {
                    self.answer(text)?;
                }
                Ok(())
            }
            result => Ok(result?),
        }
    }

    fn answer(&mut self, text: &str) -> Result<(), AnswerError> {
        let asker = &mut self.editor as &mut dyn Asks;
        let tools = self.toolbox.as_deref_mut().map(|toolbox| (toolbox, Some(asker)));
        let ended = question::answer(&mut self.session, tools, text, &self.context, self.tokio)?;
        print("\n\n")?;
        match ended {
            Ended::Interrupted => self.context.terminal.notice("stopped; the conversation keeps what was printed"),
            Ended::TooManyRounds => self.context.terminal.notice(rounds::TOO_MANY),
            Ended::Finished { .. } => {}
        }
        self.session.print_statistics(&ended);
        Ok(())
    }

    /// Whether the oldest exchanges were dropped, and the question fits now.
    fn drop_oldest(&mut self, text: &str, prompt_tokens: usize, context_tokens: usize) -> Result<bool, CliError> {
        let Some(count) = self.tokio.block_on(self.session.exchanges_to_drop(text))? else {
            return Err(CliError::Failed(format!(
                "this message does not fit the context of {context_tokens} tokens even without the conversation; \
                 shorten it, or enlarge the context with /set ctx TOKENS"
            )));
        };
        let total = self.session.conversation.exchanges();
        self.context.terminal.notice(&format!(
            "the context is full: the conversation has {prompt_tokens} tokens, the context holds {context_tokens}"
        ));
        let question = format!("drop the oldest {count} of {total} questions with their answers? [Y/n] ");
        if !self.confirmed(&question)? {
            let trained = self.session.model.card.context_train;
            self.context.terminal.notice(&format!(
                "nothing was sent; /set ctx TOKENS enlarges the context (the model was trained with {trained}), /clear \
                 starts a new conversation"
            ));
            return Ok(false);
        }
        self.session.conversation = self.session.conversation.without_oldest(count);
        Ok(true)
    }

    fn confirmed(&mut self, question: &str) -> Result<bool, CliError> {
        match self.editor.readline(question) {
            Ok(answer) => Ok(matches!(answer.trim().to_lowercase().as_str(), "" | "y" | "yes")),
            Err(ReadlineError::Interrupted | ReadlineError::Eof) => Ok(false),
            Err(error) => Err(CliError::other(error)),
        }
    }

    fn execute(&mut self, command: Command) -> Result<(), CliError> {
        let session = &mut self.session;
        match command {
            Command::Help => print(HELP),
            Command::Clear => {
                session.conversation.clear();
                self.context.terminal.notice("the conversation is empty now");
                Ok(())
            }
            Command::Set(change) => session.change(change),
            Command::SetContext(tokens) => self.set_context(tokens),
            Command::Save(path) => self.save(Path::new(&path)),
            Command::Load(path) => self.load(Path::new(&path)),
            Command::Attach(kind, path) => self.attach(kind, Path::new(&path)),
            Command::ShowParameters => print(&parameters(session)),
            Command::ShowTools => self.list_tools(),
            Command::ShowInfo => print(&info(session)),
            Command::ShowLicense => {
                let license = session.model.card.license.as_deref().unwrap_or("the file names no license");
                print(&format!("{license}\n"))
            }
            Command::ShowSystem => match &session.conversation.system {
                Some(system) => print(&format!("{system}\n(/set system \"\" removes it)\n")),
                None => print("there is no system prompt; /set system TEXT sets one\n"),
            },
            Command::ShowTemplate => {
                let template = session.model.chat_template.as_ref().map(|template| template.source());
                print(&format!("{}\n", template.unwrap_or("the model has no chat template")))
            }
            // `handle` ends the chat before this.
            Command::Exit => Ok(()),
        }
    }

    fn list_tools(&self) -> Result<(), CliError> {
        match &self.toolbox {
            Some(toolbox) => print(&toolbox.listing()),
            None => print("there are no tools; start the chat with --mcp FILE\n"),
        }
    }

    /// Adds an image or an audio clip to the next message.
    fn attach(&mut self, kind: MediaKind, path: &Path) -> Result<(), CliError> {
        self.tokio.block_on(self.session.attach(kind, path))?;
        let count = self.session.attached(kind);
        let plural = if count == 1 { "" } else { "s" };
        self.context.terminal.notice(&format!("the next message has {count} {}{plural}", kind.one()));
        Ok(())
    }

    fn save(&self, path: &Path) -> Result<(), CliError> {
        self.session.conversation.save(path)?;
        let count = self.session.conversation.len();
        let whole = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let media = match self.session.conversation.media().next() {
            Some(_) => ", without their images and audio",
            None => "",
        };
        self.context.terminal.notice(&format!("saved {count} messages to {}{media}", whole.display()));
        Ok(())
    }

    fn load(&mut self, path: &Path) -> Result<(), CliError> {
        self.session.conversation = Conversation::load(path)?;
        let count = self.session.conversation.len();
        self.context.terminal.notice(&format!("continuing after {count} messages"));
        Ok(())
    }

    /// Loads the model again with another context length. If that fails, it is loaded with the length it had.
    fn set_context(&mut self, tokens: NonZeroUsize) -> Result<(), CliError> {
        // Both loads at once might not fit into memory.
        self.tokio.block_on(self.session.stop());
        let before = NonZeroUsize::new(self.session.model.limits.context_tokens);
        let result = self.restart(Some(tokens));
        if result.is_err() {
            self.restart(before)?;
        }
        result
    }

    fn restart(&mut self, context_tokens: Option<NonZeroUsize>) -> Result<(), CliError> {
        self.context.config.ctx_size = context_tokens;
        let started = start::start(self.model, PlanDetail::Line, &self.context, self.tokio)?;
        self.session.replace_model(started);
        Ok(())
    }
}

fn parameters(session: &Session) -> String {
    let sampling = &session.sampling;
    let seed = sampling.seed.map_or_else(|| "random".to_owned(), |seed| seed.to_string());
    let max_tokens = session.max_tokens.map_or_else(|| "none".to_owned(), |count| count.to_string());
    format!(
        "ctx                 {}\ntemperature         {}\ntop_k               {}\ntop_p               {}\n\
         min_p               {}\nrepetition_penalty  {}\nseed                {seed}\nmax_tokens          {max_tokens}\n\
         think               {}\nverbose             {}\nmarkdown            {}\n",
        session.model.limits.context_tokens,
        sampling.temperature,
        sampling.top_k,
        sampling.top_p,
        sampling.min_p,
        sampling.repetition_penalty,
        session.format.thinking,
        if session.verbose { "on" } else { "off" },
        if session.markdown { "on" } else { "off" },
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
