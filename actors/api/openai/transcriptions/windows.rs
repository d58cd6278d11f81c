//! The transcript of a model that hears a window of a recording at a time. Several windows are computed together, and their texts
//! come in order.

use std::convert::Infallible;
use std::sync::Arc;

use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::{Stream, StreamExt, stream};
use serde_json::Value;
use tokio::time::sleep;

use super::asked::Asked;
use super::events::{delta, done, usage};
use super::format::Transcript;
use crate::api::caller::Caller;
use crate::api::request_memory::{RequestMemory, Reservation};
use crate::api::server::SharedServer;
use crate::core::shared_limit::Client;
use crate::serving::accept::accept;
use crate::serving::answers::{Answer, Finish};
use crate::serving::error::ApiError;
use crate::serving::request::{ConstraintField, OutputOptions, PromptInput, ServingRequest};
use crate::serving::transcription::languages::language_name;
use crate::serving::transcription::marks::{Heard, Marks, Segment};
use crate::serving::transcription::recording::{Recording, Window};
use crate::serving::transcription::task::Task;

/// Windows that are computed at the same time.
const AT_ONCE: usize = 4;

/// What a model has heard in a window, and what that took.
type OfWindow = Result<(Heard, Option<Finish>), ApiError>;

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
    let (format, is_streamed) = (asked.format, asked.options.stream.is_some());
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
    while let Some((Heard { language, segments }, finish)) = heard.next().await.transpose()? {
        transcript.add(language.as_deref(), segments);
        finishes.extend(finish);
    }
    transcript.usage = usage(&finishes);
    Ok(format.response(&transcript))
}

/// What is needed to hear a window.
struct Hearer {
    server: SharedServer,
    client: Client,
    asked: Asked,
    constraint: ConstraintField,
    marks: Arc<Marks>,
}

/// What is heard in each window, in order. `memory` is held until the end.
fn hear(hearer: Arc<Hearer>, windows: Vec<Window>, memory: Reservation) -> impl Stream<Item = OfWindow> + Send {
    let of_window = move |(index, window): (usize, Window)| {
        let hearer = hearer.clone();
        async move { hearer.hear(window, index == 0).await }
    };
    let heard = stream::iter(windows.into_iter().enumerate()).map(of_window).buffered(AT_ONCE);
    heard.map(move |heard| {
        let _held = &memory;
        heard
    })
}

impl Hearer {
    /// What is heard in a window. While the server has no room, all but the first wait for it.
    async fn hear(&self, window: Window, is_first: bool) -> OfWindow {
        loop {
            match self.try_to_hear(window.clone()).await {
                Err(error) if !is_first && error.is_overload() => sleep(error.retry_after().unwrap_or_default()).await,
                heard => return heard,
            }
        }
    }

    async fn try_to_hear(&self, window: Window) -> OfWindow {
        let (start, seconds) = (window.start, window.seconds);
        let memory = RequestMemory::reserve(&self.server.request_memory, self.client.clone());
        let accepted = accept(&self.server.models, self.server.limits(), self.request(window), memory).await?;
        let tokenizer = accepted.model.tokenizer.clone();
        let answer: Answer = accepted.answers.collect().await?.pop().ok_or(ApiError::Internal)?;
        let mut heard = self.marks.read(&answer, seconds, &tokenizer);
        for segment in &mut heard.segments {
            segment.start += start;
            segment.end += start;
        }
        Ok((heard, answer.finish))
    }

    fn request(&self, window: Window) -> ServingRequest {
        let mut options = self.asked.options.clone();
        options.stream = None;
        if self.asked.format.has_times() {
            options.logprobs = Some(0);
            options.sampling.joint_tokens = Some(self.marks.joint_tokens());
        }
        ServingRequest {
            model: self.asked.model.clone(),
            options,
            prompt: PromptInput::Transcription(Box::new(window.request(&self.asked.request))),
            constraint: Some(self.constraint.clone()),
            output: OutputOptions::plain(),
        }
    }
}

impl Transcript {
    /// Adds what was heard in the next window.
    fn add(&mut self, language: Option<&str>, segments: Vec<Segment>) {
        if self.language.is_empty() {
            self.language = language.map(language_name).unwrap_or_default();
        }
        segments.iter().for_each(|segment| self.text.push_str(&segment.text));
        self.text = self.text.trim_start().to_owned();
        self.segments.extend(segments);
    }
}

/// The events of a stream.
fn events(heard: impl Stream<Item = OfWindow> + Send) -> impl Stream<Item = Result<Event, Infallible>> + Send {
    async_stream::stream! {
        let (mut transcript, mut finishes) = (Transcript::default(), Vec::new());
        let mut heard = std::pin::pin!(heard);
        while let Some(of_window) = heard.next().await {
            match of_window {
                Ok((Heard { language, segments }, finish)) => {
                    let before = transcript.text.len();
                    transcript.add(language.as_deref(), segments);
                    finishes.extend(finish);
                    yield Ok(event(&delta(&transcript.text[before..])));
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
