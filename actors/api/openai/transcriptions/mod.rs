//! `POST /v1/audio/transcriptions` and `/v1/audio/translations`: what is said in an audio file.
//!
//! - this file: the routes
//! - [`asked`]: what a client asks for
//! - [`whole`]: a chat model with an audio encoder hears the whole file and answers once
//! - [`windows`]: a model that hears a window at a time answers for each; [`hearer`]: its requests for one
//! - [`mod@format`]: the forms of a transcript; [`granularity`]: what has times in it; [`events`]: those of a stream

mod asked;
mod events;
mod format;
mod granularity;
mod hearer;
mod whole;
mod windows;

use axum::extract::State;
use axum::response::Response;
use serde_json::json;

use self::asked::Asked;
use crate::api::caller::Caller;
use crate::api::fields::{Fields, missing};
use crate::api::form::FormBody;
use crate::api::server::SharedServer;
use crate::serving::error::ApiError;
use crate::serving::served::Served;
use crate::serving::transcription::recording::window_of;
use crate::serving::transcription::task::Task;

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
    let asked = Asked::read(&server, &caller, &Fields::of_body(&value)?, task)?;
    let file = file.ok_or_else(|| missing("file", "an audio file"))?;
    let served = Served::lease(&server.models, asked.model.as_deref()).await?;
    match window_of(&*served.model()?) {
        Some(window) => windows::answer(&server, &caller, asked, (file, memory), window).await,
        None => whole::answer(&server, asked, (file, memory)).await,
    }
}
