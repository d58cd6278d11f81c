//! Reads the tools that the model may call.

use serde_json::{Value, json};

use crate::api::fields::{Fields, missing};
use crate::output::ToolSpec;
use crate::serving::error::{ApiError, clip};
use crate::serving::request::{OutputOptions, ToolChoice};

/// The tools of a request.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Tools {
    /// What the chat template gets, in the form that templates expect. `None` without tools, or when none may be called.
    pub for_template: Option<Value>,
    /// The tools that may be called.
    callable: Vec<ToolSpec>,
    choice: ToolChoice,
    parallel: bool,
}

impl Tools {
    /// Reads `tools` and `tool_choice`.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] that names the field.
    pub fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let mut for_template = Vec::new();
        let mut callable = Vec::new();
        for (index, tool) in fields.array("tools")?.into_iter().flatten().enumerate() {
            let tool = Fields::of(tool, format!("tools[{index}]"))?;
            if is_custom(&tool)? {
                let spec = read_spec(&tool)?;
                for_template.push(describe(&spec, tool.string("description")?));
                callable.push(spec);
            }
        }
        let Choice { mut choice, name, parallel } = Choice::read(fields)?;
        if choice == ToolChoice::Required && callable.is_empty() {
            return Err(ApiError::invalid("tool_choice", "`tool_choice` requires a call, but there are no `tools`"));
        }
        if let Some(name) = name {
            callable.retain(|spec| spec.name == name);
            if callable.is_empty() {
                let message = format!("`tool_choice.name` is {}, which is not in `tools`", clip(name));
                return Err(ApiError::invalid("tool_choice.name", message));
            }
        }
        if callable.is_empty() || choice == ToolChoice::None {
            choice = ToolChoice::None;
            callable.clear();
        }
        let for_template = (choice != ToolChoice::None).then(|| Value::Array(for_template));
        Ok(Tools { for_template, callable, choice, parallel })
    }

    /// How an answer is taken apart that may call these tools.
    pub fn output_options(self) -> OutputOptions {
        OutputOptions {
            parses_reasoning: true,
            hides_reasoning: false,
            reasoning_budget: None,
            tools: self.callable.into(),
            tool_choice: self.choice,
            parallel_tool_calls: self.parallel,
        }
    }
}

/// `tool_choice`.
struct Choice<'a> {
    choice: ToolChoice,
    /// The only tool that may be called.
    name: Option<&'a str>,
    parallel: bool,
}

impl<'a> Choice<'a> {
    fn read(fields: &Fields<'a>) -> Result<Self, ApiError> {
        const KINDS: &str = "\"auto\", \"any\", \"tool\" or \"none\"";
        let Some(given) = fields.object("tool_choice")? else {
            return Ok(Choice { choice: ToolChoice::Auto, name: None, parallel: true });
        };
        let path = given.path("type");
        let (choice, name) = match given.string("type")?.ok_or_else(|| missing(&path, KINDS))? {
            "auto" => (ToolChoice::Auto, None),
            "any" => (ToolChoice::Required, None),
            "tool" => {
                let name = given.string("name")?;
                (ToolChoice::Required, Some(name.ok_or_else(|| missing(&given.path("name"), "the name of a tool"))?))
            }
            "none" => (ToolChoice::None, None),
            other => {
                return Err(ApiError::invalid(&path, format!("`{path}` must be {KINDS}, not {}", clip(other))));
            }
        };
        Ok(Choice { choice, name, parallel: !given.bool("disable_parallel_tool_use")?.unwrap_or(false) })
    }
}

/// Whether the client runs the tool. Tools that Anthropic's servers run, and tools whose schema only its models know, are
/// left out.
fn is_custom(tool: &Fields<'_>) -> Result<bool, ApiError> {
    match tool.string("type")? {
        None | Some("custom") => Ok(true),
        Some(kind) => {
            tracing::warn!(kind = %clip(kind), "a tool of this type is not available and was left out");
            Ok(false)
        }
    }
}

fn read_spec(tool: &Fields<'_>) -> Result<ToolSpec, ApiError> {
    let name = tool.string("name")?.ok_or_else(|| missing(&tool.path("name"), "the tool's name"))?;
    let parameters = tool.object("input_schema")?.map_or_else(|| json!({}), |schema| json!(schema.map()));
    let is_strict = tool.bool("strict")?.unwrap_or(false);
    Ok(ToolSpec { name: name.to_owned(), parameters, is_strict })
}

fn describe(spec: &ToolSpec, description: Option<&str>) -> Value {
    let mut function = json!({ "name": spec.name });
    // Templates write the keys in this order.
    if let Some(description) = description {
        function["description"] = json!(description);
    }
    function["parameters"] = spec.parameters.clone();
    json!({ "type": "function", "function": function })
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn tools(extra: &Value) -> Result<Tools, ApiError> {
        let schema = json!({ "type": "object", "properties": { "x": { "type": "integer" } } });
        let mut body = json!({ "tools": [
            { "name": "f", "description": "a function", "input_schema": schema, "cache_control": { "type": "ephemeral" } },
            { "type": "web_search_20250305", "name": "web_search", "max_uses": 5 },
            { "type": "custom", "name": "g", "input_schema": {} },
        ] });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        Tools::read(&Fields::of_body(&body).unwrap())
    }

    #[test]
    fn the_template_gets_custom_tools_in_the_form_that_it_knows() {
        let tools = tools(&json!({})).unwrap();
        let parameters = json!({ "type": "object", "properties": { "x": { "type": "integer" } } });
        assert_eq!(
            tools.for_template,
            Some(json!([
                { "type": "function",
                  "function": { "name": "f", "description": "a function", "parameters": parameters } },
                { "type": "function", "function": { "name": "g", "parameters": {} } },
            ]))
        );
    }

    #[test]
    fn the_choice_decides_which_tools_may_be_called_and_whether_one_must() {
        for (choice, expected, names, parallel) in [
            (json!(null), ToolChoice::Auto, "f g", true),
            (json!({ "type": "auto", "disable_parallel_tool_use": true }), ToolChoice::Auto, "f g", false),
            (json!({ "type": "any" }), ToolChoice::Required, "f g", true),
            (json!({ "type": "tool", "name": "g" }), ToolChoice::Required, "g", true),
            (json!({ "type": "none" }), ToolChoice::None, "", true),
        ] {
            let tools = tools(&json!({ "tool_choice": choice })).unwrap();
            assert_eq!(tools.for_template.is_some(), expected != ToolChoice::None);
            let options = tools.output_options();
            let found: Vec<_> = options.tools.iter().map(|tool| tool.name.as_str()).collect();
            assert_eq!((options.tool_choice, found.join(" ").as_str()), (expected, names), "{choice}");
            assert_eq!(options.parallel_tool_calls, parallel);
        }
    }

    #[test]
    fn without_tools_of_the_client_nothing_can_be_called() {
        for listed in [json!([]), json!([{ "type": "web_search_20250305", "name": "web_search" }])] {
            let tools = tools(&json!({ "tools": listed })).unwrap();
            assert_eq!(tools.for_template, None);
            assert_eq!(tools.output_options().tool_choice, ToolChoice::None);
        }
    }

    #[test]
    fn invalid_tools_and_choices_are_named() {
        for (extra, path) in [
            (json!({ "tools": [{ "input_schema": {} }] }), "tools[0].name"),
            (json!({ "tools": [{ "name": "f", "input_schema": "{}" }] }), "tools[0].input_schema"),
            (json!({ "tools": [5] }), "tools[0]"),
            (json!({ "tools": [], "tool_choice": { "type": "any" } }), "tool_choice"),
            (json!({ "tool_choice": "any" }), "tool_choice"),
            (json!({ "tool_choice": { "type": "perhaps" } }), "tool_choice.type"),
            (json!({ "tool_choice": { "type": "tool" } }), "tool_choice.name"),
            (json!({ "tool_choice": { "type": "tool", "name": "h" } }), "tool_choice.name"),
            (json!({ "tool_choice": { "type": "tool", "name": "web_search" } }), "tool_choice.name"),
        ] {
            match tools(&extra) {
                Err(ApiError::InvalidRequest { param: Some(param), .. }) => assert_eq!(param, path, "{extra}"),
                other => panic!("{extra}: {other:?}"),
            }
        }
    }
}
