//! What a parser must know of the request.

use std::sync::Arc;

use super::delta::ToolSpec;
use super::format::Format;

/// What a parser must know of the request.
#[derive(Debug, Clone)]
pub struct ParserOptions {
    /// Reasoning becomes its own deltas. Else it stays in the text.
    pub parse_reasoning: bool,
    /// Calls become their own deltas. Else they stay in the text.
    pub parse_tool_calls: bool,
    /// Calls of the request's tools without the markers of the format are calls too, where models of the format write such. Not
    /// for an answer that has to match a constraint, which knows the format's calls only.
    pub unmarked_calls: bool,
    /// The tools of the request.
    pub tools: Arc<[ToolSpec]>,
    /// The end of the rendered prompt, which decides whether the model starts inside reasoning.
    pub prompt_tail: String,
}

impl ParserOptions {
    /// Whether calls without the markers of the format are read.
    pub(super) fn reads_unmarked(&self, format: &Format) -> bool {
        let writes_unmarked = format.tools.as_ref().is_some_and(|tools| tools.unmarked);
        self.parse_tool_calls && self.unmarked_calls && writes_unmarked
    }
}
