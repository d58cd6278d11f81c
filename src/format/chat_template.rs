//! A conversation to a prompt (contract; being built).
use serde_json::Value;
/// A chat template.
pub struct ChatTemplate;
/// Why not.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct ChatTemplateError(pub String);
/// What a template sees.
#[allow(missing_docs)]
pub struct TemplateInputs<'a> {
    /// A JSON list of messages as the OpenAI API takes them.
    pub messages: &'a Value,
    pub tools: Option<&'a Value>,
    pub documents: Option<&'a Value>,
    pub add_generation_prompt: bool,
    /// More variables (`chat_template_kwargs`).
    pub variables: Option<&'a serde_json::Map<String, Value>>,
}
#[allow(missing_docs, clippy::unimplemented, unused_variables)]
impl ChatTemplate {
    pub fn new(source: &str, bos_token: &str, eos_token: &str) -> Result<Self, ChatTemplateError> {
        unimplemented!()
    }
    pub fn source(&self) -> &str {
        unimplemented!()
    }
    pub fn render(&self, inputs: &TemplateInputs<'_>) -> Result<String, ChatTemplateError> {
        unimplemented!()
    }
}
