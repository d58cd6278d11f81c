//! Reads a conversation and converts it to the form that chat templates expect: results of tools as messages of their own,
//! before the user's text; calls of tools and reasoning as fields of the assistant's message.

use std::collections::HashMap;

use cuelight_engine::media::MediaKind;
use serde_json::{Map, Value, json};

use super::content::{self, Author, Block};
use crate::api::content::Content;
use crate::api::fields::{Fields, missing};
use crate::serving::error::{ApiError, clip};
use crate::serving::media_source::MediaField;

/// A conversation.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Conversation {
    /// Messages for the chat template.
    pub messages: Value,
    /// Their images.
    pub images: Vec<MediaField>,
    /// The last message is the beginning of the answer.
    pub continues_answer: bool,
}

impl Conversation {
    /// Reads `system` and `messages`.
    ///
    /// # Errors
    /// [`ApiError::InvalidRequest`] or [`ApiError::Unsupported`] that names the field by its path.
    pub fn read(fields: &Fields<'_>) -> Result<Self, ApiError> {
        let path = fields.path("messages");
        let messages = fields.array("messages")?.ok_or_else(|| missing(&path, "a list of messages"))?;
        if messages.is_empty() {
            return Err(ApiError::invalid(path, "`messages` must have at least one message"));
        }
        let mut turns = Turns::default();
        if let Some(system) = fields.get("system") {
            turns.add_instructions(&content::read(system, "system", Author::System)?);
        }
        for (index, message) in messages.iter().enumerate() {
            turns.add(&Fields::of(message, format!("{path}[{index}]"))?)?;
        }
        Ok(turns.finish())
    }
}

/// A message for the chat template.
#[derive(Debug, Default)]
struct Turn {
    role: &'static str,
    content: Content,
    reasoning: String,
    tool_calls: Vec<Value>,
    /// The id of the call that this is the result of, and the tool's name.
    result_of: Option<(String, Option<String>)>,
}

#[derive(Default)]
struct Turns {
    turns: Vec<Turn>,
    /// The names of the tools called, by the ids of the calls.
    called: HashMap<String, String>,
    images: Vec<MediaField>,
}

impl Turns {
    fn add(&mut self, message: &Fields<'_>) -> Result<(), ApiError> {
        let (role, author) = read_role(message)?;
        let path = message.path("content");
        let content = message.get("content").ok_or_else(|| missing(&path, "a string or a list of blocks"))?;
        let blocks = content::read(content, &path, author)?;
        match author {
            Author::System => self.add_instructions(&blocks),
            Author::User | Author::Assistant => self.add_turn(role, blocks),
        }
        Ok(())
    }

    /// Adds text of the system. A line that only serves billing and changes with each request is left out, so that the prefix
    /// cache is used.
    fn add_instructions(&mut self, blocks: &[Block<'_>]) {
        const BILLING: &str = "x-anthropic-billing-header:";
        let text = |block: &Block<'_>| match block {
            Block::Text(text) if !text.starts_with(BILLING) => Some((*text).to_owned()),
            _ => None,
        };
        let texts: Vec<String> = blocks.iter().filter_map(text).collect();
        if !texts.is_empty() {
            self.push(Turn { role: "system", content: Content::text(texts.join("\n")), ..Turn::default() });
        }
    }

    fn add_turn(&mut self, role: &'static str, blocks: Vec<Block<'_>>) {
        let mut turn = Turn { role, ..Turn::default() };
        // Few templates take images in a result of a tool, so the message with the result shows them.
        let is_result = |block: &Block<'_>| matches!(block, Block::ToolResult { images, .. } if images.is_empty());
        let is_only_results = !blocks.is_empty() && blocks.iter().all(is_result);
        for block in blocks {
            match block {
                Block::Text(text) => turn.content.push_text("\n", text),
                Block::Image(image) => {
                    turn.content.push_media(MediaKind::Image);
                    self.images.push(*image);
                }
                Block::Thinking(text) => append_line(&mut turn.reasoning, text),
                Block::ToolUse { id, name, input } => {
                    self.called.insert(id.to_owned(), name.to_owned());
                    turn.tool_calls.push(tool_call(id, name, input));
                }
                Block::ToolResult { id, text, images } => {
                    let result_of = Some((id.to_owned(), self.called.get(id).cloned()));
                    self.turns.push(Turn { role: "tool", content: Content::text(text), result_of, ..Turn::default() });
                    images.iter().for_each(|_| turn.content.push_media(MediaKind::Image));
                    self.images.extend(images);
                }
            }
        }
        if !is_only_results {
            self.push(turn);
        }
    }

    /// Adds a turn, to the last one if that has the same role: many templates demand that roles alternate.
    fn push(&mut self, turn: Turn) {
        match self.turns.last_mut().filter(|last| last.role == turn.role) {
            Some(last) => {
                last.content.append("\n", turn.content);
                append_line(&mut last.reasoning, &turn.reasoning);
                last.tool_calls.extend(turn.tool_calls);
            }
            None => self.turns.push(turn),
        }
    }

    fn finish(self) -> Conversation {
        let continues_answer = self
            .turns
            .last()
            .is_some_and(|last| last.role == "assistant" && last.tool_calls.is_empty() && !last.content.is_blank());
        let messages = self.turns.into_iter().map(Turn::message).collect();
        Conversation { messages, images: self.images, continues_answer }
    }
}

impl Turn {
    fn message(self) -> Value {
        let mut message = Map::new();
        message.insert("role".to_owned(), json!(self.role));
        message.insert("content".to_owned(), self.content.json());
        if !self.reasoning.is_empty() {
            // Templates use either name.
            message.insert("reasoning_content".to_owned(), json!(self.reasoning));
            message.insert("reasoning".to_owned(), json!(self.reasoning));
        }
        if !self.tool_calls.is_empty() {
            message.insert("tool_calls".to_owned(), Value::Array(self.tool_calls));
        }
        if let Some((id, name)) = self.result_of {
            message.insert("tool_call_id".to_owned(), json!(id));
            message.extend(name.map(|name| ("name".to_owned(), json!(name))));
        }
        Value::Object(message)
    }
}

fn read_role(message: &Fields<'_>) -> Result<(&'static str, Author), ApiError> {
    const ROLES: &str = "\"user\", \"assistant\" or \"system\"";
    let path = message.path("role");
    match message.string("role")?.ok_or_else(|| missing(&path, ROLES))? {
        "user" => Ok(("user", Author::User)),
        "assistant" => Ok(("assistant", Author::Assistant)),
        "system" => Ok(("system", Author::System)),
        other => Err(ApiError::invalid(&path, format!("`{path}` must be {ROLES}, not {}", clip(other)))),
    }
}

fn tool_call(id: &str, name: &str, input: Map<String, Value>) -> Value {
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": input } })
}

/// Adds a text on a line of its own.
fn append_line(text: &mut String, more: &str) {
    if !text.is_empty() && !more.is_empty() {
        text.push('\n');
    }
    text.push_str(more);
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn read(body: &Value) -> Result<Conversation, ApiError> {
        Conversation::read(&Fields::of_body(body).unwrap())
    }

    fn messages(messages: Value) -> Value {
        read(&json!({ "messages": messages })).unwrap().messages
    }

    #[test]
    fn instructions_come_first_without_the_line_for_billing() {
        let user = json!({ "role": "user", "content": "hi" });
        let blocks = json!([
            { "type": "text", "text": "x-anthropic-billing-header: cc_version=2.1; cch=abc;" },
            { "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral" } },
            { "type": "text", "text": "Be kind." },
        ]);
        for (system, text) in [(json!("Be brief."), "Be brief."), (blocks, "Be brief.\nBe kind.")] {
            let read = read(&json!({ "system": system, "messages": [user] })).unwrap();
            assert_eq!(read.messages, json!([{ "role": "system", "content": text }, user]));
        }
    }

    #[test]
    fn a_system_message_stays_in_its_place() {
        let conversation = json!([
            { "role": "user", "content": "hi" },
            { "role": "system", "content": [{ "type": "text", "text": "The time is 12:00." }] },
            { "role": "user", "content": "and now?" },
        ]);
        let read = messages(conversation);
        assert_eq!(read[1], json!({ "role": "system", "content": "The time is 12:00." }));
        assert_eq!(read.as_array().unwrap().len(), 3);
    }

    #[test]
    fn results_of_tools_come_before_the_text_and_have_the_names_of_their_tools() {
        let read = messages(json!([
            { "role": "assistant", "content": [
                { "type": "thinking", "thinking": "I must look.", "signature": "s" },
                { "type": "redacted_thinking", "data": "x" },
                { "type": "text", "text": "Let me look." },
                { "type": "tool_use", "id": "toolu_1", "name": "ls", "input": { "path": "/" } },
                { "type": "tool_use", "id": "toolu_2", "name": "pwd", "input": {} },
            ] },
            { "role": "user", "content": [
                { "type": "text", "text": "Go on." },
                { "type": "tool_result", "tool_use_id": "toolu_1", "content": [
                    { "type": "text", "text": "a" }, { "type": "text", "text": "b", "cache_control": null },
                ] },
                { "type": "tool_result", "tool_use_id": "toolu_2", "content": "denied", "is_error": true },
            ] },
        ]));
        assert_eq!(
            read,
            json!([
                {
                    "role": "assistant", "content": "Let me look.",
                    "reasoning_content": "I must look.", "reasoning": "I must look.",
                    "tool_calls": [
                        { "id": "toolu_1", "type": "function", "function": { "name": "ls", "arguments": { "path": "/" } } },
                        { "id": "toolu_2", "type": "function", "function": { "name": "pwd", "arguments": {} } },
                    ],
                },
                { "role": "tool", "content": "a\nb", "tool_call_id": "toolu_1", "name": "ls" },
                { "role": "tool", "content": "Error: denied", "tool_call_id": "toolu_2", "name": "pwd" },
                { "role": "user", "content": "Go on." },
            ])
        );
    }

    #[test]
    fn results_alone_make_no_message_of_the_user() {
        let read = messages(json!([
            { "role": "user", "content": [{ "type": "tool_result", "tool_use_id": "t" }] },
        ]));
        assert_eq!(read, json!([{ "role": "tool", "content": "", "tool_call_id": "t" }]));
    }

    #[test]
    fn turns_of_one_role_become_one_message() {
        let read = messages(json!([
            { "role": "user", "content": "a" },
            { "role": "user", "content": [{ "type": "text", "text": "b" }, { "type": "text", "text": "c" }] },
            { "role": "assistant", "content": "d" },
        ]));
        assert_eq!(read, json!([{ "role": "user", "content": "a\nb\nc" }, { "role": "assistant", "content": "d" }]));
    }

    #[test]
    fn only_text_of_the_assistant_at_the_end_is_continued() {
        let last = |content: Value| json!({ "messages": [{ "role": "assistant", "content": content }] });
        let call =
            json!([{ "type": "text", "text": "a" }, { "type": "tool_use", "id": "1", "name": "f", "input": {} }]);
        for (body, expected) in [
            (last(json!("a")), true),
            (last(json!(" ")), false),
            (last(call), false),
            (json!({ "messages": [{ "role": "user", "content": "a" }] }), false),
        ] {
            assert_eq!(read(&body).unwrap().continues_answer, expected, "{body}");
        }
    }

    #[test]
    fn an_invalid_field_of_a_conversation_is_named_by_its_path() {
        let user = |content: Value| json!({ "messages": [{ "role": "user", "content": content }] });
        let result = |part: Value| user(json!([{ "type": "tool_result", "tool_use_id": "t", "content": [part] }]));
        for (body, path) in [
            (json!({}), "messages"),
            (json!({ "messages": [] }), "messages"),
            (json!({ "messages": [5] }), "messages[0]"),
            (json!({ "messages": [{ "role": "wizard", "content": "a" }] }), "messages[0].role"),
            (json!({ "messages": [{ "role": "user" }] }), "messages[0].content"),
            (json!({ "system": 5, "messages": [{ "role": "user", "content": "a" }] }), "system"),
            (user(json!([{ "type": "text" }])), "messages[0].content[0].text"),
            (user(json!([{ "type": "image", "source": {} }])), "messages[0].content[0].source.type"),
            (user(json!([{ "type": "document", "source": {} }])), "messages[0].content[0].type"),
            (user(json!([{ "type": "document", "source": {} }])), "messages[0].content[0].type"),
            (user(json!([{ "type": "tool_use", "id": "1", "name": "f" }])), "messages[0].content[0].type"),
            (user(json!([{ "type": "tool_result" }])), "messages[0].content[0].tool_use_id"),
            (result(json!({ "type": "image" })), "messages[0].content[0].content[0].source"),
            (result(json!({ "type": "smell" })), "messages[0].content[0].content[0].type"),
        ] {
            match read(&body).unwrap_err() {
                ApiError::InvalidRequest { param: Some(param), .. } | ApiError::Unsupported { param, .. } => {
                    assert_eq!(param, path, "{body}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
