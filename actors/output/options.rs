//! What a parser must know of the request.

use std::sync::Arc;

use super::argument_checks::ArgumentChecks;
use super::delta::ToolSpec;
use super::format::Format;

/// What a parser must know of the request.
#[derive(Debug, Clone)]
pub struct ParserOptions {
    /// Reasoning becomes its own deltas. Else it stays in the text.
    pub parse_reasoning: bool,
    /// Calls become their own deltas. Else they stay in the text.
    pub parse_tool_calls: bool,
    /// Calls of the request's tools without the markers of the format are calls too, where models of the format write such; those
    /// of strict tools, if their arguments pass these checks. `None` for an answer of which the request says what it must match,
    /// because that knows the format's calls only.
    pub unmarked_calls: Option<ArgumentChecks>,
    /// The tools of the request.
    pub tools: Arc<[ToolSpec]>,
    /// The end of the rendered prompt, which decides whether the model starts inside reasoning.
    pub prompt_tail: String,
}

impl ParserOptions {
    /// Whether calls without the markers of the format are read.
    pub(super) fn reads_unmarked(&self, format: &Format) -> bool {
        self.parse_tool_calls && self.unmarked_calls.is_some() && format.writes_unmarked()
    }

    /// Whether a call without a marker of its own has to be read as one without markers, also after calls with them: no grammar
    /// has checked it.
    pub(super) fn checks_unmarked(&self, format: &Format) -> bool {
        self.reads_unmarked(format) && self.tools.iter().any(|tool| tool.is_strict)
    }
}
