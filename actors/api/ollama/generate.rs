//! `POST /api/generate`: one prompt, which is the message of a user unless it is `raw` or the model has no chat template.

use axum::extract::State;
use axum::response::Response;
use serde_json::{Value, json};

use super::answer::Form;
use super::call::Call;
use super::messages::refuse_images;
use super::{format, options};
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::Fields;
use crate::api::server::{Server, SharedServer};
use crate::serving::chat_prompt::ChatPrompt;
use crate::serving::error::ApiError;
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
    let Some(prompt) = fields.string("prompt")?.filter(|prompt| !prompt.is_empty()) else {
        return call.load(&server).await;
    };
    let is_raw = fields.bool("raw")?.unwrap_or(false);
    let prompt = if is_raw || (system(&fields)?.is_none() && !call.has_template(&server).await?) {
        raw(prompt)
    } else {
        templated(&fields, &call, prompt)?
    };
    let (request, context_tokens) = read(&server, &caller, &fields, &call, prompt)?;
    drop(body);
    call.answer(&server, request, context_tokens, memory).await
}

/// Refuses what would change the prompt in a way that this server does not support.
fn refuse(fields: &Fields<'_>) -> Result<(), ApiError> {
    const FIELDS: [(&str, &str); 2] = [
        ("suffix", "text cannot be inserted; write the model's infill format into `prompt` and set `raw`"),
        ("template", "start the server with --chat-template, or set `raw`"),
    ];
    refuse_images(fields)?;
    for (name, advice) in FIELDS {
        if fields.string(name)?.is_some_and(|text| !text.is_empty()) {
            let param = fields.path(name);
            return Err(ApiError::Unsupported { message: format!("`{param}` is not supported: {advice}"), param });
        }
    }
    Ok(())
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

/// The message of the system.
fn system<'a>(fields: &Fields<'a>) -> Result<Option<&'a str>, ApiError> {
    Ok(fields.string("system")?.filter(|system| !system.is_empty()))
}

/// The text as it is, after the special token that the model expects at the start.
fn raw(prompt: &str) -> PromptInput {
    let prompt = PromptField { path: "prompt".to_owned(), prompt: PlainPrompt::Text(prompt.to_owned()) };
    PromptInput::Plain { prompts: vec![prompt], add_special: true }
}

fn templated(fields: &Fields<'_>, call: &Call, prompt: &str) -> Result<PromptInput, ApiError> {
    let system = system(fields)?.map(|system| json!({ "role": "system", "content": system }));
    let messages: Value = system.into_iter().chain([json!({ "role": "user", "content": prompt })]).collect();
    let prompt = ChatPrompt {
        messages,
        tools: None,
        documents: None,
        variables: call.think.variables.clone(),
        add_generation_prompt: true,
        continue_final_message: false,
        add_special_tokens: false,
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
        for body in [json!({ "suffix": "}" }), json!({ "template": "{{ .Prompt }}" }), json!({ "images": ["aGk="] })] {
            assert!(refused(&body), "{body}");
        }
        assert!(!refused(&json!({ "suffix": "", "template": "", "images": [], "context": [1, 2] })));
    }
}
