//! The messages that the items of an input become.

use std::collections::HashMap;

use serde_json::{Value, json};

/// The messages of a conversation, built item by item. Consecutive items of the assistant are one message.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    messages: Vec<Message>,
    /// The names of the functions called so far, by the id of the call.
    names: HashMap<String, String>,
}

#[derive(Debug)]
struct Message {
    role: &'static str,
    content: String,
    reasoning: String,
    calls: Vec<Value>,
    /// Of a tool's output: the id of the call.
    call_id: Option<String>,
    /// Of a tool's output: the name of the function.
    name: Option<String>,
}

impl Message {
    fn new(role: &'static str, content: String) -> Self {
        Message { role, content, reasoning: String::new(), calls: Vec::new(), call_id: None, name: None }
    }

    fn json(self) -> Value {
        let mut message = json!({ "role": self.role, "content": self.content });
        if !self.calls.is_empty() {
            message["tool_calls"] = Value::Array(self.calls);
        }
        if let Some(id) = self.call_id {
            message["tool_call_id"] = json!(id);
        }
        if let Some(name) = self.name {
            message["name"] = json!(name);
        }
        if !self.reasoning.is_empty() {
            // Templates use either name.
            message["reasoning_content"] = json!(self.reasoning);
            message["reasoning"] = json!(self.reasoning);
        }
        message
    }
}

impl Conversation {
    /// A message of the system. Those before all other messages become one, because many templates accept only one.
    pub fn system(&mut self, text: String) {
        match self.messages.as_mut_slice() {
            [first] if first.role == "system" => append(&mut first.content, "\n\n", &text),
            _ => self.messages.push(Message::new("system", text)),
        }
    }

    pub fn user(&mut self, text: String) {
        self.messages.push(Message::new("user", text));
    }

    pub fn assistant(&mut self, text: &str) {
        append(&mut self.assistant_turn().content, "\n", text);
    }

    pub fn reasoning(&mut self, text: &str) {
        append(&mut self.assistant_turn().reasoning, "\n", text);
    }

    /// A call by the assistant. `arguments`: an object, or text that is not JSON.
    pub fn call(&mut self, id: &str, name: &str, arguments: Value) {
        self.names.insert(id.to_owned(), name.to_owned());
        let function = json!({ "name": name, "arguments": arguments });
        self.assistant_turn().calls.push(json!({ "id": id, "type": "function", "function": function }));
    }

    /// What a called function returned.
    pub fn tool_output(&mut self, call_id: &str, text: String) {
        let name = self.names.get(call_id).cloned();
        let output = Message { call_id: Some(call_id.to_owned()), name, ..Message::new("tool", text) };
        self.messages.push(output);
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The messages as chat templates expect them.
    pub fn json(self) -> Value {
        self.messages.into_iter().map(Message::json).collect()
    }

    fn assistant_turn(&mut self) -> &mut Message {
        if self.messages.last().is_none_or(|last| last.role != "assistant") {
            self.messages.push(Message::new("assistant", String::new()));
        }
        let last = self.messages.len() - 1;
        &mut self.messages[last]
    }
}

/// Appends a text, after a separator if there is text before it.
fn append(all: &mut String, separator: &str, text: &str) {
    if !all.is_empty() && !text.is_empty() {
        all.push_str(separator);
    }
    all.push_str(text);
}
