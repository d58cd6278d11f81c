//! Checks of the arguments of strict tools' calls that no grammar has checked while they were written.

use std::sync::Arc;

use cuelight_engine::constraint::GrammarError;
use serde_json::{Map, Value};

use super::delta::ToolSpec;
use super::schema_check::SchemaCheck;

/// The schemas of strict tools, for calls without the markers of the format. It is cheap to clone. A strict tool that is not among
/// these has no such calls.
#[derive(Debug, Clone, Default)]
pub struct ArgumentChecks(Arc<[(String, SchemaCheck)]>);

impl ArgumentChecks {
    /// The schemas of the strict ones of these tools. Compiling patterns takes milliseconds, so call it on a thread that may block.
    ///
    /// # Errors
    /// [`GrammarError::Refused`] with the tool and the place of a keyword that cannot be checked.
    pub fn of(tools: &[ToolSpec]) -> Result<Self, GrammarError> {
        let check = |tool: &ToolSpec| match SchemaCheck::of(&tool.parameters) {
            Ok(check) => Ok((tool.name.clone(), check)),
            Err(error) => {
                Err(GrammarError::Refused { pointer: None, message: format!("tool `{}`, {error}", tool.name) })
            }
        };
        tools.iter().filter(|tool| tool.is_strict).map(check).collect::<Result<_, _>>().map(ArgumentChecks)
    }

    /// Whether a text is a JSON object that matches the schema of a strict tool. Names of members must not repeat, because readers
    /// differ in which member counts.
    pub(super) fn accept(&self, tool: &str, arguments: &str) -> bool {
        let check = self.0.iter().find(|(name, _)| name == tool);
        match (check, serde_json::from_str::<Map<String, Value>>(arguments).map(Value::Object)) {
            (Some((_, check)), Ok(value)) => members(&value) == written_members(arguments) && check.accepts(&value),
            _ => false,
        }
    }
}

/// The number of members of all objects of a value.
fn members(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(members).sum(),
        Value::Object(map) => map.len() + map.values().map(members).sum::<usize>(),
        _ => 0,
    }
}

/// The number of members that stand in a JSON text: that of the colons outside of its strings.
fn written_members(json: &str) -> usize {
    let (mut count, mut in_string, mut is_escaped) = (0, false, false);
    for character in json.chars() {
        match character {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            '"' => in_string = !in_string,
            ':' if !in_string => count += 1,
            _ => {}
        }
    }
    count
}
