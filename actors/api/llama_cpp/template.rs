//! `POST /apply-template` and `POST /v1/chat/completions/input_tokens` of llama.cpp and `POST /v1/chat/completions/render` of vLLM:
//! the prompt of a conversation, without an answer.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use cuelight_engine::engine::TokenId;
use serde::Serialize;

use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::openai::prompt::read_chat;
use crate::api::server::{Server, SharedServer};
use crate::api::telemetry;
use crate::pipeline::runtime::{Permit, ServedModel};
use crate::serving::blocking::off_worker;
use crate::serving::chat_prompt::ChatPrompt;
use crate::serving::error::ApiError;
use crate::serving::prompt::PromptTokens;
use crate::serving::served::Served;

pub(super) async fn apply(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, mut memory }: JsonBody,
) -> Result<Response, ApiError> {
    let call = Call::read(&server, &caller, &Fields::of_body(&body)?).await?;
    drop(body);
    let prompt = call.chat.text(&call.model).await?;
    memory.grow(2 * prompt.len())?;
    off_worker(prompt.len(), move || json_response(&Applied { prompt })).await
}

pub(super) async fn render(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, mut memory }: JsonBody,
) -> Result<Response, ApiError> {
    let call = Call::read(&server, &caller, &Fields::of_body(&body)?).await?;
    drop(body);
    let PromptTokens { tokens, text, .. } = call.chat.tokens_and_text(&call.model).await?;
    memory.grow(2 * text.len() + RESPONSE_BYTES * tokens.len())?;
    let rendered = Rendered {
        request_id: telemetry::response_id("chatcmpl-"),
        model: call.served.id.clone(),
        token_ids: tokens,
        prompt: text,
    };
    off_worker(rendered.prompt.len(), move || json_response(&rendered)).await
}

pub(super) async fn input_tokens(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory: _memory }: JsonBody,
) -> Result<Response, ApiError> {
    let call = Call::read(&server, &caller, &Fields::of_body(&body)?).await?;
    drop(body);
    let tokens = call.chat.tokens_and_text(&call.model).await?.tokens;
    json_response(&Counted { object: "response.input_tokens", input_tokens: tokens.len() })
}

/// Bytes of the response for each token. While the response grows, the old and the new buffer exist.
const RESPONSE_BYTES: usize = 32;

/// A conversation to render, and the model that does.
struct Call {
    chat: ChatPrompt,
    model: Arc<ServedModel>,
    served: Served,
    /// Counts the call as one in flight.
    _permit: Permit,
}

impl Call {
    async fn read(server: &Server, caller: &Caller, fields: &Fields<'_>) -> Result<Self, ApiError> {
        let chat = read_chat(fields)?;
        let served = server.served(fields.string("model")?).await?;
        let permit = served.runtime.try_permit_for(caller.client(), 1)?;
        Ok(Call { chat, model: served.model()?, served, _permit: permit })
    }
}

/// The number of tokens.
#[derive(Serialize)]
struct Counted {
    object: &'static str,
    input_tokens: usize,
}

/// The response of llama.cpp.
#[derive(Serialize)]
struct Applied {
    prompt: String,
}

/// The response of vLLM, with the text.
#[derive(Serialize)]
struct Rendered {
    request_id: String,
    model: String,
    token_ids: Vec<TokenId>,
    prompt: String,
}

fn json_response(response: &impl Serialize) -> Result<Response, ApiError> {
    let body = serde_json::to_vec(response).map_err(|_| ApiError::Internal)?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}
