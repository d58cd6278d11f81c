//! Which escapes the strings and keys of a JSON text may have.
//!
//! With `\u`, a key can be spelled in a way that does not count as the property of its name: `"\u0061"` for `"a"`. Where keys other
//! than the named ones are allowed, such a key could have any value. Without `\u`, most control characters cannot be written,
//! and the library takes a fixed text that has one for the text without it.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value};

/// All that JSON has, apart from `\/`.
const ALL: &str = "nrbtf\\\"u";

/// Those without `\u`.
const SHORT: &str = "nrbtf\\\"";

/// Characters of a pattern by their numbers or names.
static NUMBERED: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|[xu]\{([0-9A-Fa-f]+)\}|[va])").expect("a valid expression")
});

/// All characters but some of ASCII: never a fixed text.
static ALL_BUT_SOME: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\[\^(?:\\x[0-7][0-9A-Fa-f]|\\u00[0-7][0-9A-Fa-f]|[\x00-\x7f&&[^\[\]\\]])*\]")
        .expect("a valid expression")
});

/// What a schema, with all schemas in it, asks of the escapes.
#[derive(Debug, Default)]
pub(super) struct Needs {
    /// An object may have keys that are not named.
    is_open: bool,
    /// A text has a control character without a short escape.
    has_control: bool,
}

impl Needs {
    /// Adds a schema, without those in it.
    pub fn add(&mut self, schema: &Map<String, Value>) {
        let is_there = |keyword: &str| match schema.get(keyword) {
            Some(Value::Object(map)) => !map.is_empty(),
            Some(Value::Array(list)) => !list.is_empty(),
            _ => false,
        };
        let has_names = ["properties", "patternProperties", "required"].into_iter().any(is_there);
        self.is_open |= has_names && schema.get("additionalProperties") != Some(&Value::Bool(false));
        let patterns = schema.get("patternProperties").and_then(Value::as_object).into_iter().flatten();
        let mut patterns = patterns.map(|(key, _)| key.as_str()).chain(schema.get("pattern").and_then(Value::as_str));
        let mut texts = ["const", "enum"].into_iter().filter_map(|keyword| schema.get(keyword));
        self.has_control |= patterns.any(names_control) || texts.any(has_control);
    }

    /// The characters after a backslash. `None` if both kinds of escapes would let wrong texts pass.
    pub fn escapes(&self) -> Option<&'static str> {
        match (self.is_open, self.has_control) {
            (false, _) => Some(ALL),
            (true, false) => Some(SHORT),
            (true, true) => None,
        }
    }
}

fn is_control(character: char) -> bool {
    character.is_ascii_control() && !matches!(character, '\n' | '\r' | '\t' | '\u{8}' | '\u{c}')
}

fn has_control(value: &Value) -> bool {
    match value {
        Value::String(text) => text.contains(is_control),
        Value::Array(items) => items.iter().any(has_control),
        Value::Object(members) => members.values().any(has_control),
        _ => false,
    }
}

fn names_control(pattern: &str) -> bool {
    let pattern = ALL_BUT_SOME.replace_all(pattern, "");
    let is_one = |found: regex::Captures<'_>| {
        let number = (1..=3).find_map(|group| u32::from_str_radix(found.get(group)?.as_str(), 16).ok());
        number.is_none_or(|number| char::from_u32(number).is_some_and(is_control))
    };
    pattern.contains(is_control) || NUMBERED.captures_iter(&pattern).any(is_one)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn escapes(schema: &Value) -> Option<&'static str> {
        let mut needs = Needs::default();
        schema.as_object().into_iter().for_each(|schema| needs.add(schema));
        needs.escapes()
    }

    #[test]
    fn short_escapes_are_for_objects_with_other_keys() {
        let named = json!({ "properties": { "a": {} } });
        let closed = json!({ "properties": { "a": {} }, "additionalProperties": false, "enum": ["a\u{1}"] });
        assert_eq!(
            (escapes(&named), escapes(&closed), escapes(&json!({ "type": "object" }))),
            (Some(SHORT), Some(ALL), Some(ALL))
        );
    }

    #[test]
    fn control_characters_are_found_in_texts_and_patterns() {
        for text in [json!("a\u{0}b"), json!(["a", { "b": "\u{7f}" }])] {
            assert_eq!(escapes(&json!({ "required": ["a"], "enum": [text] })), None, "{text}");
        }
        for (pattern, expected) in [
            (r"[\x00-\x1f]", None),
            (r"\u001b", None),
            (r"\x{7}", None),
            (r"\v", None),
            (r"[\u4e00-\u9fa5]\n\x41\t", Some(SHORT)),
            (r"^/[^\x00-\x1f\u007f]+$", Some(SHORT)),
            ("^/[^\u{0}]+$", Some(SHORT)),
            (r"[^\x00-\x1a\x1c-\u{10ffff}]", None),
        ] {
            assert_eq!(escapes(&json!({ "required": ["a"], "pattern": pattern })), expected, "{pattern}");
        }
    }
}
