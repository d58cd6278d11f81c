//! The sequences of one request: submitted under one permit and merged into one stream of events.
//!
//! Dropping a [`Generations`] drops every [`Generation`] in it, which cancels them. So no sequence outlives its
//! connection.

use std::time::Duration;

use cuelight_engine::engine::TokenId;
use futures_util::stream::{self, BoxStream, SelectAll, Stream, StreamExt};
use serde_json::{Value, json};
use tokio::time::{Instant, timeout_at};

use crate::api::error::ApiError;
use crate::api::server::Served;
use crate::core::request::{Event, FinishReason, GenerationError, GenerationRequest, PositionLogprobs, Usage};
use crate::pipeline::runtime::{Generation, Permit};

/// The running sequences of one request, numbered from 0 in the order of its choices.
pub(super) struct Generations {
    events: SelectAll<BoxStream<'static, (usize, Event)>>,
    unfinished: usize,
    timeout: Option<(Instant, Duration)>,
    /// Holds the request's admission slots until it ends.
    _permit: Permit,
    /// Keeps the model loaded until then.
    _served: Served,
}

impl Generations {
    /// Submits every sequence of a request.
    ///
    /// # Errors
    /// [`ApiError::Submit`] when one is not accepted; those before it are cancelled.
    pub async fn submit(
        served: &Served,
        permit: Permit,
        requests: Vec<GenerationRequest>,
        timeout: Option<Duration>,
    ) -> Result<Self, ApiError> {
        let timeout = timeout.map(|limit| (Instant::now() + limit, limit));
        let unfinished = requests.len();
        let mut events = SelectAll::new();
        for (choice, request) in requests.into_iter().enumerate() {
            let generation = served.runtime.submit(&permit, request).await?;
            events.push(events_of(choice, generation).boxed());
        }
        Ok(Generations { events, unfinished, timeout, _permit: permit, _served: served.clone() })
    }

    /// The next event of any sequence, with the sequence's number. `None` when all have finished.
    ///
    /// Cancel-safe: an event is never lost by dropping the future.
    ///
    /// # Errors
    /// [`ApiError::Generation`] when a sequence failed, [`ApiError::Timeout`] when the request took too long. Either ends
    /// the whole request.
    pub async fn next(&mut self) -> Option<Result<(usize, Event), ApiError>> {
        if self.unfinished == 0 {
            return None;
        }
        let next = match self.timeout {
            Some((deadline, limit)) => match timeout_at(deadline, self.events.next()).await {
                Ok(next) => next,
                Err(_) => return Some(Err(self.fail(ApiError::Timeout(limit)))),
            },
            None => self.events.next().await,
        };
        Some(match next {
            Some((_, Event::Failed(error))) => Err(self.fail(error.into())),
            Some((_, Event::Finished { reason: FinishReason::Cancelled, .. })) => {
                Err(self.fail(GenerationError::ShuttingDown.into()))
            }
            Some((choice, event)) => {
                self.unfinished -= usize::from(matches!(event, Event::Finished { .. }));
                Ok((choice, event))
            }
            None => Err(self.fail(GenerationError::Engine("it stopped without a result".to_owned()).into())),
        })
    }

    /// Every sequence's whole answer.
    ///
    /// # Errors
    /// As [`Generations::next`].
    pub async fn collect(mut self) -> Result<Vec<Answer>, ApiError> {
        let mut answers: Vec<Answer> = (0..self.unfinished).map(|_| Answer::default()).collect();
        while let Some(next) = self.next().await {
            let (choice, event) = next?;
            answers[choice].add(event);
        }
        Ok(answers)
    }

    fn fail(&mut self, error: ApiError) -> ApiError {
        self.unfinished = 0;
        self.events.clear();
        error
    }
}

fn events_of(choice: usize, generation: Generation) -> impl Stream<Item = (usize, Event)> + Send {
    stream::unfold(generation, move |mut generation| async move {
        let event = generation.next().await?;
        Some(((choice, event), generation))
    })
}

/// One sequence's whole answer.
#[derive(Debug, Default)]
pub(super) struct Answer {
    pub text: String,
    pub tokens: Vec<TokenId>,
    /// One for each token, when requested.
    pub logprobs: Vec<PositionLogprobs>,
    /// One for each token of the prompt, when requested.
    pub prompt_logprobs: Vec<Option<PositionLogprobs>>,
    pub reason: Option<FinishReason>,
    pub usage: Usage,
}

impl Answer {
    /// The mean log-probability of its tokens; 0 without tokens.
    pub fn mean_logprob(&self) -> f32 {
        let sum: f32 = self.logprobs.iter().map(|position| position.sampled.logprob).sum();
        sum / self.logprobs.len().max(1) as f32
    }

    fn add(&mut self, event: Event) {
        match event {
            Event::Prompt { logprobs } => self.prompt_logprobs = logprobs,
            Event::Token { token, text, logprobs } => {
                self.tokens.push(token);
                self.text.push_str(&text);
                self.logprobs.extend(logprobs);
            }
            Event::Finished { reason, text, usage } => {
                self.text.push_str(&text);
                self.reason = Some(reason);
                self.usage = usage;
            }
            Event::Failed(_) => {}
        }
    }
}

/// `finish_reason` as OpenAI defines it.
pub(super) fn finish_reason(reason: &FinishReason) -> &'static str {
    match reason {
        FinishReason::StopToken(_) | FinishReason::StopString(_) => "stop",
        FinishReason::Length | FinishReason::Cancelled => "length",
    }
}

/// `stop_reason` as vLLM defines it: the stop string or the stop token of the client, or `null` when the model ended the
/// answer itself.
pub(super) fn stop_reason(reason: &FinishReason, stop_token_ids: &[TokenId]) -> Value {
    match reason {
        FinishReason::StopToken(token) if stop_token_ids.contains(token) => json!(token),
        FinishReason::StopString(text) => json!(text),
        _ => Value::Null,
    }
}

/// Tokens of all sequences of a request. A prompt counts once, for any number of answers.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct UsageCount {
    prompt_tokens: usize,
    cached_tokens: usize,
    completion_tokens: usize,
}

impl UsageCount {
    /// The count of one sequence without cached tokens.
    pub fn new(prompt_tokens: usize, completion_tokens: usize) -> Self {
        UsageCount { prompt_tokens, cached_tokens: 0, completion_tokens }
    }

    /// Adds the tokens of sequence `choice` in a request with `n` answers to each prompt.
    pub fn add(&mut self, choice: usize, n: usize, usage: &Usage) {
        self.completion_tokens += usage.completion_tokens;
        if choice.is_multiple_of(n) {
            self.prompt_tokens += usage.prompt_tokens;
            self.cached_tokens += usage.cached_tokens;
        }
    }

    /// The `usage` object.
    pub fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": { "cached_tokens": self.cached_tokens },
            "completion_tokens_details": { "reasoning_tokens": 0 },
        })
    }
}
