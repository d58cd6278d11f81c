//! The messages that the items of an input become.

use std::collections::HashMap;

use cuelight_engine::media::MediaKind;
use serde_json::{Value, json};

use crate::api::content::Content;
use crate::serving::media_source::MediaField;

/// The messages of a conversation, built item by item. Consecutive items of the assistant are one message.
#[derive(Debug, Default)]
pub(super) struct Conversation {
    messages: Vec<Message>,
    /// The names of the functions called so far, by the id of the call.
    names: HashMap<String, String>,
    /// The media of its messages.
    media: Vec<MediaField>,
    /// The kinds of the last media, which are outputs of tools that no message shows yet. Few templates take media in an output,
    /// so the next message of the user shows them.
    shown_later: Vec<MediaKind>,
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
        self.show_media();
        match self.messages.as_mut_slice() {
            [first] if first.role == "system" => first.content.push_text("\n\n", &text),
            _ => self.messages.push(Message::new("system", Content::text(text))),
        }
    }

    /// A message of the user, and its media.
    pub fn user(&mut self, content: Content, media: Vec<MediaField>) {
        let mut all = Content::media(std::mem::take(&mut self.shown_later));
        all.append("\n", content);
        self.media.extend(media);
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

    /// What a called function returned: a text and media.
    pub fn tool_output(&mut self, call_id: &str, content: Content, media: Vec<MediaField>) {
        let name = self.names.get(call_id).cloned();
        let text = Content::text(content.into_text());
        let output = Message { call_id: Some(call_id.to_owned()), name, ..Message::new("tool", text) };
        self.messages.push(output);
        self.shown_later.extend(media.iter().map(|item| item.media));
        self.media.extend(media);
    }

    /// Shows media of outputs as a message of the user.
    fn show_media(&mut self) {
        if !self.shown_later.is_empty() {
            let shown = Content::media(std::mem::take(&mut self.shown_later));
            self.messages.push(Message::new("user", shown));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
    }

    /// The messages as chat templates expect them, and their media.
    pub fn json(mut self) -> (Value, Vec<MediaField>) {
        self.show_media();
        (self.messages.into_iter().map(Message::json).collect(), self.media)
    }

    fn assistant_turn(&mut self) -> &mut Message {
        self.show_media();
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
