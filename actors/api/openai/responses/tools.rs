//! Reads `tools`, whose form is flat, and converts them to the form of chat completions, which templates expect.

use std::collections::{BTreeSet, HashSet};

use serde_json::{Map, Value, json};

use crate::api::fields::{Fields, missing};
use crate::api::openai::tools::Tools;
use crate::output::ToolSpec;
use crate::serving::error::{ApiError, clip};

/// The tools of a request.
#[derive(Debug, Default)]
pub(super) struct ResponseTools {
    pub tools: Tools,
    /// The names of custom tools, which take text. To the model they are functions with one parameter, `input`.
    pub custom: HashSet<String>,
}

impl ResponseTools {
    /// Reads `tools` and `tool_choice`. Tools that are neither functions nor custom, such as web search, are left out.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] that names the field.
    pub fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let (mut listed, mut specs, mut custom) = (Vec::new(), Vec::new(), HashSet::new());
        let mut ignored = BTreeSet::new();
        for (index, tool) in fields.array("tools")?.into_iter().flatten().enumerate() {
            let tool = Fields::of(tool, format!("{}[{index}]", fields.path("tools")))?;
            let function = match tool.string("type")?.ok_or_else(|| missing(&tool.path("type"), "\"function\""))? {
                "function" => function(&tool)?,
                "custom" => custom_function(&tool)?,
                other => {
                    ignored.insert(clip(other));
                    continue;
                }
            };
            let spec = spec(&function);
            if tool.string("type")? == Some("custom") {
                custom.insert(spec.name.clone());
            }
            specs.push(spec);
            listed.push(json!({ "type": "function", "function": function }));
        }
        if !ignored.is_empty() {
            tracing::warn!(types = ?ignored, "tools of types that this server does not have are ignored");
        }
        let tools = Tools::choose((!listed.is_empty()).then_some(Value::Array(listed)), specs, fields)?;
        Ok(ResponseTools { tools, custom })
    }
}

fn spec(function: &Map<String, Value>) -> ToolSpec {
    let name = function.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    let parameters = function.get("parameters").cloned().unwrap_or_else(|| json!({}));
    ToolSpec { name, parameters, is_strict: function.get("strict") == Some(&Value::Bool(true)) }
}

/// `{name, description, parameters, strict}` of a function.
fn function(tool: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut function = Map::new();
    function.insert("name".to_owned(), json!(name(tool)?));
    if let Some(description) = tool.string("description")? {
        function.insert("description".to_owned(), json!(description));
    }
    let parameters = tool.object("parameters")?.map_or_else(|| json!({}), |schema| json!(schema.map()));
    function.insert("parameters".to_owned(), parameters);
    if let Some(strict) = tool.bool("strict")? {
        function.insert("strict".to_owned(), json!(strict));
    }
    Ok(function)
}

/// A function that stands for a custom tool. Its description has the grammar, which is not enforced.
fn custom_function(tool: &Fields<'_>) -> Result<Map<String, Value>, ApiError> {
    let mut description = tool.string("description")?.unwrap_or_default().to_owned();
    if let Some(format) = tool.object("format")?
        && let Some(definition) = format.string("definition")?
    {
        let syntax = format.string("syntax")?.unwrap_or("lark");
        description = format!("{description}\n\nThe input must match this {syntax} grammar:\n{definition}");
    }
    let input = json!({ "type": "string", "description": "The whole input of the tool." });
    let mut function = Map::new();
    function.insert("name".to_owned(), json!(name(tool)?));
    function.insert("description".to_owned(), json!(description.trim_start()));
    let parameters = json!({
        "type": "object", "properties": { "input": input }, "required": ["input"], "additionalProperties": false,
    });
    function.insert("parameters".to_owned(), parameters);
    Ok(function)
}

fn name<'a>(tool: &Fields<'a>) -> Result<&'a str, ApiError> {
    tool.string("name")?.ok_or_else(|| missing(&tool.path("name"), "the tool's name"))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::serving::request::ToolChoice;

    fn read(body: &Value) -> Result<ResponseTools, ApiError> {
        ResponseTools::read(&Fields::of_body(body).unwrap())
    }

    #[test]
    fn functions_become_nested_and_custom_tools_become_functions() {
        let body = json!({ "tools": [
            { "type": "function", "name": "f", "description": "d", "parameters": { "type": "object" }, "strict": true },
            { "type": "web_search" },
            { "type": "custom", "name": "patch", "description": "edits", "format": {
                "type": "grammar", "syntax": "lark", "definition": "start: \"x\""
            } },
        ] });
        let read = read(&body).unwrap();
        let listed = read.tools.for_template.unwrap();
        assert_eq!(listed.as_array().unwrap().len(), 2);
        assert_eq!(
            listed[0],
            json!({ "type": "function", "function": {
                "name": "f", "description": "d", "parameters": { "type": "object" }, "strict": true
            } })
        );
        let custom = &listed[1]["function"];
        assert!(custom["description"].as_str().unwrap().ends_with("start: \"x\""));
        assert_eq!(custom["parameters"]["required"], json!(["input"]));
        assert_eq!(read.custom, HashSet::from(["patch".to_owned()]));
    }

    #[test]
    fn the_choice_has_the_flat_form() {
        let tools = json!([{ "type": "function", "name": "f" }, { "type": "function", "name": "g" }]);
        let named = json!({ "type": "function", "name": "g" });
        let allowed = json!({ "type": "allowed_tools", "mode": "required", "tools": [named] });
        for (choice, expected, count) in [
            (json!("auto"), ToolChoice::Auto, 2),
            (json!("none"), ToolChoice::None, 0),
            (json!("required"), ToolChoice::Required, 2),
            (named, ToolChoice::Required, 1),
            (allowed, ToolChoice::Required, 1),
        ] {
            let body = json!({ "tools": tools, "tool_choice": choice });
            let fields = Fields::of_body(&body).unwrap();
            let options = ResponseTools::read(&fields).unwrap().tools.output_options(&fields).unwrap();
            assert_eq!((options.tool_choice, options.tools.len()), (expected, count), "{choice}");
        }
    }

    #[test]
    fn an_invalid_tool_is_named() {
        for (tool, path) in [
            (json!({ "name": "f" }), "tools[0].type"),
            (json!({ "type": "function" }), "tools[0].name"),
            (json!({ "type": "function", "name": "f", "parameters": [] }), "tools[0].parameters"),
            (json!({ "type": "custom" }), "tools[0].name"),
            (json!(1), "tools[0]"),
        ] {
            match read(&json!({ "tools": [tool] })).unwrap_err() {
                ApiError::InvalidRequest { param: Some(param), .. } => assert_eq!(param, path),
                other => panic!("{other:?}"),
            }
        }
    }
}
