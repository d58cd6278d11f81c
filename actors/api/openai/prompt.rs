//! Reads prompts and conversations, and converts them to tokens.

use std::sync::Arc;

use cuelight_engine::engine::TokenId;
use cuelight_engine::format::chat_template::{
    Cancellation, ChatTemplate, ChatTemplateError, RESERVED_VARIABLES, RenderedPrompt, TemplateInputs,
};
use cuelight_engine::format::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use super::messages;
use crate::api::blocking::on_blocking_thread;
use crate::api::error::{ApiError, clip};
use crate::api::fields::{Fields, missing, token_ids, wrong_type};
use crate::pipeline::runtime::ServedModel;

/// A text to tokenise, or tokens to use as they are.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::api) enum PlainPrompt {
    Text(String),
    Tokens(Vec<TokenId>),
}

/// A prompt and its path in the request.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::api) struct PromptField {
    pub path: String,
    pub prompt: PlainPrompt,
}

/// Reads a string, a list of strings, a list of token ids, or a list of lists of token ids.
pub(in crate::api) fn read_prompts(fields: &Fields<'_>) -> Result<Vec<PromptField>, ApiError> {
    let path = fields.path("prompt");
    let wanted = "a string, a list of strings, a list of token ids, or a list of lists of token ids";
    let list = match fields.get("prompt") {
        None => return Err(missing(&path, wanted)),
        Some(Value::String(text)) => return Ok(vec![PromptField { path, prompt: PlainPrompt::Text(text.clone()) }]),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(wrong_type(&path, wanted, other)),
    };
    match list.first() {
        None => Err(ApiError::invalid(&path, "`prompt` must not be an empty list")),
        Some(Value::Number(_)) => Ok(vec![PromptField { prompt: PlainPrompt::Tokens(token_ids(list, &path)?), path }]),
        Some(_) => list.iter().enumerate().map(|(index, one)| read_one(one, format!("{path}[{index}]"))).collect(),
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

impl PromptField {
    /// The tokens to compute. `add_special` adds BOS and EOS to a text as the tokenizer specifies; ids are not changed.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] when a token is not in the vocabulary or there is no token.
    pub fn tokens(&self, model: &ServedModel, add_special: bool) -> Result<Vec<TokenId>, ApiError> {
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

    /// The number of bytes to tokenise.
    pub fn bytes(&self) -> usize {
        match &self.prompt {
            PlainPrompt::Text(text) => text.len(),
            PlainPrompt::Tokens(_) => 0,
        }
    }
}

/// Checks that each token is in the vocabulary.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the index of the first that is not.
pub(in crate::api) fn check_vocabulary(tokens: &[TokenId], path: &str, model: &ServedModel) -> Result<(), ApiError> {
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

/// A conversation and the inputs of its chat template.
#[derive(Debug, Clone, PartialEq)]
pub(in crate::api) struct ChatPrompt {
    /// A list of messages, in the form chat templates expect.
    messages: Value,
    tools: Option<Value>,
    documents: Option<Value>,
    variables: Map<String, Value>,
    add_generation_prompt: bool,
    /// Leave the last message open, so that the model continues it.
    continue_final_message: bool,
    add_special_tokens: bool,
}

impl ChatPrompt {
    /// Reads `messages` and all other inputs of the template.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] or [`ApiError::Unsupported`] that names the field.
    pub fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let continue_final_message = fields.bool("continue_final_message")?.unwrap_or(false);
        let add_generation_prompt = fields.bool("add_generation_prompt")?;
        if continue_final_message && add_generation_prompt == Some(true) {
            let message = "`continue_final_message` and `add_generation_prompt` exclude each other";
            return Err(ApiError::invalid("continue_final_message", message));
        }
        let prompt = ChatPrompt {
            messages: messages::read(fields)?,
            tools: read_tools(fields)?,
            documents: fields.array("documents")?.map(|documents| json!(documents)),
            variables: template_variables(fields)?,
            add_generation_prompt: add_generation_prompt.unwrap_or(!continue_final_message),
            continue_final_message,
            add_special_tokens: fields.bool("add_special_tokens")?.unwrap_or(false),
        };
        prompt.check_size()?;
        Ok(prompt)
    }

    /// Refuses more text than any prompt may have.
    fn check_size(&self) -> Result<(), ApiError> {
        const MAX_BYTES: usize = 32 << 20;
        let bytes = self.bytes();
        if bytes <= MAX_BYTES {
            return Ok(());
        }
        let message = format!(
            "`messages`, `tools`, `documents` and `chat_template_kwargs` have {bytes} bytes of text together, and at most \
             {MAX_BYTES} are accepted"
        );
        Err(ApiError::invalid("messages", message))
    }

    /// The tokens to compute. Rendering and tokenising run on a blocking thread, and a rendering waits for a slot of its model.
    /// Dropping the future ends the rendering.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] when the model has no template, or its template refuses the conversation.
    pub async fn tokens(self, model: &Arc<ServedModel>) -> Result<Vec<TokenId>, ApiError> {
        let slot = model.rendering_slots.clone().acquire_owned().await.map_err(|_| ApiError::Internal)?;
        let cancellation = Cancellation::default();
        let _cancels = cancellation.on_drop();
        let model = model.clone();
        on_blocking_thread(move || {
            let rendered = self.render(&Rendering::of(&model, &cancellation)?);
            drop(slot);
            self.encode(&rendered?, &model)
        })
        .await
    }

    /// The number of bytes of text to render and tokenise.
    pub fn bytes(&self) -> usize {
        let values = [Some(&self.messages), self.tools.as_ref(), self.documents.as_ref()];
        let variables = self.variables.iter().map(|(key, value)| key.len() + text_bytes(value));
        values.into_iter().flatten().map(text_bytes).chain(variables).sum()
    }

    fn encode(&self, prompt: &RenderedPrompt, model: &ServedModel) -> Result<Vec<TokenId>, ApiError> {
        // The template writes special tokens, BOS among them, as text.
        let tokens = model
            .tokenizer
            .encode_guarded(&prompt.text, &prompt.guards, self.add_special_tokens)
            .map_err(|error| ApiError::invalid("messages", format!("`messages`: {error}")))?;
        if tokens.is_empty() {
            return Err(ApiError::invalid("messages", "the chat template renders these `messages` as an empty prompt"));
        }
        Ok(tokens)
    }

    fn render(&self, rendering: &Rendering<'_>) -> Result<RenderedPrompt, ApiError> {
        let mut prompt = rendering.run(&self.inputs())?;
        self.check_tools_are_rendered(rendering, &prompt)?;
        self.check_calls_are_rendered(rendering, &prompt)?;
        if self.continue_final_message {
            prompt.truncate(self.end_of_last_message(&prompt.text)?);
        }
        Ok(prompt)
    }

    fn inputs(&self) -> TemplateInputs<'_> {
        TemplateInputs {
            messages: &self.messages,
            tools: self.tools.as_ref(),
            documents: self.documents.as_ref(),
            add_generation_prompt: self.add_generation_prompt,
            variables: Some(&self.variables),
        }
    }

    /// Refuses tools that do not change the rendered prompt: the model would never see them.
    fn check_tools_are_rendered(&self, rendering: &Rendering<'_>, prompt: &RenderedPrompt) -> Result<(), ApiError> {
        let without_tools = TemplateInputs { tools: None, ..self.inputs() };
        if self.tools.is_none() || !rendering.gives(&without_tools, prompt)? {
            return Ok(());
        }
        let message = "this model's chat template ignores `tools`, so the model cannot call any; leave out `tools`, set \
                       `tool_choice` to \"none\", or use a model with a template for tools";
        Err(ApiError::Unsupported { param: "tools".to_owned(), message: message.to_owned() })
    }

    /// Refuses earlier tool calls that do not change the rendered prompt.
    fn check_calls_are_rendered(&self, rendering: &Rendering<'_>, prompt: &RenderedPrompt) -> Result<(), ApiError> {
        let Some((messages, first)) = without_tool_calls(&self.messages) else { return Ok(()) };
        if !rendering.gives(&TemplateInputs { messages: &messages, ..self.inputs() }, prompt)? {
            return Ok(());
        }
        let param = format!("messages[{first}].tool_calls");
        let message = format!("this model's chat template ignores `{param}`; write the calls into `content` instead");
        Err(ApiError::Unsupported { param, message })
    }

    /// Where the text that the template wrote after the last message begins.
    fn end_of_last_message(&self, text: &str) -> Result<usize, ApiError> {
        let content = self.messages.as_array().and_then(|messages| messages.last()?["content"].as_str()).unwrap_or("");
        // Many templates trim messages, so the trimmed text is searched for too.
        let end = text.rfind(content).map(|begin| begin + content.len()).or_else(|| {
            let trimmed = content.trim();
            text.rfind(trimmed).map(|begin| begin + trimmed.len())
        });
        end.filter(|_| !content.trim().is_empty()).ok_or_else(|| {
            let message = "the last message cannot be continued: it is empty, or the chat template changes its text";
            ApiError::invalid("continue_final_message", message)
        })
    }
}

/// A model's template, for one request.
struct Rendering<'a> {
    template: &'a ChatTemplate,
    cancellation: &'a Cancellation,
    /// The model's name, for messages.
    model: &'a str,
}

impl<'a> Rendering<'a> {
    fn of(model: &'a ServedModel, cancellation: &'a Cancellation) -> Result<Self, ApiError> {
        let template = model.chat_template.as_ref().ok_or_else(|| {
            let message = "this model has no chat template: use `/v1/completions`, or start the server with one";
            ApiError::invalid("messages", message)
        })?;
        Ok(Rendering { template, cancellation, model: &model.card.name })
    }

    fn run(&self, inputs: &TemplateInputs<'_>) -> Result<RenderedPrompt, ApiError> {
        self.template.render_prompt(inputs, self.cancellation).map_err(|error| self.refusal(&error))
    }

    /// Whether other inputs give the same prompt. Inputs that the template refuses do not.
    fn gives(&self, inputs: &TemplateInputs<'_>, prompt: &RenderedPrompt) -> Result<bool, ApiError> {
        match self.template.render_prompt(inputs, self.cancellation) {
            Ok(other) => Ok(other == *prompt),
            Err(ChatTemplateError::Refused(_) | ChatTemplateError::Render { .. }) => Ok(false),
            Err(error) => Err(self.refusal(&error)),
        }
    }

    fn refusal(&self, error: &ChatTemplateError) -> ApiError {
        let model = self.model;
        match error {
            ChatTemplateError::Worker(_) => {
                tracing::error!(model, %error, "a conversation was not rendered");
                ApiError::Internal
            }
            ChatTemplateError::Limit(limit) => {
                tracing::warn!(model, limit, "a chat template exceeded a limit");
                let message = format!("the chat template of {model} cannot render `messages`: {}", clip_long(limit));
                ApiError::invalid("messages", message)
            }
            _ => {
                let message = format!("the chat template refuses `messages`: {}", clip_long(&error.to_string()));
                ApiError::invalid("messages", message)
            }
        }
    }
}

/// The bytes of all strings in a value, and one for every other value.
fn text_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len(),
        Value::Array(items) => items.iter().map(|item| 1 + text_bytes(item)).sum(),
        Value::Object(entries) => entries.iter().map(|(key, value)| key.len() + text_bytes(value)).sum(),
        _ => 1,
    }
}

/// The messages without their tool calls, and the index of the first message that has some; `None` when no message has.
fn without_tool_calls(messages: &Value) -> Option<(Value, usize)> {
    let first = messages.as_array()?.iter().position(|message| message.get("tool_calls").is_some())?;
    let mut stripped = messages.clone();
    for message in stripped.as_array_mut()?.iter_mut().filter_map(Value::as_object_mut) {
        message.remove("tool_calls");
    }
    Some((stripped, first))
}

/// Reads the tools that the template shows to the model. The model's calls are returned as text, so a `tool_choice` that
/// requires a call is refused.
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
        Some(choice) if choice != "auto" => Err(ApiError::Unsupported {
            param: "tool_choice".to_owned(),
            message: "`tool_choice` can be \"auto\" or \"none\" only: a call cannot be forced yet".to_owned(),
        }),
        _ => Ok(tools.map(|tools| json!(tools))),
    }
}

fn template_variables(fields: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    const EFFORTS: [&str; 7] = ["none", "minimal", "low", "medium", "high", "xhigh", "max"];
    let mut variables = fields.object("chat_template_kwargs")?.map(|kwargs| kwargs.map().clone()).unwrap_or_default();
    if let Some(name) = RESERVED_VARIABLES.iter().find(|name| variables.contains_key(**name)) {
        let path = format!("chat_template_kwargs.{name}");
        let message = format!(
            "`chat_template_kwargs` cannot set `{name}`, which the template gets from the request or the model"
        );
        return Err(ApiError::invalid(path, message));
    }
    if let Some(effort) = fields.string("reasoning_effort")? {
        if !EFFORTS.contains(&effort) {
            let message = format!("`reasoning_effort` must be one of {}, not {}", EFFORTS.join(", "), clip(effort));
            return Err(ApiError::invalid("reasoning_effort", message));
        }
        variables.entry("reasoning_effort").or_insert_with(|| json!(effort));
    }
    Ok(variables)
}

/// At most 500 characters of a template's error message, which is more useful than repeated input.
fn clip_long(text: &str) -> String {
    text.chars().take(500).collect()
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

    fn chat(extra: Value) -> Result<ChatPrompt, ApiError> {
        let mut body = json!({ "messages": [{ "role": "user", "content": "hi" }] });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        ChatPrompt::read(&Fields::of_body(&body).unwrap())
    }

    #[test]
    fn tools_reach_the_template_unless_the_choice_is_none() {
        let tools = json!([{ "type": "function", "function": { "name": "f" } }]);
        assert_eq!(chat(json!({ "tools": tools })).unwrap().tools, Some(tools.clone()));
        assert_eq!(chat(json!({ "tools": tools, "tool_choice": "auto" })).unwrap().tools, Some(tools.clone()));
        assert_eq!(chat(json!({ "tools": tools, "tool_choice": "none" })).unwrap().tools, None);
        for choice in [json!("required"), json!({ "type": "function", "function": { "name": "f" } })] {
            let error = chat(json!({ "tools": tools, "tool_choice": choice })).unwrap_err();
            assert!(matches!(error, ApiError::Unsupported { param, .. } if param == "tool_choice"));
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
        assert_eq!(prompt.end_of_last_message("<user>hi</user>\n").unwrap(), "<user>hi".len());
        assert!(prompt.end_of_last_message("<user>HELLO</user>").is_err());
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
