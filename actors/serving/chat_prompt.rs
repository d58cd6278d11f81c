//! A conversation, and its prompt as the model's chat template renders it.

use std::sync::Arc;

use cuelight_engine::engine::TokenId;
use cuelight_engine::format::chat_template::{
    Cancellation, ChatTemplate, ChatTemplateError, RenderedPrompt, TemplateInputs,
};
use cuelight_engine::media::MediaKind;
use serde_json::{Map, Value, json};

use super::blocking::on_blocking_thread;
use super::error::ApiError;
use super::media::Parts;
use super::media_insertion::{self, MediaForm, MediaSpan, Placement};
use super::media_source::MediaField;
use super::prompt::PromptTokens;
use crate::pipeline::runtime::{ContentForm, ServedModel};

/// A conversation and the inputs of its chat template.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct ChatPrompt {
    /// A list of messages, in the form chat templates expect. The content of one with media is a list of parts: texts, and
    /// `{"type": "image"}` or `{"type": "audio"}` where an item is.
    pub messages: Value,
    /// The media, in the order of their parts.
    pub media: Vec<MediaField>,
    pub tools: Option<Value>,
    pub documents: Option<Value>,
    pub variables: Map<String, Value>,
    pub add_generation_prompt: bool,
    /// Leave the last message open, so that the model continues it.
    pub continue_final_message: bool,
    /// What the answer begins with, in which special tokens are read.
    pub answer_start: Option<String>,
    pub add_special_tokens: bool,
}

impl ChatPrompt {
    /// Refuses more text than any prompt may have.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`].
    pub fn check_size(&self) -> Result<(), ApiError> {
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

    /// The tokens to compute, and the end of their text. Rendering and tokenising run on a blocking thread, and a rendering
    /// waits for a slot of its model. Dropping the future ends the rendering. In the place of the conversation's media come
    /// `media`.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] when the model has no template, or its template refuses the conversation or an item in it.
    pub async fn tokens(self, model: &Arc<ServedModel>, media: Parts) -> Result<PromptTokens, ApiError> {
        self.rendered(model, media, |chat, prompt, model, media| {
            let (tokens, media) = chat.encode(&prompt, model, media)?;
            Ok(PromptTokens { tokens, media, text: tail(&prompt.text).to_owned(), files_left_out: 0 })
        })
        .await
    }

    /// The tokens of a conversation without media.
    ///
    /// # Errors
    /// As [`Self::tokens`], and [`ApiError::Unsupported`] for a media item.
    pub async fn tokens_of_text(self, model: &Arc<ServedModel>) -> Result<Vec<TokenId>, ApiError> {
        self.refuse_media()?;
        Ok(self.tokens(model, Parts::new()).await?.tokens)
    }

    /// As [`Self::tokens`], with all of their text.
    ///
    /// # Errors
    /// As [`Self::tokens`].
    pub async fn tokens_and_text(self, model: &Arc<ServedModel>) -> Result<PromptTokens, ApiError> {
        self.refuse_media()?;
        let read = |chat: &Self, prompt: RenderedPrompt, model: &ServedModel, media: &Parts| {
            let (tokens, media) = chat.encode(&prompt, model, media)?;
            Ok(PromptTokens { tokens, media, text: prompt.text, files_left_out: 0 })
        };
        self.rendered(model, Parts::new(), read).await
    }

    /// The prompt as the template renders it.
    ///
    /// # Errors
    /// As [`Self::tokens`].
    pub async fn text(self, model: &Arc<ServedModel>) -> Result<String, ApiError> {
        self.refuse_media()?;
        self.rendered(model, Parts::new(), |_, prompt, _, _| Ok(prompt.text)).await
    }

    /// Refuses media where only texts are rendered.
    fn refuse_media(&self) -> Result<(), ApiError> {
        let Some(item) = self.media.first() else { return Ok(()) };
        let param = item.kind_path.clone();
        let message = format!("`{param}`: this path renders texts only; leave {} out", item.media.several());
        Err(ApiError::Unsupported { param, message })
    }

    /// The conversation with the instructions that the model's publisher recommends; `None` if it has its own.
    fn instructed(&self, system: Option<&str>) -> Option<Self> {
        let messages = self.messages.as_array()?;
        let is_own = messages.first().is_some_and(|first| first["role"] == "system" || first["role"] == "developer");
        let system = json!({ "role": "system", "content": system.filter(|_| !is_own)? });
        Some(ChatPrompt { messages: std::iter::once(&system).chain(messages).cloned().collect(), ..self.clone() })
    }

    /// Renders on a blocking thread, and there makes of the prompt what `read` does.
    async fn rendered<T: Send + 'static>(
        self,
        model: &Arc<ServedModel>,
        media: Parts,
        read: impl FnOnce(&Self, RenderedPrompt, &ServedModel, &Parts) -> Result<T, ApiError> + Send + 'static,
    ) -> Result<T, ApiError> {
        let slot = model.rendering_slots.clone().acquire_owned().await.map_err(|_| ApiError::Internal)?;
        let cancellation = Cancellation::default();
        let _cancels = cancellation.on_drop();
        let model = model.clone();
        let handle = tokio::runtime::Handle::current();
        on_blocking_thread(move || {
            let rendering = Rendering::of(&model, &cancellation)?;
            let find = || async { rendering.content_form(&model) };
            let form = match model.media {
                Some(_) => *handle.block_on(model.content_form.get_or_try_init(find))?,
                None => ContentForm::Text,
            };
            let rendered = match media.is_empty() {
                true if form == ContentForm::Parts => {
                    self.with_messages(as_parts(&self.messages)).render_for(&rendering, &model)
                }
                true => self.render_for(&rendering, &model),
                false => self.render_with_media(&rendering, &model, &media, form),
            };
            drop(slot);
            read(&self, rendered?, &model, &media)
        })
        .await
    }

    /// Renders with the instructions that the model's publisher recommends, if the conversation has none.
    fn render_for(&self, rendering: &Rendering<'_>, model: &ServedModel) -> Result<RenderedPrompt, ApiError> {
        match self.instructed(model.card.system.as_deref()) {
            // A template may refuse instructions, which the client has not asked for.
            Some(instructed) => instructed.render(rendering).or_else(|_| self.render(rendering)),
            None => self.render(rendering),
        }
    }

    /// Renders, and puts the media into the prompt.
    fn render_with_media(
        &self,
        rendering: &Rendering<'_>,
        model: &ServedModel,
        media: &Parts,
        form: ContentForm,
    ) -> Result<RenderedPrompt, ApiError> {
        let media_form = if form == ContentForm::Text { MediaForm::mark() } else { MediaForm::Part };
        let messages = media_form.apply(&self.messages);
        let chat = self.with_messages(if form == ContentForm::Parts { as_parts(&messages) } else { messages });
        let prompt = chat.render_for(rendering, model)?;
        media_insertion::insert(&prompt, &media_form, &placements(model, media)?, media)
    }

    fn with_messages(&self, messages: Value) -> Self {
        ChatPrompt { messages, ..self.clone() }
    }

    /// The number of bytes of text to render and tokenise.
    pub fn bytes(&self) -> usize {
        let values = [Some(&self.messages), self.tools.as_ref(), self.documents.as_ref()];
        let variables = self.variables.iter().map(|(key, value)| key.len() + text_bytes(value));
        values.into_iter().flatten().map(text_bytes).chain(variables).sum()
    }

    /// The tokens of a prompt, and where its media are.
    fn encode(
        &self,
        prompt: &RenderedPrompt,
        model: &ServedModel,
        media: &Parts,
    ) -> Result<(Vec<TokenId>, Vec<MediaSpan>), ApiError> {
        // The template writes special tokens, BOS among them, as text.
        let tokens = model
            .tokenizer
            .encode_guarded(&prompt.text, &prompt.guards, self.add_special_tokens)
            .map_err(|error| ApiError::invalid("messages", format!("`messages`: {error}")))?;
        if tokens.is_empty() {
            return Err(ApiError::invalid("messages", "the chat template renders these `messages` as an empty prompt"));
        }
        let spans = media_insertion::spans(&tokens, &placements(model, media)?, media)?;
        Ok((tokens, spans))
    }

    fn render(&self, rendering: &Rendering<'_>) -> Result<RenderedPrompt, ApiError> {
        let prompt = rendering.run(&self.inputs())?;
        self.check_tools_are_rendered(rendering, &prompt)?;
        self.check_calls_are_rendered(rendering, &prompt)?;
        let mut prompt = if self.continue_final_message { self.continued(rendering)? } else { prompt };
        prompt.text.push_str(self.answer_start.as_deref().unwrap_or_default());
        Ok(prompt)
    }

    /// The prompt up to the end of the last message, where a mark stands while the template runs.
    fn continued(&self, rendering: &Rendering<'_>) -> Result<RenderedPrompt, ApiError> {
        let refused = || {
            let message = "the last message cannot be continued: it is empty, or the chat template changes its text";
            ApiError::invalid("continue_final_message", message)
        };
        let messages = marked(&self.messages).ok_or_else(refused)?;
        let mut prompt = rendering.run(&TemplateInputs { messages: &messages, ..self.inputs() })?;
        let end = end_before_mark(&prompt.text).ok_or_else(refused)?;
        prompt.truncate(end);
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
}

/// How the model takes the kinds of media that are here.
fn placements<'a>(model: &'a ServedModel, media: &Parts) -> Result<Vec<Placement<'a>>, ApiError> {
    let kinds = MediaKind::ALL.into_iter().filter(|kind| media.iter().any(|item| item.kind == *kind));
    kinds.map(|kind| placement(model, kind)).collect()
}

fn placement(model: &ServedModel, kind: MediaKind) -> Result<Placement<'_>, ApiError> {
    let spec = model.media.as_ref().and_then(|media| media.spec(kind)).ok_or(ApiError::Internal)?;
    let token = |spelling: &String| match model.tokenizer.encode(spelling, false, true).as_deref() {
        Ok([token]) => Some(*token),
        _ => None,
    };
    let found = spec.row_tokens.iter().find_map(|spelling| Some((spelling, token(spelling)?)));
    let Some((row_text, row_token)) = found else {
        tracing::error!(spellings = ?spec.row_tokens, "the vocabulary has no token for the rows of media");
        return Err(ApiError::Internal);
    };
    Ok(Placement { kind, placeholder: &spec.placeholder, row_text, row_token })
}

/// Shows where the last message ends. The space at its end is gone if the template trims messages.
const MARK: &str = "Continue-From-Here ";

/// The messages with the mark behind the text of the last. `None` if that has none.
fn marked(messages: &Value) -> Option<Value> {
    let mut messages = messages.clone();
    let content = messages.as_array_mut()?.last_mut()?.get_mut("content")?;
    let last = if content.is_array() { content.as_array_mut()?.last_mut()?.get_mut("text")? } else { content };
    match last {
        Value::String(text) if !text.trim().is_empty() => text.push_str(MARK),
        _ => return None,
    }
    Some(messages)
}

/// The messages with each text as a list of one part.
fn as_parts(messages: &Value) -> Value {
    let listed = |message: &Value| {
        let mut message = message.clone();
        if let Some(text) = message["content"].as_str() {
            message["content"] = json!([{ "type": "text", "text": text }]);
        }
        message
    };
    messages.as_array().into_iter().flatten().map(listed).collect()
}

/// Where the text before the mark ends, as the template would have left it without the mark.
fn end_before_mark(text: &str) -> Option<usize> {
    let at = text.rfind(MARK.trim_end())?;
    Some(if text[at..].starts_with(MARK) { at } else { text[..at].trim_end().len() })
}

/// The end of a rendered prompt, which shows whether reasoning has begun.
fn tail(text: &str) -> &str {
    const BYTES: usize = 1024;
    &text[text.ceil_char_boundary(text.len().saturating_sub(BYTES))..]
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

    /// How the template takes the content of a message. If it takes parts, it writes the text of one, and something else for an
    /// item of each kind of media that the model takes.
    fn content_form(&self, model: &ServedModel) -> Result<ContentForm, ApiError> {
        const TEXT: &str = "Zebra-crossing";
        let render = |content: Value| {
            let messages = json!([{ "role": "user", "content": content }]);
            let inputs = TemplateInputs {
                messages: &messages,
                tools: None,
                documents: None,
                add_generation_prompt: true,
                variables: None,
            };
            match self.template.render_prompt(&inputs, self.cancellation) {
                Ok(prompt) => Ok(Some(prompt.text)),
                Err(ChatTemplateError::Refused(_) | ChatTemplateError::Render { .. }) => Ok(None),
                Err(error) => Err(self.refusal(&error)),
            }
        };
        let text = json!({ "type": "text", "text": TEXT });
        let without = render(json!([text]))?;
        // A template of texts writes the list itself, with its brackets and names.
        let is_text = |prompt: &String| {
            prompt.matches(TEXT).count() == 1 && !prompt.contains("\"type\"") && !prompt.contains("'type'")
        };
        let mut takes_parts = without.as_ref().is_some_and(is_text);
        for kind in model.media.iter().flat_map(|media| media.kinds()) {
            let with = render(json!([{ "type": kind.part_type() }, text]))?;
            takes_parts &= with.as_ref().is_some_and(is_text) && with != without;
        }
        let takes_text = render(json!(TEXT))?.as_ref().is_some_and(is_text);
        Ok(match (takes_parts, takes_text) {
            (false, _) => ContentForm::Text,
            (true, true) => ContentForm::TextOrParts,
            (true, false) => ContentForm::Parts,
        })
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

/// At most 500 characters of a template's error message, which is more useful than repeated input.
fn clip_long(text: &str) -> String {
    text.chars().take(500).collect()
}
