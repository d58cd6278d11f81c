//! A call's events as server-sent events.
//!
//! The response starts with the first thing the engine says, so that an error before it is a plain HTTP status. When
//! the engine is silent for as long as a ping is due (a long prompt, a full house), it starts without, and comments
//! keep the connection open; an error after that is an event.

use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{self, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use serde_json::Value;
use tokio::time::timeout;

use super::error::ApiError;
use super::generation::Generations;
use crate::request::Event;

/// Turns events into the chunks of one protocol.
pub(super) trait Chunks: Send + 'static {
    /// Chunks before the first event's.
    fn begin(&mut self) -> Vec<Value>;

    /// Chunks for one event of sequence `choice`.
    fn on(&mut self, choice: usize, event: Event) -> Vec<Value>;

    /// Chunks after the last event's.
    fn end(&mut self) -> Vec<Value>;
}

/// Streams `generations` in the words of `chunks`, each chunk one `data:` line, and then `[DONE]`.
///
/// # Errors
/// An error of the generations before anything was sent.
pub(super) async fn stream(
    mut generations: Generations,
    mut chunks: impl Chunks,
    ping_interval: Duration,
) -> Result<Response, ApiError> {
    let first = match timeout(ping_interval, generations.next()).await {
        Ok(first) => first.transpose()?,
        Err(_silence) => None,
    };
    let events = async_stream::stream! {
        let mut event = match first {
            Some(first) => Some(Ok(first)),
            None => generations.next().await,
        };
        let mut begun = false;
        while let Some(result) = event {
            match result {
                Ok((choice, event)) => {
                    let begin = if begun { Vec::new() } else { chunks.begin() };
                    begun = true;
                    for chunk in begin.into_iter().chain(chunks.on(choice, event)) {
                        yield frame(&chunk);
                    }
                }
                Err(error) => yield frame(&error.body()),
            }
            event = generations.next().await;
        }
        for chunk in chunks.end() {
            yield frame(&chunk);
        }
        yield Ok(sse::Event::default().data("[DONE]"));
    };
    let mut response =
        Sse::new(events).keep_alive(KeepAlive::new().interval(ping_interval).text("ping")).into_response();
    // nginx collects a response before passing it on, unless told not to.
    response.headers_mut().insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    Ok(response)
}

fn frame(chunk: &Value) -> Result<sse::Event, Infallible> {
    Ok(sse::Event::default().data(chunk.to_string()))
}
