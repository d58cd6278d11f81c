//! `POST /v1/audio/transcriptions`: what is said in an audio file, as a chat model with an audio encoder writes it.

use axum::Json;
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use cuelight_engine::media::MediaKind;
use serde_json::{Value, json};

use super::sampling;
use super::sse::{self, Chunks};
use crate::api::caller::Caller;
use crate::api::fields::{Fields, missing};
use crate::api::form::FormBody;
use crate::api::server::{Server, SharedServer};
use crate::output::Delta;
use crate::serving::accept::accept;
use crate::serving::answers::{AnswerEvent, Finish};
use crate::serving::error::{ApiError, clip};
use crate::serving::media_source::{MediaField, MediaSource};
use crate::serving::request::{OutputOptions, PromptInput, ServingRequest};
use crate::serving::transcription::{TranscriptForm, TranscriptReader, TranscriptionRequest};

/// The form of an answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    /// An object with the text and the usage.
    Json,
    /// The text alone.
    Text,
}

pub(in crate::api) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    FormBody { mut value, file, memory }: FormBody,
) -> Result<Response, ApiError> {
    // As in OpenAI's API, and unlike in a chat.
    if let Some(fields) = value.as_object_mut() {
        fields.entry("temperature").or_insert(json!(0));
    }
    let (request, format) = read(&server, &caller, &Fields::of_body(&value)?, file)?;
    let is_streamed = request.options.stream.is_some();
    let has_language = matches!(&request.prompt, PromptInput::Transcription(audio) if audio.language.is_some());
    let accepted = accept(&server.models, server.limits(), request, memory).await?;
    let mut reader = TranscriptReader::new(TranscriptForm::of(&accepted.model.tokenizer), has_language);
    if is_streamed {
        let transcript = Transcript { reader, ..Transcript::default() };
        return Ok(sse::stream(accepted.answers, transcript, server.options().sse_ping_interval));
    }
    let mut answers = accepted.answers.collect().await?;
    let answer = answers.pop().ok_or(ApiError::Internal)?;
    let words = reader.push(&answer.text) + &reader.end();
    let text = words.trim().to_owned();
    Ok(match format {
        Format::Json => Json(json!({ "text": text, "usage": answer.finish.as_ref().map(usage) })).into_response(),
        Format::Text => ([(header::CONTENT_TYPE, "text/plain; charset=utf-8")], text).into_response(),
    })
}

fn read(
    server: &Server,
    caller: &Caller,
    fields: &Fields<'_>,
    file: Option<Vec<u8>>,
) -> Result<(ServingRequest, Format), ApiError> {
    let tenancy = caller.tenancy(fields, &server.options())?;
    let format = format(fields)?;
    let file = file.ok_or_else(|| missing("file", "an audio file"))?;
    let request = ServingRequest {
        model: fields.string("model")?.map(str::to_owned),
        options: sampling::read(fields, tenancy, fields.count("max_tokens", 1)?, None)?,
        prompt: PromptInput::Transcription(Box::new(audio(fields, file)?)),
        constraint: None,
        output: OutputOptions { parses_reasoning: true, hides_reasoning: true, ..OutputOptions::plain() },
    };
    Ok((request, format))
}

/// Reads `response_format`. Those with times are refused, because a chat model writes none.
fn format(fields: &Fields<'_>) -> Result<Format, ApiError> {
    const NAME: &str = "response_format";
    match fields.string(NAME)? {
        None | Some("json") => Ok(Format::Json),
        Some("text") => Ok(Format::Text),
        Some(other) => {
            let message = format!("`{NAME}` must be \"json\" or \"text\", not {}: there are no times", clip(other));
            Err(ApiError::Unsupported { param: NAME.to_owned(), message })
        }
    }
}

/// The audio, and what the client says of it.
fn audio(fields: &Fields<'_>, file: Vec<u8>) -> Result<TranscriptionRequest, ApiError> {
    let text = |name: &str| -> Result<Option<String>, ApiError> {
        Ok(fields.string(name)?.filter(|text| !text.is_empty()).map(str::to_owned))
    };
    let file_field = "file".to_owned();
    let audio = MediaField {
        media: MediaKind::Audio,
        path: file_field.clone(),
        kind_path: file_field,
        kind: None,
        source: MediaSource::File(file),
    };
    Ok(TranscriptionRequest { audio: vec![audio], language: text("language")?, before: text("prompt")? })
}

fn usage(finish: &Finish) -> Value {
    let (input, output) = (finish.usage.prompt_tokens, finish.usage.completion_tokens);
    json!({ "type": "tokens", "input_tokens": input, "output_tokens": output, "total_tokens": input + output })
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
        self.event(words)
    }

    /// The event of more words.
    fn event(&mut self, text: String) -> Vec<Value> {
        self.text.push_str(&text);
        let event = json!({ "type": "transcript.text.delta", "delta": text });
        if text.is_empty() { Vec::new() } else { vec![event] }
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
                self.usage = usage(&finish);
                let mut events = self.deltas(deltas);
                let rest = self.reader.end();
                events.extend(self.event(rest));
                events
            }
        }
    }

    fn end(&mut self) -> Vec<Value> {
        let usage = std::mem::take(&mut self.usage);
        vec![json!({ "type": "transcript.text.done", "text": self.text, "usage": usage })]
    }

    fn name(chunk: &Value) -> Option<&str> {
        chunk["type"].as_str()
    }
}
