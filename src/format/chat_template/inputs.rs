//! What a template is made from and what it renders.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Names that [`TemplateInputs::variables`] cannot set, because the template gets them from the other inputs or from the model.
pub const RESERVED_VARIABLES: &[&str] = &[
    "messages",
    "tools",
    "documents",
    "add_generation_prompt",
    "bos_token",
    "eos_token",
    "functions",
    "datetime",
    "raise_exception",
    "strftime_now",
];

/// A chat template as the model's file has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Definition {
    /// The template.
    pub source: String,
    /// The separate template that some models have for conversations with tools (`tokenizer.chat_template.tool_use`).
    pub tool_use: Option<String>,
    /// The spelling of the token before a text; empty when the model has none.
    pub bos_token: String,
    /// The spelling of the token after a text; empty when the model has none.
    pub eos_token: String,
}

impl Definition {
    /// All templates.
    pub(super) fn sources(&self) -> impl Iterator<Item = &str> {
        [self.source.as_str()].into_iter().chain(self.tool_use.as_deref())
    }
}

/// The variables of a template.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct TemplateInputs<'a> {
    /// A JSON list of messages in the OpenAI API's format.
    pub messages: &'a Value,
    /// A JSON list of tools.
    pub tools: Option<&'a Value>,
    /// A JSON list of documents.
    pub documents: Option<&'a Value>,
    /// Whether the prompt ends with the start of an answer.
    pub add_generation_prompt: bool,
    /// Further variables (`chat_template_kwargs`). They do not override [`RESERVED_VARIABLES`].
    pub variables: Option<&'a Map<String, Value>>,
}

/// [`TemplateInputs`] as another process receives them.
#[derive(Debug, Deserialize)]
pub(super) struct ReceivedInputs {
    messages: Value,
    tools: Option<Value>,
    documents: Option<Value>,
    add_generation_prompt: bool,
    variables: Option<Map<String, Value>>,
}

impl ReceivedInputs {
    /// The same as a reference.
    pub(super) fn borrow(&self) -> TemplateInputs<'_> {
        TemplateInputs {
            messages: &self.messages,
            tools: self.tools.as_ref(),
            documents: self.documents.as_ref(),
            add_generation_prompt: self.add_generation_prompt,
            variables: self.variables.as_ref(),
        }
    }
}

/// A rendered conversation.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RenderedPrompt {
    /// The text of the prompt.
    pub text: String,
    /// Byte positions in the text, ascending, across which no special token may be recognised: they lie inside the spellings of
    /// special tokens in untrusted text.
    pub guards: Vec<usize>,
}

impl RenderedPrompt {
    /// Removes what follows the first `length` bytes.
    pub fn truncate(&mut self, length: usize) {
        self.text.truncate(length);
        self.guards.retain(|&guard| guard < length);
    }
}
