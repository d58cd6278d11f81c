//! A person and a model: a question goes through the cast, and the answer streams back.

use std::sync::Arc;

use cuelight_engine::engine::TokenId;
use cuelight_engine::format::chat_template::TemplateInputs;

use super::command::Change;
use super::conversation::Conversation;
use crate::cli::terminal::Terminal;
use crate::cli::{CliError, model};
use crate::config::Config;
use crate::request::{Event, FinishReason, GenerationRequest, SamplingParams, StopConditions, SubmitError, Usage};
use crate::runtime::{Model, Runtime, Status};

/// How a text becomes a prompt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The chat template lays out the conversation.
    Chat,
    /// The text is the prompt.
    Raw,
}

/// How an answer ended.
#[derive(Debug, Clone, PartialEq)]
pub enum Ended {
    /// By itself, or at a limit.
    Finished {
        /// Which.
        reason: FinishReason,
        /// What it took.
        usage: Usage,
    },
    /// The person pressed Ctrl-C.
    Interrupted,
}

/// The state of `cuelight run`.
pub struct Session {
    runtime: Runtime,
    /// The model.
    pub model: Arc<Model>,
    /// How a text becomes a prompt.
    pub mode: Mode,
    /// What was said so far.
    pub conversation: Conversation,
    /// How tokens are chosen.
    pub sampling: SamplingParams,
    /// Most tokens of an answer.
    pub max_tokens: Option<usize>,
    /// Whether to print statistics.
    pub verbose: bool,
    terminal: Terminal,
}

impl Session {
    /// A session with the configured sampling.
    #[must_use]
    pub fn new(
        runtime: Runtime,
        model: Arc<Model>,
        mode: Mode,
        conversation: Conversation,
        config: &Config,
        verbose: bool,
        terminal: Terminal,
    ) -> Self {
        let sampling = SamplingParams {
            temperature: config.temp.0,
            top_k: config.top_k,
            top_p: config.top_p.0,
            min_p: config.min_p.0,
            seed: config.seed,
            ..SamplingParams::default()
        };
        let max_tokens = config.max_tokens.map(std::num::NonZeroUsize::get);
        Session { runtime, model, mode, conversation, sampling, max_tokens, verbose, terminal }
    }

    /// Changes a parameter.
    pub fn change(&mut self, change: Change) {
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
        }
    }

    /// Asks the model and passes its answer to `write`, piece by piece. What was said, if only in part, is kept.
    ///
    /// # Errors
    /// [`CliError`] when the question cannot be put or the answer breaks off; the conversation is as before.
    pub async fn answer(
        &mut self,
        question: &str,
        mut write: impl FnMut(&str) -> Result<(), CliError>,
    ) -> Result<Ended, CliError> {
        let prompt = self.prompt(question)?;
        let request = self.request(prompt);
        let permit = self.runtime.try_permit(1).map_err(refused)?;
        let mut generation = self.runtime.submit(&permit, request).await.map_err(refused)?;
        let mut answer = String::new();
        // One listener for the whole answer: a new one each time round would miss what comes in between.
        let interrupt = model::interrupt();
        tokio::pin!(interrupt);
        let ended = loop {
            let event = tokio::select! {
                event = generation.next() => event,
                // Dropping the generation cancels it and frees its memory.
                signal = &mut interrupt => { signal?; break Ended::Interrupted }
            };
            let (text, end) = match event {
                Some(Event::Token { text, .. }) => (text, None),
                Some(Event::Finished { reason, text, usage }) => (text, Some(Ended::Finished { reason, usage })),
                Some(Event::Prompt { .. }) => continue,
                Some(Event::Failed(error)) => return Err(CliError::other(error)),
                None => return Err(CliError::Failed("the answer broke off without an end".to_owned())),
            };
            if !text.is_empty() {
                answer.push_str(&text);
                write(&text)?;
            }
            if let Some(end) = end {
                break end;
            }
        };
        if self.mode == Mode::Chat {
            self.conversation.keep(question, &answer);
        }
        Ok(ended)
    }

    fn prompt(&self, question: &str) -> Result<Vec<TokenId>, CliError> {
        let tokenizer = &self.model.tokenizer;
        let tokens = match (self.mode, &self.model.chat_template) {
            (Mode::Chat, Some(template)) => {
                let inputs = TemplateInputs {
                    messages: &self.conversation.messages_with(question),
                    tools: None,
                    documents: None,
                    add_generation_prompt: true,
                    variables: None,
                };
                let text = template.render(&inputs).map_err(CliError::other)?;
                // The template writes the special tokens itself.
                tokenizer.encode(&text, false, true)
            }
            _ => tokenizer.encode(question, true, true),
        };
        tokens.map_err(CliError::other)
    }

    fn request(&self, prompt: Vec<TokenId>) -> GenerationRequest {
        let room = self.model.limits.context_tokens.saturating_sub(prompt.len()).max(1);
        let max_tokens = self.max_tokens.unwrap_or(room);
        GenerationRequest {
            prompt,
            sampling: self.sampling.clone(),
            stop: StopConditions { max_tokens, ..StopConditions::default() },
            logprobs: None,
            prompt_logprobs: None,
            skip_special_tokens: true,
            priority: 0,
            client: None,
            cache_salt: None,
        }
    }

    /// Says what an answer took.
    pub fn print_statistics(&self, ended: &Ended) {
        match ended {
            Ended::Finished { reason, usage } if self.verbose => {
                let context = self.model.limits.context_tokens;
                self.terminal.notice(&statistics(reason, usage, context));
            }
            _ => {}
        }
    }

    /// Another handle on the same cast.
    #[must_use]
    pub fn clone_handle(&self) -> Runtime {
        self.runtime.clone()
    }
}

/// One line: "[34 prompt tokens (12 cached), first token after 0.21 s, 45 tokens at 38.1 tok/s, context 79 of 2048]".
fn statistics(reason: &FinishReason, usage: &Usage, context_tokens: usize) -> String {
    let cached = if usage.cached_tokens > 0 { format!(" ({} cached)", usage.cached_tokens) } else { String::new() };
    let first = usage.time_to_first_token.as_secs_f64();
    let used = usage.prompt_tokens + usage.completion_tokens;
    // The first token's time is the prompt's; the others are what generation took.
    let seconds = usage.generation_time.as_secs_f64();
    let speed = match usage.completion_tokens {
        count @ 2.. if seconds > 0.0 => format!(" at {:.1} tok/s", (count - 1) as f64 / seconds),
        _ => String::new(),
    };
    let end = if *reason == FinishReason::Length { ", ended at the limit" } else { "" };
    format!(
        "[{} prompt tokens{cached}, first token after {first:.2} s, {} tokens{speed}, context {used} of {context_tokens}{end}]",
        usage.prompt_tokens, usage.completion_tokens
    )
}

/// What a refusal means to a person in a terminal.
fn refused(error: SubmitError) -> CliError {
    match error {
        SubmitError::ContextLengthExceeded { prompt_tokens, context_tokens } => CliError::Failed(format!(
            "the conversation has {prompt_tokens} tokens, which do not fit the context of {context_tokens}; shorten it \
             (/clear forgets it), or start with a larger --ctx-size"
        )),
        error => CliError::other(error),
    }
}

/// Why there is no model to talk to.
pub fn not_ready(status: Status) -> CliError {
    match status {
        Status::Failed(reason) => CliError::Failed(reason),
        _ => CliError::Failed("the model was stopped before it was ready".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn statistics_tell_prompt_cache_and_speed() {
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
             ended at the limit]"
        );
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
