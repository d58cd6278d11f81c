//! The response object.

use std::sync::Arc;

use cuelight_engine::format::tokenizer::Tokenizer;
use serde_json::{Value, json};
use uuid::Uuid;

use super::echo::Echo;
use super::item::Item;
use crate::api::openai::logprobs::{self, Spelling};
use crate::api::request_memory::Reservation;
use crate::api::server::unix_seconds;
use crate::core::request::{FinishReason, PositionLogprobs, SubmitError};
use crate::core::request_context::RequestContext;
use crate::serving::accept::Accepted;
use crate::serving::answers::{Answers, Finish};
use crate::serving::error::ApiError;

/// What is known about a response before its output.
pub(super) struct ResponseParts {
    id: String,
    created: u64,
    model: String,
    tokenizer: Arc<Tokenizer>,
    tokens_as_ids: bool,
    echo: Echo,
    /// The memory of `echo`.
    _memory: Reservation,
}

/// How far a response is.
#[derive(Debug, Clone)]
pub(super) enum Stage {
    InProgress,
    Finished(Finish),
    Failed(ApiError),
}

impl ResponseParts {
    /// The parts of a response that runs, and its answers.
    pub fn new(accepted: Accepted, mut echo: Echo, memory: Reservation) -> (Self, Answers) {
        echo.set_sampling(&accepted.options.sampling);
        let id = format!("resp_{}", Uuid::new_v4().simple());
        RequestContext::answered_as(&id);
        let parts = ResponseParts {
            id,
            created: unix_seconds(),
            model: accepted.model_id,
            tokenizer: accepted.model.tokenizer.clone(),
            tokens_as_ids: accepted.options.tokens_as_ids,
            echo,
            _memory: memory,
        };
        (parts, accepted.answers)
    }

    /// The log-probabilities of a token.
    pub fn logprobs(&self, position: PositionLogprobs) -> Vec<Value> {
        logprobs::entries(&[position], Spelling { tokenizer: &self.tokenizer, as_ids: self.tokens_as_ids })
    }

    /// The whole object.
    pub fn json(&self, stage: &Stage, items: &[Item]) -> Value {
        let mut response = json!({
            "id": self.id,
            "object": "response",
            "created_at": self.created,
            "completed_at": null,
            "status": stage.status(),
            "error": null,
            "incomplete_details": null,
            "model": self.model,
            "output": items.iter().map(Item::json).collect::<Vec<_>>(),
            "usage": null,
        });
        for (name, value) in &self.echo.0 {
            response[name] = value.clone();
        }
        match stage {
            Stage::InProgress => {}
            Stage::Finished(finish) => {
                response["usage"] = usage(finish);
                if is_cut_off(finish) {
                    response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
                } else {
                    response["completed_at"] = json!(unix_seconds());
                }
            }
            Stage::Failed(error) => {
                response["error"] = json!({ "code": failure_code(error), "message": error.to_string() });
            }
        }
        response
    }
}

impl Stage {
    /// `status` of the response.
    pub fn status(&self) -> &'static str {
        match self {
            Stage::InProgress => "in_progress",
            Stage::Finished(finish) if is_cut_off(finish) => "incomplete",
            Stage::Finished(_) => "completed",
            Stage::Failed(_) => "failed",
        }
    }
}

/// Whether the answer ended before the model ended it.
pub(super) fn is_cut_off(finish: &Finish) -> bool {
    matches!(finish.reason, FinishReason::Length | FinishReason::Cancelled)
}

fn usage(finish: &Finish) -> Value {
    let usage = finish.usage;
    json!({
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": { "cached_tokens": usage.cached_tokens, "cache_write_tokens": 0 },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": { "reasoning_tokens": finish.reasoning_tokens },
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
    })
}

/// The code of an error after the response began. Clients act on the first two.
fn failure_code(error: &ApiError) -> &'static str {
    match error {
        ApiError::Submit(SubmitError::ContextLengthExceeded { .. }) => "context_length_exceeded",
        ApiError::Submit(SubmitError::Overloaded { .. } | SubmitError::QueueFull { .. }) => "rate_limit_exceeded",
        ApiError::InvalidRequest { .. } | ApiError::Unsupported { .. } => "invalid_prompt",
        _ => "server_error",
    }
}
