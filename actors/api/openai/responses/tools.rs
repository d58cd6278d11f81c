//! Reads `tools`, whose form is flat, and converts them to the form of chat completions, which templates expect.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use crate::api::fields::{Fields, missing};
use crate::api::openai::custom_tool;
use crate::api::openai::tool_name::ToolName;
use crate::api::openai::tools::{ListedTools, Tools};
use crate::serving::error::{ApiError, clip};

/// Reads `tools` and `tool_choice`. Tools that are neither functions nor custom nor namespaces of these, such as web search, are
/// left out.
///
/// # Errors
/// [`ApiError::InvalidRequest`] that names the field.
pub(super) fn read(fields: &Fields<'_>) -> Result<Tools, ApiError> {
    let (mut listed, mut ignored) = (ListedTools::default(), BTreeSet::new());
    for tool in listed_in(fields)? {
        match kind(&tool)? {
            "namespace" => read_namespace(&tool, &mut listed, &mut ignored)?,
            kind => read_tool(kind, &tool, None, &mut listed, &mut ignored)?,
        }
    }
    if !ignored.is_empty() {
        tracing::warn!(types = ?ignored, "tools of types that this server does not have are ignored");
    }
    Tools::choose(listed, fields)
}

/// The tools of the field `tools`.
fn listed_in<'a>(fields: &Fields<'a>) -> Result<Vec<Fields<'a>>, ApiError> {
    let tools = fields.array("tools")?.into_iter().flatten().enumerate();
    tools.map(|(index, tool)| Fields::of(tool, format!("{}[{index}]", fields.path("tools")))).collect()
}

fn kind<'a>(tool: &Fields<'a>) -> Result<&'a str, ApiError> {
    tool.string("type")?.ok_or_else(|| missing(&tool.path("type"), "\"function\""))
}

/// Reads the tools of a namespace. Its description is for the client's list of tools and not shown to the model.
fn read_namespace(
    namespace: &Fields<'_>,
    listed: &mut ListedTools,
    ignored: &mut BTreeSet<String>,
) -> Result<(), ApiError> {
    let name = name(namespace)?;
    for tool in listed_in(namespace)? {
        read_tool(kind(&tool)?, &tool, Some(name), listed, ignored)?;
    }
    Ok(())
}

/// Reads a tool that may be in a namespace. Types that this server does not have go to `ignored`.
fn read_tool(
    kind: &str,
    tool: &Fields<'_>,
    namespace: Option<&str>,
    listed: &mut ListedTools,
    ignored: &mut BTreeSet<String>,
) -> Result<(), ApiError> {
    let function = match kind {
        "function" => function(tool)?,
        "custom" => custom_tool::function(tool)?,
        other => {
            ignored.insert(clip(other));
            return Ok(());
        }
    };
    let name = ToolName { namespace: namespace.map(str::to_owned), name: name(tool)?.to_owned() };
    listed.push_named(name, function, kind == "custom", &tool.path("name"))
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
        assert!(read.client.is_custom("patch") && !read.client.is_custom("f"));
    }

    #[test]
    fn tools_of_namespaces_become_functions_with_the_name_of_the_namespace() {
        let body = json!({
            "tools": [
                { "type": "function", "name": "read" },
                { "type": "namespace", "name": "mcp__files", "description": "d", "tools": [
                    { "type": "function", "name": "read", "parameters": { "type": "object" } },
                    { "type": "custom", "name": "patch" },
                    { "type": "web_search" },
                ] },
            ],
            "tool_choice": { "type": "function", "namespace": "mcp__files", "name": "read" },
        });
        let tools = read_body(&body).unwrap();
        let listed = tools.for_template.clone().unwrap();
        let names: Vec<&str> =
            listed.as_array().unwrap().iter().map(|tool| tool["function"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["read", "mcp__files__read", "mcp__files__patch"]);
        assert!(tools.client.is_custom("mcp__files__patch"));
        let name = tools.client.name("mcp__files__read".to_owned());
        assert_eq!((name.namespace.as_deref(), name.name.as_str()), (Some("mcp__files"), "read"));
        assert_eq!(tools.client.name("read".to_owned()).namespace, None);
        let options = tools.output_options(&Fields::of_body(&body).unwrap()).unwrap();
        assert_eq!((options.tools.len(), options.tools[0].name.as_str()), (1, "mcp__files__read"));
    }

    #[test]
    fn a_name_that_the_model_could_not_tell_apart_is_refused() {
        let namespace = |tools: Value| json!({ "type": "namespace", "name": "a", "tools": tools });
        let (own, of_namespace) =
            (json!({ "type": "function", "name": "a__f" }), json!([{ "type": "function", "name": "f" }]));
        for (tools, path) in [
            (json!([own, namespace(of_namespace.clone())]), "tools[1].tools[0].name"),
            (json!([namespace(of_namespace.clone()), own]), "tools[1].name"),
            (json!([namespace(of_namespace.clone()), namespace(of_namespace)]), "tools[1].tools[0].name"),
        ] {
            match read_body(&json!({ "tools": tools })).unwrap_err() {
                ApiError::InvalidRequest { param: Some(param), .. } => assert_eq!(param, path),
                other => panic!("{other:?}"),
            }
        }
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
            (json!({ "type": "namespace", "tools": [] }), "tools[0].name"),
            (json!({ "type": "namespace", "name": "n", "tools": {} }), "tools[0].tools"),
            (json!({ "type": "namespace", "name": "n", "tools": [{ "name": "f" }] }), "tools[0].tools[0].type"),
            (json!(1), "tools[0]"),
        ] {
            match read_body(&json!({ "tools": [tool] })).unwrap_err() {
                ApiError::InvalidRequest { param: Some(param), .. } => assert_eq!(param, path),
                other => panic!("{other:?}"),
            }
        }
    }
}
