//! The errors of the API. This file alone decides the status, the body and the headers of each.

use std::time::Duration;

use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use serde_json::{Value, json};

use super::batch::store::error::BatchStoreError;
use crate::core::request::{GenerationError, SubmitError};
use crate::models::{DeleteError, ModelsError, StoreError};

/// Why a request failed. `Display` is the message that the client reads.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ApiError {
    /// A field is missing, of the wrong type, out of range, or contradicts another.
    #[error("{message}")]
    InvalidRequest {
        /// Path of the field, `messages[1].role`; `None` when the body as a whole is wrong.
        param: Option<String>,
        /// One sentence that names the field and the values that it accepts.
        message: String,
    },
    /// A known field has a value that this server does not support.
    #[error("{message}")]
    Unsupported {
        /// Path of the field.
        param: String,
        /// One sentence that says what to use instead.
        message: String,
    },
    /// The request has no key, or one that is not accepted.
    #[error("a valid API key is required: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`")]
    Unauthorized,
    /// The request comes from a web page of an origin that is not allowed.
    #[error("web pages of the origin `{0}` may not use this server; --cors-origin allows an origin")]
    OriginNotAllowed(String),
    /// The `Host` header has a name that this server does not answer to.
    #[error("this server does not answer to the host name `{0}`; --allowed-host allows a name")]
    HostNotAllowed(String),
    /// Clients may not load and unload adapters.
    #[error("this server does not load adapters for clients; start it with --allow-lora-loading")]
    AdapterLoadingNotAllowed,
    /// The model that the request names is not available.
    #[error(transparent)]
    Model(ModelsError),
    /// A model is not downloaded or deleted.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A file or a batch of a client is not kept or found.
    #[error(transparent)]
    Batches(#[from] BatchStoreError),
    /// The client has no stored response with this id.
    #[error("there is no stored response `{0}`; it may have made way for newer ones")]
    ResponseNotFound(String),
    /// The conversation that a request continues has a response that is not stored.
    #[error(
        "there is no stored response `{0}`, which this conversation continues; send the whole conversation in `input`"
    )]
    PreviousResponseNotFound(String),
    /// No such path.
    #[error("there is no {0}")]
    NotFound(String),
    /// The path exists, but not with this method.
    #[error("this path does not accept the method {0}")]
    MethodNotAllowed(String),
    /// The body is longer than this many bytes.
    #[error("the request body is larger than the {0} bytes that this server accepts")]
    BodyTooLarge(usize),
    /// The body needs more memory than all requests together may use.
    #[error(
        "the request needs about {} MiB of memory, more than the {} MiB for all requests together; send fewer values, or \
         raise --request-memory",
        needed >> 20, limit >> 20
    )]
    RequestTooComplex {
        /// Bytes that it needs.
        needed: usize,
        /// Bytes for all requests.
        limit: usize,
    },
    /// Other requests use the memory for requests.
    #[error("the server is overloaded: other requests use the memory for requests; try again later")]
    OutOfRequestMemory,
    /// The body did not arrive in time.
    #[error("no data of the request body arrived for {} seconds", .0.as_secs_f32())]
    BodyTimeout(Duration),
    /// All connections are in use; this one is for probes.
    #[error("all connections of this server are in use; try again later")]
    NoConnection,
    /// The body is not declared as JSON, or its encoding is not supported.
    #[error("{0}")]
    UnsupportedMediaType(String),
    /// The request was not accepted by the runtime.
    #[error(transparent)]
    Submit(#[from] SubmitError),
    /// The request was accepted and then failed.
    #[error(transparent)]
    Generation(#[from] GenerationError),
    /// The request took longer than the server allows.
    #[error("the request did not finish within its limit of {} seconds", .0.as_secs_f32())]
    Timeout(Duration),
    /// A bug in the server.
    #[error("the server failed on this request; the cause is in its log")]
    Internal,
}

/// The status, `type` and `code` of an error.
struct Wire {
    status: StatusCode,
    kind: &'static str,
    code: &'static str,
}

const fn wire(status: StatusCode, kind: &'static str, code: &'static str) -> Wire {
    Wire { status, kind, code }
}

const fn invalid(code: &'static str) -> Wire {
    wire(StatusCode::BAD_REQUEST, "invalid_request_error", code)
}

impl ApiError {
    /// The field `param` is invalid.
    pub(crate) fn invalid(param: impl Into<String>, message: impl Into<String>) -> Self {
        ApiError::InvalidRequest { param: Some(param.into()), message: message.into() }
    }

    /// The body as a whole is invalid.
    pub(crate) fn invalid_body(message: impl Into<String>) -> Self {
        ApiError::InvalidRequest { param: None, message: message.into() }
    }

    /// The status of a response with this error.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        self.wire().status
    }

    /// The `code` in the body.
    #[must_use]
    pub fn code(&self) -> &'static str {
        self.wire().code
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
                invalid("invalid_value")
            }
            ApiError::Unsupported { .. } => invalid("unsupported_value"),
            ApiError::Submit(SubmitError::ContextLengthExceeded { .. }) => invalid("context_length_exceeded"),
            ApiError::Unauthorized => wire(StatusCode::UNAUTHORIZED, "authentication_error", "invalid_api_key"),
            ApiError::OriginNotAllowed(_) => wire(StatusCode::FORBIDDEN, "permission_error", "origin_not_allowed"),
            ApiError::HostNotAllowed(_) => wire(StatusCode::FORBIDDEN, "permission_error", "host_not_allowed"),
            ApiError::AdapterLoadingNotAllowed => {
                wire(StatusCode::FORBIDDEN, "permission_error", "adapter_loading_not_allowed")
            }
            ApiError::Model(error) => model_wire(error),
            ApiError::Store(error) => store_wire(error),
            ApiError::Batches(error) => batches_wire(error),
            ApiError::NotFound(_) => wire(StatusCode::NOT_FOUND, "not_found_error", "not_found"),
            ApiError::ResponseNotFound(_) => wire(StatusCode::NOT_FOUND, "not_found_error", "response_not_found"),
            ApiError::PreviousResponseNotFound(_) => invalid("previous_response_not_found"),
            ApiError::MethodNotAllowed(_) => {
                wire(StatusCode::METHOD_NOT_ALLOWED, "invalid_request_error", "method_not_allowed")
            }
            ApiError::BodyTooLarge(_) | ApiError::RequestTooComplex { .. } => {
                wire(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", "request_too_large")
            }
            ApiError::UnsupportedMediaType(_) => {
                wire(StatusCode::UNSUPPORTED_MEDIA_TYPE, "invalid_request_error", "unsupported_media_type")
            }
            // Not 503: a load balancer must not remove an instance because it is busy.
            ApiError::Submit(SubmitError::Overloaded { .. } | SubmitError::QueueFull { .. })
            | ApiError::OutOfRequestMemory => {
                wire(StatusCode::TOO_MANY_REQUESTS, "server_overloaded", "server_overloaded")
            }
            ApiError::Submit(SubmitError::Unavailable { .. })
            | ApiError::Generation(GenerationError::ShuttingDown)
            | ApiError::NoConnection => wire(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", "unavailable"),
            ApiError::Timeout(_) | ApiError::BodyTimeout(_) | ApiError::Generation(GenerationError::StalledClient) => {
                wire(StatusCode::REQUEST_TIMEOUT, "timeout", "timeout")
            }
            ApiError::Generation(GenerationError::Engine(_)) => {
                wire(StatusCode::INTERNAL_SERVER_ERROR, "server_error", "engine_error")
            }
            ApiError::Generation(GenerationError::Constraint(_)) => {
                wire(StatusCode::INTERNAL_SERVER_ERROR, "server_error", "constraint_failed")
            }
            ApiError::Internal => wire(StatusCode::INTERNAL_SERVER_ERROR, "server_error", "internal_error"),
        }
    }

    fn param(&self) -> Option<&str> {
        match self {
            ApiError::InvalidRequest { param, .. } => param.as_deref(),
            ApiError::Unsupported { param, .. } => Some(param),
            ApiError::Model(ModelsError::Unknown(_) | ModelsError::Unnamed)
            | ApiError::Store(StoreError::NotAReference(_) | StoreError::OtherRegistry(_)) => Some("model"),
            ApiError::Submit(SubmitError::TooManySequences { .. }) => Some("n"),
            ApiError::PreviousResponseNotFound(_) => Some("previous_response_id"),
            _ => None,
        }
    }

    /// Whether there is no room for the request now.
    pub fn is_overload(&self) -> bool {
        let is_refused =
            matches!(self, ApiError::Submit(SubmitError::Overloaded { .. } | SubmitError::QueueFull { .. }));
        is_refused || matches!(self, ApiError::OutOfRequestMemory)
    }

    /// When a refused request may succeed.
    pub fn retry_after(&self) -> Option<Duration> {
        match self {
            ApiError::Submit(
                SubmitError::Overloaded { retry_after, .. }
                | SubmitError::QueueFull { retry_after, .. }
                | SubmitError::Unavailable { retry_after, .. },
            ) => Some(*retry_after),
            ApiError::Model(ModelsError::Unavailable { retry_after, .. }) => Some(*retry_after),
            ApiError::Model(
                ModelsError::Failed { .. } | ModelsError::FileChanged { .. } | ModelsError::Overloaded { .. },
            ) => Some(Duration::from_secs(5)),
            ApiError::Generation(GenerationError::ShuttingDown)
            | ApiError::OutOfRequestMemory
            | ApiError::NoConnection => Some(Duration::from_secs(1)),
            _ => None,
        }
    }

    /// Whether the same request may succeed later.
    fn is_worth_retrying(&self) -> bool {
        match self.status() {
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => true,
            // The same request under the same constraint fails again.
            _ if matches!(self, ApiError::Generation(GenerationError::Constraint(_))) => false,
            // Space is free when files are deleted or expire, which takes long.
            StatusCode::INSUFFICIENT_STORAGE => false,
            status => status.is_server_error() && !matches!(self, ApiError::Model(ModelsError::NotLoaded(_))),
        }
    }

    fn headers(&self) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(after) = self.retry_after() {
            // The standard header has whole seconds. OpenAI's clients read the one in milliseconds first.
            let seconds = u64::try_from(after.as_millis().div_ceil(1000)).unwrap_or(u64::MAX).max(1);
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
            headers.insert("retry-after-ms", HeaderValue::from(u64::try_from(after.as_millis()).unwrap_or(u64::MAX)));
        }
        if !self.is_worth_retrying() {
            headers.insert("x-should-retry", HeaderValue::from_static("false"));
        }
        if matches!(self, ApiError::BodyTimeout(_) | ApiError::NoConnection) {
            headers.insert(header::CONNECTION, HeaderValue::from_static("close"));
        }
        if matches!(self, ApiError::Unauthorized) {
            headers.insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
        }
        headers
    }
}

fn model_wire(error: &ModelsError) -> Wire {
    match error {
        ModelsError::Unknown(_) => wire(StatusCode::NOT_FOUND, "not_found_error", "model_not_found"),
        ModelsError::Unnamed => invalid("invalid_value"),
        ModelsError::Fixed(_) => invalid("model_is_fixed"),
        ModelsError::TooLarge(_) => invalid("model_too_large"),
        ModelsError::NotLoaded(_) => wire(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", "model_not_loaded"),
        ModelsError::Failed { .. } => wire(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", "model_failed"),
        ModelsError::FileChanged { .. } => {
            wire(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", "model_file_changed")
        }
        ModelsError::Unavailable { .. } => wire(StatusCode::SERVICE_UNAVAILABLE, "unavailable_error", "unavailable"),
        // Not 503, as for a full queue.
        ModelsError::Overloaded { .. } => wire(StatusCode::TOO_MANY_REQUESTS, "server_overloaded", "server_overloaded"),
    }
}

fn store_wire(error: &StoreError) -> Wire {
    match error {
        StoreError::Off => wire(StatusCode::FORBIDDEN, "permission_error", "pull_not_allowed"),
        StoreError::NotAllowed(_) => wire(StatusCode::FORBIDDEN, "permission_error", "delete_not_allowed"),
        StoreError::NotAReference(_) | StoreError::OtherRegistry(_) => invalid("invalid_value"),
        StoreError::NotFound(_) => wire(StatusCode::NOT_FOUND, "not_found_error", "model_not_found"),
        StoreError::Conflict(_) => wire(StatusCode::CONFLICT, "conflict_error", "model_in_use"),
        StoreError::Busy(_) => wire(StatusCode::TOO_MANY_REQUESTS, "server_overloaded", "server_overloaded"),
        StoreError::Failed(_) | StoreError::Cancelled => {
            wire(StatusCode::INTERNAL_SERVER_ERROR, "server_error", "pull_failed")
        }
    }
}

fn batches_wire(error: &BatchStoreError) -> Wire {
    match error {
        BatchStoreError::Off => wire(StatusCode::FORBIDDEN, "permission_error", "batches_not_allowed"),
        BatchStoreError::NoFile(_) => wire(StatusCode::NOT_FOUND, "not_found_error", "file_not_found"),
        BatchStoreError::NoBatch(_) => wire(StatusCode::NOT_FOUND, "not_found_error", "batch_not_found"),
        BatchStoreError::FileTooLarge(_) => {
            wire(StatusCode::PAYLOAD_TOO_LARGE, "request_too_large", "request_too_large")
        }
        BatchStoreError::DiskFull(_) => {
            wire(StatusCode::INSUFFICIENT_STORAGE, "insufficient_storage", "insufficient_storage")
        }
        BatchStoreError::FileInUse { .. } => wire(StatusCode::CONFLICT, "conflict_error", "file_in_use"),
        BatchStoreError::NotEnded(_) => invalid("batch_not_ended"),
        BatchStoreError::Ended(_) => invalid("batch_ended"),
        BatchStoreError::Io => wire(StatusCode::INTERNAL_SERVER_ERROR, "server_error", "internal_error"),
    }
}

impl From<DeleteError> for ApiError {
    fn from(error: DeleteError) -> Self {
        match error {
            DeleteError::Model(error) => error.into(),
            DeleteError::Store(error) => error.into(),
        }
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

/// A response in OpenAI's form. Its extension is the error itself, for the log and for protocols with another form.
impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let body = Json(self.body());
        (self.status(), self.headers(), Extension(self), body).into_response()
    }
}

/// Longest part of a client's input that an error message repeats, in characters.
const ECHO_CHARS: usize = 64;

/// The start of `text`, short enough to be repeated in an error message.
pub(crate) fn clip(text: &str) -> String {
    match text.char_indices().nth(ECHO_CHARS) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn context_overflow_has_the_phrases_that_clients_match_and_the_numbers() {
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
    fn overload_has_a_retry_time_in_seconds_and_in_milliseconds() {
        let error = ApiError::from(SubmitError::Overloaded { waiting: 7, retry_after: Duration::from_millis(1200) })
            .into_response();
        assert_eq!(error.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(error.headers()["retry-after"], "2");
        assert_eq!(error.headers()["retry-after-ms"], "1200");
    }

    #[test]
    fn a_constraint_that_failed_is_not_retried() {
        let error = ApiError::from(GenerationError::Constraint("too many states".into())).into_response();
        assert_eq!(error.status(), StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(error.headers()["x-should-retry"], "false");
    }

    #[test]
    fn an_unsupported_value_is_a_400_that_clients_do_not_retry() {
        let error = ApiError::Unsupported { param: "suffix".into(), message: "no".into() }.into_response();
        assert_eq!(error.status(), StatusCode::BAD_REQUEST);
        assert_eq!(error.headers()["x-should-retry"], "false");
    }

    #[test]
    fn an_overloaded_server_may_be_asked_again() {
        let error = ApiError::from(SubmitError::Overloaded { waiting: 7, retry_after: Duration::from_secs(1) });
        assert!(!error.into_response().headers().contains_key("x-should-retry"));
    }

    #[test]
    fn repeated_input_is_cut_between_characters() {
        assert_eq!(clip("short"), "short");
        let clipped = clip(&"é".repeat(5000));
        assert_eq!(clipped.chars().count(), ECHO_CHARS + 1);
    }
}
