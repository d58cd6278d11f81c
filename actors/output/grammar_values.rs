//! The grammars of arguments that are no JSON.

use serde_json::Value;

use super::alternatives::{Keywords, alternatives, property};
use super::format::{Attribute, Tagged};
use super::grammar_json::part_of;
use super::grammar_rules::Grammar;
use super::grammar_text::{Place, Texts};
use super::schema::Types;

/// Keywords of an object, apart from its properties, that its grammar does not have.
const OF_OBJECTS: [&str; 15] = [
    "$dynamicRef",
    "$recursiveRef",
    "$ref",
    "allOf",
    "anyOf",
    "dependencies",
    "dependentRequired",
    "dependentSchemas",
    "if",
    "maxProperties",
    "minProperties",
    "not",
    "oneOf",
    "patternProperties",
    "propertyNames",
];

/// Values within each other that have rules of their own. What is deeper is JSON.
const MAX_DEPTH: usize = 6;

/// A parameter: its name, its schema, and whether it must be there.
struct Parameter {
    name: String,
    schema: Value,
    types: Types,
    required: bool,
}

/// Grammars of all arguments of a tool.
pub(super) trait Values {
    /// Elements in the order of the schema. `None` if a value would be elements too.
    fn tagged(&mut self, schema: &Value, format: &Tagged) -> Option<String>;
    /// An object with strings between two markers.
    fn quoted(&mut self, schema: &Value, marker: &str) -> String;
    /// `a=1, b="x"`.
    fn python_arguments(&mut self, schema: &Value) -> String;
}

impl Values for Grammar<'_> {
    fn tagged(&mut self, schema: &Value, format: &Tagged) -> Option<String> {
        let mut calls = Vec::new();
        for parameters in sets(self, schema) {
            if format.nested && parameters.iter().any(|one| one.types.object || one.types.array) {
                return None;
            }
            let elements = parameters.iter().map(|one| {
                let element = element(self, schema, one, format);
                if one.required { format!("{element} WS") } else { format!("({element} WS)?") }
            });
            calls.push(elements.collect::<Vec<_>>().join(" "));
        }
        Some(any_of(&calls))
    }

    fn quoted(&mut self, schema: &Value, marker: &str) -> String {
        let mut values = Quoted { any: any_quoted(self, marker), marker, root: schema };
        let calls: Vec<String> =
            sets(self, schema).iter().map(|parameters| values.object(self, parameters, MAX_DEPTH)).collect();
        any_of(&calls)
    }

    fn python_arguments(&mut self, schema: &Value) -> String {
        let mut calls = Vec::new();
        for parameters in sets(self, schema) {
            let values = parameters
                .iter()
                .map(|one| (one.name.clone(), self.json(&part_of(schema, &one.schema))))
                .map(|(name, value)| format!("{} {value}", self.literal(&format!("{name}="))));
            let values: Vec<String> = values.collect();
            calls.push(separated(self, &parameters, &values, "\",\" WS"));
        }
        any_of(&calls)
    }
}

/// One of some expressions, which may be empty.
fn any_of(expressions: &[String]) -> String {
    match expressions {
        [one] => one.clone(),
        all => {
            let all: Vec<String> = all.iter().map(|one| format!("\"\" {one}")).collect();
            format!("({})", all.join(" | "))
        }
    }
}

/// The parameters of each alternative of a tool's schema.
fn sets(grammar: &mut Grammar<'_>, schema: &Value) -> Vec<Vec<Parameter>> {
    let mut sets = Vec::new();
    for object in alternatives(schema, schema) {
        if let Some(keyword) = unknown(&object, &OF_OBJECTS) {
            grammar.refuse(&format!("#/{keyword}"));
        }
        sets.extend(parameters(&object, schema));
    }
    if sets.is_empty() {
        grammar.refuse_impossible("#");
        sets.push(Vec::new());
    }
    sets
}

/// The first of some keywords that a schema has.
fn unknown(schema: &Keywords, keywords: &[&'static str]) -> Option<&'static str> {
    keywords.iter().find(|keyword| schema.contains_key(**keyword)).copied()
}

/// The parameters of an object. `None` if one of them must be there and can have no value.
fn parameters(object: &Keywords, root: &Value) -> Option<Vec<Parameter>> {
    let list = |keyword: &str| object.get(keyword).and_then(Value::as_array).into_iter().flatten();
    let required: Vec<&str> = list("required").filter_map(Value::as_str).collect();
    let named =
        object.get("properties").and_then(Value::as_object).into_iter().flatten().map(|(name, _)| name.as_str());
    let mut names: Vec<&str> = named.collect();
    for name in &required {
        if !names.contains(name) {
            names.push(name);
        }
    }
    let mut parameters = Vec::new();
    for name in names {
        let (schema, required) = (property(object, name), required.contains(&name));
        match alternatives(&schema, root).is_empty() {
            false => {
                let types = Types::of(&schema, root);
                parameters.push(Parameter { name: name.to_owned(), schema, types, required });
            }
            true if required => return None,
            true => {}
        }
    }
    Some(parameters)
}

fn element(grammar: &mut Grammar<'_>, root: &Value, parameter: &Parameter, format: &Tagged) -> String {
    let is_text = parameter.types.string;
    let attribute = match format.attribute {
        Attribute::None => String::new(),
        Attribute::IsString => format!(" string=\"{is_text}\""),
        Attribute::Type => format!(" type=\"{}\"", type_name(parameter.types)),
    };
    let line = if format.lines { "\n" } else { "" };
    let head_end = format.head_end.as_deref().unwrap_or_default();
    let begin = format!("{}{}{}{attribute}{head_end}", format.begin, parameter.name, format.key_end);
    let begin = match &format.value_begin {
        Some(value) => format!("{} WS {}", grammar.literal(&begin), grammar.literal(value)),
        None => grammar.literal(&format!("{begin}{line}")),
    };
    let end = format.end.replace("{key}", &parameter.name);
    let value = match is_text {
        true => {
            let place = Place { name: &parameter.name, root, format, end: &end };
            grammar.text(&parameter.schema, &place)
        }
        false => {
            let value = grammar.json(&part_of(root, &parameter.schema));
            format!("{value} {}", grammar.literal(&format!("{line}{end}")))
        }
    };
    format!("{begin} {value}")
}

/// Optional parameters with separators between those that are there.
fn separated(grammar: &mut Grammar<'_>, parameters: &[Parameter], values: &[String], separator: &str) -> String {
    let (mut first, mut rest) = ("\"\"".to_owned(), "\"\"".to_owned());
    for (parameter, value) in parameters.iter().zip(values).rev() {
        let begun = format!("{value} {rest}");
        let (next_first, next_rest) = match parameter.required {
            true => (begun.clone(), format!("{separator} {begun}")),
            false => (format!("{begun} | {first}"), format!("({separator} {value})? {rest}")),
        };
        first = grammar.rule("", &next_first);
        rest = grammar.rule("", &next_rest);
    }
    first
}

/// Values with strings between two markers, as far as their schemas have no more than types, properties and choices. JSON, which
/// is read as well, stands for the rest.
struct Quoted<'a> {
    /// Any value.
    any: String,
    marker: &'a str,
    root: &'a Value,
}

impl Quoted<'_> {
    fn object(&mut self, grammar: &mut Grammar<'_>, parameters: &[Parameter], depth: usize) -> String {
        let values = parameters.iter().map(|one| {
            let value = self.value(grammar, &one.schema, depth - 1);
            format!("{} {value}", grammar.literal(&format!("{}:", one.name)))
        });
        let values: Vec<String> = values.collect();
        format!("\"{{\" {} \"}}\"", separated(grammar, parameters, &values, "\",\""))
    }

    fn value(&mut self, grammar: &mut Grammar<'_>, schema: &Value, depth: usize) -> String {
        let options: Vec<Option<String>> = match depth {
            0 => vec![None],
            _ => alternatives(schema, self.root).iter().map(|one| self.plain(grammar, one, depth)).collect(),
        };
        match options.into_iter().collect::<Option<Vec<String>>>() {
            Some(options) if !options.is_empty() => grammar.any_of(&options),
            _ => grammar.json(&part_of(self.root, schema)),
        }
    }

    /// `None` for keywords that only JSON can have.
    fn plain(&mut self, grammar: &mut Grammar<'_>, schema: &Keywords, depth: usize) -> Option<String> {
        let has_only = |keywords: &[&str]| schema.keys().all(|keyword| keywords.contains(&keyword.as_str()));
        let types = Types::of_keywords(schema);
        match schema.get("enum").and_then(Value::as_array) {
            Some(choices) if has_only(&["enum", "type"]) => self.choices(grammar, choices, types),
            _ if schema.is_empty() => Some(self.any.clone()),
            _ if types == Types::STRING && has_only(&["type"]) => Some(quoted_text(grammar, self.marker)),
            _ if types == Types::ARRAY && has_only(&["type", "items"]) => {
                let item = self.value(grammar, schema.get("items").unwrap_or(&Value::Bool(true)), depth - 1);
                Some(format!("\"[\" ({item} (\",\" {item})*)? \"]\""))
            }
            _ if types == Types::OBJECT && has_only(&["type", "properties", "required", "additionalProperties"]) => {
                schema.get("properties")?;
                Some(self.object(grammar, &parameters(schema, self.root)?, depth))
            }
            _ => None,
        }
    }

    fn choices(&self, grammar: &Grammar<'_>, choices: &[Value], types: Types) -> Option<String> {
        let allowed = choices.iter().filter(|choice| types.has(choice));
        let choice = |choice: &Value| match choice {
            Value::String(text) if text.contains(self.marker) => None,
            Value::String(text) => Some(grammar.literal(&format!("{0}{text}{0}", self.marker))),
            Value::Array(_) | Value::Object(_) => None,
            other => Some(grammar.literal(&other.to_string())),
        };
        let choices: Vec<String> = allowed.map(choice).collect::<Option<_>>()?;
        (!choices.is_empty()).then(|| format!("({})", choices.join(" | ")))
    }
}

fn quoted_text(grammar: &mut Grammar<'_>, marker: &str) -> String {
    format!("{} {}", grammar.literal(marker), grammar.until(marker))
}

/// Any value with strings between two markers.
fn any_quoted(grammar: &mut Grammar<'_>, marker: &str) -> String {
    let text = quoted_text(grammar, marker);
    let scalar = r#"/-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][-+]?[0-9]+)?|true|false|null/"#;
    // One level after another, so that the rules refer only to earlier ones.
    let mut value = grammar.rule("", &format!("{text} | {scalar}"));
    for _ in 0..4 {
        let list = format!("\"[\" ({value} (\",\" {value})*)? \"]\"");
        let pair = format!("/[a-zA-Z_][a-zA-Z0-9_]*/ \":\" {value}");
        value = grammar.rule("", &format!("{text} | {scalar} | {list} | \"{{\" ({pair} (\",\" {pair})*)? \"}}\""));
    }
    value
}

fn type_name(types: Types) -> &'static str {
    match types {
        Types { string: true, .. } => "string",
        Types { object: true, .. } => "object",
        Types { array: true, .. } => "array",
        Types { boolean: true, .. } => "boolean",
        Types { null: true, integer: false, number: false, .. } => "null",
        _ => "number",
    }
}
