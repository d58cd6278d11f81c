//! JSON schemas of clients inside of a grammar.

use cuelight_engine::constraint::JSON_WHITESPACE;
use serde_json::{Map, Value, json};

/// The options of the library, as a member of a schema.
const OPTIONS: &str = "x-guidance";

/// A schema as a part of a grammar, with bounded white space and without options that a client could set for the library.
/// Unless it is strict, keywords that the library does not know are ignored.
pub(super) fn embedded(schema: &Value, is_strict: bool) -> String {
    let mut schema = schema.as_object().cloned().unwrap_or_default();
    schema.insert(OPTIONS.to_owned(), json!({ "whitespace_pattern": JSON_WHITESPACE, "lenient": !is_strict }));
    format!("%json {}", Value::Object(schema))
}

/// A part of a schema, with the definitions that it may refer to.
pub(super) fn part_of(root: &Value, part: &Value) -> Value {
    let mut part = part.as_object().cloned().unwrap_or_default();
    for name in ["$defs", "definitions"] {
        if let Some(definitions) = root.get(name) {
            part.entry(name).or_insert_with(|| definitions.clone());
        }
    }
    Value::Object(part)
}

/// A schema for use inside of another one, at the JSON pointer `place`: its references point to where it is then.
pub(super) fn rebased(schema: &Value, place: &str) -> Value {
    match schema {
        Value::Object(members) => {
            let rebase = |(key, value): (&String, &Value)| (key.clone(), rebased_member(key, value, place));
            Value::Object(members.iter().map(rebase).collect::<Map<_, _>>())
        }
        Value::Array(items) => items.iter().map(|item| rebased(item, place)).collect(),
        other => other.clone(),
    }
}

fn rebased_member(key: &str, value: &Value, place: &str) -> Value {
    // The members of these are data.
    const DATA: [&str; 4] = ["const", "enum", "default", "examples"];
    match value {
        Value::String(reference) if key == "$ref" && reference.starts_with('#') => {
            json!(format!("{place}{}", &reference[1..]))
        }
        value if DATA.contains(&key) => value.clone(),
        value => rebased(value, place),
    }
}

/// A name as a part of a JSON pointer.
pub(super) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_move_with_their_schema() {
        let schema = json!({ "$defs": { "a": {} }, "items": { "$ref": "#/$defs/a" }, "const": { "$ref": "#" } });
        let expected = json!({ "$defs": { "a": {} }, "items": { "$ref": "#/x/$defs/a" }, "const": { "$ref": "#" } });
        assert_eq!(rebased(&schema, "#/x"), expected);
    }

    #[test]
    fn a_client_sets_no_options_of_the_library() {
        let text = embedded(&json!({ "x-guidance": { "coerce_one_of": true }, "type": "object" }), true);
        assert!(
            text.starts_with("%json {") && !text.contains("coerce") && text.contains(r#""lenient":false"#),
            "{text}"
        );
    }
}
