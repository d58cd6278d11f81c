//! One item of a response's output.

use serde_json::{Value, json};
use uuid::Uuid;

use crate::api::openai::custom_tool;
use crate::api::openai::tool_name::ToolName;

/// What `encrypted_content` begins with when it keeps the text of the reasoning. Clients that ask for it return it with the
/// next request, and leave out the text itself.
pub(super) const REASONING_PREFIX: &str = "cuelight:";

/// One item of a response's output.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Item {
    pub id: String,
    pub status: Status,
    pub content: Content,
}

/// How far an item is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Status {
    InProgress,
    Completed,
    /// The answer was cut off.
    Incomplete,
}

/// What an item contains.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Content {
    Message {
        text: String,
        logprobs: Vec<Value>,
    },
    Reasoning {
        text: String,
        is_kept: bool,
    },
    FunctionCall {
        call_id: String,
        name: ToolName,
        arguments: String,
    },
    /// A call of a custom tool. Its arguments are an object with the field `input`.
    CustomCall {
        call_id: String,
        name: ToolName,
        arguments: String,
    },
}

impl Item {
    /// An item that begins.
    pub fn new(content: Content) -> Self {
        let prefix = match content {
            Content::Message { .. } => "msg",
            Content::Reasoning { .. } => "rs",
            Content::FunctionCall { .. } => "fc",
            Content::CustomCall { .. } => "ctc",
        };
        Item { id: format!("{prefix}_{}", Uuid::new_v4().simple()), status: Status::InProgress, content }
    }

    /// The text that grows with deltas.
    pub fn text_mut(&mut self) -> &mut String {
        match &mut self.content {
            Content::Message { text, .. } | Content::Reasoning { text, .. } => text,
            Content::FunctionCall { arguments, .. } | Content::CustomCall { arguments, .. } => arguments,
        }
    }

    /// The item as it is in a response.
    pub fn json(&self) -> Value {
        let status = self.status.name();
        match &self.content {
            Content::Message { .. } => json!({
                "id": self.id, "type": "message", "status": status, "role": "assistant", "content": self.parts(),
            }),
            Content::Reasoning { text, is_kept } => {
                let mut item = json!({ "id": self.id, "type": "reasoning", "summary": [], "content": self.parts() });
                // The published schema of the API does not accept null here.
                if *is_kept {
                    item["encrypted_content"] = json!(format!("{REASONING_PREFIX}{text}"));
                }
                item
            }
            Content::FunctionCall { call_id, name, arguments } => {
                let mut item = json!({
                    "id": self.id, "type": "function_call", "status": status, "call_id": call_id, "arguments": arguments,
                });
                name.write(&mut item);
                item
            }
            Content::CustomCall { call_id, name, arguments } => {
                let input = custom_tool::input(arguments);
                let mut item = json!({
                    "id": self.id, "type": "custom_tool_call", "status": status, "call_id": call_id, "input": input,
                });
                name.write(&mut item);
                item
            }
        }
    }

    /// The item at its beginning, without content.
    pub fn json_begun(&self) -> Value {
        let content = match self.content.clone() {
            Content::Message { .. } => Content::Message { text: String::new(), logprobs: Vec::new() },
            Content::Reasoning { is_kept, .. } => Content::Reasoning { text: String::new(), is_kept },
            Content::FunctionCall { call_id, name, .. } => {
                Content::FunctionCall { call_id, name, arguments: String::new() }
            }
            Content::CustomCall { call_id, name, .. } => {
                Content::CustomCall { call_id, name, arguments: String::new() }
            }
        };
        let mut begun = Item { id: self.id.clone(), status: Status::InProgress, content }.json();
        if let Some(parts) = begun.get_mut("content") {
            *parts = json!([]);
        }
        begun
    }

    /// The one part of a message or of reasoning. `None` for a call.
    pub fn part(&self) -> Option<Value> {
        match &self.content {
            Content::Message { text, logprobs } => Some(text_part(text, logprobs)),
            Content::Reasoning { text, .. } => Some(reasoning_part(text)),
            Content::FunctionCall { .. } | Content::CustomCall { .. } => None,
        }
    }

    /// The part at its beginning.
    pub fn part_begun(&self) -> Option<Value> {
        match &self.content {
            Content::Message { .. } => Some(text_part("", &[])),
            Content::Reasoning { .. } => Some(reasoning_part("")),
            Content::FunctionCall { .. } | Content::CustomCall { .. } => None,
        }
    }

    fn parts(&self) -> Vec<Value> {
        self.part().into_iter().collect()
    }
}

impl Status {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Status::InProgress => "in_progress",
            Status::Completed => "completed",
            Status::Incomplete => "incomplete",
        }
    }
}

fn text_part(text: &str, logprobs: &[Value]) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": logprobs })
}

fn reasoning_part(text: &str) -> Value {
    json!({ "type": "reasoning_text", "text": text })
}
