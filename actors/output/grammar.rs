//! Grammars for calls that a request demands.

use super::delta::ToolSpec;
use super::format::Format;

/// A grammar for calls of these tools.
pub(super) fn call_grammar(_format: &Format, _tools: &[ToolSpec], _parallel: bool) -> Option<String> {
    None
}
