//! Reads what the answer has to match: `response_format` as OpenAI defines it, `structured_outputs` and the older `guided_*`
//! of vLLM, `grammar` and `json_schema` of llama.cpp.

use cuelight_engine::constraint::Grammar;
use serde_json::Value;

use crate::api::fields::{Fields, missing, wrong_type};
use crate::serving::error::{ApiError, clip};
use crate::serving::request::ConstraintField;

/// Reads the constraint of a request, of which there may be one. Several fields may give the same.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(in crate::api) fn read(fields: &Fields<'_>) -> Result<Option<ConstraintField>, ApiError> {
    let mut found = Vec::new();
    found.extend(response_format(fields)?);
    found.extend(structured_outputs(fields)?);
    for (name, read) in GUIDED {
        found.extend(fields.get(name).map(|value| named(fields.path(name), read, value)).transpose()?);
    }
    found.extend(grammar(fields)?);
    found.extend(fields.get("json_schema").map(|value| named(fields.path("json_schema"), schema, value)).transpose()?);
    // Clients of several versions of a server send a constraint under its old and its new name.
    found.dedup_by(|second, first| second.grammar == first.grammar);
    match found.as_slice() {
        [] | [_] => Ok(found.pop()),
        [first, second, ..] => {
            let message = format!("`{}` and `{}` exclude each other", first.path, second.path);
            Err(ApiError::invalid(&second.path, message))
        }
    }
}

type Read = fn(&Value, &str) -> Result<Grammar, ApiError>;

/// The fields with a constraint as their value.
const GUIDED: [(&str, Read); 4] =
    [("guided_json", schema), ("guided_regex", regex), ("guided_choice", choice), ("guided_grammar", any_grammar)];

fn named(path: String, read: Read, value: &Value) -> Result<ConstraintField, ApiError> {
    let grammar = read(value, &path)?;
    Ok(ConstraintField { path, grammar })
}

fn response_format(fields: &Fields<'_>) -> Result<Option<ConstraintField>, ApiError> {
    let Some(format) = fields.object("response_format")? else { return Ok(None) };
    let path = format.path("type");
    let kind = format.string("type")?;
    let kind = kind.ok_or_else(|| missing(&path, "\"text\", \"json_object\" or \"json_schema\""))?;
    match kind {
        "text" => Ok(None),
        // llama.cpp takes a schema here, too.
        "json_object" => match format.get("schema") {
            Some(value) => named(format.path("schema"), schema, value).map(Some),
            None => Ok(Some(ConstraintField { path: fields.path("response_format"), grammar: Grammar::JsonObject })),
        },
        "json_schema" => json_schema(&format).map(Some),
        "structural_tag" => {
            let tag = Value::Object(format.map().clone());
            Ok(Some(ConstraintField { path: fields.path("response_format"), grammar: Grammar::StructuralTag(tag) }))
        }
        other => {
            let kinds = "\"text\", \"json_object\", \"json_schema\" or \"structural_tag\"";
            let message = format!("`{path}` must be {kinds}, not {}", clip(other));
            Err(ApiError::invalid(path, message))
        }
    }
}

/// `{"type": "json_schema", "json_schema": {"name": …, "schema": …}}`.
fn json_schema(format: &Fields<'_>) -> Result<ConstraintField, ApiError> {
    let described = format.object("json_schema")?;
    let described =
        described.ok_or_else(|| missing(&format.path("json_schema"), "an object with the field `schema`"))?;
    match described.get("schema") {
        Some(value) => named(described.path("schema"), schema, value),
        // OpenAI's field is optional, and any object is an answer then.
        None => Ok(ConstraintField { path: format.path("json_schema"), grammar: Grammar::JsonObject }),
    }
}

fn structured_outputs(fields: &Fields<'_>) -> Result<Option<ConstraintField>, ApiError> {
    const KINDS: [(&str, Read); 6] = [
        ("json", schema),
        ("regex", regex),
        ("choice", choice),
        ("grammar", any_grammar),
        ("json_object", object),
        ("structural_tag", structural_tag),
    ];
    let Some(outputs) = fields.object("structured_outputs")? else { return Ok(None) };
    let set: Vec<_> = KINDS.iter().filter_map(|&(name, read)| Some((name, read, outputs.get(name)?))).collect();
    match set.as_slice() {
        [(name, read, value)] => named(outputs.path(name), *read, value).map(Some),
        _ => {
            let path = fields.path("structured_outputs");
            let message =
                format!("`{path}` needs exactly one of json, regex, choice, grammar, json_object and structural_tag");
            Err(ApiError::invalid(path, message))
        }
    }
}

/// llama.cpp's `grammar`, which is empty when there is none.
fn grammar(fields: &Fields<'_>) -> Result<Option<ConstraintField>, ApiError> {
    let text = fields.string("grammar")?.filter(|text| !text.is_empty());
    Ok(text.map(|text| ConstraintField { path: fields.path("grammar"), grammar: Grammar::Gbnf(text.to_owned()) }))
}

/// A schema as an object, or as JSON in a string.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names `path`.
pub(super) fn schema(value: &Value, path: &str) -> Result<Grammar, ApiError> {
    match value {
        Value::String(text) => parsed(text, path).map(Grammar::JsonSchema),
        Value::Object(_) | Value::Bool(_) => Ok(Grammar::JsonSchema(value.clone())),
        other => Err(wrong_type(path, "a JSON schema", other)),
    }
}

/// A structural tag as an object, or as JSON in a string.
fn structural_tag(value: &Value, path: &str) -> Result<Grammar, ApiError> {
    match value {
        Value::String(text) => parsed(text, path).map(Grammar::StructuralTag),
        Value::Object(_) => Ok(Grammar::StructuralTag(value.clone())),
        other => Err(wrong_type(path, "a structural tag", other)),
    }
}

fn parsed(text: &str, path: &str) -> Result<Value, ApiError> {
    serde_json::from_str(text).map_err(|error| ApiError::invalid(path, format!("`{path}` is not JSON: {error}")))
}

fn object(value: &Value, path: &str) -> Result<Grammar, ApiError> {
    match value {
        Value::Bool(true) => Ok(Grammar::JsonObject),
        other => Err(wrong_type(path, "true", other)),
    }
}

fn regex(value: &Value, path: &str) -> Result<Grammar, ApiError> {
    Ok(Grammar::Regex(text(value, path)?))
}

/// EBNF when a line defines a rule with `::=`, else Lark.
fn any_grammar(value: &Value, path: &str) -> Result<Grammar, ApiError> {
    let text = text(value, path)?;
    Ok(if text.contains("::=") { Grammar::Gbnf(text) } else { Grammar::Lark(text) })
}

fn choice(value: &Value, path: &str) -> Result<Grammar, ApiError> {
    let choices = value.as_array().ok_or_else(|| wrong_type(path, "a list of strings", value))?;
    let texts = choices.iter().enumerate().map(|(index, choice)| text(choice, &format!("{path}[{index}]")));
    Ok(Grammar::Choice(texts.collect::<Result<_, _>>()?))
}

fn text(value: &Value, path: &str) -> Result<String, ApiError> {
    value.as_str().map(str::to_owned).ok_or_else(|| wrong_type(path, "a string", value))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn grammar_of(body: &Value) -> Option<(String, Grammar)> {
        read(&Fields::of_body(body).unwrap()).unwrap().map(|field| (field.path, field.grammar))
    }

    fn param(body: &Value) -> String {
        match read(&Fields::of_body(body).unwrap()).unwrap_err() {
            ApiError::InvalidRequest { param: Some(param), .. } => param,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_spelling_of_a_constraint_is_read() {
        let schema = json!({ "type": "string" });
        let of_schema = |path: &str| Some((path.to_owned(), Grammar::JsonSchema(schema.clone())));
        let format = json!({ "type": "json_schema", "json_schema": { "name": "n", "strict": true, "schema": schema } });
        assert_eq!(grammar_of(&json!({ "response_format": format })), of_schema("response_format.json_schema.schema"));
        let inline = json!({ "response_format": { "type": "json_object", "schema": schema } });
        assert_eq!(grammar_of(&inline), of_schema("response_format.schema"));
        assert_eq!(
            grammar_of(&json!({ "structured_outputs": { "json": schema } })),
            of_schema("structured_outputs.json")
        );
        assert_eq!(grammar_of(&json!({ "guided_json": schema.to_string() })), of_schema("guided_json"));
        assert_eq!(grammar_of(&json!({ "json_schema": schema })), of_schema("json_schema"));
        assert_eq!(grammar_of(&json!({ "response_format": { "type": "text" }, "grammar": "" })), None);
        let choice = json!({ "structured_outputs": { "choice": ["a", "b"] } });
        assert_eq!(grammar_of(&choice).unwrap().1, Grammar::Choice(vec!["a".into(), "b".into()]));
        let both = json!({ "structured_outputs": { "grammar": "start: \"a\"" }, "guided_grammar": "start: \"a\"" });
        assert_eq!(grammar_of(&both).unwrap().0, "structured_outputs.grammar", "the same under two names");
        let tag = json!({ "structures": [], "triggers": [] });
        for body in [
            json!({ "structured_outputs": { "structural_tag": tag } }),
            json!({ "structured_outputs": { "structural_tag": tag.to_string() } }),
        ] {
            assert_eq!(grammar_of(&body).unwrap().1, Grammar::StructuralTag(tag.clone()));
        }
        let format = json!({ "type": "structural_tag", "format": { "type": "any_text" } });
        let expected = Some(("response_format".to_owned(), Grammar::StructuralTag(format.clone())));
        assert_eq!(grammar_of(&json!({ "response_format": format })), expected);
        let gbnf = json!({ "guided_grammar": "root ::= \"a\"" });
        assert_eq!(grammar_of(&gbnf).unwrap().1, Grammar::Gbnf("root ::= \"a\"".into()));
    }

    #[test]
    fn an_invalid_constraint_is_named_by_its_path() {
        for (body, path) in [
            (json!({ "response_format": "json" }), "response_format"),
            (json!({ "response_format": {} }), "response_format.type"),
            (json!({ "response_format": { "type": "xml" } }), "response_format.type"),
            (json!({ "response_format": { "type": "json_schema" } }), "response_format.json_schema"),
            (json!({ "structured_outputs": {} }), "structured_outputs"),
            (json!({ "structured_outputs": { "json": {}, "regex": "a" } }), "structured_outputs"),
            (json!({ "structured_outputs": { "structural_tag": 1 } }), "structured_outputs.structural_tag"),
            (json!({ "guided_choice": ["a", 1] }), "guided_choice[1]"),
            (json!({ "guided_json": "{" }), "guided_json"),
            (json!({ "guided_regex": "a", "grammar": "root ::= \"a\"" }), "grammar"),
        ] {
            assert_eq!(param(&body), path, "{body}");
        }
    }
}
