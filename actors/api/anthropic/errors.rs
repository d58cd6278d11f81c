//! Errors in the form of Anthropic's protocol, whichever layer they come from.

use axum::body::Body;
use axum::extract::Request;
use axum::http::{HeaderName, StatusCode, header};
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Value, json};

use crate::core::request::SubmitError;
use crate::serving::error::ApiError;

/// Rewrites the body of an error on a path of this protocol, or for a client that names its version, and repeats the id of
/// the request under this protocol's name.
pub(in crate::api) async fn encode(request: Request, next: Next) -> Response {
    let applies = belongs(&request);
    let mut response = next.run(request).await;
    if !applies {
        return response;
    }
    let id = response.headers().get("x-request-id").cloned();
    if let Some(error) = response.extensions().get::<ApiError>() {
        let mut body = body(error);
        body["request_id"] = json!(id.as_ref().and_then(|id| id.to_str().ok()));
        *response.body_mut() = Body::from(body.to_string());
        response.headers_mut().remove(header::CONTENT_LENGTH);
    }
    if let Some(id) = id {
        response.headers_mut().insert(HeaderName::from_static("request-id"), id);
    }
    response
}

fn belongs(request: &Request) -> bool {
    let path = request.uri().path();
    let is_path = path.strip_prefix("/v1/messages").is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    is_path || request.headers().contains_key("anthropic-version")
}

/// `{"type": "error", "error": {type, message}}`, also the data of an error event.
pub(super) fn body(error: &ApiError) -> Value {
    json!({ "type": "error", "error": { "type": kind(error.status()), "message": message(error) } })
}

fn kind(status: StatusCode) -> &'static str {
    match status {
        StatusCode::UNAUTHORIZED => "authentication_error",
        StatusCode::FORBIDDEN => "permission_error",
        StatusCode::NOT_FOUND => "not_found_error",
        StatusCode::REQUEST_TIMEOUT => "timeout_error",
        StatusCode::PAYLOAD_TOO_LARGE => "request_too_large",
        StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
        StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
        status if status.is_client_error() => "invalid_request_error",
        _ => "api_error",
    }
}

/// Clients recognise a prompt that is too long by these words, and then shorten the conversation.
fn message(error: &ApiError) -> String {
    match error {
        ApiError::Submit(SubmitError::ContextLengthExceeded { prompt_tokens, context_tokens }) => {
            format!("prompt is too long: {prompt_tokens} tokens > {context_tokens} maximum")
        }
        error => error.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_status_has_the_type_that_clients_expect() {
        for (status, expected) in [
            (400, "invalid_request_error"),
            (401, "authentication_error"),
            (403, "permission_error"),
            (404, "not_found_error"),
            (405, "invalid_request_error"),
            (408, "timeout_error"),
            (413, "request_too_large"),
            (415, "invalid_request_error"),
            (429, "rate_limit_error"),
            (500, "api_error"),
            (503, "overloaded_error"),
        ] {
            assert_eq!(kind(StatusCode::from_u16(status).unwrap()), expected, "{status}");
        }
    }

    #[test]
    fn a_prompt_that_is_too_long_is_named_as_clients_expect() {
        let error = ApiError::from(SubmitError::ContextLengthExceeded { prompt_tokens: 600, context_tokens: 512 });
        let expected = json!({ "type": "error", "error": {
            "type": "invalid_request_error", "message": "prompt is too long: 600 tokens > 512 maximum",
        } });
        assert_eq!(body(&error), expected);
    }
}
