//! The grammars of arguments that are no JSON.

use serde_json::Value;

use super::format::{Attribute, Tagged};
use super::grammar_json::part_of;
use super::grammar_rules::Grammar;
use super::schema::Types;

/// A parameter: its name, its schema with the definitions that it refers to, and whether it must be there.
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
        let mut out = Vec::new();
        for parameter in parameters(schema) {
            if format.nested && (parameter.types.object || parameter.types.array) {
                return None;
            }
            let element = element(self, schema, &parameter, format);
            out.push(if parameter.required { format!("{element} WS") } else { format!("({element} WS)?") });
        }
        Some(out.join(" "))
    }

    fn quoted(&mut self, schema: &Value, marker: &str) -> String {
        let any = any_quoted(self, marker);
        let parameters = parameters(schema);
        let values = parameters.iter().map(|parameter| {
            let value = match is_scalar(parameter.types) {
                true => self.json(&part_of(schema, &parameter.schema)),
                false if parameter.types == Types::STRING => quoted_text(self, marker),
                false => any.clone(),
            };
            format!("{} {value}", self.literal(&format!("{}:", parameter.name)))
        });
        let values: Vec<String> = values.collect();
        format!("\"{{\" {} \"}}\"", separated(self, &parameters, &values, "\",\""))
    }

    fn python_arguments(&mut self, schema: &Value) -> String {
        let parameters = parameters(schema);
        let values = parameters
            .iter()
            .map(|parameter| (parameter.name.clone(), self.json(&part_of(schema, &parameter.schema))))
            .map(|(name, value)| format!("{} {value}", self.literal(&format!("{name}="))));
        let values: Vec<String> = values.collect();
        separated(self, &parameters, &values, "\",\" WS")
    }
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
    let end = format!("{line}{}", format.end.replace("{key}", &parameter.name));
    let value = match choices(&parameter.schema) {
        Some(choices) => {
            let choices: Vec<String> = choices.iter().map(|choice| grammar.literal(choice)).collect();
            format!("({}) {}", choices.join(" | "), grammar.literal(&end))
        }
        None if is_text => grammar.until(&end),
        None => format!("{} {}", grammar.json(&part_of(root, &parameter.schema)), grammar.literal(&end)),
    };
    format!("{begin} {value}")
}

/// The values of a parameter that has only certain texts as values.
fn choices(schema: &Value) -> Option<Vec<String>> {
    let values = schema.get("enum").and_then(Value::as_array)?;
    values.iter().map(|value| value.as_str().filter(|text| !text.is_empty()).map(str::to_owned)).collect()
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

fn is_scalar(types: Types) -> bool {
    !(types.string || types.object || types.array)
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

fn parameters(schema: &Value) -> Vec<Parameter> {
    let required: Vec<&str> =
        schema.get("required").and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_str).collect();
    let properties = schema.get("properties").and_then(Value::as_object).into_iter().flatten();
    let parameter = |(name, property): (&String, &Value)| Parameter {
        name: name.clone(),
        types: Types::of(property, schema),
        schema: with_definitions(property, schema),
        required: required.contains(&name.as_str()),
    };
    properties.map(parameter).collect()
}

/// A part of a schema that can stand alone.
fn with_definitions(part: &Value, root: &Value) -> Value {
    let mut part = part.clone();
    if let Some(keys) = part.as_object_mut() {
        for key in ["$defs", "definitions"] {
            if let Some(definitions) = root.get(key) {
                keys.insert(key.to_owned(), definitions.clone());
            }
        }
    }
    part
}
