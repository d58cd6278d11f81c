//! Patterns and formats of texts in JSON schemas.
//!
//! The engine's constraints check them, over a vocabulary of single bytes, so that a pattern means the same here and in a grammar
//! of calls.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::LazyLock;

use cuelight_engine::constraint::{Constraint, ConstraintCompiler, Grammar, GrammarError};
use serde_json::{Map, Value, json};

use crate::core::byte_tokenizer::byte_tokenizer;

static BYTES: LazyLock<ConstraintCompiler> = LazyLock::new(|| {
    let tokenizer = byte_tokenizer(&[], &[]);
    let rows = tokenizer.vocab_size();
    ConstraintCompiler::new(tokenizer, rows)
});

/// The patterns and formats of a schema, by the schemas of texts that have nothing else.
#[derive(Debug, Default)]
pub(super) struct TextChecks(HashMap<String, Constraint>);

impl TextChecks {
    /// Adds the pattern and the format of a schema, where it has them.
    ///
    /// # Errors
    /// [`GrammarError`] if they cannot be checked.
    pub(super) fn add(&mut self, keywords: &Map<String, Value>) -> Result<(), GrammarError> {
        match schema_of_text(keywords) {
            Some(schema) => self.add_schema(schema),
            None => Ok(()),
        }
    }

    /// Adds a pattern of the names of properties.
    ///
    /// # Errors
    /// See [`Self::add`].
    pub(super) fn add_pattern(&mut self, pattern: &str) -> Result<(), GrammarError> {
        self.add_schema(schema_of_pattern(pattern))
    }

    /// Whether a text has the pattern and the format of a schema that was added.
    pub(super) fn accepts(&self, keywords: &Map<String, Value>, text: &str) -> bool {
        schema_of_text(keywords).is_none_or(|schema| self.accepts_schema(&schema, text))
    }

    /// Whether a name has a pattern that was added.
    pub(super) fn accepts_pattern(&self, pattern: &str, name: &str) -> bool {
        self.accepts_schema(&schema_of_pattern(pattern), name)
    }

    fn add_schema(&mut self, schema: Value) -> Result<(), GrammarError> {
        if let Entry::Vacant(entry) = self.0.entry(schema.to_string()) {
            entry.insert(BYTES.compile(&Grammar::JsonSchema(schema))?);
        }
        Ok(())
    }

    fn accepts_schema(&self, schema: &Value, text: &str) -> bool {
        let Some(constraint) = self.0.get(&schema.to_string()) else { return false };
        let mut state = constraint.start();
        // The library wants this character escaped, and no other that JSON need not escape.
        let json = Value::from(text).to_string().replace('\u{7f}', "\\u007f");
        json.bytes().all(|byte| state.accept(byte.into()).is_ok()) && state.is_accepting()
    }
}

/// `None` also for schemas of other types, which may have formats of their own, such as `int64`.
fn schema_of_text(keywords: &Map<String, Value>) -> Option<Value> {
    let may_be_text = match keywords.get("type") {
        None => true,
        Some(Value::Array(names)) => names.iter().any(|name| name == "string"),
        Some(name) => name == "string",
    };
    if !may_be_text {
        return None;
    }
    let mut schema = json!({ "type": "string" });
    for keyword in ["pattern", "format"] {
        if let Some(value) = keywords.get(keyword) {
            schema[keyword] = value.clone();
        }
    }
    (schema.as_object()?.len() > 1).then_some(schema)
}

fn schema_of_pattern(pattern: &str) -> Value {
    json!({ "type": "string", "pattern": pattern })
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn accepts(schema: &Value, text: &str) -> bool {
        let mut checks = TextChecks::default();
        checks.add(schema.as_object().unwrap()).unwrap();
        checks.accepts(schema.as_object().unwrap(), text)
    }

    #[test]
    fn texts_have_the_pattern_and_the_format() {
        for (schema, right, wrong) in [
            (json!({ "pattern": "^[a-z]+$" }), "abc", "abC"),
            (json!({ "pattern": "b" }), "abc", "ac"),
            (json!({ "pattern": "^a|b$" }), "xb", "xa"),
            (json!({ "pattern": "^.\\u001b.$" }), "\u{7f}\u{1b}\"", "\u{1b}"),
            (json!({ "pattern": "^[\\x00-\\x1f]+$" }), "\u{0}\u{8}\u{b}\u{c}\u{1f}\r", " "),
            (json!({ "pattern": "^\\d$" }), "7", "\u{0663}"),
            (json!({ "pattern": "^.{2}$" }), "\u{e9}\u{1f600}", "\u{e9}"),
            (json!({ "pattern": "^a/\\\\\"\n\\t$" }), "a/\\\"\n\t", "a/\\\""),
            (json!({ "format": "date" }), "2026-11-30", "2026-11-31"),
            (json!({ "format": "date", "pattern": "^2026" }), "2026-11-30", "2025-11-30"),
        ] {
            assert!(accepts(&schema, right), "{schema} {right:?}");
            assert!(!accepts(&schema, wrong), "{schema} {wrong:?}");
        }
        assert!(accepts(&json!({ "minLength": 9 }), "any"));
        assert!(accepts(&json!({ "type": "integer", "format": "int64" }), "any"), "no matter of texts");
    }

    #[test]
    fn what_cannot_be_checked_is_refused() {
        let mut checks = TextChecks::default();
        assert!(checks.add_pattern("(?=a)").is_err());
        assert!(checks.add(json!({ "format": "color" }).as_object().unwrap()).is_err());
        assert!(!checks.accepts_pattern("a", "a"), "it was not added");
    }
}
