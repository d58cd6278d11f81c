//! `POST /completion`: continues texts or tokens.

use axum::extract::State;
use axum::response::Response;
use cuelight_engine::engine::TokenId;
use serde_json::Value;

use super::options;
use super::respond::respond;
use super::response_fields::ResponseFields;
use crate::api::caller::Caller;
use crate::api::extract::JsonBody;
use crate::api::fields::{Fields, missing, token_ids, wrong_type};
use crate::api::openai::{constraint, unsupported};
use crate::api::server::{Server, SharedServer};
use crate::serving::error::{ApiError, clip};
use crate::serving::prompt::{PlainPrompt, PromptField, PromptPart};
use crate::serving::request::{OutputOptions, PromptInput, ServingRequest};

pub(super) async fn create(
    State(server): State<SharedServer>,
    caller: Caller,
    JsonBody { value: body, memory }: JsonBody,
) -> Result<Response, ApiError> {
    let fields = Fields::of_body(&body)?;
    let request = read(&server, &caller, &fields)?;
    let response_fields = ResponseFields::read(&fields)?;
    drop(body);
    respond(&server, request, response_fields, memory).await
}

fn read(server: &Server, caller: &Caller, fields: &Fields<'_>) -> Result<ServingRequest, ApiError> {
    unsupported::refuse_in_completion(fields)?;
    Ok(ServingRequest {
        model: fields.string("model")?.map(str::to_owned),
        prompt: PromptInput::Plain { prompts: read_prompts(fields)?, add_special: true },
        options: options::read(fields, caller.tenancy(fields, &server.options())?)?,
        constraint: constraint::read(fields)?,
        output: OutputOptions::plain(),
    })
}

const WANTED: &str = "a string, a list of token ids and strings, or a list of such prompts";

/// A list with a token id is one prompt, any other list has a prompt in each item.
fn read_prompts(fields: &Fields<'_>) -> Result<Vec<PromptField>, ApiError> {
    let path = fields.path("prompt");
    let prompt = fields.get("prompt").ok_or_else(|| missing(&path, WANTED))?;
    match prompt.as_array() {
        Some(list) if list.is_empty() => Err(empty(path)),
        Some(list) if !list.iter().any(Value::is_number) => {
            list.iter().enumerate().map(|(index, one)| read_one(one, format!("{path}[{index}]"))).collect()
        }
        _ => Ok(vec![read_one(prompt, path)?]),
    }
}

fn read_one(value: &Value, path: String) -> Result<PromptField, ApiError> {
    let prompt = match value {
        Value::String(text) => PlainPrompt::Text(text.clone()),
        Value::Array(list) if list.is_empty() => return Err(empty(path)),
        Value::Array(list) if list.iter().any(Value::is_string) => PlainPrompt::Mixed(read_parts(list, &path)?),
        Value::Array(list) => PlainPrompt::Tokens(token_ids(list, &path)?),
        other => return Err(wrong_type(&path, WANTED, other)),
    };
    Ok(PromptField { path, prompt })
}

fn empty(path: String) -> ApiError {
    let message = format!("`{path}` must not be an empty list");
    ApiError::invalid(path, message)
}

fn read_parts(parts: &[Value], path: &str) -> Result<Vec<PromptPart>, ApiError> {
    let token = |part: &Value| part.as_u64().and_then(|id| TokenId::try_from(id).ok());
    let read = |(index, part): (usize, &Value)| match (part.as_str(), token(part)) {
        (Some(text), _) => Ok(PromptPart::Text(text.to_owned())),
        (None, Some(token)) => Ok(PromptPart::Token(token)),
        (None, None) => {
            let path = format!("{path}[{index}]");
            let message = format!("`{path}` must be a string or a token id, not {}", clip(&part.to_string()));
            Err(ApiError::invalid(path, message))
        }
    };
    parts.iter().enumerate().map(read).collect()
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn prompts(prompt: &Value) -> Result<Vec<(String, PlainPrompt)>, ApiError> {
        let body = json!({ "prompt": prompt });
        let prompts = read_prompts(&Fields::of_body(&body).unwrap())?;
        Ok(prompts.into_iter().map(|field| (field.path, field.prompt)).collect())
    }

    #[test]
    fn a_list_is_one_prompt_when_it_has_a_token_id() {
        let text = |text: &str| PlainPrompt::Text(text.to_owned());
        let mixed = || {
            let texts = [PromptPart::Text("a".to_owned()), PromptPart::Token(7), PromptPart::Text("b".to_owned())];
            PlainPrompt::Mixed(texts.to_vec())
        };
        let at = |index: usize| format!("prompt[{index}]");
        for (prompt, expected) in [
            (json!("a"), vec![("prompt".to_owned(), text("a"))]),
            (json!([1, 2]), vec![("prompt".to_owned(), PlainPrompt::Tokens(vec![1, 2]))]),
            (json!(["a", 7, "b"]), vec![("prompt".to_owned(), mixed())]),
            (json!(["a", "b"]), vec![(at(0), text("a")), (at(1), text("b"))]),
            (json!([["a", 7, "b"], [1]]), vec![(at(0), mixed()), (at(1), PlainPrompt::Tokens(vec![1]))]),
        ] {
            assert_eq!(prompts(&prompt).unwrap(), expected, "{prompt}");
        }
    }

    #[test]
    fn an_invalid_prompt_is_named_by_its_path() {
        for (prompt, expected) in [
            (json!(null), "prompt"),
            (json!(7), "prompt"),
            (json!([]), "prompt"),
            (json!(["a", []]), "prompt[1]"),
            (json!(["a", 1, true]), "prompt[2]"),
            (json!(["a", -1]), "prompt[1]"),
            (json!([1, 1.5]), "prompt[1]"),
            (json!([["a", 1], ["b", null]]), "prompt[1][1]"),
        ] {
            match prompts(&prompt).unwrap_err() {
                ApiError::InvalidRequest { param: Some(param), .. } => assert_eq!(param, expected, "{prompt}"),
                other => panic!("{other:?}"),
            }
        }
    }
}
