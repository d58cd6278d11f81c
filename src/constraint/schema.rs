//! Prepares JSON schemas for compilation, and finds the place of an error in them.

use serde_json::{Map, Value, json};

use super::error::GrammarError;
use super::escapes::Needs;
use super::pattern;

/// The white space between two parts of a JSON text, as a regular expression: two spaces, or a line break with indentation. Without
/// a limit, models fill the answer with spaces.
const JSON_WHITESPACE: &str = r" {1,2}|\r?\n[ \t]{0,20}";

/// Most levels of a schema. The library descends into it recursively.
const MAX_DEPTH: usize = 128;

/// The options of the library, as a member of the schema.
const OPTIONS: &str = "x-guidance";

/// The keywords whose members are schemas, whose items are, and that are schemas.
const MAPS: [&str; 5] = ["properties", "patternProperties", "$defs", "definitions", "dependentSchemas"];
const LISTS: [&str; 4] = ["allOf", "anyOf", "oneOf", "prefixItems"];
const SINGLE: [&str; 9] =
    ["items", "additionalProperties", "additionalItems", "not", "if", "then", "else", "contains", "propertyNames"];

/// Keywords that only constrain a part of what they say, or that the library ignores.
const NOT_ENFORCED: [&str; 9] = [
    "dependentSchemas",
    "dependentRequired",
    "dependencies",
    "unevaluatedProperties",
    "unevaluatedItems",
    "$dynamicRef",
    "$recursiveRef",
    "propertyNames",
    "uniqueItems",
];

/// The schema with bounded white space, and without options that a client could set for the library.
///
/// # Errors
/// [`GrammarError::Refused`] for a schema that is neither an object nor a boolean, is nested too deeply, or has a keyword that
/// cannot be enforced.
pub(super) fn prepare(schema: &Value) -> Result<Value, GrammarError> {
    let mut object = match schema {
        Value::Object(object) => object.clone(),
        Value::Bool(true) => Map::new(),
        Value::Bool(false) => return Err(refused("#", "the schema `false` accepts nothing".to_owned())),
        other => return Err(refused("#", format!("a schema must be an object, not {other}"))),
    };
    check(schema, &mut "#".to_owned(), 0)?;
    if escapes(schema).is_none() {
        let message = "control characters in texts and patterns cannot be enforced next to objects with other keys than the \
                       named ones; set `additionalProperties` to false";
        return Err(refused("#", message.to_owned()));
    }
    complete(&mut object, false);
    Ok(Value::Object(object))
}

/// See [`Needs::escapes`].
fn escapes(schema: &Value) -> Option<&'static str> {
    let mut needs = Needs::default();
    visit(schema, &mut "#".to_owned(), 0, &mut |part, _| needs.add(part));
    needs.escapes()
}

/// The instances of a schema, as a part of a Lark grammar. If it is lenient, what cannot be enforced is ignored; otherwise a
/// grammar with it is refused when it is compiled.
#[must_use]
pub fn lark_of_schema(schema: &Value, is_lenient: bool) -> String {
    let mut object = match schema {
        Value::Object(object) => object.clone(),
        other => Map::from_iter([("allOf".to_owned(), json!([other]))]),
    };
    complete(&mut object, is_lenient);
    format!("%json {}", Value::Object(object))
}

/// Removes what has no effect, and sets the options of the library, which a client cannot.
fn complete(schema: &mut Map<String, Value>, is_lenient: bool) {
    simplify(schema, is_lenient);
    schema.remove(OPTIONS);
    let mut options = json!({ "whitespace_pattern": JSON_WHITESPACE, "lenient": is_lenient });
    match escapes(&Value::Object(schema.clone())) {
        Some(escapes) => options["json_allowed_escapes"] = json!(escapes),
        // The library refuses this keyword, unless it is lenient.
        None => drop(schema.insert("not".to_owned(), json!({}))),
    }
    schema.insert(OPTIONS.to_owned(), options);
}

/// Removes keywords that have no effect with their values, because the library refuses them with any value. If it is lenient,
/// removes those that it refuses even then.
fn simplify(schema: &mut Map<String, Value>, is_lenient: bool) {
    schema.retain(|keyword, value| match keyword.as_str() {
        keyword if NOT_ENFORCED.contains(&keyword) => is_restrictive(keyword, Some(value)),
        "$schema" => !is_lenient,
        "pattern" => !is_lenient || value.as_str().is_none_or(pattern::is_supported),
        _ => true,
    });
    if let Some(Value::Object(patterns)) = schema.get_mut("patternProperties") {
        patterns.retain(|key, _| !is_lenient || pattern::is_supported(key));
    }
    for part in schema.iter_mut().flat_map(|(keyword, value)| parts(keyword, value)) {
        if let Value::Object(part) = part {
            simplify(part, is_lenient);
        }
    }
}

/// The schemas that are the value of a keyword.
fn parts<'a>(keyword: &str, value: &'a mut Value) -> Vec<&'a mut Value> {
    if SINGLE.contains(&keyword) && !value.is_array() {
        return vec![value];
    }
    match value {
        Value::Object(map) if MAPS.contains(&keyword) => map.values_mut().collect(),
        Value::Array(list) if LISTS.contains(&keyword) || keyword == "items" => list.iter_mut().collect(),
        _ => Vec::new(),
    }
}

fn refused(pointer: &str, message: String) -> GrammarError {
    GrammarError::Refused { pointer: Some(pointer.to_owned()), message }
}

/// Checks the depth, and refuses keywords that the library would not enforce.
fn check(schema: &Value, pointer: &mut String, depth: usize) -> Result<(), GrammarError> {
    if depth > MAX_DEPTH {
        return Err(refused(pointer, format!("the schema has more than {MAX_DEPTH} levels")));
    }
    let Value::Object(object) = schema else { return Ok(()) };
    if let Some(keyword) = NOT_ENFORCED.iter().find(|keyword| is_restrictive(keyword, object.get(**keyword))) {
        let place = format!("{pointer}/{keyword}");
        return Err(refused(&place, format!("{place}: this keyword is not supported")));
    }
    for (part, place) in subschemas(object) {
        let length = pointer.len();
        pointer.push_str(&place);
        check(part, pointer, depth + 1)?;
        pointer.truncate(length);
    }
    Ok(())
}

fn is_restrictive(keyword: &str, value: Option<&Value>) -> bool {
    match value {
        None => false,
        Some(Value::Bool(false)) => keyword != "uniqueItems",
        Some(Value::Bool(true)) => keyword == "uniqueItems",
        Some(Value::Object(map)) => !map.is_empty(),
        Some(_) => true,
    }
}

/// The schemas directly inside a schema, with their places. Members of `const`, `enum`, `default` and `examples` are data.
fn subschemas(object: &Map<String, Value>) -> Vec<(&Value, String)> {
    let mut found = Vec::new();
    for (name, value) in object {
        match value {
            Value::Object(map) if MAPS.contains(&name.as_str()) => {
                found.extend(map.iter().map(|(key, part)| (part, format!("/{name}/{}", escape(key)))));
            }
            Value::Array(list) if LISTS.contains(&name.as_str()) || name == "items" => {
                found.extend(list.iter().enumerate().map(|(index, part)| (part, format!("/{name}/{index}"))));
            }
            value if SINGLE.contains(&name.as_str()) => found.push((value, format!("/{name}"))),
            _ => {}
        }
    }
    found
}

fn escape(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

/// The place in the schema that the library's error message is about: the first keyword that the message names, or whose
/// pattern or format it repeats.
pub(super) fn locate(schema: &Value, message: &str) -> Option<String> {
    let mut found = None;
    visit(schema, &mut "#".to_owned(), 0, &mut |object, pointer| {
        let named = object.iter().find(|(key, value)| names(message, key) || repeats(message, key, value));
        if found.is_none() {
            found = named.map(|(key, _)| format!("{pointer}/{}", escape(key)));
        }
    });
    found
}

/// Whether a message has a keyword in quotes or as a word of its own.
fn names(message: &str, keyword: &str) -> bool {
    const COMMON: [&str; 6] = ["type", "items", "properties", "required", "description", "title"];
    let quoted = ["\"", "'", "`"].iter().any(|quote| message.contains(&format!("{quote}{keyword}{quote}")));
    let is_word = || message.split(|c: char| !(c.is_alphanumeric() || c == '$')).any(|word| word == keyword);
    quoted || (!COMMON.contains(&keyword) && is_word())
}

/// Whether a message contains the value of a keyword that is checked by a parser of its own.
fn repeats(message: &str, keyword: &str, value: &Value) -> bool {
    let is_in = |text: &str| text.len() > 1 && message.contains(text);
    match (keyword, value) {
        ("pattern" | "format", Value::String(text)) => is_in(text),
        ("patternProperties", Value::Object(map)) => map.keys().any(|pattern| is_in(&format!("/{pattern}/"))),
        _ => false,
    }
}

fn visit(schema: &Value, pointer: &mut String, depth: usize, see: &mut impl FnMut(&Map<String, Value>, &str)) {
    let Value::Object(object) = schema else { return };
    if depth > MAX_DEPTH {
        return;
    }
    see(object, pointer);
    for (part, place) in subschemas(object) {
        let length = pointer.len();
        pointer.push_str(&place);
        visit(part, pointer, depth + 1, see);
        pointer.truncate(length);
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn pointer(schema: Value) -> Option<String> {
        match prepare(&schema) {
            Err(GrammarError::Refused { pointer, .. }) => pointer,
            _ => None,
        }
    }

    #[test]
    fn keywords_that_would_not_be_enforced_are_refused_with_their_place() {
        let inner = json!({ "type": "array", "uniqueItems": true });
        assert_eq!(pointer(json!({ "properties": { "a/b": inner } })).unwrap(), "#/properties/a~1b/uniqueItems");
        assert_eq!(pointer(json!({ "uniqueItems": false, "items": { "const": { "uniqueItems": true } } })), None);
        assert_eq!(pointer(json!(false)).unwrap(), "#");
        assert_eq!(pointer(json!(7)).unwrap(), "#");
    }

    #[test]
    fn options_of_the_client_are_replaced() {
        let prepared = prepare(&json!({ "x-guidance": { "lenient": true }, "type": "string" })).unwrap();
        assert_eq!(prepared[OPTIONS]["lenient"], false);
        assert_eq!(prepare(&json!(true)).unwrap().as_object().unwrap().len(), 1);
        assert_eq!(pointer(json!({ "properties": { "a": { "const": "\u{1}" } } })).unwrap(), "#");
        let text = lark_of_schema(&json!({ "x-guidance": { "coerce_one_of": true }, "type": "object" }), false);
        assert!(
            text.starts_with("%json {") && !text.contains("coerce") && text.contains(r#""lenient":false"#),
            "{text}"
        );
    }

    #[test]
    fn deep_schemas_are_refused() {
        let deep = (0..200).fold(json!({}), |schema, _| json!({ "items": schema }));
        assert!(pointer(deep).is_some());
    }

    #[test]
    fn the_place_of_an_error_is_the_keyword_that_it_names() {
        let schema = json!({ "properties": { "a": { "not": {} }, "type": { "type": "string" } } });
        assert_eq!(locate(&schema, r#"Unimplemented keys: ["not"]"#).unwrap(), "#/properties/a/not");
        assert_eq!(locate(&schema, "something else"), None);
    }
}
