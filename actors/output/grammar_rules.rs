//! The rules of a grammar of calls under construction.

use cuelight_engine::constraint::LarkRules;
use serde_json::Value;

use super::grammar_json::embedded;

/// A grammar under construction.
pub(super) struct Grammar<'a> {
    rules: LarkRules<'a>,
    /// Whether schemas are enforced as a whole.
    is_strict: bool,
}

impl<'a> Grammar<'a> {
    pub(super) fn new(special: &'a [(String, u32)], is_strict: bool) -> Self {
        Grammar { rules: LarkRules::new(special), is_strict }
    }

    /// From here on, whether schemas are enforced as a whole.
    pub(super) fn set_strict(&mut self, is_strict: bool) {
        self.is_strict = is_strict;
    }

    /// The instances of a schema.
    pub(super) fn json(&self, schema: &Value) -> String {
        embedded(schema, self.is_strict)
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

    /// See [`LarkRules::finish`].
    pub(super) fn finish(&self, start: &str) -> String {
        self.rules.finish(start)
    }
}
