//! A request's events as lines of JSON.
//!
//! The response starts as soon as the request is accepted. An error before that is an HTTP status; a later one is the last line.

use std::convert::Infallible;

use axum::body::Body;
use axum::http::{HeaderName, header};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt};
use serde_json::Value;
use tracing::Span;

use super::answer::Encoder;
use super::errors;
use crate::serving::answers::Answers;
use crate::serving::error::ApiError;

/// Streams `answers` as encoded by `encoder`.
pub(super) fn stream(mut answers: Answers, mut encoder: Encoder) -> Response {
    let span = Span::current();
    let lines = async_stream::stream! {
        while let Some(result) = answers.next().await {
            match result {
                Ok((_, event)) => {
                    for chunk in encoder.on(event) {
                        yield Ok::<_, Infallible>(line(&chunk));
                    }
                }
                Err(error) => {
                    span.in_scope(|| log(&error));
                    yield Ok(line(&errors::body(&error)));
                }
            }
        }
    };
    response(Body::from_stream(lines))
}

/// A response of objects that are sent when they are there.
pub(super) fn objects(objects: impl Stream<Item = Value> + Send + 'static) -> Response {
    response(Body::from_stream(objects.map(|object| Ok::<_, Infallible>(line(&object)))))
}

/// A response of these objects.
pub(super) fn whole(chunks: &[Value]) -> Response {
    response(Body::from(chunks.iter().map(line).collect::<String>()))
}

fn response(body: Body) -> Response {
    // Without the second header nginx buffers the whole response.
    let buffering = (HeaderName::from_static("x-accel-buffering"), "no");
    ([(header::CONTENT_TYPE, "application/x-ndjson"), buffering], body).into_response()
}

fn line(chunk: &Value) -> String {
    format!("{chunk}\n")
}

fn log(error: &ApiError) {
    tracing::info!(code = error.code(), %error, "request failed during its stream");
}
