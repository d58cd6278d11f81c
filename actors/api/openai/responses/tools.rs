//! Reads `tools`, whose form is flat, and converts them to the form of chat completions, which templates expect.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::api::fields::{Fields, missing};
use crate::api::openai::tools::{ListedTools, Tools};
use crate::serving::error::{ApiError, clip};

/// Reads `tools` and `tool_choice`. Tools that are neither functions nor custom, such as web search, are left out.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn read(fields: &Fields<'_>) -> Result<Tools, ApiError> {
    let (mut listed, mut ignored) = (ListedTools::default(), BTreeSet::new());
    for (index, tool) in fields.array("tools")?.into_iter().flatten().enumerate() {
        let tool = Fields::of(tool, format!("{}[{index}]", fields.path("tools")))?;
        match tool.string("type")?.ok_or_else(|| missing(&tool.path("type"), "\"function\""))? {
            "function" => listed.push_function(&function(&tool)?),
            "custom" => listed.push_custom(&tool)?,
            other => {
                ignored.insert(clip(other));
            }
        }
    }
    if !ignored.is_empty() {
        tracing::warn!(types = ?ignored, "tools of types that this server does not have are ignored");
    }
    Tools::choose(listed, fields)
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

fn name<'a>(tool: &Fields<'a>) -> Result<&'a str, ApiError> {
    tool.string("name")?.ok_or_else(|| missing(&tool.path("name"), "the tool's name"))
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;
    use crate::serving::request::ToolChoice;

    fn read_body(body: &Value) -> Result<Tools, ApiError> {
        read(&Fields::of_body(body).unwrap())
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
        let read = read_body(&body).unwrap();
        let listed = read.for_template.unwrap();
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
            let options = read(&fields).unwrap().output_options(&fields).unwrap();
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
            match read_body(&json!({ "tools": [tool] })).unwrap_err() {
                ApiError::InvalidRequest { param: Some(param), .. } => assert_eq!(param, path),
                other => panic!("{other:?}"),
            }
        }
    }
}
