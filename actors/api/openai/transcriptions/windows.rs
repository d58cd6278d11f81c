//! The transcript of a model that hears a window of a recording at a time. Several windows are computed together, and their texts
//! come in order.

use std::convert::Infallible;
use std::sync::Arc;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde_json::Value;

use super::asked::Asked;
use super::events::{delta, done, usage};
use super::format::{Part, Transcript};
use super::hearer::{HeardWindow, Hearer, OfWindow};
use crate::api::caller::Caller;
use crate::api::request_memory::Reservation;
use crate::api::server::SharedServer;
use crate::serving::error::ApiError;
use crate::serving::request::ConstraintField;
use crate::serving::transcription::heard::Heard;
use crate::serving::transcription::languages::language_name;
use crate::serving::transcription::marks::Marks;
use crate::serving::transcription::recording::{Recording, Window};
use crate::serving::transcription::task::Task;

/// Windows that are computed at the same time.
const AT_ONCE: usize = 4;

pub(super) async fn answer(
    server: &SharedServer,
    caller: &Caller,
    asked: Asked,
    (file, mut memory): (Vec<u8>, Reservation),
    window: (Arc<Marks>, usize),
) -> Result<Response, ApiError> {
    let has_times = asked.format.has_times();
    let grammar = window.0.grammar(asked.request.language.as_deref(), asked.request.task, has_times)?;
    let constraint = ConstraintField { path: "language".to_owned(), grammar };
    let recording = Recording::read(file, window, &server.limits().media, &mut memory).await?;
    let (format, granularity, is_streamed) = (asked.format, asked.granularity, asked.options.stream.is_some());
    let (task, duration) = (asked.request.task, recording.seconds);
    let hearer = Hearer { server: server.clone(), client: caller.client(), asked, constraint, marks: recording.marks };
    let mut heard = Box::pin(hear(Arc::new(hearer), recording.windows, memory));
    if is_streamed {
        // A request that is refused has a status.
        let first = heard.next().await.transpose()?;
        let rest = stream::iter(first.map(Ok)).chain(heard);
        let keep_alive = KeepAlive::new().interval(server.options().sse_ping_interval).text("ping");
        return Ok(Sse::new(events(rest)).keep_alive(keep_alive).into_response());
    }
    let mut transcript = Transcript { duration, task: name_of(task), ..Transcript::default() };
    let mut finishes = Vec::new();
    while let Some(HeardWindow { start, heard, finish }) = heard.next().await.transpose()? {
        transcript.add(start, heard);
        finishes.extend(finish);
    }
    transcript.usage = usage(&finishes);
    Ok(format.response(&transcript, granularity))
}

/// What is heard in each window, in order. `memory` is held until the end.
fn hear(hearer: Arc<Hearer>, windows: Vec<Window>, memory: Reservation) -> impl Stream<Item = OfWindow> + Send {
    let of_window = move |(index, window): (usize, Window)| {
        let hearer = hearer.clone();
        async move { hearer.hear(&window, index == 0).await }
    };
    let heard = stream::iter(windows.into_iter().enumerate()).map(of_window).buffered(AT_ONCE);
    heard.map(move |heard| {
        let _held = &memory;
        heard
    })
}

impl Transcript {
    /// Adds what was heard in the window that starts at `start` seconds.
    fn add(&mut self, start: f64, Heard { language, mut segments, quality, word_seconds }: Heard) {
        if self.language.is_empty() {
            self.language = language.as_deref().map(language_name).unwrap_or_default();
        }
        segments.iter().for_each(|segment| self.text.push_str(&segment.text));
        self.text = self.text.trim_start().to_owned();
        segments.iter_mut().for_each(|segment| self.speech_end.limit(segment, word_seconds));
        self.parts.extend(segments.into_iter().map(|segment| Part { window_start: start, segment, quality }));
    }
}

/// The events of a stream.
fn events(heard: impl Stream<Item = OfWindow> + Send) -> impl Stream<Item = Result<Event, Infallible>> + Send {
    async_stream::stream! {
        let (mut transcript, mut finishes) = (Transcript::default(), Vec::new());
        let mut heard = std::pin::pin!(heard);
        while let Some(of_window) = heard.next().await {
            match of_window {
                Ok(HeardWindow { start, heard, finish }) => {
                    let before = transcript.text.len();
                    transcript.add(start, heard);
                    finishes.extend(finish);
                    let words = &transcript.text[before..];
                    if !words.is_empty() {
                        yield Ok(event(&delta(words)));
                    }
                }
                Err(error) => {
                    yield Ok(event(&error.body()));
                    return;
                }
            }
        }
        yield Ok(event(&done(&transcript.text, &usage(&finishes))));
    }
}

fn event(value: &Value) -> Event {
    let event = match value["type"].as_str() {
        Some(name) => Event::default().event(name),
        None => Event::default(),
    };
    event.data(value.to_string())
}

fn name_of(task: Task) -> &'static str {
    match task {
        Task::Transcribe => "transcribe",
        Task::Translate => "translate",
    }
}
