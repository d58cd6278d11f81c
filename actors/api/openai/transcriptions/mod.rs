//! `POST /v1/audio/transcriptions` and `/v1/audio/translations`: what is said in an audio file.
//!
//! - this file: the routes and their fields
//! - [`whole`]: a chat model with an audio encoder hears the whole file and answers once
//! - [`windows`]: a model that hears a window at a time answers for each
//! - [`format`]: the forms of a transcript

mod format;
mod whole;
mod windows;

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use self::format::Format;
use super::sampling;
use crate::api::caller::Caller;
use crate::api::fields::{Fields, missing};
use crate::api::form::FormBody;
use crate::api::server::{Server, SharedServer};
use crate::serving::answers::Finish;
use crate::serving::error::ApiError;
use crate::serving::options::GenerationOptions;
use crate::serving::served::Served;
use crate::serving::transcription::recording::window_of;
use crate::serving::transcription::{Task, TranscriptionRequest};

/// What a client asks for, without its file.
struct Asked {
    model: Option<String>,
    options: GenerationOptions,
    format: Format,
    /// Without audio.
    request: TranscriptionRequest,
}

pub(in crate::api) async fn create(
    server: State<SharedServer>,
    caller: Caller,
    form: FormBody,
) -> Result<Response, ApiError> {
    answer(server.0, caller, form, Task::Transcribe).await
}

pub(in crate::api) async fn translate(
    server: State<SharedServer>,
    caller: Caller,
    form: FormBody,
) -> Result<Response, ApiError> {
    answer(server.0, caller, form, Task::Translate).await
}

async fn answer(server: SharedServer, caller: Caller, form: FormBody, task: Task) -> Result<Response, ApiError> {
    let FormBody { mut value, file, memory } = form;
    // As in OpenAI's API, and unlike in a chat.
    if let Some(fields) = value.as_object_mut() {
        fields.entry("temperature").or_insert(json!(0));
    }
    let asked = read(&server, &caller, &Fields::of_body(&value)?, task)?;
    let file = file.ok_or_else(|| missing("file", "an audio file"))?;
    let served = Served::lease(&server.models, asked.model.as_deref()).await?;
    match window_of(&*served.model()?) {
        Some(window) => windows::answer(&server, &caller, asked, (file, memory), window).await,
        None => whole::answer(&server, asked, (file, memory)).await,
    }
}

fn read(server: &Server, caller: &Caller, fields: &Fields<'_>, task: Task) -> Result<Asked, ApiError> {
    let tenancy = caller.tenancy(fields, &server.options())?;
    let text = |name: &str| -> Result<Option<String>, ApiError> {
        Ok(fields.string(name)?.filter(|text| !text.is_empty()).map(str::to_owned))
    };
    let (language, before) = (text("language")?, text("prompt")?);
    Ok(Asked {
        model: fields.string("model")?.map(str::to_owned),
        options: sampling::read(fields, tenancy, fields.count("max_tokens", 1)?, None)?,
        format: Format::read(fields)?,
        request: TranscriptionRequest { audio: Vec::new(), language, before, task },
    })
}

/// The usage of answers.
fn usage<'a>(finishes: impl IntoIterator<Item = &'a Finish>) -> Value {
    let (mut input, mut output) = (0, 0);
    for Finish { usage, .. } in finishes {
        input += usage.prompt_tokens;
        output += usage.completion_tokens;
    }
    json!({ "type": "tokens", "input_tokens": input, "output_tokens": output, "total_tokens": input + output })
}

/// The event of more words.
fn delta(text: &str) -> Value {
    json!({ "type": "transcript.text.delta", "delta": text })
}

/// The event of the end.
fn done(text: &str, usage: &Value) -> Value {
    json!({ "type": "transcript.text.done", "text": text, "usage": usage })
}
