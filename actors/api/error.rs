//! What can go wrong with a call, and the one place that decides how each case looks on the wire.

use std::time::Duration;

use axum::Json;
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::models::ModelsError;
use crate::request::{GenerationError, SubmitError};

/// A call that failed. Its `Display` is the message that the client reads.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ApiError {
    /// A field is missing, of the wrong type, out of range, or contradicts another.
    #[error("{message}")]
    InvalidRequest {
        /// Path of the field, `messages[1].role`; `None` when the body as a whole is wrong.
        param: Option<String>,
        /// One sentence that names the field and what it takes.
        message: String,
    },
    /// A field that this server knows, with a value that it cannot honour.
    #[error("{message}")]
    NotImplemented {
        /// Path of the field.
        param: String,
        /// One sentence with what can be done instead.
        message: String,
    },
    /// No key, or one that is not known.
    #[error("a valid API key is required: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`")]
    Unauthorized,
    /// The model that the request names cannot be had.
    #[error(transparent)]
    Model(ModelsError),
    /// No such path.
    #[error("there is no {0}")]
    NotFound(String),
    /// The path exists, but not for this method.
    #[error("{0} is not a method of this path")]
    MethodNotAllowed(String),
    /// The body is longer than this many bytes.
    #[error("the request body is larger than the {0} bytes that this server accepts")]
    BodyTooLarge(usize),
    /// The request was not accepted by the runtime.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The request was accepted and then failed.
    #[error(transparent)]
    Generation(#[from] GenerationError),
    /// The request took longer than the server allows.
    #[error("the request did not finish within the {} seconds that it has", .0.as_secs_f32())]
    Timeout(Duration),
    /// A fault in the server's own code.
    #[error("the server failed on this request; its log says why")]
    Internal,
}

/// How an error looks on the wire.
struct Wire {
    status: StatusCode,
    kind: &'static str,
    code: &'static str,
}

const fn wire(status: StatusCode, kind: &'static str, code: &'static str) -> Wire {
    Wire { status, kind, code }
}

impl ApiError {
    /// The field `param` is not what it must be.
    pub(super) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        ApiError::InvalidRequest { param: Some(param.into()), message: message.into() }
    }

    /// The body as a whole is not what it must be.
    pub(super) fn invalid_body(message: impl Into<String>) -> Self {
        ApiError::InvalidRequest { param: None, message: message.into() }
    }

    /// The status that a response with this error has.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.wire().status
    }

    /// `{"error": {message, type, param, code}}`, the body of a response and the data of an SSE error event.
    #[must_use]
    pub fn body(&self) -> Value {
        let Wire { kind, code, .. } = self.wire();
        let mut error = json!({ "message": self.to_string(), "type": kind, "param": self.param(), "code": code });
        if let ApiError::Submit(SubmitError::ContextLengthExceeded { prompt_tokens, context_tokens }) = self {
            error["n_prompt_tokens"] = json!(prompt_tokens);
            error["n_ctx"] = json!(context_tokens);
        }
        json!({ "error": error })
    }

    fn wire(&self) -> Wire {
        match self {
            ApiError::InvalidRequest { .. }
            | ApiError::Submit(SubmitError::InvalidPrompt(_) | SubmitError::TooManySequences { .. }) => {
                wire(StatusCode::BAD_REQUEST, "invalid_request_error", "invalid_value")
            }
            ApiError::Submit(SubmitError::ContextLengthExceeded { .. }) => {
                wire(StatusCode::BAD_REQUEST, "invalid_request_error", "context_length_exceeded")
            }
            ApiError::Unauthorized => wire(StatusCode::UNAUTHORIZED, "authentication_error", "invalid_api_key"),
            ApiError::Model(error) => model_wire(error),
            ApiError::NotFound(_) => wire(StatusCode::NOT_FOUND, "not_found_error", "not_found"),
            ApiError::MethodNotAllowed(_) => {
                wire(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", "method_not_allowed")
            }
            ApiError::BodyTooLarge(_) => wire(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", "request_too_large"),
            // 429 rather than 503: a load balancer must not take an instance out for being busy.
            ApiError::Submit(SubmitError::Overloaded { .. } | SubmitError::QueueFull { .. }) => {
                wire(StatusCode::TOO_MANY_REQUESTS, "server_overloaded", "server_overloaded")
            }
            ApiError::Submit(SubmitError::Unavailable { .. }) | ApiError::Generation(GenerationError::ShuttingDown) => {
                wire(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", "unavailable")
            }
            ApiError::Timeout(_) | ApiError::Generation(GenerationError::StalledClient) => {
                wire(StatusCode::REQUEST_TIMEOUT, "timeout", "timeout")
            }
            ApiError::NotImplemented { .. } => wire(StatusCode::NOT_IMPLEMENTED, "not_implemented", "not_implemented"),
            ApiError::Generation(GenerationError::Engine(_)) => {
                wire(StatusCode::INTERNAL_SERVER_ERROR, "server_error", "engine_error")
            }
            ApiError::Internal => wire(StatusCode::INTERNAL_SERVER_ERROR, "server_error", "internal_error"),
        }
    }

    fn param(&self) -> Option<&str> {
        match self {
            ApiError::InvalidRequest { param, .. } => param.as_deref(),
            ApiError::NotImplemented { param, .. } => Some(param),
            ApiError::Model(ModelsError::Unknown(_) | ModelsError::Unnamed) => Some("model"),
            ApiError::Submit(SubmitError::TooManySequences { .. }) => Some("n"),
            _ => None,
        }
    }

    fn retry_after(&self) -> Option<Duration> {
        match self {
            ApiError::Submit(
                SubmitError::Overloaded { retry_after, .. }
                | SubmitError::QueueFull { retry_after, .. }
                | SubmitError::Unavailable { retry_after, .. },
            ) => Some(*retry_after),
            ApiError::Model(ModelsError::Unavailable { retry_after, .. }) => Some(*retry_after),
            ApiError::Model(ModelsError::Failed { .. } | ModelsError::Overloaded { .. }) => {
                Some(Duration::from_secs(5))
            }
            ApiError::Generation(GenerationError::ShuttingDown) => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(after) = self.retry_after() {
            // The standard header has whole seconds; clients of OpenAI's making read the finer one first.
            let seconds = u64::try_from(after.as_millis().div_ceil(1000)).unwrap_or(u64::MAX).max(1);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            headers.insert("retry-after-ms", HeaderValue::from(u64::try_from(after.as_millis()).unwrap_or(u64::MAX)));
        }
        match self {
            // Clients try every status from 500 on again, but this answer will not change.
            ApiError::NotImplemented { .. }
            | ApiError::Model(ModelsError::TooLarge(_) | ModelsError::NotLoaded(_) | ModelsError::Fixed(_)) => {
                headers.insert("x-should-retry", HeaderValue::from_static("false"));
            }
            ApiError::Unauthorized => {
                headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        headers
    }
}

fn model_wire(error: &ModelsError) -> Wire {
    match error {
        ModelsError::Unknown(_) => wire(StatusCode::NOT_FOUND, "not_found_error", "model_not_found"),
        ModelsError::Unnamed => wire(StatusCode::BAD_REQUEST, "invalid_request_error", "invalid_value"),
        ModelsError::Fixed(_) => wire(StatusCode::BAD_REQUEST, "invalid_request_error", "model_is_fixed"),
        ModelsError::NotLoaded(_) => wire(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", "model_not_loaded"),
        ModelsError::TooLarge(_) => {
            wire(StatusCode::INSUFFICIENT_STORAGE, "insufficient_memory_error", "model_too_large")
        }
        ModelsError::Failed { .. } => wire(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", "model_failed"),
        ModelsError::Unavailable { .. } => wire(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", "unavailable"),
        // As for a queue that is full.
        ModelsError::Overloaded { .. } => wire(StatusCode::TOO_MANY_REQUESTS, "server_overloaded", "server_overloaded"),
    }
}

impl From<ModelsError> for ApiError {
    fn from(error: ModelsError) -> Self {
        ApiError::Model(match error {
            ModelsError::Unknown(name) => ModelsError::Unknown(clip(&name)),
            error => error,
        })
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        (self.status(), self.headers(), Json(self.body())).into_response()
    }
}

/// At most this much of a client's input is repeated to it, in characters.
const ECHO_CHARS: usize = 64;

/// The begin of `text`, short enough to be repeated in an error.
pub(super) fn clip(text: &str) -> String {
    match text.char_indices().nth(ECHO_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn context_overflow_says_the_phrases_that_clients_match_and_the_numbers() {
        let error = ApiError::from(SubmitError::ContextLengthExceeded { prompt_tokens: 5000, context_tokens: 4096 });
        assert_eq!(error.status(), StatusCode::BAD_REQUEST);
        assert_eq!(
            error.body(),
            json!({ "error": {
                "message": "context_length_exceeded: This model's maximum context length is 4096 tokens; the request \
                            (5000 tokens) exceeds the available context size (4096 tokens)",
                "type": "invalid_request_error",
                "param": null,
                "code": "context_length_exceeded",
                "n_prompt_tokens": 5000,
                "n_ctx": 4096,
            }})
        );
    }

    #[test]
    fn overload_says_when_to_come_back_in_seconds_and_in_milliseconds() {
        let error = ApiError::from(SubmitError::Overloaded { waiting: 7, retry_after: Duration::from_millis(1200) })
            .into_response();
        assert_eq!(error.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(error.headers()["retry-after"], "2");
        assert_eq!(error.headers()["retry-after-ms"], "1200");
    }

    #[test]
    fn what_is_not_implemented_is_not_worth_another_try() {
        let error = ApiError::NotImplemented { param: "suffix".into(), message: "no".into() }.into_response();
        assert_eq!(error.status(), StatusCode::NOT_IMPLEMENTED);
        assert_eq!(error.headers()["x-should-retry"], "false");
    }

    #[test]
    fn echoed_input_is_bounded_and_cut_between_characters() {
        assert_eq!(clip("short"), "short");
        let clipped = clip(&"é".repeat(5000));
        assert_eq!(clipped.chars().count(), ECHO_CHARS + 1);
    }
}
