//! The reader of a call, whatever its format.

use std::sync::Arc;

use super::argument_checks::ArgumentChecks;
use super::delta::ToolSpec;
use super::emit::Emitter;
use super::format::{Body, JsonKeys, ToolFormat};
use super::json_call::JsonCalls;
use super::named::NamedCall;
use super::python::PythonCalls;
use super::read::Read;

/// Reads one call, or a list of calls.
#[derive(Debug, Clone)]
pub(super) enum CallReader {
    Json(Box<JsonCalls>),
    Named(Box<NamedCall>),
    Python(PythonCalls),
}

impl CallReader {
    /// A reader after the marker before a call. `bare` if there was none, so that the text may be something else.
    pub(super) fn new(format: &ToolFormat, tools: &Arc<[ToolSpec]>, bare: bool) -> Self {
        match &format.body {
            Body::Json(keys) => CallReader::Json(Box::new(JsonCalls::new(keys, bare))),
            Body::Named(named) => {
                CallReader::Named(Box::new(NamedCall::new(named, &format.call_end, Arc::clone(tools))))
            }
            Body::Python => CallReader::Python(PythonCalls::new()),
        }
    }

    /// A reader of a call without a marker before it. Models that write calls otherwise sometimes write JSON.
    pub(super) fn beginning_with(first: char, format: &ToolFormat, tools: &Arc<[ToolSpec]>, bare: bool) -> Self {
        let is_json = match format.body {
            Body::Json(_) => false,
            Body::Named(_) => matches!(first, '{' | '['),
            Body::Python => first == '{',
        };
        match is_json {
            true => CallReader::Json(Box::new(JsonCalls::new(&JsonKeys::default(), bare))),
            false => CallReader::new(format, tools, bare),
        }
    }

    /// A reader of calls of these tools without markers, that are JSON objects. Those of strict tools must pass the checks.
    pub(super) fn unmarked(format: &ToolFormat, tools: &Arc<[ToolSpec]>, checks: ArgumentChecks) -> Self {
        let keys = if let Body::Json(keys) = &format.body { keys.clone() } else { JsonKeys::default() };
        CallReader::Json(Box::new(JsonCalls::unmarked(&keys, Arc::clone(tools), checks)))
    }

    /// A reader of the JSON arguments of a call of this tool.
    pub(super) fn of_arguments(name: &str, emitter: &mut Emitter) -> Self {
        CallReader::Named(Box::new(NamedCall::after_name(name, emitter)))
    }

    /// Reads one character.
    pub(super) fn read(&mut self, character: char, emitter: &mut Emitter) -> Read {
        match self {
            CallReader::Json(reader) => reader.read(character, emitter),
            CallReader::Named(reader) => reader.read(character, emitter),
            CallReader::Python(reader) => reader.read(character, emitter),
        }
    }

    /// No more text follows. Returns whether all that was read belongs to calls that began.
    pub(super) fn finish(&mut self, emitter: &mut Emitter) -> bool {
        match self {
            CallReader::Json(reader) => reader.finish(emitter),
            CallReader::Named(reader) => reader.finish(emitter),
            CallReader::Python(reader) => reader.finish(),
        }
    }
}
