//! A stream as OpenAI's protocol writes it: each chunk is one `data:` line.

use std::time::Duration;

use axum::response::Response;
use axum::response::sse::Event;
use serde_json::Value;

use crate::api::sse::{self, Encoder};
use crate::serving::answers::{AnswerEvent, Answers};
use crate::serving::error::ApiError;

/// Encodes events as the chunks of one endpoint.
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

    /// What is sent while there is no output. `None`: a comment.
    fn ping(&mut self) -> Option<Value> {
        None
    }

    /// The name of a chunk's event. `None`: the event has no name.
    fn name(_chunk: &Value) -> Option<&str> {
        None
    }
}

/// Streams `answers` as encoded by `chunks`.
pub(super) fn stream(answers: Answers, chunks: impl Chunks, ping_interval: Duration) -> Response {
    sse::stream(answers, DataLines(chunks), ping_interval)
}

/// Chunks as `data:` lines.
struct DataLines<C>(C);

impl<C: Chunks> Encoder for DataLines<C> {
    const BEGINS_AT_ONCE: bool = C::BEGINS_AT_ONCE;

    fn begin(&mut self) -> Vec<Event> {
        frames::<C>(self.0.begin())
    }

    fn on(&mut self, choice: usize, event: AnswerEvent) -> Vec<Event> {
        frames::<C>(self.0.on(choice, event))
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Event> {
        frames::<C>(self.0.fail(error))
    }

    fn end(&mut self) -> Vec<Event> {
        let mut events = frames::<C>(self.0.end());
        if C::ENDS_WITH_DONE {
            events.push(Event::default().data("[DONE]"));
        }
        events
    }

    fn ping(&mut self) -> Event {
        self.0.ping().map_or_else(|| Event::default().comment("ping"), |chunk| frame::<C>(&chunk))
    }
}

fn frames<C: Chunks>(chunks: Vec<Value>) -> Vec<Event> {
    chunks.iter().map(frame::<C>).collect()
}

fn frame<C: Chunks>(chunk: &Value) -> Event {
    let event = match C::name(chunk) {
        Some(name) => Event::default().event(name),
        None => Event::default(),
    };
    event.data(chunk.to_string())
}
