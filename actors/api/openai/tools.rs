//! Reads the tools that the model may call, and how its answer is taken apart.

use serde_json::{Map, Value, json};

use super::custom_tool;
use super::tool_name::{ClientTools, ToolName};
use crate::api::fields::{Fields, missing};
use crate::output::ToolSpec;
use crate::serving::error::{ApiError, clip};
use crate::serving::request::{OutputOptions, ToolChoice};

/// The tools of a request.
#[derive(Debug, Clone, PartialEq, Default)]
pub(in crate::api) struct Tools {
    /// What the chat template gets. `None` without tools, or when none may be called.
    pub for_template: Option<Value>,
    /// The tools that may be called.
    callable: Vec<ToolSpec>,
    is_required: bool,
    /// What clients know some of them as.
    pub client: ClientTools,
}

/// The tools that a request lists.
#[derive(Debug, Default)]
pub(in crate::api) struct ListedTools {
    /// In the form of chat completions.
    for_template: Vec<Value>,
    specs: Vec<ToolSpec>,
    client: ClientTools,
}

impl ListedTools {
    /// Adds a tool. `for_template`: the tool in the form of chat completions.
    pub fn push(&mut self, for_template: Value, spec: ToolSpec) {
        self.for_template.push(for_template);
        self.specs.push(spec);
    }

    /// Adds a function.
    pub fn push_function(&mut self, function: &Map<String, Value>) {
        let name = function.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
        let parameters = function.get("parameters").cloned().unwrap_or_else(|| json!({}));
        let spec = ToolSpec { name, parameters, is_strict: function.get("strict") == Some(&Value::Bool(true)) };
        self.push(json!({ "type": "function", "function": function }), spec);
    }

    /// Adds a custom tool with the fields `name`, `description` and `format`.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] that names the field.
    fn push_custom(&mut self, tool: &Fields<'_>) -> Result<(), ApiError> {
        self.push_function(&custom_tool::function(tool)?);
        self.client.custom.extend(self.specs.last().map(|spec| spec.name.clone()));
        Ok(())
    }

    /// Adds a function, or the function that stands for a custom tool, which the client knows by `name`.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] when the model would get one name for two tools because one is in a namespace.
    pub fn push_named(
        &mut self,
        name: ToolName,
        mut function: Map<String, Value>,
        is_custom: bool,
        path: &str,
    ) -> Result<(), ApiError> {
        let for_model = name.for_model();
        let is_ambiguous = name.namespace.is_some() || self.client.namespaced.contains_key(&for_model);
        if is_ambiguous && self.specs.iter().any(|spec| spec.name == for_model) {
            let message = format!("`{path}` has the name {} for the model, as another tool has", clip(&for_model));
            return Err(ApiError::invalid(path, message));
        }
        function.insert("name".to_owned(), json!(for_model));
        self.push_function(&function);
        self.client.custom.extend(is_custom.then(|| for_model.clone()));
        if name.namespace.is_some() {
            self.client.namespaced.insert(for_model, name);
        }
        Ok(())
    }

    /// Adds a tool in the form of chat completions.
    fn push_chat(&mut self, tool: &Value, path: String) -> Result<(), ApiError> {
        let fields = Fields::of(tool, path)?;
        if fields.string("type")? == Some("custom") {
            let path = fields.path("custom");
            return self.push_custom(&fields.object("custom")?.ok_or_else(|| missing(&path, "the tool's name"))?);
        }
        self.push(tool.clone(), read_function(&fields)?);
        Ok(())
    }
}

impl Tools {
    /// Reads `tools` and `tool_choice`.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] or [`ApiError::Unsupported`] that names the field.
    pub fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let mut listed = ListedTools::default();
        for (index, tool) in fields.array("tools")?.into_iter().flatten().enumerate() {
            listed.push_chat(tool, format!("tools[{index}]"))?;
        }
        Self::choose(listed, fields)
    }

    /// The tools that `tool_choice` leaves.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] that names the field.
    pub(in crate::api) fn choose(listed: ListedTools, fields: &Fields<'_>) -> Result<Self, ApiError> {
        let ListedTools { for_template, specs, client } = listed;
        let for_template = (!for_template.is_empty()).then_some(Value::Array(for_template));
        let (callable, is_required) = match Choice::read(fields)? {
            Choice::None => return Ok(Tools::default()),
            Choice::Required(_) if for_template.is_none() => {
                let message = "`tool_choice` requires a call, but there are no `tools`";
                return Err(ApiError::invalid("tool_choice", message));
            }
            Choice::Auto => (specs, false),
            Choice::Required(names) => (chosen(specs, &names)?, true),
            Choice::Allowed(names) => (chosen(specs, &names)?, false),
        };
        Ok(Tools { for_template, callable, is_required, client })
    }

    /// How an answer is taken apart that may call these tools.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] that names the field.
    pub fn output_options(self, fields: &Fields<'_>) -> Result<OutputOptions, ApiError> {
        let tool_choice = match (self.for_template.is_some(), self.is_required) {
            (false, _) => ToolChoice::None,
            (true, false) => ToolChoice::Auto,
            (true, true) => ToolChoice::Required,
        };
        Ok(OutputOptions {
            parses_reasoning: parses_reasoning(fields)?,
            hides_reasoning: hides_reasoning(fields)?,
            reasoning_budget: reasoning_budget(fields)?,
            tools: self.callable.into(),
            tool_choice,
            parallel_tool_calls: fields.bool("parallel_tool_calls")?.unwrap_or(true),
        })
    }
}

/// `tool_choice`.
enum Choice {
    None,
    Auto,
    /// Some tool of these names; any when there are none.
    Required(Vec<String>),
    /// Perhaps a tool of these names.
    Allowed(Vec<String>),
}

impl Choice {
    fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        match fields.get("tool_choice") {
            None => Ok(Choice::Auto),
            Some(Value::String(choice)) => match choice.as_str() {
                "none" => Ok(Choice::None),
                "auto" => Ok(Choice::Auto),
                "required" | "any" => Ok(Choice::Required(Vec::new())),
                other => Err(ApiError::invalid(
                    "tool_choice",
                    format!("`tool_choice` must be \"none\", \"auto\", \"required\" or an object, not {}", clip(other)),
                )),
            },
            Some(choice) => Self::of_object(&Fields::of(choice, "tool_choice".to_owned())?),
        }
    }

    fn of_object(choice: &Fields<'_>) -> Result<Self, ApiError> {
        let path = choice.path("type");
        match choice.string("type")?.ok_or_else(|| missing(&path, "\"function\" or \"allowed_tools\""))? {
            "function" | "custom" => Ok(Choice::Required(vec![function_name(choice)?])),
            "allowed_tools" => match choice.object("allowed_tools")? {
                Some(allowed) => Self::of_allowed(&allowed),
                // The flat form of the Responses API.
                None if choice.get("tools").is_some() => Self::of_allowed(choice),
                None => Err(missing(&choice.path("allowed_tools"), "the tools")),
            },
            other => {
                let message = format!("`{path}` must be \"function\" or \"allowed_tools\", not {}", clip(other));
                Err(ApiError::invalid(path, message))
            }
        }
    }

    fn of_allowed(allowed: &Fields<'_>) -> Result<Self, ApiError> {
        let tools = allowed.array("tools")?.ok_or_else(|| missing(&allowed.path("tools"), "a list of tools"))?;
        let name = |(index, tool)| function_name(&Fields::of(tool, format!("{}[{index}]", allowed.path("tools")))?);
        let names = tools.iter().enumerate().map(name).collect::<Result<_, _>>()?;
        match allowed.string("mode")? {
            Some("required") => Ok(Choice::Required(names)),
            _ => Ok(Choice::Allowed(names)),
        }
    }
}

/// The name that the model gets of a tool in `{"type": "function", "function": {"name": …}}`, the same for `custom`, or in the flat form.
fn function_name(tool: &Fields<'_>) -> Result<String, ApiError> {
    let flat = tool.string("name")?;
    let kind = if tool.string("type")? == Some("custom") { "custom" } else { "function" };
    let name = match (flat, tool.object(kind)?) {
        (Some(name), _) => Some(name),
        (None, Some(function)) => function.string("name")?,
        (None, None) => None,
    };
    let name = name.ok_or_else(|| missing(&tool.path(&format!("{kind}.name")), "the name of a tool"))?;
    let namespace = tool.string("namespace")?.map(str::to_owned);
    Ok(ToolName { namespace, name: name.to_owned() }.for_model())
}

/// The tools of these names; all when there are no names.
fn chosen(specs: Vec<ToolSpec>, names: &[String]) -> Result<Vec<ToolSpec>, ApiError> {
    if let Some(unknown) = names.iter().find(|name| specs.iter().all(|spec| spec.name != **name)) {
        let message = format!("`tool_choice` names {}, which is not in `tools`", clip(unknown));
        return Err(ApiError::invalid("tool_choice", message));
    }
    Ok(specs.into_iter().filter(|spec| names.is_empty() || names.contains(&spec.name)).collect())
}

fn read_function(tool: &Fields<'_>) -> Result<ToolSpec, ApiError> {
    let function = tool.object("function")?;
    let function = function.ok_or_else(|| missing(&tool.path("function"), "the function's name and parameters"))?;
    let name = function.string("name")?.ok_or_else(|| missing(&function.path("name"), "the function's name"))?;
    let parameters = function.object("parameters")?.map_or_else(|| json!({}), |schema| json!(schema.map()));
    let is_strict = function.bool("strict")?.unwrap_or(false);
    Ok(ToolSpec { name: name.to_owned(), parameters, is_strict })
}

/// Whether the reasoning is left out of the answer: `include_reasoning` of vLLM, and a value of `reasoning_format`.
fn hides_reasoning(fields: &Fields<'_>) -> Result<bool, ApiError> {
    let is_hidden = fields.string("reasoning_format")? == Some("hidden");
    Ok(is_hidden || fields.bool("include_reasoning")? == Some(false))
}

/// Whether the reasoning is separated from the answer: `reasoning_format` of llama.cpp, with the names that Groq has for its
/// values.
fn parses_reasoning(fields: &Fields<'_>) -> Result<bool, ApiError> {
    match fields.string("reasoning_format")? {
        None | Some("auto" | "deepseek" | "parsed" | "hidden") => Ok(true),
        Some("none" | "raw") => Ok(false),
        Some(other) => {
            let message = format!("`reasoning_format` must be \"auto\", \"hidden\" or \"none\", not {}", clip(other));
            Err(ApiError::invalid("reasoning_format", message))
        }
    }
}

/// Most tokens of reasoning: `thinking_token_budget` of vLLM, `reasoning_budget_tokens` and `thinking_budget_tokens` of
/// llama.cpp, where -1 means no limit.
fn reasoning_budget(fields: &Fields<'_>) -> Result<Option<usize>, ApiError> {
    for name in ["thinking_token_budget", "reasoning_budget_tokens", "thinking_budget_tokens"] {
        if let Some(budget) = fields.integer(name, -1..=i64::from(u32::MAX))? {
            return Ok(usize::try_from(budget).ok());
        }
    }
    Ok(None)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn tools(extra: Value) -> Result<(Tools, OutputOptions), ApiError> {
        let tool = |name: &str| json!({ "type": "function", "function": { "name": name, "parameters": {} } });
        let mut body = json!({ "tools": [tool("f"), tool("g")] });
        body.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
        let fields = Fields::of_body(&body).unwrap();
        let tools = Tools::read(&fields)?;
        let options = tools.clone().output_options(&fields)?;
        Ok((tools, options))
    }

    #[test]
    fn the_choice_decides_which_tools_may_be_called_and_whether_one_must() {
        let named = json!({ "type": "function", "function": { "name": "g" } });
        let allowed = json!({ "type": "allowed_tools", "allowed_tools": { "mode": "auto", "tools": [named] } });
        for (choice, expected, names) in [
            (json!(null), ToolChoice::Auto, "f g"),
            (json!("auto"), ToolChoice::Auto, "f g"),
            (json!("none"), ToolChoice::None, ""),
            (json!("required"), ToolChoice::Required, "f g"),
            (named.clone(), ToolChoice::Required, "g"),
            (allowed, ToolChoice::Auto, "g"),
        ] {
            let (tools, options) = tools(json!({ "tool_choice": choice })).unwrap();
            let found: Vec<_> = options.tools.iter().map(|tool| tool.name.as_str()).collect();
            assert_eq!((options.tool_choice, found.join(" ").as_str()), (expected, names), "{choice}");
            assert_eq!(tools.for_template.is_some(), expected != ToolChoice::None);
        }
    }

    #[test]
    fn an_invalid_choice_is_named() {
        for choice in
            [json!("perhaps"), json!({ "type": "function", "function": { "name": "h" } }), json!({ "type": "x" })]
        {
            assert!(tools(json!({ "tool_choice": choice })).is_err(), "{choice}");
        }
        assert!(tools(json!({ "tools": [], "tool_choice": "required" })).is_err());
    }

    #[test]
    fn a_custom_tool_is_a_function_to_the_model_and_may_be_chosen() {
        let custom = json!({ "type": "custom", "custom": { "name": "c" } });
        let (tools, options) = tools(json!({ "tools": [custom], "tool_choice": custom })).unwrap();
        assert!(tools.client.is_custom("c"));
        assert_eq!((options.tool_choice, options.tools[0].name.as_str()), (ToolChoice::Required, "c"));
        assert_eq!(tools.for_template.unwrap()[0]["function"]["parameters"]["required"], json!(["input"]));
    }

    #[test]
    fn a_malformed_custom_tool_is_named_by_its_path() {
        let format = |format: Value| json!({ "type": "custom", "custom": { "name": "c", "format": format } });
        for (tool, path) in [
            (json!({ "type": "custom" }), "custom"),
            (json!({ "type": "custom", "custom": {} }), "custom.name"),
            (json!({ "type": "custom", "custom": { "name": 5 } }), "custom.name"),
            (format(json!({})), "custom.format.type"),
            (format(json!({ "type": "json" })), "custom.format.type"),
            (format(json!({ "type": "grammar" })), "custom.format.definition"),
            (format(json!({ "type": "grammar", "grammar": {} })), "custom.format.grammar.definition"),
            (
                format(json!({ "type": "grammar", "grammar": { "syntax": "gbnf", "definition": "" } })),
                "custom.format.grammar.syntax",
            ),
        ] {
            match tools(json!({ "tools": [tool] })).unwrap_err() {
                ApiError::InvalidRequest { param: Some(param), .. } => assert_eq!(param, format!("tools[0].{path}")),
                other => panic!("{other:?}"),
            }
        }
    }
}
