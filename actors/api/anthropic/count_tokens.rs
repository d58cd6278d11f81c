//! `POST /v1/messages/count_tokens`.

use axum::Json;
use axum::extract::State;
use serde_json::{Value, json};

use super::request::read_chat;
use super::tools::Tools;
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::server::SharedServer;
use crate::serving::error::ApiError;
use crate::serving::media;

/// Renders and tokenises the prompt, and generates nothing.
pub(super) async fn count(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, mut memory }: JsonBody,
) -> Result<Json<Value>, ApiError> {
    let fields = Fields::of_body(&body)?;
    let mut chat = read_chat(&fields, &Tools::read(&fields)?)?;
    let served = server.served(fields.string("model")?).await?;
    let _permit = served.runtime.try_permit_for(caller.client(), 1)?;
    let model = served.model()?;
    let parts = media::measure(std::mem::take(&mut chat.media), &model, &server.limits().media, &mut memory).await?;
    let prompt = chat.tokens(&model, parts).await?;
    Ok(Json(json!({ "input_tokens": prompt.tokens.len() })))
}
