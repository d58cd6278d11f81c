//! The rules of a grammar under construction.

use std::fmt::Write;

use serde_json::Value;

use super::grammar_json::embedded;

/// A grammar under construction.
pub(super) struct Grammar<'a> {
    /// Spellings of special tokens with their numbers. Texts in a grammar never match special tokens.
    special: &'a [(String, u32)],
    /// Whether schemas are enforced as a whole.
    is_strict: bool,
    rules: String,
    count: usize,
}

impl<'a> Grammar<'a> {
    pub(super) fn new(special: &'a [(String, u32)], is_strict: bool) -> Self {
        Grammar { special, is_strict, rules: String::new(), count: 0 }
    }

    /// From here on, whether schemas are enforced as a whole.
    pub(super) fn set_strict(&mut self, is_strict: bool) {
        self.is_strict = is_strict;
    }

    /// The instances of a schema.
    pub(super) fn json(&self, schema: &Value) -> String {
        embedded(schema, self.is_strict)
    }

    /// All rules that were added, one a line.
    pub(super) fn rules(&self) -> &str {
        &self.rules
    }

    /// A text as it must stand in a rule: special tokens by number, all else in quotation marks.
    pub(super) fn literal(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((at, (spelling, number))) = self.next_special(rest) {
            parts.extend((at > 0).then(|| Value::from(&rest[..at]).to_string()));
            parts.push(format!("<[{number}]>"));
            rest = &rest[at + spelling.len()..];
        }
        parts.extend((!rest.is_empty()).then(|| Value::from(rest).to_string()));
        parts.join(" ")
    }

    /// The first special token in a text, the longest of those that begin there.
    pub(super) fn next_special(&self, text: &str) -> Option<(usize, &(String, u32))> {
        let found = self.special.iter().filter(|(spelling, _)| !spelling.is_empty());
        let found = found.filter_map(|token| text.find(&token.0).map(|at| (at, token)));
        found.min_by_key(|(at, token)| (*at, std::cmp::Reverse(token.0.len())))
    }

    /// Adds a rule, and returns its name. `options` stand behind the name.
    pub(super) fn rule(&mut self, options: &str, body: &str) -> String {
        self.count += 1;
        // Writing to a string cannot fail.
        let _ = writeln!(self.rules, "r{}{options}: {body}", self.count);
        format!("r{}", self.count)
    }
}
