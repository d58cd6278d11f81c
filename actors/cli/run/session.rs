//! One user and one model: a question goes through the actors, and the answer streams back.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::{AdapterUse, TokenId};
use cuelight_engine::format::chat_template::{Cancellation, TemplateInputs};
use cuelight_engine::media::MediaKind;

use super::answer_format::{AnswerFormat, NO_REASONING, reasons};
use super::answer_stream::{Ended, Piece, Round, stream};
use super::command::Change;
use super::conversation::Conversation;
use super::media_file;
use super::offered_tools::OfferedTools;
use super::prompt_bar::PromptBar;
use super::sampling::sampling;
use super::start::Started;
use super::statistics::{limit_reached, statistics};
use super::turn::Turn;
use crate::cli::error::CliError;
use crate::cli::terminal::Terminal;
use crate::config::Config;
use crate::core::prompt_media::PromptMedia;
use crate::core::request::{FinishReason, GenerationRequest, SamplingParams, StopConditions, SubmitError};
use crate::output::ArgumentChecks;
use crate::pipeline::media::CachedMedia;
use crate::pipeline::runtime::{OutputRules, Runtime, ServedModel};
use crate::serving::chat_prompt::ChatPrompt;
use crate::serving::media::prompt_media;

/// How a text becomes a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The chat template renders the conversation.
    Chat,
    /// The text is the prompt.
    Raw,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum AnswerError {
    /// The conversation and the question leave no space in the context.
    #[error(
        "the prompt has {prompt_tokens} tokens, but the context holds {context_tokens}; shorten it, or set a larger \
         --ctx-size"
    )]
    ContextFull {
        /// Tokens of the whole prompt.
        prompt_tokens: usize,
        /// Tokens of the context.
        context_tokens: usize,
    },
    /// Any other reason.
    #[error(transparent)]
    Other(#[from] CliError),
}

impl From<AnswerError> for CliError {
    fn from(error: AnswerError) -> Self {
        match error {
            AnswerError::Other(error) => error,
            full => CliError::Failed(full.to_string()),
        }
    }
}

impl From<SubmitError> for AnswerError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::ContextLengthExceeded { prompt_tokens, context_tokens } => {
                AnswerError::ContextFull { prompt_tokens, context_tokens }
            }
            error => AnswerError::Other(CliError::other(error)),
        }
    }
}

/// The state of `cuelight run`.
pub struct Session {
    runtime: Runtime,
    /// The model.
    pub model: Arc<ServedModel>,
    /// How a text becomes a prompt.
    pub mode: Mode,
    /// The conversation so far.
    pub conversation: Conversation,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// What is asked of every answer.
    pub format: AnswerFormat,
    /// The most tokens of an answer; `None`: until the model ends or the context is full.
    pub max_tokens: Option<usize>,
    /// Whether to print statistics.
    pub verbose: bool,
    /// The tools that the model may call.
    tools: OfferedTools,
    /// The images and audio of the next question.
    attached: Vec<CachedMedia>,
    /// Whether to render the Markdown of answers, which needs a terminal with colours.
    pub markdown: bool,
    terminal: Terminal,
}

impl Session {
    /// A session with the configured sampling and system prompt.
    #[must_use]
    pub fn new(
        started: Started,
        mode: Mode,
        format: AnswerFormat,
        config: &Config,
        verbose: bool,
        terminal: Terminal,
    ) -> Self {
        let max_tokens = config.max_tokens.map(std::num::NonZeroUsize::get);
        let Started { runtime, model } = started;
        let conversation = Conversation::new(model.card.system.clone());
        let sampling = sampling(config, model.card.sampling.stated);
        let (tools, attached, markdown) = (OfferedTools::default(), Vec::new(), true);
        Session {
            runtime,
            model,
            mode,
            conversation,
            sampling,
            format,
            max_tokens,
            verbose,
            tools,
            attached,
            markdown,
            terminal,
        }
    }

    /// Changes a parameter.
    ///
    /// # Errors
    /// [`CliError`] when the model cannot be told to reason.
    pub fn change(&mut self, change: Change) -> Result<(), CliError> {
        match change {
            Change::Temperature(value) => self.sampling.temperature = value,
            Change::TopK(value) => self.sampling.top_k = value,
            Change::TopP(value) => self.sampling.top_p = value,
            Change::MinP(value) => self.sampling.min_p = value,
            Change::RepetitionPenalty(value) => self.sampling.repetition_penalty = value,
            Change::Seed(value) => self.sampling.seed = value,
            Change::MaxTokens(value) => self.max_tokens = value,
            Change::System(value) => self.conversation.system = value,
            Change::Verbose(value) => self.verbose = value,
            Change::Markdown(value) => self.markdown = value && self.terminal.colored,
            Change::Think(value) if value.is_on() && !(self.mode == Mode::Chat && reasons(&self.model)) => {
                return Err(CliError::Failed(NO_REASONING.to_owned()));
            }
            Change::Think(value) => self.format.thinking = value,
        }
        Ok(())
    }

    /// Uses another load of the same model from now on.
    pub fn replace_model(&mut self, started: Started) {
        self.runtime = started.runtime;
        self.model = started.model;
    }

    /// Stops the actors and frees the model's memory.
    pub async fn stop(&self) {
        self.runtime.shutdown(Duration::ZERO).await;
    }

    /// Adds an image or an audio clip to the next question.
    ///
    /// # Errors
    /// [`CliError`] when the model takes none, or the file is not read as one.
    pub async fn attach(&mut self, kind: MediaKind, path: &Path) -> Result<(), CliError> {
        if self.mode == Mode::Raw || !self.model.takes(kind) {
            let encoder = match kind {
                MediaKind::Image => "a vision tower",
                MediaKind::Audio => "an audio encoder",
            };
            let advice = format!("it needs a chat template and {encoder}; --mmproj FILE gives it one");
            return Err(CliError::Usage(format!("the model takes no {}: {advice}", kind.several())));
        }
        let shown = path.display().to_string();
        let bytes = std::fs::read(path).map_err(CliError::io(format!("read the {} {shown}", kind.one())))?;
        self.attached.extend(media_file::encode(kind, shown, bytes, &self.model).await?);
        Ok(())
    }

    /// The number of items of a kind in the next question.
    #[must_use]
    pub fn attached(&self, kind: MediaKind) -> usize {
        self.attached.iter().filter(|item| item.parts.kind == kind).count()
    }

    /// Offers tools to the model from now on.
    ///
    /// # Errors
    /// [`CliError`] when answers have to match a schema, and the arguments of a tool cannot stand next to it.
    pub fn offer(&mut self, tools: OfferedTools) -> Result<(), CliError> {
        self.format.allow_calls(&self.model, &tools.specs)?;
        self.tools = tools;
        Ok(())
    }

    /// The message with a question and what is attached to it.
    #[must_use]
    pub fn question(&self, text: &str) -> Turn {
        Turn::user(text, self.attached.clone())
    }

    /// Sends the messages of a question that the model has not answered yet, and passes what it writes to `write`.
    ///
    /// # Errors
    /// [`AnswerError`] when the messages are refused or the answer fails.
    pub async fn round(
        &self,
        exchange: &[Turn],
        write: impl FnMut(Piece<'_>) -> Result<(), CliError>,
    ) -> Result<Round, AnswerError> {
        let Prompt { tokens, text, media } = self.prompt(&self.conversation, exchange).await?;
        let rules = self.output_rules().await;
        let request = GenerationRequest { media, ..self.request(tokens, &text, &rules) };
        let unmarked = request.constraint.is_none().then(ArgumentChecks::default);
        let parser = rules.parser(self.mode == Mode::Chat, self.tools.callable(), unmarked, &text);
        let permit = self.runtime.try_permit(1)?;
        let mut generation = self.runtime.submit(&permit, request).await?;
        Ok(stream(&mut generation, parser, PromptBar::new(self.terminal), write).await?)
    }

    /// Adds a question with its answer to the conversation. What was attached is part of the question.
    pub fn keep(&mut self, exchange: Vec<Turn>) {
        if self.mode == Mode::Chat {
            self.attached.clear();
            self.conversation.keep(exchange);
        }
    }

    /// How the model writes its reasoning.
    async fn output_rules(&self) -> OutputRules {
        if self.mode == Mode::Raw {
            return OutputRules::plain();
        }
        let find = || async { self.model.find_output_rules(&Cancellation::default()) };
        self.model.output_rules.get_or_init(find).await.clone()
    }

    /// How many of the oldest exchanges must be dropped so that the question fits and a quarter of the context stays
    /// free for the answer. `None` when the question does not fit even alone.
    ///
    /// # Errors
    /// [`CliError`] when the template or the tokenizer fails.
    pub async fn exchanges_to_drop(&self, question: &str) -> Result<Option<usize>, CliError> {
        let context_tokens = self.model.limits.context_tokens;
        let total = self.conversation.exchanges();
        let question = [self.question(question)];
        for count in 1..=total {
            let tokens = self.prompt(&self.conversation.without_oldest(count), &question).await?.tokens.len();
            if tokens <= context_tokens / 4 * 3 || (count == total && tokens < context_tokens) {
                return Ok(Some(count));
            }
        }
        Ok(None)
    }

    async fn prompt(&self, conversation: &Conversation, exchange: &[Turn]) -> Result<Prompt, CliError> {
        // The template of a model with media may take no texts.
        if self.mode == Mode::Chat && self.model.media.is_some() {
            return self.prompt_with_media(conversation, exchange).await;
        }
        let tokenizer = &self.model.tokenizer;
        let (text, guards) = match (self.mode, &self.model.chat_template) {
            (Mode::Chat, Some(template)) => {
                let variables = self.format.thinking.variables();
                let inputs = TemplateInputs {
                    messages: &conversation.messages_with(exchange),
                    tools: self.tools.for_template.as_ref(),
                    documents: None,
                    add_generation_prompt: true,
                    variables: Some(&variables),
                };
                let prompt = template.render_prompt(&inputs, &Cancellation::default()).map_err(CliError::other)?;
                (prompt.text, Some(prompt.guards))
            }
            _ => (exchange.iter().map(|turn| turn.content.as_str()).collect(), None),
        };
        let tokens = match guards {
            // The template contains the special tokens.
            Some(guards) => tokenizer.encode_guarded(&text, &guards, false),
            None => tokenizer.encode(&text, true, true),
        };
        Ok(Prompt { tokens: tokens.map_err(CliError::other)?, text, media: PromptMedia::default() })
    }

    async fn prompt_with_media(&self, conversation: &Conversation, exchange: &[Turn]) -> Result<Prompt, CliError> {
        let media: Vec<CachedMedia> =
            conversation.media().chain(exchange.iter().flat_map(|turn| &turn.media)).cloned().collect();
        let chat = ChatPrompt {
            messages: conversation.messages_with(exchange),
            tools: self.tools.for_template.clone(),
            variables: self.format.thinking.variables(),
            add_generation_prompt: true,
            ..ChatPrompt::default()
        };
        let parts = media.iter().map(|item| item.parts.clone()).collect();
        let prompt = chat.tokens(&self.model, parts).await.map_err(CliError::other)?;
        let media = prompt_media(&prompt, &media, &self.model);
        Ok(Prompt { tokens: prompt.tokens, text: prompt.text, media })
    }

    fn request(&self, prompt: Vec<TokenId>, text: &str, rules: &OutputRules) -> GenerationRequest {
        let remaining = self.model.limits.context_tokens.saturating_sub(prompt.len()).max(1);
        let max_tokens = self.max_tokens.unwrap_or(remaining);
        GenerationRequest {
            prompt,
            sampling: self.sampling.clone(),
            stop: StopConditions { max_tokens, strings: self.model.stop.clone(), ..StopConditions::default() },
            skip_special_tokens: true,
            visible_tokens: rules.visible_tokens.clone(),
            reasoning: rules.reasoning(&self.model.tokenizer, text, None),
            constraint: self.format.constraint.clone(),
            adapter: self.adapter(),
            reports_progress: self.terminal.talks,
            ..GenerationRequest::default()
        }
    }

    /// The adapter of the command line, if there is one.
    fn adapter(&self) -> Option<AdapterUse> {
        self.model.adapters.as_ref()?.list().into_iter().next().map(|named| named.adapter)
    }

    /// Why the answer is not complete, if it is not.
    #[must_use]
    pub fn cut_off(&self, ended: &Ended) -> Option<&'static str> {
        match ended {
            Ended::Finished { reason: FinishReason::Length, usage } => Some(limit_reached(usage, self.max_tokens)),
            _ => None,
        }
    }

    /// Prints the statistics of an answer, if they are wanted.
    pub fn print_statistics(&self, ended: &Ended) {
        match ended {
            Ended::Finished { reason, usage } if self.verbose => {
                let context = self.model.limits.context_tokens;
                self.terminal.notice(&statistics(reason, usage, context));
            }
            _ => {}
        }
    }
}

/// A prompt as tokens and as text.
struct Prompt {
    tokens: Vec<TokenId>,
    text: String,
    media: PromptMedia,
}
