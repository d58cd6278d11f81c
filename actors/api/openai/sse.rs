//! A request's events as server-sent events.
//!
//! The response starts as soon as the request is accepted, so that the client's connection is confirmed during a long
//! prompt. An error before that is an HTTP status; a later one is an event. While there is no output, comments keep the
//! connection open.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tracing::Span;

use crate::serving::answers::{AnswerEvent, Answers};
use crate::serving::error::ApiError;

/// Encodes events as the chunks of one protocol.
pub(super) trait Chunks: Send + 'static {
    /// The first chunks are sent before there is an event.
    const BEGINS_AT_ONCE: bool = false;
    /// `[DONE]` follows the last chunk.
    const ENDS_WITH_DONE: bool = true;

    /// Chunks before those of the first event.
    fn begin(&mut self) -> Vec<Value>;

    /// Chunks for one event of sequence `choice`.
    fn on(&mut self, choice: usize, event: AnswerEvent) -> Vec<Value>;

    /// Chunks after those of the last event.
    fn end(&mut self) -> Vec<Value>;

    /// Chunks for an error.
    fn fail(&mut self, error: &ApiError) -> Vec<Value> {
        vec![error.body()]
    }

    /// The name of a chunk's event. `None`: the event has no name.
    fn name(_chunk: &Value) -> Option<&str> {
        None
    }
}

/// Streams `answers` as encoded by `chunks`: each chunk is one `data:` line.
pub(super) fn stream<C: Chunks>(mut answers: Answers, mut chunks: C, ping_interval: Duration) -> Response {
    let span = Span::current();
    let events = async_stream::stream! {
        let mut has_begun = C::BEGINS_AT_ONCE;
        if C::BEGINS_AT_ONCE {
            for chunk in chunks.begin() {
                yield frame::<C>(&chunk);
            }
        }
        while let Some(result) = answers.next().await {
            match result {
                Ok((choice, event)) => {
                    let begin = if has_begun { Vec::new() } else { chunks.begin() };
                    has_begun = true;
                    for chunk in begin.into_iter().chain(chunks.on(choice, event)) {
                        yield frame::<C>(&chunk);
                    }
                }
                Err(error) => {
                    span.in_scope(|| log(&error));
                    for chunk in chunks.fail(&error) {
                        yield frame::<C>(&chunk);
                    }
                }
            }
        }
        for chunk in chunks.end() {
            yield frame::<C>(&chunk);
        }
        if C::ENDS_WITH_DONE {
            yield Ok(sse::Event::default().data("[DONE]"));
        }
    };
    let mut response =
        Sse::new(events).keep_alive(KeepAlive::new().interval(ping_interval).text("ping")).into_response();
    // Without this header nginx buffers the whole response.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

fn log(error: &ApiError) {
    tracing::info!(code = error.code(), %error, "request failed during its stream");
}

fn frame<C: Chunks>(chunk: &Value) -> Result<sse::Event, Infallible> {
    let event = match C::name(chunk) {
        Some(name) => sse::Event::default().event(name),
        None => sse::Event::default(),
    };
    Ok(event.data(chunk.to_string()))
}
