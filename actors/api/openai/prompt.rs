//! Reads prompts and conversations.

use cuelight_engine::format::chat_template::RESERVED_VARIABLES;
use serde_json::{Map, Value, json};

use super::messages;
use super::tools::Tools;
use crate::api::fields::{Fields, missing, token_ids, wrong_type};
use crate::serving::chat_prompt::ChatPrompt;
use crate::serving::error::ApiError;
use crate::serving::infill::Infill;
use crate::serving::prompt::{PlainPrompt, PromptField};
use crate::serving::thinking::Thinking;

/// Reads `prompt` as [`read_texts`] does.
pub(in crate::api) fn read_prompts(fields: &Fields<'_>) -> Result<Vec<PromptField>, ApiError> {
    read_texts(fields, "prompt")
}

/// Reads a string, a list of strings, a list of token ids, or a list of lists of token ids.
pub(in crate::api) fn read_texts(fields: &Fields<'_>, name: &str) -> Result<Vec<PromptField>, ApiError> {
    let path = fields.path(name);
    let wanted = "a string, a list of strings, a list of token ids, or a list of lists of token ids";
    let list = match fields.get(name) {
        None => return Err(missing(&path, wanted)),
        Some(Value::String(text)) => return Ok(vec![PromptField { path, prompt: PlainPrompt::Text(text.clone()) }]),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(wrong_type(&path, wanted, other)),
    };
    match list.first() {
        None => Err(ApiError::invalid(&path, format!("`{path}` must not be an empty list"))),
        Some(Value::Number(_)) => Ok(vec![PromptField { prompt: PlainPrompt::Tokens(token_ids(list, &path)?), path }]),
        Some(_) => list.iter().enumerate().map(|(index, one)| read_one(one, format!("{path}[{index}]"))).collect(),
    }
}

/// As [`read_prompts`]. With `suffix`, the prompt is the text before a gap.
pub(super) fn read_completions(fields: &Fields<'_>) -> Result<Vec<PromptField>, ApiError> {
    let mut prompts = read_prompts(fields)?;
    let Some(suffix) = fields.string("suffix")?.filter(|suffix| !suffix.is_empty()) else { return Ok(prompts) };
    let path = fields.path("suffix");
    if fields.bool("echo")?.unwrap_or(false) {
        return Err(ApiError::invalid(path, "`suffix` and `echo` exclude each other"));
    }
    match (prompts.pop().map(|field| field.prompt), prompts.is_empty()) {
        (Some(PlainPrompt::Text(prefix)), true) => {
            let infill = Infill { prefix, suffix: suffix.to_owned(), ..Infill::default() };
            Ok(vec![PromptField { path, prompt: PlainPrompt::Infill(Box::new(infill)) }])
        }
        _ => Err(ApiError::invalid(path, "with `suffix`, `prompt` must be one text")),
    }
}

fn read_one(value: &Value, path: String) -> Result<PromptField, ApiError> {
    let prompt = match value {
        Value::String(text) => PlainPrompt::Text(text.clone()),
        Value::Array(ids) if ids.is_empty() => {
            return Err(ApiError::invalid(&path, format!("`{path}` must not be empty")));
        }
        Value::Array(ids) => PlainPrompt::Tokens(token_ids(ids, &path)?),
        other => return Err(wrong_type(&path, "a string or a list of token ids", other)),
    };
    Ok(PromptField { path, prompt })
}

/// Reads `messages` and all other inputs of the template.
///
/// # Errors
/// [`ApiError::InvalidRequest`] or [`ApiError::Unsupported`] that names the field.
pub(in crate::api) fn read_chat(fields: &Fields<'_>) -> Result<ChatPrompt, ApiError> {
    let continue_final_message = fields.bool("continue_final_message")?.unwrap_or(false);
    let add_generation_prompt = fields.bool("add_generation_prompt")?;
    if continue_final_message && add_generation_prompt == Some(true) {
        let message = "`continue_final_message` and `add_generation_prompt` exclude each other";
        return Err(ApiError::invalid("continue_final_message", message));
    }
    let mut media = Vec::new();
    let prompt = ChatPrompt {
        messages: messages::read(fields, &mut media)?,
        media,
        tools: Tools::read(fields)?.for_template,
        documents: fields.array("documents")?.map(|documents| json!(documents)),
        variables: template_variables(fields)?,
        add_generation_prompt: add_generation_prompt.unwrap_or(!continue_final_message),
        continue_final_message,
        add_special_tokens: fields.bool("add_special_tokens")?.unwrap_or(false),
        ..ChatPrompt::default()
    };
    prompt.check_size()?;
    Ok(prompt)
}

/// Reads `chat_template_kwargs` and `reasoning_effort`.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn template_variables(fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut variables = fields.object("chat_template_kwargs")?.map(|kwargs| kwargs.map().clone()).unwrap_or_default();
    if let Some(name) = RESERVED_VARIABLES.iter().find(|name| variables.contains_key(**name)) {
        let path = format!("chat_template_kwargs.{name}");
        let message = format!(
            "`chat_template_kwargs` cannot set `{name}`, which the template gets from the request or the model"
        );
        return Err(ApiError::invalid(path, message));
    }
    if let Some(effort) = fields.string("reasoning_effort")? {
        Thinking::read_effort(effort, "reasoning_effort")?.add_to(&mut variables);
    }
    Ok(variables)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prompts(prompt: Value) -> Result<Vec<PlainPrompt>, ApiError> {
        let body = json!({ "prompt": prompt });
        Ok(read_prompts(&Fields::of_body(&body).unwrap())?.into_iter().map(|field| field.prompt).collect())
    }

    #[test]
    fn a_prompt_is_one_or_several_texts_or_token_lists() {
        assert_eq!(prompts(json!("a")).unwrap(), [PlainPrompt::Text("a".into())]);
        assert_eq!(prompts(json!(["a", "b"])).unwrap().len(), 2);
        assert_eq!(prompts(json!([1, 2])).unwrap(), [PlainPrompt::Tokens(vec![1, 2])]);
        assert_eq!(prompts(json!([[1], [2, 3]])).unwrap()[1], PlainPrompt::Tokens(vec![2, 3]));
    }

    #[test]
    fn an_invalid_prompt_is_named_by_its_path() {
        for (prompt, param) in [
            (json!(null), "prompt"),
            (json!(7), "prompt"),
            (json!([]), "prompt"),
            (json!([1, "a"]), "prompt[1]"),
            (json!(["a", 1]), "prompt[1]"),
            (json!([[1], []]), "prompt[1]"),
            (json!([[1, -1]]), "prompt[0][1]"),
        ] {
            match prompts(prompt.clone()).unwrap_err() {
                ApiError::InvalidRequest { param: Some(found), .. } => assert_eq!(found, param, "{prompt}"),
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn a_suffix_goes_with_one_text_and_without_echo() {
        let read = |body: Value| read_completions(&Fields::of_body(&body).unwrap());
        for prompt in [json!("a"), json!(["a"])] {
            let read = read(json!({ "prompt": prompt, "suffix": "b" })).unwrap();
            let gap = Infill { prefix: "a".into(), suffix: "b".into(), ..Infill::default() };
            assert_eq!(read, [PromptField { path: "suffix".into(), prompt: PlainPrompt::Infill(Box::new(gap)) }]);
        }
        let without = read(json!({ "prompt": [[1], [2]], "suffix": "", "echo": true }));
        assert_eq!(without.unwrap().len(), 2);
        for (more, param) in [
            (json!({ "prompt": "a", "suffix": "b", "echo": true }), "suffix"),
            (json!({ "prompt": ["a", "b"], "suffix": "c" }), "suffix"),
            (json!({ "prompt": [1], "suffix": "c" }), "suffix"),
            (json!({ "prompt": "a", "suffix": 7 }), "suffix"),
        ] {
            match read(more).unwrap_err() {
                ApiError::InvalidRequest { param: Some(found), .. } => assert_eq!(found, param),
                other => panic!("{other:?}"),
            }
        }
    }

    fn chat(extra: Value) -> Result<ChatPrompt, ApiError> {
        let mut body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        read_chat(&Fields::of_body(&body).unwrap())
    }

    #[test]
    fn tools_reach_the_template_unless_the_choice_is_none() {
        let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
        assert_eq!(chat(json!({ "tools": tools })).unwrap().tools, Some(tools.clone()));
        assert_eq!(chat(json!({ "tools": tools, "tool_choice": "required" })).unwrap().tools, Some(tools.clone()));
        assert_eq!(chat(json!({ "tools": tools, "tool_choice": "none" })).unwrap().tools, None);
    }

    #[test]
    fn reasoning_effort_is_a_variable_of_the_template() {
        let prompt =
            chat(json!({ "reasoning_effort": "low", "chat_template_kwargs": { "enable_thinking": false } })).unwrap();
        assert_eq!(Value::Object(prompt.variables), json!({ "enable_thinking": false, "reasoning_effort": "low" }));
    }

    #[test]
    fn no_effort_turns_reasoning_off() {
        let prompt = chat(json!({ "reasoning_effort": "none" })).unwrap();
        let off = json!({ "reasoning_effort": "none", "enable_thinking": false, "thinking": false });
        assert_eq!(Value::Object(prompt.variables), off);
    }

    #[test]
    fn a_continued_message_gets_no_generation_prompt() {
        assert!(!chat(json!({ "continue_final_message": true })).unwrap().add_generation_prompt);
    }

    #[test]
    fn template_variables_cannot_replace_checked_inputs() {
        for name in ["messages", "tools", "documents", "add_generation_prompt", "bos_token", "raise_exception"] {
            match chat(json!({ "chat_template_kwargs": { name: [] } })).unwrap_err() {
                ApiError::InvalidRequest { param: Some(param), message } => {
                    assert_eq!(param, format!("chat_template_kwargs.{name}"));
                    assert!(message.contains(name), "{message}");
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn all_text_for_the_template_counts() {
        let plain = chat(json!({})).unwrap().bytes();
        let long = "x".repeat(1000);
        for extra in [
            json!({ "chat_template_kwargs": { "a": { "b": [long] } } }),
            json!({ "chat_template_kwargs": { long.as_str(): 1 } }),
            json!({ "documents": [{ "text": long }] }),
            json!({ "tools": [{ "type": "function", "function": { "name": long } }] }),
        ] {
            assert!(chat(extra).unwrap().bytes() >= plain + 1000);
        }
    }
}
