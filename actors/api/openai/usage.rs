//! How OpenAI's protocol writes the end of an answer and the tokens that it took.

use cuelight_engine::engine::TokenId;
use serde_json::{Value, json};

use crate::core::request::FinishReason;
use crate::serving::answers::Finish;

/// `finish_reason` as OpenAI defines it.
pub(super) fn finish_reason(finish: &Finish) -> &'static str {
    match finish.reason {
        FinishReason::Length | FinishReason::Cancelled => "length",
        FinishReason::StopToken(_) | FinishReason::StopString(_) if finish.calls_tools => "tool_calls",
        FinishReason::StopToken(_) | FinishReason::StopString(_) => "stop",
    }
}

/// `stop_reason` as vLLM defines it: the stop string or the stop token of the client, or `null` when the model ended the
/// answer itself.
pub(super) fn stop_reason(finish: &Finish, stop_token_ids: &[TokenId]) -> Value {
    match &finish.reason {
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
    reasoning_tokens: usize,
    accepted_prediction_tokens: usize,
    rejected_prediction_tokens: usize,
}

impl UsageCount {
    /// The count of one sequence without cached tokens.
    pub fn new(prompt_tokens: usize, completion_tokens: usize) -> Self {
        UsageCount { prompt_tokens, completion_tokens, ..Self::default() }
    }

    /// Adds the tokens of sequence `choice` in a request with `n` answers to each prompt.
    pub fn add(&mut self, choice: usize, n: usize, finish: &Finish) {
        self.completion_tokens += finish.usage.completion_tokens;
        self.reasoning_tokens += finish.reasoning_tokens;
        self.accepted_prediction_tokens += finish.usage.accepted_prediction_tokens;
        self.rejected_prediction_tokens += finish.usage.rejected_prediction_tokens;
        if choice.is_multiple_of(n) {
            self.prompt_tokens += finish.usage.prompt_tokens;
            self.cached_tokens += finish.usage.cached_tokens;
        }
    }

    /// The `usage` object.
    pub fn json(&self) -> Value {
        json!({
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": { "cached_tokens": self.cached_tokens },
            "completion_tokens_details": {
                "reasoning_tokens": self.reasoning_tokens,
                "accepted_prediction_tokens": self.accepted_prediction_tokens,
                "rejected_prediction_tokens": self.rejected_prediction_tokens,
            },
        })
    }
}
