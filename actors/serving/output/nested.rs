//! Objects and arrays that are elements within elements, as JSON.

use serde_json::Value;

use super::coerce::coerce;
use super::format::Tagged;
use super::json_text::quoted;
use super::schema::Types;

const MAX_DEPTH: usize = 32;

/// The value of a parameter that is written as elements. `None` if it is not.
pub(super) fn nested_value(text: &str, format: &Tagged, key: &str, schema: &Value) -> Option<String> {
    let schema = schema.get("properties").and_then(|properties| properties.get(key)).unwrap_or(&Value::Null);
    elements(text, format, schema, MAX_DEPTH)
}

fn elements(text: &str, format: &Tagged, schema: &Value, depth: usize) -> Option<String> {
    let types = Types::of(schema, schema);
    if depth == 0 || !(types.object || types.array) || !text.trim_start().starts_with(&format.begin) {
        return None;
    }
    let parts = split(text, format)?;
    let is_array = types.array && parts.iter().all(|(key, _)| *key == "item");
    if !is_array && !types.object {
        return None;
    }
    let written = parts.iter().map(|(key, value)| {
        let inner = if is_array { item_schema(schema) } else { property_schema(schema, key) };
        let value = elements(value, format, inner, depth - 1).unwrap_or_else(|| coerce(value, Types::of(inner, inner)));
        if is_array { value } else { format!("{}:{value}", quoted(key)) }
    });
    let written = written.collect::<Vec<_>>().join(",");
    Some(if is_array { format!("[{written}]") } else { format!("{{{written}}}") })
}

/// The elements that a text consists of.
fn split<'a>(text: &'a str, format: &Tagged) -> Option<Vec<(&'a str, &'a str)>> {
    let (mut parts, mut rest) = (Vec::new(), text.trim());
    while !rest.is_empty() {
        let (key, after) = rest.strip_prefix(&format.begin)?.split_once(&format.key_end)?;
        let (open, end) = (format!("{}{key}{}", format.begin, format.key_end), format.end.replace("{key}", key));
        let length = length_of_value(after, &open, &end)?;
        parts.push((key, &after[..length]));
        rest = after[length + end.len()..].trim_start();
    }
    Some(parts)
}

/// The length of a value in which elements of the same name may stand.
fn length_of_value(text: &str, open: &str, end: &str) -> Option<usize> {
    let (mut depth, mut at) = (0, 0);
    loop {
        let next_end = at + text[at..].find(end)?;
        match text[at..next_end].find(open) {
            Some(begin) => (depth, at) = (depth + 1, at + begin + open.len()),
            None if depth == 0 => return Some(next_end),
            None => (depth, at) = (depth - 1, next_end + end.len()),
        }
    }
}

fn item_schema(schema: &Value) -> &Value {
    schema.get("items").or_else(|| union_part(schema, "items")).unwrap_or(&Value::Null)
}

fn property_schema<'a>(schema: &'a Value, key: &str) -> &'a Value {
    let properties = schema.get("properties").or_else(|| union_part(schema, "properties"));
    properties.and_then(|properties| properties.get(key)).unwrap_or(&Value::Null)
}

fn union_part<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    let parts = ["anyOf", "oneOf"].iter().filter_map(|key| schema.get(key)?.as_array()).flatten();
    parts.filter_map(|part| part.get(name)).next()
}
