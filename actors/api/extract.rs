//! A request's body as JSON, with errors in the API's format.

use std::borrow::Cow;

use axum::body::{Body, HttpBody};
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::{HeaderMap, HeaderName, header};
use http_body_util::BodyExt;
use serde_json::Value;
use tokio::time::timeout;

use super::caller::Caller;
use super::json_size;
use super::options::ServerOptions;
use super::request_memory::{RequestMemory, Reservation};
use super::server::SharedServer;
use crate::serving::blocking::off_worker;
use crate::serving::error::{ApiError, clip};

/// The body of a request.
pub(super) struct JsonBody {
    pub value: Value,
    /// The memory of the body and of what is made of it. To be dropped with them, before an answer is generated.
    pub memory: Reservation,
}

/// Copies of the texts of a body that exist at the same time: the parsed ones, the prompt's, and the rendered one with the
/// tokenizer's.
pub(super) const TEXT_COPIES: usize = 6;

impl FromRequest<SharedServer> for JsonBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, server: &SharedServer) -> Result<Self, ApiError> {
        check_content(request.headers())?;
        let (mut parts, body) = request.into_parts();
        let Ok(caller) = Caller::from_request_parts(&mut parts, server).await;
        let mut memory = RequestMemory::reserve(&server.request_memory, caller.client());
        let bytes = read(body, &server.options(), (&mut memory, TEXT_COPIES)).await?;
        if bytes.is_empty() {
            return Err(ApiError::invalid_body("the request body is empty: a JSON object is expected"));
        }
        off_worker(bytes.len(), move || {
            let value = parse(&bytes, &mut memory)?;
            Ok(JsonBody { value, memory })
        })
        .await
    }
}

/// Parses JSON within the memory of a request, which grows by the parsed values.
///
/// # Errors
/// [`ApiError::InvalidRequest`], and those of [`Reservation::grow`].
pub(super) fn parse(json: &[u8], memory: &mut Reservation) -> Result<Value, ApiError> {
    memory.grow(json_size::estimate(json).map_err(invalid_json)?)?;
    serde_json::from_slice(json).map_err(invalid_json)
}

fn invalid_json(error: serde_json::Error) -> ApiError {
    ApiError::invalid_body(format!("the request body is not valid JSON: {error}"))
}

/// Reads a body within its limits of size, memory and time. The memory is for a number of copies.
pub(super) async fn read(
    mut body: Body,
    options: &ServerOptions,
    (memory, copies): (&mut Reservation, usize),
) -> Result<Vec<u8>, ApiError> {
    let most = options.max_body_bytes;
    let announced = usize::try_from(body.size_hint().lower()).unwrap_or(usize::MAX);
    if announced > most {
        return Err(ApiError::BodyTooLarge(most));
    }
    let mut bytes = Vec::new();
    while let Some(frame) =
        timeout(options.body_timeout, body.frame()).await.map_err(|_| ApiError::BodyTimeout(options.body_timeout))?
    {
        let frame = frame.map_err(|_| ApiError::invalid_body("the request body could not be read"))?;
        let Ok(data) = frame.into_data() else { continue };
        if bytes.len() + data.len() > most {
            return Err(ApiError::BodyTooLarge(most));
        }
        memory.grow(copies * data.len())?;
        bytes.extend_from_slice(&data);
    }
    Ok(bytes)
}

/// Requires a body that the decompression layer has decoded, and of a web page a JSON content type, which a page of another
/// origin cannot send without permission. Other clients often leave the type out, or send that of a form, as `curl -d` does.
fn check_content(headers: &HeaderMap) -> Result<(), ApiError> {
    check_encoding(headers)?;
    let is_page = headers.contains_key(header::ORIGIN);
    match text(headers, header::CONTENT_TYPE) {
        Some(kind) if is_json(&kind) => Ok(()),
        Some(kind) if is_page || is_multipart(&kind) => Err(ApiError::UnsupportedMediaType(format!(
            "the content type must be `application/json`, not `{}`",
            clip(&kind)
        ))),
        None if is_page => Err(ApiError::UnsupportedMediaType(
            "the request has no content type: send the header `Content-Type: application/json`".to_owned(),
        )),
        _ => Ok(()),
    }
}

/// Requires a body that the decompression layer has decoded.
pub(super) fn check_encoding(headers: &HeaderMap) -> Result<(), ApiError> {
    match text(headers, header::CONTENT_ENCODING).filter(|encoding| encoding != "identity") {
        None => Ok(()),
        Some(encoding) => {
            let message = format!("the content encoding `{}` is not supported; use gzip or none", clip(&encoding));
            Err(ApiError::UnsupportedMediaType(message))
        }
    }
}

/// The text of a header.
pub(super) fn text(headers: &HeaderMap, name: HeaderName) -> Option<Cow<'_, str>> {
    headers.get(name).map(|value| String::from_utf8_lossy(value.as_bytes()))
}

/// Whether a content type is that of a form with files.
fn is_multipart(content_type: &str) -> bool {
    content_type.trim_start().to_ascii_lowercase().starts_with("multipart/")
}

/// Whether a content type is `application/json` or `application/…+json`, with or without parameters.
fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence.strip_prefix("application/").is_some_and(|subtype| subtype == "json" || subtype.ends_with("+json"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_content_types_are_recognised() {
        for json in ["application/json", "application/json; charset=utf-8", "Application/JSON", "application/ld+json"] {
            assert!(is_json(json), "{json}");
        }
        for other in ["text/plain", "application/x-www-form-urlencoded", "json", "text/json", "application/jsonp", ""] {
            assert!(!is_json(other), "{other}");
        }
    }
}
