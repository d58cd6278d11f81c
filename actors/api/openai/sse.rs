//! A stream as OpenAI's protocol writes it: each chunk is one `data:` line, and `[DONE]` is the last one.

use std::time::Duration;

use axum::response::Response;
use axum::response::sse::Event;
use serde_json::Value;

use crate::api::sse::{self, Encoder};
use crate::serving::answers::{AnswerEvent, Answers};
use crate::serving::error::ApiError;

/// Encodes events as the chunks of one endpoint.
pub(super) trait Chunks: Send + 'static {
    /// Chunks before those of the first event.
    fn begin(&mut self) -> Vec<Value>;

    /// Chunks for one event of sequence `choice`.
    fn on(&mut self, choice: usize, event: AnswerEvent) -> Vec<Value>;

    /// Chunks after those of the last event.
    fn end(&mut self) -> Vec<Value>;
}

/// Streams `answers` as encoded by `chunks`.
pub(super) fn stream(answers: Answers, chunks: impl Chunks, ping_interval: Duration) -> Response {
    sse::stream(answers, DataLines(chunks), ping_interval)
}

/// Chunks as `data:` lines.
struct DataLines<C>(C);

impl<C: Chunks> Encoder for DataLines<C> {
    const BEGINS_AT_ONCE: bool = false;

    fn begin(&mut self) -> Vec<Event> {
        frames(self.0.begin())
    }

    fn on(&mut self, choice: usize, event: AnswerEvent) -> Vec<Event> {
        frames(self.0.on(choice, event))
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Event> {
        vec![frame(&error.body())]
    }

    fn end(&mut self) -> Vec<Event> {
        let mut events = frames(self.0.end());
        events.push(Event::default().data("[DONE]"));
        events
    }

    fn ping(&self) -> Event {
        Event::default().comment("ping")
    }
}

fn frames(chunks: Vec<Value>) -> Vec<Event> {
    chunks.iter().map(frame).collect()
}

fn frame(chunk: &Value) -> Event {
    Event::default().data(chunk.to_string())
}
