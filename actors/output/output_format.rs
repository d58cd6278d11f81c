//! The format of a chat template's answers.

use std::sync::Arc;

use serde_json::{Map, Value};

use super::delta::ToolSpec;
use super::detect::detect;
use super::format::Format;
use super::grammar;

/// How a model writes reasoning and tool calls. It is cheap to clone.
#[derive(Debug, Clone)]
pub struct OutputFormat(Arc<Format>);

/// Renders a template with messages, tools, variables and whether the prompt of an answer is added. `None` when it refuses.
pub type Render<'a> = dyn Fn(&Value, Option<&Value>, &Map<String, Value>, bool) -> Option<String> + 'a;

impl OutputFormat {
    /// The format of a chat template, from its source and from what it renders.
    #[must_use]
    pub fn of_template(source: &str, _render: &Render<'_>) -> OutputFormat {
        OutputFormat(Arc::new(detect(source)))
    }

    /// Neither reasoning nor tools.
    #[must_use]
    pub fn plain() -> OutputFormat {
        OutputFormat(Arc::new(Format::default()))
    }

    /// Calls of tools are known.
    #[must_use]
    pub fn has_tool_calls(&self) -> bool {
        self.0.tools.is_some() || self.0.channels.is_some()
    }

    /// Reasoning is known.
    #[must_use]
    pub fn has_reasoning(&self) -> bool {
        let channels = self.0.channels.as_ref();
        self.0.reasoning.is_some() || channels.is_some_and(|channels| !channels.reasoning.is_empty())
    }

    /// The marker that ends reasoning, for constraints that start after it. `None` without reasoning, or if it is a message.
    #[must_use]
    pub fn reasoning_end(&self) -> Option<&str> {
        self.0.reasoning.as_ref().map(|reasoning| reasoning.end.as_str())
    }

    /// The marker that begins reasoning.
    #[must_use]
    pub fn reasoning_start(&self) -> Option<&str> {
        self.0.reasoning.as_ref().map(|reasoning| reasoning.start.as_str())
    }

    /// Every marker. A tokenizer must leave those of its special tokens in the text that have these spellings.
    #[must_use]
    pub fn markers(&self) -> Vec<&str> {
        self.0.markers()
    }

    /// A Lark grammar in the dialect of llguidance for one call of these tools, or several if `parallel`. `None` for a format whose
    /// calls cannot be constrained.
    #[must_use]
    pub fn call_grammar(&self, tools: &[ToolSpec], parallel: bool) -> Option<String> {
        grammar::call_grammar(&self.0, tools, parallel)
    }

    pub(super) fn inner(&self) -> Arc<Format> {
        Arc::clone(&self.0)
    }
}
