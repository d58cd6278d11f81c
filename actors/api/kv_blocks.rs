//! `POST /kv/blocks`: KV blocks and recurrent states for other servers.

use std::convert::Infallible;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use futures_util::StreamExt;

use super::auth;
use super::extract::JsonBody;
use super::server::SharedServer;
use crate::pipeline::kv_store::{BLOCKS_PATH, InvalidRequest, ShareError, UnitsRequest};
use crate::serving::error::ApiError;

/// Sends the leading ones of the units that the body asks for. The memory of the tokens is reserved until the answer ends.
pub(super) async fn send(
    State(server): State<SharedServer>,
    headers: HeaderMap,
    JsonBody { value: body, mut memory }: JsonBody,
) -> Result<Response, ApiError> {
    let options = server.options();
    let Some(shared) = &options.shared_blocks else {
        return Err(ApiError::NotFound(BLOCKS_PATH.to_owned()));
    };
    let request: UnitsRequest = serde_json::from_value(body)
        .map_err(|error| ApiError::invalid_body(format!("the request body does not ask for KV blocks: {error}")))?;
    memory.shrink_to(size_of_val(&request.tokens[..]));
    let units = shared.answer(request, auth::peer_key(&options.api_keys, &headers)).map_err(|error| match error {
        ShareError::OtherModel => ApiError::invalid("meaning", error.to_string()),
        ShareError::TooLong { .. } => ApiError::invalid("tokens", error.to_string()),
        ShareError::Invalid(InvalidRequest::NotAHash(_)) => ApiError::invalid("before", error.to_string()),
        ShareError::Invalid(InvalidRequest::NotOneBlock(_)) => ApiError::invalid("tokens", error.to_string()),
    })?;
    let body = Body::from_stream(units.map(move |bytes| {
        let _held = &memory;
        Ok::<_, Infallible>(bytes)
    }));
    Ok(([(CONTENT_TYPE, "application/octet-stream")], body).into_response())
}
