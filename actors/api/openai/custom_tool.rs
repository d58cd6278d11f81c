//! Custom tools, which take text. To the model they are functions with one parameter, `input`.

use serde_json::{Map, Value, json};

use crate::api::fields::{Fields, missing};
use crate::serving::error::{ApiError, clip};

/// The parameter of the function.
const INPUT: &str = "input";

/// The function that stands for a custom tool, from the fields `name`, `description` and `format`. A regular expression
/// becomes a part of the function's schema; the description has either kind of grammar.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn function(tool: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let name = tool.string("name")?.ok_or_else(|| missing(&tool.path("name"), "the tool's name"))?;
    let mut description = tool.string("description")?.unwrap_or_default().to_owned();
    let mut input = json!({ "type": "string", "description": "The whole input of the tool." });
    let mut function = Map::new();
    if let Some(Grammar { syntax, definition }) = Grammar::read(tool)? {
        description = format!("{description}\n\nThe input must match this {syntax} grammar:\n{definition}");
        if syntax == "regex" {
            input["pattern"] = json!(format!("^(?:{definition})$"));
            function.insert("strict".to_owned(), json!(true));
        }
    }
    function.insert("name".to_owned(), json!(name));
    function.insert("description".to_owned(), json!(description.trim_start()));
    let parameters = json!({
        "type": "object", "properties": { INPUT: input }, "required": [INPUT], "additionalProperties": false,
    });
    function.insert("parameters".to_owned(), parameters);
    Ok(function)
}

/// The input of a call with these arguments. Arguments that are not complete are returned as they are.
pub(super) fn input(arguments: &str) -> String {
    let parsed = serde_json::from_str::<Value>(arguments).ok();
    let input = parsed.as_ref().and_then(|parsed| parsed.get(INPUT)?.as_str());
    input.unwrap_or(arguments).to_owned()
}

/// The arguments of a call with this input.
pub(super) fn arguments(input: &str) -> Value {
    json!({ INPUT: input })
}

/// The grammar of a custom tool's input.
struct Grammar<'a> {
    syntax: &'a str,
    definition: &'a str,
}

impl<'a> Grammar<'a> {
    /// Reads `format`. `None`: any text.
    fn read(tool: &Fields<'a>) -> Result<Option<Self>, ApiError> {
        let Some(format) = tool.object("format")? else { return Ok(None) };
        let path = format.path("type");
        match format.string("type")?.ok_or_else(|| missing(&path, "\"text\" or \"grammar\""))? {
            "text" => Ok(None),
            // The Responses API has the fields of the grammar in the format itself.
            "grammar" => Self::of(&format.object("grammar")?.unwrap_or(format)).map(Some),
            other => {
                let message = format!("`{path}` must be \"text\" or \"grammar\", not {}", clip(other));
                Err(ApiError::invalid(path, message))
            }
        }
    }

    fn of(grammar: &Fields<'a>) -> Result<Self, ApiError> {
        let path = grammar.path("definition");
        let definition = grammar.string("definition")?.ok_or_else(|| missing(&path, "the grammar"))?;
        let syntax = grammar.string("syntax")?.unwrap_or("lark");
        if !["lark", "regex"].contains(&syntax) {
            let path = grammar.path("syntax");
            let message = format!("`{path}` must be \"lark\" or \"regex\", not {}", clip(syntax));
            return Err(ApiError::invalid(path, message));
        }
        Ok(Grammar { syntax, definition })
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_comes_back_out_of_the_arguments() {
        assert_eq!(input(&arguments("a\n\"b\"").to_string()), "a\n\"b\"");
        assert_eq!(input(r#"{"input": "a"#), r#"{"input": "a"#);
    }

    #[test]
    fn a_grammar_may_be_nested_and_is_described() {
        for (syntax, pattern) in [("lark", Value::Null), ("regex", json!("^(?:a|b)$"))] {
            let grammar = json!({ "syntax": syntax, "definition": "a|b" });
            let tool = json!({ "name": "f", "format": { "type": "grammar", "grammar": grammar } });
            let function = function(&Fields::of_body(&tool).unwrap()).unwrap();
            assert!(function["description"].as_str().unwrap().ends_with("grammar:\na|b"), "{function:?}");
            assert_eq!(function["parameters"]["properties"]["input"]["pattern"], pattern);
        }
    }
}
