//! The alternatives that a schema stands for, without references and compositions at their top.

use serde_json::{Map, Value, json};

/// The keywords of a schema.
pub(super) type Keywords = Map<String, Value>;

/// Compositions within each other that are followed.
const MAX_DEPTH: usize = 8;

/// Schemas that are looked at for one, because compositions within each other multiply.
const MAX_SCHEMAS: usize = 256;

/// Most alternatives. What has more stays a composition.
const MAX_ALTERNATIVES: usize = 64;

/// Keywords that say nothing about values.
const ANNOTATIONS: [&str; 14] = [
    "$anchor",
    "$comment",
    "$defs",
    "$id",
    "$schema",
    "default",
    "definitions",
    "deprecated",
    "description",
    "examples",
    "id",
    "readOnly",
    "title",
    "writeOnly",
];

/// The alternatives of a schema, without annotations. A value is an instance of the schema if it is one of any of them. `$ref`,
/// `allOf`, `anyOf`, `oneOf`, `const` and lists of types are resolved; those that stay could not be, or not as a whole. None, if
/// the schema has no instances. `root` has the definitions.
pub(super) fn alternatives(schema: &Value, root: &Value) -> Vec<Keywords> {
    Resolver { root, open: Vec::new(), left: MAX_SCHEMAS }.resolved(schema)
}

/// The schema of a property by the keywords of an object.
pub(super) fn property(object: &Keywords, name: &str) -> Value {
    let own = object.get("properties").and_then(|properties| properties.get(name));
    own.or_else(|| object.get("additionalProperties")).cloned().unwrap_or(Value::Bool(true))
}

struct Resolver<'a> {
    root: &'a Value,
    /// The references that are being resolved, and an empty one for each other composition.
    open: Vec<String>,
    /// The schemas that may still be looked at.
    left: usize,
}

impl Resolver<'_> {
    fn resolved(&mut self, schema: &Value) -> Vec<Keywords> {
        let keywords = match schema {
            Value::Object(keywords) => keywords.iter().filter(|(keyword, _)| !ANNOTATIONS.contains(&keyword.as_str())),
            Value::Bool(false) => return Vec::new(),
            _ => return vec![Keywords::new()],
        };
        let mut keywords: Keywords = keywords.map(|(keyword, value)| (keyword.clone(), value.clone())).collect();
        if let Some(value) = keywords.remove("const") {
            let choice = Keywords::from_iter([("enum".to_owned(), json!([value]))]);
            match both(&keywords, &choice) {
                Some(merged) => keywords = merged,
                None => return Vec::new(),
            }
        }
        if self.left == 0 || self.open.len() == MAX_DEPTH {
            return vec![keywords];
        }
        self.left -= 1;
        let target = self.take_target(&mut keywords);
        let parts = take_parts(&mut keywords);
        let mut all = vec![keywords];
        if let Some((path, target)) = target {
            all = self.with(all, &path, &[target]);
        }
        parts.iter().fold(all, |all, part| self.with(all, "", part))
    }

    /// The target of a reference that is not being resolved already.
    fn take_target(&self, keywords: &mut Keywords) -> Option<(String, Value)> {
        let path = keywords.get("$ref")?.as_str()?.strip_prefix('#')?.to_owned();
        let target = self.root.pointer(&path).filter(|_| !self.open.contains(&format!("#{path}")))?.clone();
        keywords.remove("$ref");
        Some((format!("#{path}"), target))
    }

    /// The alternatives that also match one of `options`.
    fn with(&mut self, mut all: Vec<Keywords>, reference: &str, options: &[Value]) -> Vec<Keywords> {
        self.open.push(reference.to_owned());
        let resolved: Vec<Keywords> = options.iter().flat_map(|option| self.resolved(option)).collect();
        self.open.pop();
        if all.len() * resolved.len() > MAX_ALTERNATIVES {
            all.iter_mut().for_each(|one| leave(one, json!({ "anyOf": options })));
            return all;
        }
        all.iter().flat_map(|one| resolved.iter().filter_map(|other| both(one, other))).collect()
    }
}

/// The compositions, each as its alternatives.
fn take_parts(keywords: &mut Keywords) -> Vec<Vec<Value>> {
    let mut parts = Vec::new();
    for keyword in ["allOf", "anyOf", "oneOf"] {
        match keywords.remove(keyword) {
            Some(Value::Array(list)) if keyword == "allOf" => parts.extend(list.into_iter().map(|part| vec![part])),
            Some(Value::Array(list)) => {
                if keyword == "oneOf" && !are_disjoint(&list) {
                    keywords.insert(keyword.to_owned(), json!(list));
                }
                parts.push(list);
            }
            Some(other) => drop(keywords.insert(keyword.to_owned(), other)),
            None => {}
        }
    }
    if keywords.get("type").is_some_and(Value::is_array) {
        parts.extend(keywords.remove("type").map(|types| items(&types).map(|one| json!({ "type": one })).collect()));
    }
    parts
}

/// Whether no value is an instance of two of the schemas, as far as their types and values tell.
fn are_disjoint(schemas: &[Value]) -> bool {
    let values = |schema: &Value| schema.get("enum").cloned().or(Some(json!([schema.get("const")?])));
    let differ = |one: &Value, other: &Value| match (values(one), values(other), one.get("type"), other.get("type")) {
        (Some(one), Some(other), ..) => items(&one).all(|value| items(&other).all(|other| other != value)),
        (_, _, Some(one @ Value::String(_)), Some(other @ Value::String(_))) => common_type(one, other).is_none(),
        _ => false,
    };
    let mut rest = schemas.iter().enumerate();
    schemas.len() <= MAX_ALTERNATIVES
        && rest.all(|(index, one)| schemas[index + 1..].iter().all(|other| differ(one, other)))
}

/// What is an instance of both. `None`, if nothing can be.
fn both(one: &Keywords, other: &Keywords) -> Option<Keywords> {
    let mut merged = one.clone();
    for (keyword, value) in other {
        let Some(present) = one.get(keyword) else {
            merged.insert(keyword.clone(), value.clone());
            continue;
        };
        match keyword.as_str() {
            _ if present == value => {}
            "properties" => {}
            "required" => merge_list(&mut merged, keyword, |list| list.extend(items(value))),
            "enum" => {
                merge_list(&mut merged, keyword, |list| list.retain(|item| items(value).any(|other| other == *item)));
            }
            "type" => drop(merged.insert("type".to_owned(), common_type(present, value)?)),
            "additionalProperties" if value == &Value::Bool(false) => {
                merged.insert(keyword.clone(), value.clone());
            }
            "additionalProperties" if present == &Value::Bool(false) || value == &Value::Bool(true) => {}
            _ => leave(&mut merged, json!({ keyword: value })),
        }
    }
    let properties = merged_properties(one, other);
    if !properties.is_empty() {
        merged.insert("properties".to_owned(), Value::Object(properties));
    }
    let is_empty = merged.get("enum").and_then(Value::as_array).is_some_and(Vec::is_empty);
    (!is_empty).then_some(merged)
}

fn merge_list(keywords: &mut Keywords, keyword: &str, merge: impl FnOnce(&mut Vec<Value>)) {
    if let Some(Value::Array(list)) = keywords.get_mut(keyword) {
        merge(list);
    }
}

fn items(value: &Value) -> impl Iterator<Item = Value> {
    value.as_array().cloned().unwrap_or_default().into_iter()
}

/// All properties of two objects. One that only one of them names must match what the other says about additional ones.
fn merged_properties(one: &Keywords, other: &Keywords) -> Map<String, Value> {
    let names = |object: &Keywords| -> Vec<String> {
        object.get("properties").and_then(Value::as_object).map(|map| map.keys().cloned().collect()).unwrap_or_default()
    };
    let all = names(one).into_iter().chain(names(other));
    all.map(|name| (name.clone(), common(property(one, &name), property(other, &name)))).collect()
}

fn common(one: Value, other: Value) -> Value {
    match (one, other) {
        (Value::Bool(true), value) | (value, Value::Bool(true)) => value,
        (one, other) if one == other => one,
        (one, other) => json!({ "allOf": [one, other] }),
    }
}

/// The type of what has both types. `None` if nothing has.
fn common_type(one: &Value, other: &Value) -> Option<Value> {
    let is_number = |name: &Value| name == "integer" || name == "number";
    match is_number(one) && is_number(other) {
        _ if one == other => Some(one.clone()),
        true => Some(json!("integer")),
        false => None,
    }
}

/// Leaves a part unresolved.
fn leave(keywords: &mut Keywords, part: Value) {
    let all = keywords.entry("allOf").or_insert_with(|| json!([]));
    if let Value::Array(all) = all {
        all.push(part);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(schema: Value) -> Vec<Value> {
        alternatives(&schema, &schema).into_iter().map(Value::Object).collect()
    }

    #[test]
    fn references_and_compositions_are_resolved() {
        let schema = json!({ "$ref": "#/definitions/X", "definitions": { "X": { "type": "string", "const": "a" } } });
        assert_eq!(alternatives(&schema, &schema)[0]["enum"], json!(["a"]));
        let schema = json!({ "anyOf": [{ "enum": ["a", "b"] }, { "type": "null" }], "description": "x" });
        assert_eq!(of(schema), [json!({ "enum": ["a", "b"] }), json!({ "type": "null" })]);
        assert_eq!(
            of(json!({ "allOf": [{ "type": ["number", "null"] }, { "type": ["integer", "string"] }] })),
            [json!({ "type": "integer" })]
        );
    }

    #[test]
    fn properties_match_all_parts() {
        let schema = json!({ "allOf": [
            { "properties": { "a": { "type": "string" } }, "required": ["a"] },
            { "properties": { "a": { "minLength": 1 }, "b": {} }, "required": ["b"], "additionalProperties": false },
        ] });
        let merged = &of(schema)[0];
        assert_eq!(merged["properties"]["a"], json!({ "allOf": [{ "type": "string" }, { "minLength": 1 }] }));
        assert_eq!((&merged["required"], &merged["additionalProperties"]), (&json!(["a", "b"]), &json!(false)));
        let closed =
            json!({ "allOf": [{ "properties": { "c": {} } }, { "properties": {}, "additionalProperties": false }] });
        assert_eq!(of(closed)[0]["properties"]["c"], json!({ "allOf": [{}, false] }));
    }

    #[test]
    fn what_has_no_instances_has_no_alternatives() {
        for schema in [
            json!(false),
            json!({ "allOf": [{ "type": "string" }, { "type": "array" }] }),
            json!({ "enum": ["a"], "const": "b" }),
            json!({ "anyOf": [] }),
        ] {
            assert!(of(schema.clone()).is_empty(), "{schema}");
        }
    }

    #[test]
    fn what_cannot_be_resolved_stays() {
        assert_eq!(of(json!({ "$ref": "other.json" })), [json!({ "$ref": "other.json" })]);
        assert_eq!(
            of(json!({ "allOf": [{ "pattern": "a" }, { "pattern": "b" }] })),
            [json!({ "pattern": "a", "allOf": [{ "pattern": "b" }] })]
        );
        let many: Vec<Value> = (0..100).map(|number| json!({ "const": number })).collect();
        assert_eq!(of(json!({ "anyOf": many })), [json!({ "allOf": [{ "anyOf": many }] })]);
        let overlapping = json!([{ "pattern": "a" }, { "pattern": "b" }]);
        let both: Vec<Value> = of(json!({ "oneOf": overlapping }));
        assert!(both.len() == 2 && both.iter().all(|one| one["oneOf"] == overlapping), "{both:?}");
        assert!(
            of(json!({ "oneOf": [{ "type": "string" }, { "const": 1, "type": "integer" }] }))
                .iter()
                .all(|one| one.get("oneOf").is_none())
        );
        let endless = json!({ "$ref": "#" });
        assert_eq!(of(endless.clone()), [endless]);
    }
}
