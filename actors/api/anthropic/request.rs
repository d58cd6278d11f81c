//! Reads the body of a request. Unknown fields are ignored, because clients of this protocol send many of them.

use cuelight_engine::constraint::Grammar;
use serde_json::Value;

use super::conversation::Conversation;
use super::thinking;
use super::tools::Tools;
use crate::api::caller::Caller;
use crate::api::fields::{Fields, missing, wrong_type};
use crate::api::options::ServerOptions;
use crate::api::stop_strings;
use crate::core::request::{PartialSampling, StopConditions};
use crate::serving::chat_prompt::ChatPrompt;
use crate::serving::error::{ApiError, clip};
use crate::serving::options::{GenerationOptions, StreamOptions};
use crate::serving::request::{ConstraintField, OutputOptions, PromptInput, ServingRequest};
use crate::serving::tenancy::Tenancy;

/// Reads the body of `POST /v1/messages`.
///
/// # Errors
/// [`ApiError::InvalidRequest`] or [`ApiError::Unsupported`] that names the field by its path.
pub(super) fn read(caller: &Caller, fields: &Fields<'_>, options: &ServerOptions) -> Result<ServingRequest, ApiError> {
    let user = fields.get("metadata").and_then(|metadata| metadata.get("user_id")?.as_str());
    let tenancy = caller.tenancy_of(user, fields, options)?;
    let tools = Tools::read(fields)?;
    Ok(ServingRequest {
        model: fields.string("model")?.map(str::to_owned),
        prompt: PromptInput::Chat(Box::new(read_chat(fields, &tools)?)),
        options: read_options(fields, tenancy)?,
        constraint: constraint(fields)?,
        output: OutputOptions { reasoning_budget: thinking::budget(fields)?, ..tools.output_options() },
    })
}

/// Reads all inputs of the chat template.
///
/// # Errors
/// [`ApiError::InvalidRequest`] or [`ApiError::Unsupported`] that names the field by its path.
pub(super) fn read_chat(fields: &Fields<'_>, tools: &Tools) -> Result<ChatPrompt, ApiError> {
    let Conversation { messages, images, continues_answer } = Conversation::read(fields)?;
    let prompt = ChatPrompt {
        messages,
        media: images,
        tools: tools.for_template.clone(),
        variables: thinking::template_variables(fields)?,
        add_generation_prompt: !continues_answer,
        continue_final_message: continues_answer,
        ..ChatPrompt::default()
    };
    prompt.check_size()?;
    Ok(prompt)
}

fn read_options(fields: &Fields<'_>, tenancy: Tenancy) -> Result<GenerationOptions, ApiError> {
    let max_tokens = fields.count("max_tokens", 1)?;
    let max_tokens = max_tokens.ok_or_else(|| missing("max_tokens", "the most tokens to generate"))?;
    let stream = fields.bool("stream")?.unwrap_or(false);
    let defaults = GenerationOptions::new(tenancy);
    let stated = PartialSampling {
        temperature: fields.number("temperature", 0.0..=2.0)?,
        top_k: fields.integer("top_k", -1..=i64::from(u32::MAX))?.map(|k| usize::try_from(k).unwrap_or(0)),
        top_p: fields.share("top_p")?,
        ..PartialSampling::default()
    };
    Ok(GenerationOptions {
        max_tokens: Some(max_tokens),
        sampling: stated.over(defaults.sampling),
        stated,
        stop: StopConditions { strings: stop_strings::read(fields, "stop_sequences")?, ..defaults.stop },
        stream: stream.then(StreamOptions::default),
        ..defaults
    })
}

/// `output_config.format`, or `output_format` as older clients name it.
fn constraint(fields: &Fields<'_>) -> Result<Option<ConstraintField>, ApiError> {
    let current = fields.object("output_config")?.map(|config| config.object("format")).transpose()?.flatten();
    let Some(format) = current.or(fields.object("output_format")?) else { return Ok(None) };
    let path = format.path("type");
    match format.string("type")?.ok_or_else(|| missing(&path, "\"json_schema\""))? {
        "json_schema" => {}
        "text" => return Ok(None),
        other => {
            return Err(ApiError::invalid(&path, format!("`{path}` must be \"json_schema\", not {}", clip(other))));
        }
    }
    let path = format.path("schema");
    match format.get("schema") {
        Some(schema @ (Value::Object(_) | Value::Bool(_))) => {
            Ok(Some(ConstraintField { path, grammar: Grammar::JsonSchema(schema.clone()) }))
        }
        Some(other) => Err(wrong_type(&path, "a JSON schema", other)),
        None => Err(missing(&path, "a JSON schema")),
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::serving::request::ToolChoice;

    fn read(extra: Value) -> Result<ServingRequest, ApiError> {
        let mut body = json!({ "max_tokens": 5, "messages": [{ "role": "user", "content": "hi" }] });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        super::read(&Caller::default(), &Fields::of_body(&body).unwrap(), &ServerOptions::default())
    }

    fn param(extra: &Value) -> String {
        match read(extra.clone()).err() {
            Some(ApiError::InvalidRequest { param: Some(param), .. }) => param,
            other => panic!("{extra}: {other:?}"),
        }
    }

    #[test]
    fn options_have_the_names_of_the_protocol() {
        let request = read(json!({
            "temperature": 0.5, "top_p": 0.9, "top_k": 7, "stop_sequences": ["a", "b"], "stream": true,
            "thinking": { "type": "enabled", "budget_tokens": 2048 }, "service_tier": "auto",
            "context_management": { "edits": [] }, "a_field_of_tomorrow": 1, "metadata": { "user_id": "u" },
        }))
        .unwrap();
        let options = request.options;
        assert_eq!((options.n, options.max_tokens, options.stream.is_some()), (1, Some(5), true));
        assert_eq!((options.sampling.temperature, options.sampling.top_p, options.sampling.top_k), (0.5, 0.9, 7));
        assert_eq!(options.stop.strings.strings(), ["a", "b"]);
        assert_eq!(options.tenancy, Tenancy::default());
        assert_eq!((request.output.tool_choice, request.output.parses_reasoning), (ToolChoice::None, true));
    }

    #[test]
    fn a_schema_for_the_answer_is_a_constraint() {
        let format = json!({ "type": "json_schema", "schema": { "type": "object" } });
        for (body, path) in [
            (json!({ "output_config": { "format": format } }), "output_config.format.schema"),
            (json!({ "output_format": format }), "output_format.schema"),
        ] {
            let constraint = read(body).unwrap().constraint.unwrap();
            assert_eq!(constraint.path, path);
            assert_eq!(constraint.grammar, Grammar::JsonSchema(json!({ "type": "object" })));
        }
        assert!(read(json!({ "output_config": { "effort": "low" } })).unwrap().constraint.is_none());
    }

    #[test]
    fn each_invalid_value_is_named() {
        for (extra, path) in [
            (json!({ "max_tokens": null }), "max_tokens"),
            (json!({ "max_tokens": 0 }), "max_tokens"),
            (json!({ "temperature": "hot" }), "temperature"),
            (json!({ "top_p": -1 }), "top_p"),
            (json!({ "stop_sequences": ["a", ""] }), "stop_sequences[1]"),
            (json!({ "messages": [] }), "messages"),
            (json!({ "output_config": { "format": { "type": "xml" } } }), "output_config.format.type"),
            (json!({ "output_config": { "format": { "type": "json_schema" } } }), "output_config.format.schema"),
            (json!({ "output_config": { "effort": "extreme" } }), "output_config.effort"),
            (json!({ "thinking": { "type": "sometimes" } }), "thinking.type"),
            (json!({ "cache_salt": "" }), "cache_salt"),
        ] {
            assert_eq!(param(&extra), path, "{extra}");
        }
    }

    #[test]
    fn a_last_message_of_the_assistant_is_continued() {
        let user = json!({ "role": "user", "content": "hi" });
        let body = json!({ "messages": [user, { "role": "assistant", "content": "Well" }] });
        let PromptInput::Chat(chat) = read(body).unwrap().prompt else { panic!("a conversation") };
        assert!(chat.continue_final_message && !chat.add_generation_prompt);
        let PromptInput::Chat(chat) = read(json!({})).unwrap().prompt else { panic!("a conversation") };
        assert!(!chat.continue_final_message && chat.add_generation_prompt);
    }
}
