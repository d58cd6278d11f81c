//! JSON schemas that values are checked with.
//!
//! The engine's grammars of schemas are made for texts that a model writes under them: they want the properties in the order of the
//! schema and one spelling of each value. A value that was written without them is compared with the schema itself. Only
//! keywords that such a grammar enforces too may stand in the schema; [`text_check`](super::text_check) takes patterns and
//! formats from the engine.

use std::collections::HashSet;

use cuelight_engine::constraint::GrammarError;
use serde_json::Value;

use super::grammar_json::escaped;
use super::schema_match::{is_instance, target};
use super::text_check::TextChecks;

/// Most levels of a schema.
const MAX_DEPTH: usize = 128;

/// Keywords that are not compared, whatever their value.
const UNKNOWN: [&str; 9] =
    ["$dynamicAnchor", "$recursiveAnchor", "contains", "else", "if", "maxContains", "minContains", "not", "then"];

/// Keywords that are not compared, and have values that restrict nothing.
const UNKNOWN_IF_RESTRICTIVE: [&str; 9] = [
    "$dynamicRef",
    "$recursiveRef",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "propertyNames",
    "unevaluatedItems",
    "unevaluatedProperties",
    "uniqueItems",
];

/// A schema that can be compared with values.
#[derive(Debug)]
pub struct SchemaCheck {
    schema: Value,
    texts: TextChecks,
}

impl SchemaCheck {
    /// Reads a schema. Compiling patterns takes milliseconds, so call it on a thread that may block.
    ///
    /// # Errors
    /// [`GrammarError::Refused`] with the place of a keyword that cannot be checked.
    pub fn of(schema: &Value) -> Result<Self, GrammarError> {
        let mut reading = Reading { root: schema, texts: TextChecks::default(), seen: HashSet::new() };
        reading.read(schema, "#", 0)?;
        let texts = reading.texts;
        Ok(SchemaCheck { schema: schema.clone(), texts })
    }

    /// Whether a value is an instance of the schema.
    #[must_use]
    pub fn accepts(&self, value: &Value) -> bool {
        is_instance(value, &self.schema, &self.texts)
    }
}

/// Reads the parts of a schema that values may be compared with.
struct Reading<'a> {
    root: &'a Value,
    texts: TextChecks,
    /// Targets of references.
    seen: HashSet<String>,
}

impl Reading<'_> {
    fn read(&mut self, schema: &Value, place: &str, depth: usize) -> Result<(), GrammarError> {
        let keywords = match schema {
            Value::Bool(_) => return Ok(()),
            Value::Object(keywords) if depth < MAX_DEPTH => keywords,
            Value::Object(_) => return Err(refused(place, &format!("the schema has more than {MAX_DEPTH} levels"))),
            _ => return Err(refused(place, "a schema must be an object or a boolean")),
        };
        for (keyword, value) in keywords {
            let place = format!("{place}/{}", escaped(keyword));
            if is_unknown(keyword, value) {
                return Err(refused(&place, "this keyword is not supported"));
            }
            if !has_form(keyword, value) {
                return Err(refused(&place, "this is no value of the keyword"));
            }
            self.read_parts(keyword, value, &place, depth + 1)?;
        }
        self.texts.add(keywords).map_err(|error| refused(place, &error.to_string()))
    }

    fn read_parts(&mut self, keyword: &str, value: &Value, place: &str, depth: usize) -> Result<(), GrammarError> {
        match (keyword, value) {
            ("properties" | "patternProperties", Value::Object(map)) => {
                for (name, part) in map {
                    let place = format!("{place}/{}", escaped(name));
                    if keyword == "patternProperties" {
                        self.texts.add_pattern(name).map_err(|error| refused(&place, &error.to_string()))?;
                    }
                    self.read(part, &place, depth)?;
                }
                Ok(())
            }
            ("allOf" | "anyOf" | "oneOf" | "prefixItems" | "items", Value::Array(list)) => {
                let mut parts = list.iter().enumerate();
                parts.try_for_each(|(index, part)| self.read(part, &format!("{place}/{index}"), depth))
            }
            ("items" | "additionalItems" | "additionalProperties", part) => self.read(part, place, depth),
            ("$ref", Value::String(reference)) if self.seen.insert(reference.clone()) => {
                let schema = target(self.root, reference).ok_or_else(|| refused(place, "it refers to nothing here"))?;
                self.read(schema, reference, depth)
            }
            _ => Ok(()),
        }
    }
}

fn refused(place: &str, reason: &str) -> GrammarError {
    GrammarError::Refused { pointer: Some(place.to_owned()), message: format!("{place}: {reason}") }
}

fn is_unknown(keyword: &str, value: &Value) -> bool {
    let is_restrictive = || match value {
        Value::Bool(value) => *value == (keyword == "uniqueItems"),
        Value::Object(map) => !map.is_empty(),
        _ => true,
    };
    UNKNOWN.contains(&keyword) || (UNKNOWN_IF_RESTRICTIVE.contains(&keyword) && is_restrictive())
}

/// Whether the value of a keyword has the form in which it is compared. A value of another form would restrict nothing.
fn has_form(keyword: &str, value: &Value) -> bool {
    const TYPES: [&str; 7] = ["null", "boolean", "number", "integer", "string", "array", "object"];
    let is_type = |name: &Value| name.as_str().is_some_and(|name| TYPES.contains(&name));
    match keyword {
        "allOf" | "anyOf" | "oneOf" | "prefixItems" | "enum" => value.is_array(),
        "required" => value.as_array().is_some_and(|names| names.iter().all(Value::is_string)),
        "properties" | "patternProperties" => value.is_object(),
        "minLength" | "maxLength" | "minItems" | "maxItems" | "minProperties" | "maxProperties" => value.is_u64(),
        "minimum" | "maximum" | "multipleOf" => value.is_number(),
        "exclusiveMinimum" | "exclusiveMaximum" => value.is_number() || value.is_boolean(),
        "$ref" | "pattern" | "format" => value.is_string(),
        "type" => value.as_array().map_or_else(|| is_type(value), |names| names.iter().all(is_type)),
        _ => true,
    }
}
