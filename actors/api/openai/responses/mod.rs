//! OpenAI's Responses API: `POST /v1/responses`, `POST /v1/responses/input_tokens`, and the responses that are kept.
//!
//! [`request`] reads a body with [`input`] (a [`conversation`]), [`tools`] and [`mod@format`]. An answer becomes the items of
//! an [`output`], which a [`response`] contains. [`stream`] sends the events that make up the same response.
//!
//! A [`keeper`] puts a complete response into the [`store`]. Later requests continue it ([`previous`]) or read it ([`stored`]).

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use self::keeper::Keeper;
use self::output::Output;
use self::previous::Earlier;
use self::request::RequestRead;
use self::response::ResponseParts;
use self::stream::ResponseEvents;
use super::{sse, unsupported};
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::request_memory::RequestMemory;
use crate::api::server::SharedServer;
use crate::serving::accept::accept;
use crate::serving::error::ApiError;
use crate::serving::media;

mod conversation;
mod echo;
mod format;
mod input;
mod item;
mod keeper;
mod output;
mod previous;
mod request;
mod response;
pub(in crate::api) mod store;
pub(in crate::api) mod stored;
mod stream;
mod tools;

pub(in crate::api) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Response, ApiError> {
    let fields = Fields::of_body(&body)?;
    let earlier = Earlier::read(&server, &caller, &fields, memory).await?;
    let read = request::read(&server, &caller, &fields, &earlier.items)?;
    let RequestRead { serving, echo, client_tools, keeps_reasoning, keeper } = read;
    drop((body, earlier.items));
    // The response repeats fields of the request, and is kept with its input, so their memory is held until its end.
    let mut held = RequestMemory::reserve(&server.request_memory, caller.client());
    held.grow(echo.bytes() + keeper.as_ref().map_or(0, Keeper::bytes))?;
    let streams = serving.options.stream.is_some();
    let accepted = accept(&server.models, server.limits(), serving, earlier.memory).await.map_err(request::of_input)?;
    let (parts, mut answers) = ResponseParts::new(accepted, echo, held);
    let mut events = ResponseEvents::new(parts, Output::new(client_tools, keeps_reasoning), keeper);
    if streams {
        return Ok(sse::stream(answers, events, server.options().sse_ping_interval));
    }
    while let Some(next) = answers.next().await {
        events.add(next?.1);
    }
    Ok(Json(events.complete()).into_response())
}

/// `POST /v1/responses/input_tokens`: the number of tokens that a request's prompt has.
pub(in crate::api) async fn input_tokens(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of_body(&body)?;
    unsupported::refuse_in_responses(&fields)?;
    let earlier = Earlier::read(&server, &caller, &fields, memory).await?;
    let served = server.served(fields.string("model")?).await?;
    let _permit = served.runtime.try_permit_for(caller.client(), 1)?;
    let model = served.model()?;
    let mut prompt = request::read_prompt(&fields, &tools::read(&fields)?, &earlier.items)?;
    let mut memory = earlier.memory;
    drop((body, earlier.items));
    let parts = media::measure(std::mem::take(&mut prompt.media), &model, &server.limits().media, &mut memory).await?;
    let tokens = prompt.tokens(&model, parts).await.map_err(request::of_input)?.tokens;
    drop(memory);
    Ok(Json(json!({ "object": "response.input_tokens", "input_tokens": tokens.len() })))
}
