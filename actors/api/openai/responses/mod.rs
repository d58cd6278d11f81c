//! `POST /v1/responses`, OpenAI's Responses API, and `POST /v1/responses/input_tokens`. Nothing is stored.
//!
//! [`request`] reads a body with [`input`] (a [`conversation`]), [`tools`] and [`mod@format`]. An answer becomes the items of
//! an [`output`], which a [`response`] contains. [`stream`] sends the events that make up the same response.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use self::request::RequestRead;
use self::response::ResponseParts;
use self::stream::ResponseEvents;
use self::tools::ResponseTools;
use super::sse;
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::request_memory::RequestMemory;
use crate::api::server::SharedServer;
use crate::serving::accept::accept;
use crate::serving::error::ApiError;

mod conversation;
mod echo;
mod format;
mod input;
mod item;
mod output;
mod request;
mod response;
mod stream;
mod tools;

pub(in crate::api) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Response, ApiError> {
    let read = request::read(&server, &caller, &Fields::of_body(&body)?)?;
    let RequestRead { serving, echo, custom_tools, keeps_reasoning } = read;
    drop(body);
    // The response repeats fields of the request, so their memory is held until its end.
    let mut echo_memory = RequestMemory::reserve(&server.request_memory, caller.client());
    echo_memory.grow(echo.bytes())?;
    let streams = serving.options.stream.is_some();
    let accepted = accept(&server.models, server.limits(), serving, memory).await.map_err(request::of_input)?;
    let (parts, mut answers) = ResponseParts::new(accepted, echo, echo_memory);
    let mut events = ResponseEvents::new(parts, custom_tools, keeps_reasoning);
    if streams {
        return Ok(sse::stream(answers, events, server.options().sse_ping_interval));
    }
    while let Some(next) = answers.next().await {
        events.add(next?.1);
    }
    Ok(Json(events.response()).into_response())
}

/// `POST /v1/responses/input_tokens`: the number of tokens that a request's prompt has.
pub(in crate::api) async fn input_tokens(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of_body(&body)?;
    let served = server.served(fields.string("model")?).await?;
    let _permit = served.runtime.try_permit_for(caller.client(), 1)?;
    let model = served.model()?;
    let prompt = request::read_prompt(&fields, &ResponseTools::read(&fields)?.tools)?;
    drop(body);
    let tokens = prompt.tokens(&model).await.map_err(request::of_input)?.tokens;
    drop(memory);
    Ok(Json(json!({ "object": "response.input_tokens", "input_tokens": tokens.len() })))
}
