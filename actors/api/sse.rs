//! A request's events as server-sent events.
//!
//! The response starts as soon as the request is accepted, so that the client's connection is confirmed during a long
//! prompt. An error before that is an HTTP status; a later one is an event. While there is no output, pings keep the
//! connection open.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use tokio::time::{Instant, timeout_at};
use tracing::Span;

use crate::serving::answers::{AnswerEvent, Answers};
use crate::serving::error::ApiError;

/// Encodes an answer as the events of one protocol.
pub(super) trait Encoder: Send + 'static {
    /// The events of [`Self::begin`] are sent at once, and not together with those of the first output.
    const BEGINS_AT_ONCE: bool;

    /// Events before the output.
    fn begin(&mut self) -> Vec<Event>;

    /// Events for one event of sequence `choice`.
    fn on(&mut self, choice: usize, event: AnswerEvent) -> Vec<Event>;

    /// Events for an error, after which there is no output.
    fn fail(&mut self, error: &ApiError) -> Vec<Event>;

    /// Events at the end, also after an error.
    fn end(&mut self) -> Vec<Event>;

    /// What is sent while there is no output.
    fn ping(&mut self) -> Event;
}

/// Streams `answers` as encoded by `encoder`.
pub(super) fn stream<E: Encoder>(mut answers: Answers, mut encoder: E, ping_interval: Duration) -> Response {
    let span = Span::current();
    let events = async_stream::stream! {
        let mut has_begun = E::BEGINS_AT_ONCE;
        if has_begun {
            for event in encoder.begin() {
                yield Ok::<_, Infallible>(event);
            }
        }
        let mut ping_at = Instant::now() + ping_interval;
        loop {
            let events = match timeout_at(ping_at, answers.next()).await {
                Err(_) => vec![encoder.ping()],
                Ok(None) => break,
                Ok(Some(Ok((choice, event)))) => {
                    let mut events = if has_begun { Vec::new() } else { encoder.begin() };
                    has_begun = true;
                    events.extend(encoder.on(choice, event));
                    events
                }
                Ok(Some(Err(error))) => {
                    span.in_scope(|| log(&error));
                    encoder.fail(&error)
                }
            };
            if !events.is_empty() {
                ping_at = Instant::now() + ping_interval;
            }
            for event in events {
                yield Ok(event);
            }
        }
        for event in encoder.end() {
            yield Ok(event);
        }
    };
    let mut response = Sse::new(events).into_response();
    // Without this header nginx buffers the whole response.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

fn log(error: &ApiError) {
    tracing::info!(code = error.code(), %error, "request failed during its stream");
}
