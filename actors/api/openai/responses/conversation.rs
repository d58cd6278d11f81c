//! The messages that the items of an input become.

use std::collections::HashMap;

use serde_json::{Value, json};

use crate::api::content::Content;
use crate::serving::image_source::ImageField;

/// The messages of a conversation, built item by item. Consecutive items of the assistant are one message.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    messages: Vec<Message>,
    /// The names of the functions called so far, by the id of the call.
    names: HashMap<String, String>,
    /// The images of its messages.
    images: Vec<ImageField>,
    /// How many of the last images are outputs of tools that no message shows yet. Few templates take images in an output, so the
    /// next message of the user shows them.
    shown_later: usize,
}

#[derive(Debug)]
struct Message {
    role: &'static str,
    content: Content,
    reasoning: String,
    calls: Vec<Value>,
    /// Of a tool's output: the id of the call.
    call_id: Option<String>,
    /// Of a tool's output: the name of the function.
    name: Option<String>,
}

impl Message {
    fn new(role: &'static str, content: Content) -> Self {
        Message { role, content, reasoning: String::new(), calls: Vec::new(), call_id: None, name: None }
    }

    fn json(self) -> Value {
        let mut message = json!({ "role": self.role, "content": self.content.json() });
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
        self.show_images();
        match self.messages.as_mut_slice() {
            [first] if first.role == "system" => first.content.push_text("\n\n", &text),
            _ => self.messages.push(Message::new("system", Content::text(text))),
        }
    }

    /// A message of the user, and its images.
    pub fn user(&mut self, content: Content, images: Vec<ImageField>) {
        let mut all = Content::images(std::mem::take(&mut self.shown_later));
        all.append("\n", content);
        self.images.extend(images);
        self.messages.push(Message::new("user", all));
    }

    pub fn assistant(&mut self, text: &str) {
        self.assistant_turn().content.push_text("\n", text);
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

    /// What a called function returned: a text and images.
    pub fn tool_output(&mut self, call_id: &str, content: Content, images: Vec<ImageField>) {
        let name = self.names.get(call_id).cloned();
        let text = Content::text(content.into_text());
        let output = Message { call_id: Some(call_id.to_owned()), name, ..Message::new("tool", text) };
        self.messages.push(output);
        self.shown_later += images.len();
        self.images.extend(images);
    }

    /// Shows images of outputs as a message of the user.
    fn show_images(&mut self) {
        let count = std::mem::take(&mut self.shown_later);
        if count > 0 {
            self.messages.push(Message::new("user", Content::images(count)));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The messages as chat templates expect them, and their images.
    pub fn json(mut self) -> (Value, Vec<ImageField>) {
        self.show_images();
        (self.messages.into_iter().map(Message::json).collect(), self.images)
    }

    fn assistant_turn(&mut self) -> &mut Message {
        self.show_images();
        if self.messages.last().is_none_or(|last| last.role != "assistant") {
            self.messages.push(Message::new("assistant", Content::text("")));
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
