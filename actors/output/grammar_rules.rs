//! The rules of a grammar of calls under construction.

use cuelight_engine::constraint::{GrammarError, LarkRules, lark_of_schema};
use serde_json::Value;

use super::delta::ToolSpec;

/// A grammar under construction.
pub(super) struct Grammar<'a> {
    rules: LarkRules<'a>,
    /// Whether schemas are enforced as a whole.
    is_strict: bool,
    /// The tool whose arguments the next rules are for.
    tool: String,
    /// The first part of a schema that cannot be enforced.
    refused: Option<String>,
}

impl<'a> Grammar<'a> {
    pub(super) fn new(special: &'a [(String, u32)], is_strict: bool) -> Self {
        Grammar { rules: LarkRules::new(special), is_strict, tool: String::new(), refused: None }
    }

    /// From here on, whether schemas are enforced as a whole.
    pub(super) fn set_strict(&mut self, is_strict: bool) {
        self.is_strict = is_strict;
    }

    /// The next rules are for the arguments of this tool.
    pub(super) fn enter(&mut self, tool: &ToolSpec) {
        self.is_strict = tool.is_strict;
        self.tool.clone_from(&tool.name);
    }

    /// A part of the schema of the tool cannot be enforced. That is ignored, unless the tool is strict.
    pub(super) fn refuse(&mut self, pointer: &str) {
        if self.is_strict {
            let reason = format!("{pointer}: this cannot be enforced in the notation of this model's calls");
            self.refused.get_or_insert_with(|| format!("tool `{}`, {reason}", self.tool));
        }
    }

    /// A part of the schema of the tool has no instances that this notation can express.
    pub(super) fn refuse_impossible(&mut self, pointer: &str) {
        let reason = format!("{pointer}: this accepts nothing that the notation of this model's calls can express");
        self.refused.get_or_insert_with(|| format!("tool `{}`, {reason}", self.tool));
    }

    /// The instances of a schema.
    pub(super) fn json(&self, schema: &Value) -> String {
        lark_of_schema(schema, !self.is_strict)
    }

    /// See [`LarkRules::literal`].
    pub(super) fn literal(&self, text: &str) -> String {
        self.rules.literal(text)
    }

    /// See [`LarkRules::next_special`].
    pub(super) fn next_special(&self, text: &str) -> Option<(usize, &(String, u32))> {
        self.rules.next_special(text)
    }

    /// See [`LarkRules::rule`].
    pub(super) fn rule(&mut self, options: &str, body: &str) -> String {
        self.rules.rule(options, body)
    }

    /// See [`LarkRules::until`].
    pub(super) fn until(&mut self, marker: &str) -> String {
        self.rules.until(marker)
    }

    /// See [`LarkRules::matching_until`].
    pub(super) fn matching_until(&mut self, text: &str, marker: &str, excluded: &[&str]) -> String {
        self.rules.matching_until(text, marker, excluded)
    }

    /// See [`LarkRules::finish`].
    ///
    /// # Errors
    /// [`GrammarError::Refused`] if a part of a schema cannot be enforced.
    pub(super) fn finish(&self, start: &str) -> Result<String, GrammarError> {
        match &self.refused {
            Some(message) => Err(GrammarError::Refused { pointer: None, message: message.clone() }),
            None => Ok(self.rules.finish(start)),
        }
    }
}
