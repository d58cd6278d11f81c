//! Errors in Ollama's form: `{"error": "message"}`.

use axum::body::Body;
use axum::extract::Request;
use axum::http::header;
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Value, json};

use crate::models::ModelsError;
use crate::serving::error::ApiError;

/// Rewrites the error of a response under `/api/`, whichever layer it comes from.
pub(in crate::api) async fn encode(request: Request, next: Next) -> Response {
    let is_ollama = request.uri().path().starts_with("/api/");
    let mut response = next.run(request).await;
    if is_ollama && let Some(error) = response.extensions().get::<ApiError>() {
        let text = body(error).to_string();
        response.headers_mut().remove(header::CONTENT_LENGTH);
        *response.body_mut() = Body::from(text);
    }
    response
}

/// The body of a response with this error, and the last line of a stream that failed.
pub(super) fn body(error: &ApiError) -> Value {
    let message = match error {
        // Clients search for this text to offer a download.
        ApiError::Model(ModelsError::Unknown(name)) => format!("model '{name}' not found"),
        error => error.to_string(),
    };
    json!({ "error": message })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_its_message() {
        let unknown = ApiError::from(ModelsError::Unknown("x:latest".to_owned()));
        assert_eq!(body(&unknown), json!({ "error": "model 'x:latest' not found" }));
        assert_eq!(body(&ApiError::invalid("think", "no")), json!({ "error": "no" }));
    }
}
