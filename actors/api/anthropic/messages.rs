//! `POST /v1/messages`.

use axum::Json;
use axum::extract::State;
use axum::response::{IntoResponse, Response};

use super::answer::Message;
use super::request;
use super::stream::MessageEvents;
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::server::SharedServer;
use crate::api::{sse, telemetry};
use crate::serving::accept::accept;
use crate::serving::error::ApiError;

pub(super) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Response, ApiError> {
    let options = server.options();
    let request = request::read(&caller, &Fields::of_body(&body)?, &options)?;
    drop(body);
    let accepted = accept(&server.models, server.limits(), request, memory).await?;
    let message = Message {
        id: telemetry::response_id("msg_"),
        model: accepted.model_id,
        prompt_tokens: accepted.prompts.iter().map(|prompt| prompt.tokens.len()).sum(),
    };
    match accepted.options.stream {
        Some(_) => Ok(sse::stream(accepted.answers, MessageEvents::new(message), options.sse_ping_interval)),
        None => Ok(Json(message.whole(accepted.answers).await?).into_response()),
    }
}
