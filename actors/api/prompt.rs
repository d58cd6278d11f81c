//! What a request gives the model to read, and how it becomes tokens.

use std::sync::Arc;

use cuelight_engine::engine::TokenId;
use cuelight_engine::format::chat_template::{ChatTemplate, TemplateInputs};
use cuelight_engine::format::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use super::error::{ApiError, clip};
use super::fields::{Fields, missing, token_ids, wrong_type};
use crate::runtime::Model;

/// A text that is tokenised as it stands, or tokens that are taken as they are.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum PlainPrompt {
    Text(String),
    Tokens(Vec<TokenId>),
}

/// A prompt and where in the request it stood.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct PlacedPrompt {
    pub path: String,
    pub prompt: PlainPrompt,
}

/// Reads a string, a list of strings, a list of token ids, or a list of lists of token ids.
pub(super) fn read_prompts(fields: &Fields<'_>) -> Result<Vec<PlacedPrompt>, ApiError> {
    let path = fields.path("prompt");
    let wanted = "a string, a list of strings, a list of token ids, or a list of lists of token ids";
    let list = match fields.get("prompt") {
        None => return Err(missing(&path, wanted)),
        Some(Value::String(text)) => return Ok(vec![PlacedPrompt { path, prompt: PlainPrompt::Text(text.clone()) }]),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(wrong_type(&path, wanted, other)),
    };
    match list.first() {
        None => Err(ApiError::invalid(&path, "`prompt` must not be an empty list")),
        Some(Value::Number(_)) => Ok(vec![PlacedPrompt { prompt: PlainPrompt::Tokens(token_ids(list, &path)?), path }]),
        Some(_) => list.iter().enumerate().map(|(index, one)| read_one(one, format!("{path}[{index}]"))).collect(),
    }
}

fn read_one(value: &Value, path: String) -> Result<PlacedPrompt, ApiError> {
    let prompt = match value {
        Value::String(text) => PlainPrompt::Text(text.clone()),
        Value::Array(ids) if ids.is_empty() => {
            return Err(ApiError::invalid(&path, format!("`{path}` must not be empty")));
        }
        Value::Array(ids) => PlainPrompt::Tokens(token_ids(ids, &path)?),
        other => return Err(wrong_type(&path, "a string or a list of token ids", other)),
    };
    Ok(PlacedPrompt { path, prompt })
}

impl PlacedPrompt {
    /// The tokens to compute. `add_special` puts BOS and EOS around a text as the model wants; ids stay as they are.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] when a token is not in the vocabulary or nothing is left to compute.
    pub fn tokens(&self, model: &Model, add_special: bool) -> Result<Vec<TokenId>, ApiError> {
        let tokens = match &self.prompt {
            PlainPrompt::Text(text) => model
                .tokenizer
                .encode(text, add_special, true)
                .map_err(|error| ApiError::invalid(&self.path, format!("`{}`: {error}", self.path)))?,
            PlainPrompt::Tokens(tokens) => tokens.clone(),
        };
        if tokens.is_empty() {
            return Err(ApiError::invalid(&self.path, format!("`{}` must have at least one token", self.path)));
        }
        check_vocabulary(&tokens, &self.path, model)?;
        Ok(tokens)
    }

    /// The prompt as text, for `echo`.
    pub fn text(&self, tokenizer: &Tokenizer, skip_special: bool) -> String {
        match &self.prompt {
            PlainPrompt::Text(text) => text.clone(),
            PlainPrompt::Tokens(tokens) => tokenizer.decode(tokens, skip_special),
        }
    }

    /// Bytes to tokenise.
    pub fn bytes(&self) -> usize {
        match &self.prompt {
            PlainPrompt::Text(text) => text.len(),
            PlainPrompt::Tokens(_) => 0,
        }
    }
}

/// Checks that each token is one the model knows.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the place of the first that is not.
pub(super) fn check_vocabulary(tokens: &[TokenId], path: &str, model: &Model) -> Result<(), ApiError> {
    let vocab_size = model.limits.vocab_size;
    match tokens.iter().position(|&token| token as usize >= vocab_size) {
        None => Ok(()),
        Some(index) => {
            let path = format!("{path}[{index}]");
            let message = format!("`{path}` is {}, but this model's vocabulary has {vocab_size} tokens", tokens[index]);
            Err(ApiError::invalid(path, message))
        }
    }
}

/// A conversation and what its template should make of it.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ChatPrompt {
    /// A list of messages, in the form chat templates expect.
    messages: Value,
    tools: Option<Value>,
    documents: Option<Value>,
    variables: Map<String, Value>,
    add_generation_prompt: bool,
    /// Leave the last message open, for the model to go on with.
    continue_final_message: bool,
    add_special_tokens: bool,
    bytes: usize,
}

impl ChatPrompt {
    /// Reads `messages` and everything else that the template sees.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] or [`ApiError::NotImplemented`] that names the field.
    pub fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let continue_final_message = fields.bool("continue_final_message")?.unwrap_or(false);
        let add_generation_prompt = fields.bool("add_generation_prompt")?;
        if continue_final_message && add_generation_prompt == Some(true) {
            let message = "`continue_final_message` and `add_generation_prompt` exclude each other";
            return Err(ApiError::invalid("continue_final_message", message));
        }
        let messages = super::messages::read(fields)?;
        let bytes = messages.to_string().len();
        Ok(ChatPrompt {
            messages,
            tools: read_tools(fields)?,
            documents: fields.array("documents")?.map(|documents| json!(documents)),
            variables: template_variables(fields)?,
            add_generation_prompt: add_generation_prompt.unwrap_or(!continue_final_message),
            continue_final_message,
            add_special_tokens: fields.bool("add_special_tokens")?.unwrap_or(false),
            bytes,
        })
    }

    /// The tokens to compute.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] when the model has no template, or its template refuses the conversation.
    pub fn tokens(&self, model: &Model) -> Result<Vec<TokenId>, ApiError> {
        let Some(template) = &model.chat_template else {
            let message = "this model has no chat template: use `/v1/completions`, or start the server with one";
            return Err(ApiError::invalid("messages", message));
        };
        let text = self.render(template)?;
        // The template writes special tokens, BOS among them, as text.
        let tokens = model
            .tokenizer
            .encode(&text, self.add_special_tokens, true)
            .map_err(|error| ApiError::invalid("messages", format!("`messages`: {error}")))?;
        if tokens.is_empty() {
            return Err(ApiError::invalid("messages", "the chat template makes nothing of these `messages`"));
        }
        Ok(tokens)
    }

    /// Bytes to render and tokenise, about.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    fn render(&self, template: &ChatTemplate) -> Result<String, ApiError> {
        let text = template
            .render(&TemplateInputs {
                messages: &self.messages,
                tools: self.tools.as_ref(),
                documents: self.documents.as_ref(),
                add_generation_prompt: self.add_generation_prompt,
                variables: Some(&self.variables),
            })
            .map_err(|error| {
                ApiError::invalid(
                    "messages",
                    format!("the chat template refuses `messages`: {}", clip_long(&error.to_string())),
                )
            })?;
        if self.continue_final_message { self.cut_after_last_message(&text) } else { Ok(text) }
    }

    /// Leaves off what the template wrote behind the last message.
    fn cut_after_last_message(&self, text: &str) -> Result<String, ApiError> {
        let content = self.messages.as_array().and_then(|messages| messages.last()?["content"].as_str()).unwrap_or("");
        // Templates often trim a message; what they trimmed is not found again.
        let end = text.rfind(content).map(|begin| begin + content.len()).or_else(|| {
            let trimmed = content.trim();
            text.rfind(trimmed).map(|begin| begin + trimmed.len())
        });
        match end {
            Some(end) if !content.trim().is_empty() => Ok(text[..end].to_owned()),
            _ => {
                let message =
                    "the last message cannot be continued: it is empty, or the chat template changes its text";
                Err(ApiError::invalid("continue_final_message", message))
            }
        }
    }
}

/// Runs `work` here when there is little of it, else away from the threads that serve connections.
///
/// # Errors
/// What `work` returns; [`ApiError::Internal`] when it panics.
pub(super) async fn off_worker<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    /// Tokenised in about a millisecond.
    const INLINE_BYTES: usize = 8 << 10;
    if bytes <= INLINE_BYTES {
        return work();
    }
    tokio::task::spawn_blocking(work).await.map_err(|panic| {
        tracing::error!(%panic, "tokenising a prompt failed");
        ApiError::Internal
    })?
}

/// As [`ChatPrompt::tokens`], away from the workers when the conversation is long.
pub(super) async fn chat_tokens(prompt: ChatPrompt, model: &Arc<Model>) -> Result<Vec<TokenId>, ApiError> {
    let model = model.clone();
    off_worker(prompt.bytes(), move || prompt.tokens(&model)).await
}

/// Tools for the template to show to the model. What the model makes of them comes back as text, so a choice that
/// promises a call is refused.
fn read_tools(fields: &Fields<'_>) -> Result<Option<Value>, ApiError> {
    let tools = fields.array("tools")?.filter(|tools| !tools.is_empty());
    for (index, tool) in tools.into_iter().flatten().enumerate() {
        let tool = Fields::of(tool, format!("tools[{index}]"))?;
        let function = tool
            .object("function")?
            .ok_or_else(|| missing(&tool.path("function"), "the function's name and parameters"))?;
        function.string("name")?.ok_or_else(|| missing(&function.path("name"), "the function's name"))?;
    }
    match fields.get("tool_choice") {
        Some(Value::String(choice)) if choice == "none" => Ok(None),
        Some(Value::String(choice)) if choice != "auto" && choice != "required" => {
            let message =
                format!("`tool_choice` must be \"none\", \"auto\", \"required\" or an object, not {}", clip(choice));
            Err(ApiError::invalid("tool_choice", message))
        }
        Some(choice) if choice != "auto" => Err(ApiError::NotImplemented {
            param: "tool_choice".to_owned(),
            message: "`tool_choice` can be \"auto\" or \"none\" only: a call cannot be forced yet".to_owned(),
        }),
        _ => Ok(tools.map(|tools| json!(tools))),
    }
}

fn template_variables(fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
    let mut variables = fields.object("chat_template_kwargs")?.map(|kwargs| kwargs.map().clone()).unwrap_or_default();
    if let Some(effort) = fields.string("reasoning_effort")? {
        if !EFFORTS.contains(&effort) {
            let message = format!("`reasoning_effort` must be one of {}, not {}", EFFORTS.join(", "), clip(effort));
            return Err(ApiError::invalid("reasoning_effort", message));
        }
        variables.entry("reasoning_effort").or_insert_with(|| json!(effort));
    }
    Ok(variables)
}

/// A template's own words are worth more room than a client's input.
fn clip_long(text: &str) -> String {
    text.chars().take(500).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn prompts(prompt: Value) -> Result<Vec<PlainPrompt>, ApiError> {
        let body = json!({ "prompt": prompt });
        Ok(read_prompts(&Fields::of_body(&body).unwrap())?.into_iter().map(|placed| placed.prompt).collect())
    }

    #[test]
    fn a_prompt_is_text_or_tokens_one_or_several() {
        assert_eq!(prompts(json!("a")).unwrap(), [PlainPrompt::Text("a".into())]);
        assert_eq!(prompts(json!(["a", "b"])).unwrap().len(), 2);
        assert_eq!(prompts(json!([1, 2])).unwrap(), [PlainPrompt::Tokens(vec![1, 2])]);
        assert_eq!(prompts(json!([[1], [2, 3]])).unwrap()[1], PlainPrompt::Tokens(vec![2, 3]));
    }

    #[test]
    fn a_prompt_that_is_none_is_named_by_its_place() {
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

    fn chat(extra: Value) -> Result<ChatPrompt, ApiError> {
        let mut body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        ChatPrompt::read(&Fields::of_body(&body).unwrap())
    }

    #[test]
    fn tools_reach_the_template_unless_the_client_wants_no_call() {
        let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
        assert_eq!(chat(json!({ "tools": tools })).unwrap().tools, Some(tools.clone()));
        assert_eq!(chat(json!({ "tools": tools, "tool_choice": "auto" })).unwrap().tools, Some(tools.clone()));
        assert_eq!(chat(json!({ "tools": tools, "tool_choice": "none" })).unwrap().tools, None);
        for choice in [json!("required"), json!({ "type": "function", "function": { "name": "f" } })] {
            let error = chat(json!({ "tools": tools, "tool_choice": choice })).unwrap_err();
            assert!(matches!(error, ApiError::NotImplemented { param, .. } if param == "tool_choice"));
        }
    }

    #[test]
    fn reasoning_effort_is_a_variable_of_the_template() {
        let prompt =
            chat(json!({ "reasoning_effort": "low", "chat_template_kwargs": { "enable_thinking": false } })).unwrap();
        assert_eq!(Value::Object(prompt.variables), json!({ "enable_thinking": false, "reasoning_effort": "low" }));
    }

    #[test]
    fn a_continued_message_ends_where_its_text_ends() {
        let prompt = chat(json!({ "continue_final_message": true })).unwrap();
        assert!(!prompt.add_generation_prompt);
        assert_eq!(prompt.cut_after_last_message("<user>hi</user>\n").unwrap(), "<user>hi");
        assert!(prompt.cut_after_last_message("<user>HELLO</user>").is_err());
    }
}
