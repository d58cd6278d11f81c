//! A message of a conversation, in the form of chat templates and in that of the API.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::pipeline::media::CachedMedia;

/// One message.
#[derive(Debug, Clone, PartialEq)]
pub struct Turn {
    /// Who wrote it.
    pub role: Role,
    /// Its text.
    pub content: String,
    /// The reasoning before the calls of an answer. Without calls it is not kept: templates leave it out.
    pub reasoning: String,
    /// The tools that an answer calls.
    pub calls: Vec<ToolCall>,
    /// The call whose result this is.
    pub answers: Option<ToolCall>,
    /// The images and audio before its text.
    pub media: Vec<CachedMedia>,
}

/// Who wrote a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// Instructions.
    System,
    /// The user.
    User,
    /// The model.
    Assistant,
    /// A tool.
    Tool,
}

/// A call of a tool.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ToolCall {
    /// Its number, which its result has too.
    pub id: String,
    /// The tool, as the model knows it.
    pub name: String,
    /// A JSON object, if the model wrote one.
    pub arguments: String,
}

impl Role {
    fn name(self) -> &'static str {
        match self {
            Role::System => "system",
            Role::User => "user",
            Role::Assistant => "assistant",
            Role::Tool => "tool",
        }
    }
}

impl Turn {
    fn new(role: Role, content: impl Into<String>) -> Self {
        let (reasoning, calls, media) = (String::new(), Vec::new(), Vec::new());
        Turn { role, content: content.into(), reasoning, calls, answers: None, media }
    }

    /// A question.
    pub fn user(text: impl Into<String>, media: Vec<CachedMedia>) -> Self {
        Turn { media, ..Turn::new(Role::User, text) }
    }

    /// An answer.
    pub fn assistant(text: impl Into<String>) -> Self {
        Turn::new(Role::Assistant, text)
    }

    /// The result of a call.
    pub fn result(call: &ToolCall, text: impl Into<String>, media: Vec<CachedMedia>) -> Self {
        Turn { answers: Some(call.clone()), media, ..Turn::new(Role::Tool, text) }
    }

    /// The message as chat templates expect it: the arguments of calls are objects.
    pub fn for_template(&self) -> Value {
        let arguments = |call: &ToolCall| serde_json::from_str(&call.arguments).unwrap_or_else(|_| json!({}));
        let mut message = self.message(content(&self.content, &self.media), arguments);
        if !self.reasoning.is_empty() {
            // Templates use either name.
            message["reasoning"] = json!(self.reasoning);
        }
        message
    }

    /// The message as the API takes it, without media: the arguments of calls are texts.
    pub fn saved(&self) -> Value {
        self.message(json!(self.content), |call| json!(call.arguments))
    }

    /// Whether it may come after another message, or be the first.
    fn follows(&self, before: Option<&Turn>) -> bool {
        match (before.map(|turn| (turn.role, !turn.calls.is_empty())), self.role) {
            (None | Some((Role::Assistant, false)), Role::User) => true,
            (Some((Role::User | Role::Tool, _)), Role::Assistant) => true,
            (Some((Role::Assistant, true) | (Role::Tool, _)), Role::Tool) => self.answers.is_some(),
            _ => false,
        }
    }

    fn message(&self, content: Value, arguments: impl Fn(&ToolCall) -> Value) -> Value {
        let mut message = Map::new();
        message.insert("role".to_owned(), json!(self.role.name()));
        message.insert("content".to_owned(), content);
        if !self.reasoning.is_empty() {
            message.insert("reasoning_content".to_owned(), json!(self.reasoning));
        }
        if !self.calls.is_empty() {
            let function = |call: &ToolCall| json!({ "name": call.name, "arguments": arguments(call) });
            let call = |call: &ToolCall| json!({ "id": call.id, "type": "function", "function": function(call) });
            message.insert("tool_calls".to_owned(), self.calls.iter().map(call).collect());
        }
        if let Some(call) = &self.answers {
            message.insert("tool_call_id".to_owned(), json!(call.id));
            message.insert("name".to_owned(), json!(call.name));
        }
        Value::Object(message)
    }
}

/// A message's content as chat templates expect it: a text, or a list of media and a text.
fn content(text: &str, media: &[CachedMedia]) -> Value {
    if media.is_empty() {
        return json!(text);
    }
    let media = media.iter().map(|item| json!({ "type": item.parts.kind.part_type() }));
    media.chain([json!({ "type": "text", "text": text })]).collect()
}

/// A message as [`Turn::saved`] writes it.
#[derive(Deserialize)]
pub struct SavedTurn {
    role: Role,
    content: Option<String>,
    #[serde(default)]
    reasoning_content: String,
    #[serde(default)]
    tool_calls: Vec<SavedCall>,
    tool_call_id: Option<String>,
    #[serde(default)]
    name: String,
}

#[derive(Deserialize)]
struct SavedCall {
    id: String,
    function: SavedFunction,
}

#[derive(Deserialize)]
struct SavedFunction {
    name: String,
    arguments: String,
}

impl From<SavedTurn> for Turn {
    fn from(saved: SavedTurn) -> Self {
        let call = |SavedCall { id, function }| ToolCall { id, name: function.name, arguments: function.arguments };
        let SavedTurn { role, content, reasoning_content, tool_calls, tool_call_id, name } = saved;
        Turn {
            reasoning: reasoning_content,
            calls: tool_calls.into_iter().map(call).collect(),
            answers: tool_call_id.map(|id| ToolCall { id, name, arguments: String::new() }),
            ..Turn::new(role, content.unwrap_or_default())
        }
    }
}

/// Whether messages are questions with complete answers: results follow calls, and each answer ends with a text.
pub fn are_complete(turns: &[Turn]) -> bool {
    let before = std::iter::once(None).chain(turns.iter().map(Some));
    let is_end = |turn: &Turn| turn.role == Role::Assistant && turn.calls.is_empty();
    before.zip(turns).all(|(before, turn)| turn.follows(before)) && turns.last().is_none_or(is_end)
}
