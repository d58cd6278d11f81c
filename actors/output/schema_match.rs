//! Whether a value is an instance of a JSON schema.

use std::collections::HashMap;

use serde_json::{Map, Value};

use super::number_check::{compare, has_limits, is_integer};
use super::text_check::TextChecks;

/// Schemas that are applied within each other, a few for each level of a value. What is deeper is no instance: the stack has an end.
const MAX_DEPTH: usize = 400;

type Keywords = Map<String, Value>;

/// The schema that a reference within `root` means. `None` for references to other documents and to what is not there.
pub(super) fn target<'a>(root: &'a Value, reference: &str) -> Option<&'a Value> {
    match reference.strip_prefix('#')? {
        "" | "/" => Some(root),
        pointer => root.pointer(pointer),
    }
}

/// Whether a value is an instance of a schema whose keywords are all known here. `texts` has its patterns and formats.
pub(super) fn is_instance(value: &Value, schema: &Value, texts: &TextChecks) -> bool {
    Matching { root: schema, texts, known: HashMap::new(), depth: 0 }.matches(schema, value)
}

struct Matching<'a> {
    root: &'a Value,
    texts: &'a TextChecks,
    /// What is known of targets of references and values; false of those that are being compared, so that a reference to itself
    /// ends. Without it the work could double with each level of a value.
    known: HashMap<(*const Value, *const Value), bool>,
    depth: usize,
}

impl Matching<'_> {
    fn matches(&mut self, schema: &Value, value: &Value) -> bool {
        match schema {
            Value::Bool(accepts) => *accepts,
            Value::Object(keywords) if self.depth < MAX_DEPTH => {
                self.depth += 1;
                let matches = self.has_keywords(keywords, value);
                self.depth -= 1;
                matches
            }
            _ => false,
        }
    }

    fn has_keywords(&mut self, keywords: &Keywords, value: &Value) -> bool {
        let is_of_type = match value {
            Value::Null | Value::Bool(_) => true,
            Value::Number(number) => has_limits(keywords, number),
            Value::String(text) => self.is_text(keywords, text),
            Value::Array(items) => self.is_array(keywords, items),
            Value::Object(members) => self.is_object(keywords, members),
        };
        is_of_type && has_type(keywords, value) && is_choice(keywords, value) && self.has_parts(keywords, value)
    }

    fn has_parts(&mut self, keywords: &Keywords, value: &Value) -> bool {
        let mut matching = |keyword| {
            let parts = keywords.get(keyword)?.as_array()?;
            Some((parts.iter().filter(|part| self.matches(part, value)).count(), parts.len()))
        };
        matching("allOf").is_none_or(|(matching, all)| matching == all)
            && matching("anyOf").is_none_or(|(matching, _)| matching > 0)
            && matching("oneOf").is_none_or(|(matching, _)| matching == 1)
            && keywords.get("$ref").is_none_or(|reference| self.is_target(reference, value))
    }

    fn is_target(&mut self, reference: &Value, value: &Value) -> bool {
        let Some(schema) = reference.as_str().and_then(|reference| target(self.root, reference)) else { return false };
        let key = (std::ptr::from_ref(schema), std::ptr::from_ref(value));
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        self.known.insert(key, false);
        let matches = self.matches(schema, value);
        self.known.insert(key, matches);
        matches
    }

    fn is_text(&self, keywords: &Keywords, text: &str) -> bool {
        has_size(keywords, "minLength", "maxLength", || text.chars().count()) && self.texts.accepts(keywords, text)
    }

    fn is_array(&mut self, keywords: &Keywords, items: &[Value]) -> bool {
        let (first, rest) = match keywords.get("items") {
            // As in older drafts.
            Some(first @ Value::Array(_)) => (Some(first), keywords.get("additionalItems")),
            rest => (keywords.get("prefixItems"), rest),
        };
        let first = first.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        has_size(keywords, "minItems", "maxItems", || items.len())
            && items.iter().enumerate().all(|(index, item)| match first.get(index).or(rest) {
                Some(schema) => self.matches(schema, item),
                None => true,
            })
    }

    fn is_object(&mut self, keywords: &Keywords, members: &Keywords) -> bool {
        let required = keywords.get("required").and_then(Value::as_array).into_iter().flatten();
        let mut required = required.filter_map(Value::as_str);
        has_size(keywords, "minProperties", "maxProperties", || members.len())
            && required.all(|name| members.contains_key(name))
            && members.iter().all(|(name, value)| self.is_member(keywords, name, value))
    }

    fn is_member(&mut self, keywords: &Keywords, name: &str, value: &Value) -> bool {
        let map = |keyword: &str| keywords.get(keyword).and_then(Value::as_object);
        let named = map("properties").and_then(|properties| properties.get(name));
        let patterns = map("patternProperties").into_iter().flatten();
        let patterns = patterns.filter(|(pattern, _)| self.texts.accepts_pattern(pattern, name));
        let mut schemas: Vec<&Value> = named.into_iter().chain(patterns.map(|(_, schema)| schema)).collect();
        if schemas.is_empty() {
            schemas.extend(keywords.get("additionalProperties"));
        }
        schemas.iter().all(|schema| self.matches(schema, value))
    }
}

fn has_size(keywords: &Keywords, least: &str, most: &str, size: impl Fn() -> usize) -> bool {
    let limit = |keyword: &str| keywords.get(keyword).and_then(Value::as_u64);
    limit(least).is_none_or(|least| size() as u64 >= least) && limit(most).is_none_or(|most| size() as u64 <= most)
}

fn has_type(keywords: &Keywords, value: &Value) -> bool {
    match keywords.get("type") {
        None => true,
        Some(Value::Array(names)) => names.iter().any(|name| is_type(name, value)),
        Some(name) => is_type(name, value),
    }
}

fn is_type(name: &Value, value: &Value) -> bool {
    match name.as_str() {
        Some("null") => value.is_null(),
        Some("boolean") => value.is_boolean(),
        Some("number") => value.is_number(),
        Some("integer") => value.as_number().is_some_and(is_integer),
        Some("string") => value.is_string(),
        Some("array") => value.is_array(),
        Some("object") => value.is_object(),
        _ => false,
    }
}

fn is_choice(keywords: &Keywords, value: &Value) -> bool {
    let choices = keywords.get("enum").and_then(Value::as_array);
    choices.is_none_or(|choices| choices.iter().any(|choice| is_equal(choice, value)))
        && keywords.get("const").is_none_or(|only| is_equal(only, value))
}

/// Whether two values are equal, with numbers of any spelling and members in any order.
fn is_equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => compare(one, other).is_some_and(std::cmp::Ordering::is_eq),
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| is_equal(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            let has = |(name, one): (&String, &Value)| other.get(name).is_some_and(|other| is_equal(one, other));
            one.len() == other.len() && one.iter().all(has)
        }
        _ => one == other,
    }
}
