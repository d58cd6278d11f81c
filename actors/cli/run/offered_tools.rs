//! The tools that the model may call, for its chat template and for the parser of its answers.

use std::sync::Arc;

use cuelight_engine::format::chat_template::{Cancellation, ChatTemplate, TemplateInputs};
use serde_json::{Value, json};

use crate::mcp::servers::ServerTool;
use crate::output::ToolSpec;
use crate::pipeline::runtime::ServedModel;

/// Tools in both forms.
#[derive(Debug, Clone, Default)]
pub struct OfferedTools {
    /// What the chat template gets; `None` without tools.
    pub for_template: Option<Value>,
    /// What the parser gets.
    pub specs: Arc<[ToolSpec]>,
}

impl OfferedTools {
    /// The tools of servers.
    #[must_use]
    pub fn new(tools: &[ServerTool]) -> Self {
        let spec = |tool: &ServerTool| ToolSpec {
            name: tool.for_model.clone(),
            parameters: tool.parameters.clone(),
            is_strict: false,
        };
        let for_template = (!tools.is_empty()).then(|| tools.iter().map(for_template).collect());
        OfferedTools { for_template, specs: tools.iter().map(spec).collect() }
    }

    /// The tools, if there are any.
    #[must_use]
    pub fn callable(&self) -> Option<Arc<[ToolSpec]>> {
        self.for_template.as_ref().map(|_| self.specs.clone())
    }
}

fn for_template(tool: &ServerTool) -> Value {
    let description = tool.description.as_deref().unwrap_or_default();
    let function = json!({ "name": tool.for_model, "description": description, "parameters": tool.parameters });
    json!({ "type": "function", "function": function })
}

/// Whether a model can call tools: its chat template shows them, and how it writes calls is known.
pub fn calls_tools(model: &ServedModel) -> bool {
    let rules = model.find_output_rules(&Cancellation::default());
    rules.format.has_tool_calls() && model.chat_template.as_ref().is_some_and(|template| shows_tools(template))
}

/// Whether a template renders a conversation with tools differently.
fn shows_tools(template: &ChatTemplate) -> bool {
    let messages = json!([{ "role": "user", "content": "Hi" }]);
    let parameters = json!({ "type": "object", "properties": {} });
    let function = json!({ "name": "probe", "description": "A tool.", "parameters": parameters });
    let tools = json!([{ "type": "function", "function": function }]);
    let render = |tools| {
        let inputs = TemplateInputs {
            messages: &messages,
            tools,
            documents: None,
            add_generation_prompt: true,
            variables: None,
        };
        template.render_prompt(&inputs, &Cancellation::default()).ok().map(|prompt| prompt.text)
    };
    let with = render(Some(&tools));
    with.is_some() && with != render(None)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_template_that_ignores_tools_is_noticed() {
        let template = |source: &str| ChatTemplate::new(source, "", "").unwrap();
        let text = "{% for message in messages %}{{ message.content }}{% endfor %}";
        assert!(!shows_tools(&template(text)));
        assert!(shows_tools(&template(&format!("{{{{ tools }}}}{text}"))));
    }

    #[test]
    fn templates_get_tools_in_the_form_of_the_api() {
        let tool = ServerTool {
            for_model: "files__read".to_owned(),
            server: "files".to_owned(),
            name: "read".to_owned(),
            description: None,
            parameters: json!({ "type": "object" }),
            is_read_only: true,
        };
        let offered = OfferedTools::new(std::slice::from_ref(&tool));
        assert_eq!(offered.for_template.as_ref().unwrap()[0]["function"]["name"], "files__read");
        assert_eq!(offered.callable().unwrap()[0].parameters, tool.parameters);
        assert!(OfferedTools::new(&[]).callable().is_none());
    }
}
