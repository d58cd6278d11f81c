//! A request's body as JSON, whatever its content type says, with errors in the API's own words.

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use serde_json::Value;

use super::SharedServer;
use super::error::ApiError;

/// The body of a request.
pub(super) struct JsonBody(pub Value);

impl FromRequest<SharedServer> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, server: &SharedServer) -> Result<Self, ApiError> {
        let bytes = Bytes::from_request(request, server).await.map_err(|rejection| {
            if rejection.status() == axum::http::StatusCode::PAYLOAD_TOO_LARGE {
                ApiError::BodyTooLarge(server.options.max_body_bytes)
            } else {
                ApiError::invalid_body("the request body could not be read")
            }
        })?;
        if bytes.is_empty() {
            return Err(ApiError::invalid_body("the request body is empty: a JSON object is expected"));
        }
        let value = serde_json::from_slice(&bytes)
            .map_err(|error| ApiError::invalid_body(format!("the request body is not valid JSON: {error}")))?;
        Ok(JsonBody(value))
    }
}
