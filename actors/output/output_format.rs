//! The format of a chat template's answers.

use std::sync::Arc;

use cuelight_engine::constraint::GrammarError;

use super::delta::ToolSpec;
use super::detect::detect;
use super::format::{Format, ReasoningMarks};
use super::grammar;
use super::grammar_free::{FreeGrammar, free_grammar};
use super::render::Render;

/// How a model writes reasoning and tool calls. It is cheap to clone.
#[derive(Debug, Clone)]
pub struct OutputFormat(Arc<Format>);

impl OutputFormat {
    /// The format of a chat template, from its source and from what it renders.
    #[must_use]
    pub fn of_template(source: &str, render: &Render<'_>) -> OutputFormat {
        OutputFormat(Arc::new(detect(source, render)))
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

    /// Models of the format also write calls without its markers, which no grammar of calls checks.
    #[must_use]
    pub fn writes_unmarked_calls(&self) -> bool {
        self.0.writes_unmarked()
    }

    /// Reasoning is known.
    #[must_use]
    pub fn has_reasoning(&self) -> bool {
        self.reasoning().is_some()
    }

    /// The texts around reasoning.
    #[must_use]
    pub fn reasoning(&self) -> Option<ReasoningMarks> {
        self.0.reasoning_marks()
    }

    /// Every marker. A tokenizer must leave those of its special tokens in the text that have these spellings.
    #[must_use]
    pub fn markers(&self) -> Vec<&str> {
        self.0.markers()
    }

    /// A Lark grammar in the dialect of llguidance for one call of these tools, or several if `parallel`. `special` has the
    /// spellings and numbers of the tokenizer's special tokens: no text in a grammar matches them, so markers are named by
    /// their numbers. With `may_reason` a message with reasoning may come before, in formats with messages; it is false where
    /// reasoning is followed outside of the grammar. `None` without tools, and for a format whose calls cannot be constrained.
    ///
    /// # Errors
    /// [`GrammarError::Refused`] if the schema of a tool cannot be enforced in this format.
    pub fn call_grammar(
        &self,
        tools: &[ToolSpec],
        parallel: bool,
        special: &[(String, u32)],
        may_reason: bool,
    ) -> Result<Option<String>, GrammarError> {
        grammar::call_grammar(&self.0, tools, parallel, special, may_reason)
    }

    /// A Lark grammar for an answer that is a text of the grammar `@answer`, or calls of these tools. Formats with messages have
    /// headers before these. `None` if the answer is just the text. The rest is as for [`Self::call_grammar`].
    ///
    /// # Errors
    /// See [`Self::call_grammar`].
    pub fn grammar_around(
        &self,
        tools: &[ToolSpec],
        parallel: bool,
        special: &[(String, u32)],
        may_reason: bool,
    ) -> Result<Option<String>, GrammarError> {
        grammar::grammar_around(&self.0, tools, parallel, special, may_reason)
    }

    /// A grammar for free text in which what begins a call must be a call of these tools; several if `parallel`. `free` has
    /// the numbers of the special tokens that may stand in the text, ascending. `None` without tools, for formats whose calls
    /// begin like usual text, and for those whose calls cannot be constrained. The rest is as for [`Self::call_grammar`].
    ///
    /// # Errors
    /// See [`Self::call_grammar`].
    pub fn free_grammar(
        &self,
        tools: &[ToolSpec],
        parallel: bool,
        special: &[(String, u32)],
        free: &[u32],
    ) -> Result<Option<FreeGrammar>, GrammarError> {
        free_grammar(&self.0, tools, parallel, special, free)
    }

    #[cfg(test)]
    pub(super) fn of(format: Format) -> OutputFormat {
        OutputFormat(Arc::new(format))
    }

    pub(super) fn inner(&self) -> Arc<Format> {
        Arc::clone(&self.0)
    }
}
