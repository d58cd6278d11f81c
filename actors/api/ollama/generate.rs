//! `POST /api/generate`: one prompt, which is the message of a user unless it is `raw` or the model has no chat template. With
//! `suffix` it is the text before a gap.

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::answer::Form;
use super::call::Call;
use super::messages::{read_images, with_images};
use super::{format, options};
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::server::{Server, SharedServer};
use crate::serving::chat_prompt::ChatPrompt;
use crate::serving::error::ApiError;
use crate::serving::infill::Infill;
use crate::serving::media_source::MediaField;
use crate::serving::prompt::{PlainPrompt, PromptField};
use crate::serving::request::{OutputOptions, PromptInput, ServingRequest};

pub(super) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Response, ApiError> {
    let fields = Fields::of_body(&body)?;
    let call = Call::read(&server, &fields, Form::Generate).await?;
    refuse(&fields)?;
    let prompt = fields.string("prompt")?.unwrap_or_default();
    let is_raw = fields.bool("raw")?.unwrap_or(false);
    let images = read_images(&fields)?;
    let prompt = if !images.is_empty() {
        with_message(&fields, &call, prompt, images)?
    } else if let Some(suffix) = text(&fields, "suffix")? {
        with_gap(&fields, prompt, suffix)?
    } else if prompt.is_empty() {
        return call.load(&server).await;
    } else if is_raw || (text(&fields, "system")?.is_none() && !call.has_template(&server).await?) {
        plain("prompt", PlainPrompt::Text(prompt.to_owned()))
    } else {
        templated(&fields, &call, prompt, Vec::new())?
    };
    let (request, context_tokens) = read(&server, &caller, &fields, &call, prompt)?;
    drop(body);
    call.answer(&server, request, context_tokens, memory).await
}

/// Refuses what would change the prompt in a way that this server does not support.
fn refuse(fields: &Fields<'_>) -> Result<(), ApiError> {
    if text(fields, "template")?.is_none() {
        return Ok(());
    }
    let param = fields.path("template");
    let message = format!("`{param}` is not supported: start the server with --chat-template, or set `raw`");
    Err(ApiError::Unsupported { param, message })
}

fn read(
    server: &Server,
    caller: &Caller,
    fields: &Fields<'_>,
    call: &Call,
    prompt: PromptInput,
) -> Result<(ServingRequest, Option<usize>), ApiError> {
    let options = options::read(fields, caller.tenancy(fields, &server.options())?)?;
    let is_templated = matches!(prompt, PromptInput::Chat(_));
    let request = ServingRequest {
        model: Some(call.id.clone()),
        prompt,
        options: options.generation,
        constraint: format::read(fields)?,
        output: OutputOptions { parses_reasoning: is_templated, ..OutputOptions::plain() },
    };
    Ok((request, options.context_tokens))
}

/// A text that is not empty.
fn text<'a>(fields: &Fields<'a>, name: &str) -> Result<Option<&'a str>, ApiError> {
    Ok(fields.string(name)?.filter(|text| !text.is_empty()))
}

/// The prompt as it is, after the special token that the model expects at the start.
fn plain(path: &str, prompt: PlainPrompt) -> PromptInput {
    PromptInput::Plain { prompts: vec![PromptField { path: path.to_owned(), prompt }], add_special: true }
}

/// The text before a gap and the text after it. No message belongs to them.
fn with_gap(fields: &Fields<'_>, prefix: &str, suffix: &str) -> Result<PromptInput, ApiError> {
    if text(fields, "system")?.is_some() {
        return Err(ApiError::invalid("system", "`system` and `suffix` exclude each other"));
    }
    let infill = Infill { prefix: prefix.to_owned(), suffix: suffix.to_owned(), ..Infill::default() };
    Ok(plain("suffix", PlainPrompt::Infill(Box::new(infill))))
}

/// A prompt with images, which needs a message.
fn with_message(
    fields: &Fields<'_>,
    call: &Call,
    prompt: &str,
    images: Vec<MediaField>,
) -> Result<PromptInput, ApiError> {
    let others = [("suffix", text(fields, "suffix")?.is_some()), ("raw", fields.bool("raw")?.unwrap_or(false))];
    if let Some((name, _)) = others.into_iter().find(|(_, is_set)| *is_set) {
        return Err(ApiError::invalid(name, format!("`{name}` and `images` exclude each other")));
    }
    templated(fields, call, prompt, images)
}

fn templated(fields: &Fields<'_>, call: &Call, prompt: &str, images: Vec<MediaField>) -> Result<PromptInput, ApiError> {
    let system = text(fields, "system")?.map(|system| json!({ "role": "system", "content": system }));
    let messages: Value =
        system.into_iter().chain([json!({ "role": "user", "content": with_images(images.len(), prompt) })]).collect();
    let prompt = ChatPrompt {
        messages,
        media: images,
        variables: call.think.variables.clone(),
        add_generation_prompt: true,
        ..ChatPrompt::default()
    };
    prompt.check_size()?;
    Ok(PromptInput::Chat(Box::new(prompt)))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_that_cannot_be_honoured_are_refused_unless_they_are_empty() {
        let refused = |body: &Value| refuse(&Fields::of_body(body).unwrap()).is_err();
        assert!(refused(&json!({ "template": "{{ .Prompt }}" })));
        assert!(!refused(&json!({ "suffix": "", "template": "", "images": [], "context": [1, 2] })));
    }
}
