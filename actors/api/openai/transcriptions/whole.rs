//! The transcript of a chat model with an audio encoder: one answer about the whole file.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use cuelight_engine::media::MediaKind;
use serde_json::Value;

use super::asked::Asked;
use super::events::{delta, done, usage};
use super::format::Format;
use crate::api::openai::sse::{self, Chunks};
use crate::api::request_memory::Reservation;
use crate::api::server::Server;
use crate::output::Delta;
use crate::serving::accept::accept;
use crate::serving::answers::{AnswerEvent, Answers};
use crate::serving::error::ApiError;
use crate::serving::media_source::{MediaField, MediaSource};
use crate::serving::request::{OutputOptions, PromptInput, ServingRequest};
use crate::serving::transcription::form::TranscriptForm;
use crate::serving::transcription::reader::TranscriptReader;

pub(super) async fn answer(
    server: &Server,
    asked: Asked,
    (file, memory): (Vec<u8>, Reservation),
) -> Result<Response, ApiError> {
    let Asked { model, options, format, mut request, .. } = asked;
    format.check_without_times()?;
    let (is_streamed, has_language) = (options.stream.is_some(), request.language.is_some());
    request.audio = vec![audio(file)];
    let request = ServingRequest {
        model,
        options,
        prompt: PromptInput::Transcription(Box::new(request)),
        constraint: None,
        output: OutputOptions { parses_reasoning: true, hides_reasoning: true, ..OutputOptions::plain() },
    };
    let accepted = accept(&server.models, server.limits(), request, memory).await?;
    let reader = TranscriptReader::new(&TranscriptForm::of(&accepted.model), has_language);
    match is_streamed {
        true => Ok(stream(accepted.answers, reader, server.options().sse_ping_interval)),
        false => collect(accepted.answers, reader, format).await,
    }
}

/// The file as a part of a message.
fn audio(file: Vec<u8>) -> MediaField {
    let field = "file".to_owned();
    MediaField {
        media: MediaKind::Audio,
        path: field.clone(),
        kind_path: field,
        kind: None,
        source: MediaSource::File(file),
    }
}

async fn collect(answers: Answers, mut reader: TranscriptReader, format: Format) -> Result<Response, ApiError> {
    let answer = answers.collect().await?.pop().ok_or(ApiError::Internal)?;
    let words = reader.push(&answer.text) + &reader.end();
    Ok(format.text(words.trim(), &usage(&answer.finish)).into_response())
}

fn stream(answers: Answers, reader: TranscriptReader, ping_interval: Duration) -> Response {
    sse::stream(answers, Transcript { reader, ..Transcript::default() }, ping_interval)
}

/// The events of a streamed transcript.
#[derive(Default)]
struct Transcript {
    reader: TranscriptReader,
    text: String,
    usage: Value,
}

impl Transcript {
    fn deltas(&mut self, deltas: Vec<Delta>) -> Vec<Value> {
        let text: String = deltas
            .into_iter()
            .filter_map(|delta| if let Delta::Text(text) = delta { Some(text) } else { None })
            .collect();
        let words = self.reader.push(&text);
        self.event(&words)
    }

    /// The event of more words.
    fn event(&mut self, text: &str) -> Vec<Value> {
        self.text.push_str(text);
        if text.is_empty() { Vec::new() } else { vec![delta(text)] }
    }
}

impl Chunks for Transcript {
    const ENDS_WITH_DONE: bool = false;

    fn begin(&mut self) -> Vec<Value> {
        Vec::new()
    }

    fn on(&mut self, _choice: usize, event: AnswerEvent) -> Vec<Value> {
        match event {
            AnswerEvent::Progress(_) | AnswerEvent::Prompt(_) => Vec::new(),
            AnswerEvent::Token { deltas, .. } | AnswerEvent::Block { deltas, .. } => self.deltas(deltas),
            AnswerEvent::Finished { finish, deltas } => {
                self.usage = usage([&finish]);
                let mut events = self.deltas(deltas);
                let rest = self.reader.end();
                events.extend(self.event(&rest));
                events
            }
        }
    }

    fn end(&mut self) -> Vec<Value> {
        vec![done(&self.text, &self.usage)]
    }

    fn name(chunk: &Value) -> Option<&str> {
        chunk["type"].as_str()
    }
}
