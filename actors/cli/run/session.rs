//! One user and one model: a question goes through the actors, and the answer streams back.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::{AdapterUse, TokenId};
use cuelight_engine::format::chat_template::{Cancellation, TemplateInputs};
use cuelight_engine::media::MediaKind;

use super::answer_format::{AnswerFormat, NO_REASONING, reasons};
use super::command::Change;
use super::conversation::Conversation;
use super::prompt_bar::PromptBar;
use super::sampling::sampling;
use super::start::Started;
use crate::cli::async_runtime;
use crate::cli::error::CliError;
use crate::cli::terminal::Terminal;
use crate::config::Config;
use crate::core::prompt_media::PromptMedia;
use crate::core::request::{
    Event, FinishReason, GenerationRequest, SamplingParams, StopConditions, SubmitError, Usage,
};
use crate::output::{Delta, OutputParser};
use crate::pipeline::media::CachedMedia;
use crate::pipeline::runtime::{Generation, OutputRules, Runtime, ServedModel};
use crate::serving::chat_prompt::ChatPrompt;
use crate::serving::media::{self, prompt_media};
use crate::serving::media_limits::MediaLimits;
use crate::serving::media_source::{MediaField, MediaSource};

/// How a text becomes a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The chat template renders the conversation.
    Chat,
    /// The text is the prompt.
    Raw,
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ended {
    /// The model ended it, or it reached a limit.
    Finished {
        /// Which of them.
        reason: FinishReason,
        /// Tokens and times.
        usage: Usage,
    },
    /// The user pressed Ctrl-C.
    Interrupted,
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
        let (attached, markdown) = (Vec::new(), true);
        Session {
            runtime,
            model,
            mode,
            conversation,
            sampling,
            format,
            max_tokens,
            verbose,
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
        let source = MediaSource::File(bytes);
        let field = MediaField { media: kind, path: shown.clone(), kind_path: shown, kind: None, source };
        let limits = MediaLimits::default();
        let encoded = media::encode(vec![field], &self.model, &limits, None, &mut ()).await;
        self.attached.extend(encoded.map_err(CliError::other)?);
        Ok(())
    }

    /// The number of items of a kind in the next question.
    #[must_use]
    pub fn attached(&self, kind: MediaKind) -> usize {
        self.attached.iter().filter(|item| item.parts.kind == kind).count()
    }

    /// Sends the question and passes the answer to `write` as it streams. The conversation keeps the question with the
    /// answer, even if Ctrl-C cut it short.
    ///
    /// # Errors
    /// [`AnswerError`] when the question is refused or the answer fails; the conversation is unchanged.
    pub async fn answer(
        &mut self,
        question: &str,
        write: impl FnMut(Piece<'_>) -> Result<(), CliError>,
    ) -> Result<Ended, AnswerError> {
        let Prompt { tokens, text, media } = self.prompt(&self.conversation, question).await?;
        let rules = self.output_rules().await;
        let request = GenerationRequest { media, ..self.request(tokens, &text, &rules) };
        let permit = self.runtime.try_permit(1)?;
        let mut generation = self.runtime.submit(&permit, request).await?;
        let parser = rules.parser(self.mode == Mode::Chat, None, &text);
        let bar = PromptBar::new(self.terminal);
        let (answer, ended) = stream(&mut generation, parser, bar, write).await?;
        if self.mode == Mode::Chat {
            self.conversation.keep(question, std::mem::take(&mut self.attached), &answer);
        }
        Ok(ended)
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
        for count in 1..=total {
            let tokens = self.prompt(&self.conversation.without_oldest(count), question).await?.tokens.len();
            if tokens <= context_tokens / 4 * 3 || (count == total && tokens < context_tokens) {
                return Ok(Some(count));
            }
        }
        Ok(None)
    }

    async fn prompt(&self, conversation: &Conversation, question: &str) -> Result<Prompt, CliError> {
        let media: Vec<CachedMedia> = conversation.media().chain(&self.attached).cloned().collect();
        // The template of a model with media may take no texts.
        if self.mode == Mode::Chat && self.model.media.is_some() {
            return self.prompt_with_media(conversation, question, media).await;
        }
        let tokenizer = &self.model.tokenizer;
        let (text, guards) = match (self.mode, &self.model.chat_template) {
            (Mode::Chat, Some(template)) => {
                let variables = self.format.thinking.variables();
                let inputs = TemplateInputs {
                    messages: &conversation.messages_with(question, &[]),
                    tools: None,
                    documents: None,
                    add_generation_prompt: true,
                    variables: Some(&variables),
                };
                let prompt = template.render_prompt(&inputs, &Cancellation::default()).map_err(CliError::other)?;
                (prompt.text, Some(prompt.guards))
            }
            _ => (question.to_owned(), None),
        };
        let tokens = match guards {
            // The template contains the special tokens.
            Some(guards) => tokenizer.encode_guarded(&text, &guards, false),
            None => tokenizer.encode(&text, true, true),
        };
        Ok(Prompt { tokens: tokens.map_err(CliError::other)?, text, media: PromptMedia::default() })
    }

    async fn prompt_with_media(
        &self,
        conversation: &Conversation,
        question: &str,
        media: Vec<CachedMedia>,
    ) -> Result<Prompt, CliError> {
        let chat = ChatPrompt {
            messages: conversation.messages_with(question, &self.attached),
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

/// A piece of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Text of the answer.
    Text(&'a str),
    /// Text of the reasoning before it.
    Reasoning(&'a str),
}

/// Passes the pieces of an answer on as they come; returns all of its text, and how it ended.
async fn stream(
    generation: &mut Generation,
    mut parser: OutputParser,
    mut bar: PromptBar,
    mut write: impl FnMut(Piece<'_>) -> Result<(), CliError>,
) -> Result<(String, Ended), CliError> {
    let mut answer = String::new();
    // One listener for the whole answer: a new one for each event would miss a signal between two events.
    let interrupt = async_runtime::interrupt();
    tokio::pin!(interrupt);
    loop {
        let event = tokio::select! {
            event = generation.next() => event,
            // Dropping the generation cancels it and frees its memory.
            signal = &mut interrupt => { signal?; return Ok((answer, Ended::Interrupted)) }
        };
        if let Some(Event::Progress(progress)) = &event {
            bar.show(progress);
            continue;
        }
        bar.clear();
        let (text, end) = match event {
            Some(Event::Token { text, .. }) => (text, None),
            Some(Event::Block { tokens }) => (tokens.into_iter().map(|token| token.text).collect(), None),
            Some(Event::Finished { reason, text, usage }) => (text, Some(Ended::Finished { reason, usage })),
            Some(Event::Progress(_) | Event::Prompt { .. } | Event::Embedded { .. }) => continue,
            Some(Event::Failed(error)) => return Err(CliError::other(error)),
            None => return Err(CliError::Failed("the answer stopped before its end".to_owned())),
        };
        let mut deltas = Vec::new();
        parser.push(&text, &mut deltas);
        if end.is_some() {
            parser.finish(&mut deltas);
        }
        for delta in &deltas {
            match delta {
                Delta::Text(text) => {
                    answer.push_str(text);
                    write(Piece::Text(text))?;
                }
                Delta::Reasoning(text) => write(Piece::Reasoning(text))?,
                Delta::ToolCallStart { .. } | Delta::ToolCallArguments { .. } => {}
            }
        }
        if let Some(end) = end {
            return Ok((answer, end));
        }
    }
}

/// Which limit ended an answer before the model did.
fn limit_reached(usage: &Usage, max_tokens: Option<usize>) -> &'static str {
    match max_tokens {
        Some(most) if usage.completion_tokens >= most => "the answer was cut off: it reached --max-tokens",
        _ => "the answer was cut off: the context is full; a larger --ctx-size would help",
    }
}

/// One line: "[34 prompt tokens (12 cached), first token after 0.21 s, 45 tokens at 38.1 tok/s, context 79 of 2048]".
fn statistics(reason: &FinishReason, usage: &Usage, context_tokens: usize) -> String {
    let cached = if usage.cached_tokens > 0 { format!(" ({} cached)", usage.cached_tokens) } else { String::new() };
    let first = usage.time_to_first_token.as_secs_f64();
    let used = usage.prompt_tokens + usage.completion_tokens;
    // The time to the first token is prompt processing; the speed is that of the later tokens.
    let seconds = usage.generation_time.as_secs_f64();
    let speed = match usage.completion_tokens {
        count @ 2.. if seconds > 0.0 => format!(" at {:.1} tok/s", (count - 1) as f64 / seconds),
        _ => String::new(),
    };
    let end = if *reason == FinishReason::Length { ", stopped at the limit" } else { "" };
    format!(
        "[{} prompt tokens{cached}, first token after {first:.2} s, {} tokens{speed}, context {used} of {context_tokens}{end}]",
        usage.prompt_tokens, usage.completion_tokens
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statistics_contain_prompt_cache_and_speed() {
        let usage = Usage {
            prompt_tokens: 34,
            cached_tokens: 12,
            completion_tokens: 41,
            time_to_first_token: Duration::from_millis(210),
            generation_time: Duration::from_secs(2),
            ..Usage::default()
        };
        assert_eq!(
            statistics(&FinishReason::Length, &usage, 2048),
            "[34 prompt tokens (12 cached), first token after 0.21 s, 41 tokens at 20.0 tok/s, context 75 of 2048, \
             stopped at the limit]"
        );
    }

    #[test]
    fn a_cut_answer_names_the_limit_that_it_reached() {
        let usage = Usage { completion_tokens: 8, ..Usage::default() };
        assert!(limit_reached(&usage, Some(8)).ends_with("--max-tokens"));
        for max_tokens in [None, Some(9)] {
            assert!(limit_reached(&usage, max_tokens).contains("--ctx-size"));
        }
    }

    #[test]
    fn a_single_token_has_no_speed() {
        let usage = Usage { prompt_tokens: 1, completion_tokens: 1, ..Usage::default() };
        assert_eq!(
            statistics(&FinishReason::StopToken(0), &usage, 8),
            "[1 prompt tokens, first token after 0.00 s, 1 tokens, context 2 of 8]"
        );
    }
}
