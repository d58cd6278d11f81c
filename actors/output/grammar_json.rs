//! JSON schemas of clients inside of a grammar.

use serde_json::{Map, Value, json};

/// A part of a schema that can stand alone: its references point to the whole, which it then contains.
pub(super) fn part_of(root: &Value, part: &Value) -> Value {
    let Value::Object(mut members) = rebased(part, "#/$defs/root") else { return part.clone() };
    if has_reference(part) {
        members.insert("$defs".to_owned(), json!({ "root": rebased(root, "#/$defs/root") }));
    }
    Value::Object(members)
}

fn has_reference(schema: &Value) -> bool {
    match schema {
        Value::Object(members) => members.contains_key("$ref") || members.values().any(has_reference),
        Value::Array(items) => items.iter().any(has_reference),
        _ => false,
    }
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
}
