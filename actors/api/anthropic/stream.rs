//! The answer as a stream: the message without content, each content block with its deltas, and how it ended.

use axum::response::sse::Event;
use serde_json::{Value, json};

use super::answer::{Message, stop_reason, stop_sequence, usage_of};
use super::blocks::{Block, Blocks, Change, SIGNATURE};
use super::errors;
use crate::api::sse::Encoder;
use crate::output::Delta;
use crate::serving::answers::{AnswerEvent, Finish};
use crate::serving::error::ApiError;

/// Encodes an answer as events.
pub(super) struct MessageEvents {
    message: Message,
    content: ContentEvents,
    /// The answer ended with an error.
    has_failed: bool,
}

impl MessageEvents {
    pub fn new(message: Message) -> Self {
        MessageEvents { content: ContentEvents::default(), message, has_failed: false }
    }
}

impl Encoder for MessageEvents {
    // A ping must not come before the start of the message.
    const BEGINS_AT_ONCE: bool = true;

    fn begin(&mut self) -> Vec<Event> {
        let start = json!({ "type": "message_start", "message": self.message.empty() });
        vec![event(&start), self.ping()]
    }

    fn on(&mut self, _choice: usize, next: AnswerEvent) -> Vec<Event> {
        let data = match next {
            AnswerEvent::Progress(_) | AnswerEvent::Prompt(_) => Vec::new(),
            AnswerEvent::Token { deltas, .. } | AnswerEvent::Block { deltas, .. } => self.content.add(deltas),
            AnswerEvent::Finished { finish, deltas } => {
                let mut data = self.content.add(deltas);
                data.extend(self.content.finish());
                data.push(message_delta(&finish));
                data
            }
        };
        data.iter().map(event).collect()
    }

    fn fail(&mut self, error: &ApiError) -> Vec<Event> {
        self.has_failed = true;
        vec![event(&errors::body(error))]
    }

    fn end(&mut self) -> Vec<Event> {
        if self.has_failed { Vec::new() } else { vec![event(&json!({ "type": "message_stop" }))] }
    }

    fn ping(&mut self) -> Event {
        event(&json!({ "type": "ping" }))
    }
}

fn event(data: &Value) -> Event {
    Event::default().event(data["type"].as_str().unwrap_or_default()).data(data.to_string())
}

fn message_delta(finish: &Finish) -> Value {
    let delta = json!({ "stop_reason": stop_reason(finish), "stop_sequence": stop_sequence(finish) });
    json!({ "type": "message_delta", "delta": delta, "usage": usage_of(finish) })
}

/// The events of the content blocks.
#[derive(Default)]
struct ContentEvents {
    blocks: Blocks,
    /// What the open block is, empty.
    open: Option<Block>,
    /// The number of the open block, or of the next one.
    index: usize,
}

impl ContentEvents {
    fn add(&mut self, deltas: Vec<Delta>) -> Vec<Value> {
        let mut data = Vec::new();
        for delta in deltas {
            for change in self.blocks.add(delta) {
                self.apply(change, &mut data);
            }
        }
        data
    }

    fn finish(&mut self) -> Vec<Value> {
        let mut data = Vec::new();
        if let Some(change) = self.blocks.finish() {
            self.apply(change, &mut data);
        }
        data
    }

    fn apply(&mut self, change: Change, data: &mut Vec<Value>) {
        match change {
            Change::Open(block) => {
                data.push(json!({
                    "type": "content_block_start", "index": self.index, "content_block": start_of(&block),
                }));
                self.open = Some(block);
            }
            Change::Append(more) => data.extend(self.open.as_ref().map(|open| self.delta(delta_of(open, &more)))),
            Change::Close => {
                if let Some(Block::Thinking(_)) = self.open.take() {
                    data.push(self.delta(json!({ "type": "signature_delta", "signature": SIGNATURE })));
                }
                data.push(json!({ "type": "content_block_stop", "index": self.index }));
                self.index += 1;
            }
        }
    }

    fn delta(&self, delta: Value) -> Value {
        json!({ "type": "content_block_delta", "index": self.index, "delta": delta })
    }
}

fn start_of(block: &Block) -> Value {
    match block {
        Block::Thinking(_) => json!({ "type": "thinking", "thinking": "", "signature": "" }),
        Block::Text(_) => json!({ "type": "text", "text": "" }),
        Block::ToolUse { id, name, .. } => json!({ "type": "tool_use", "id": id, "name": name, "input": {} }),
    }
}

fn delta_of(block: &Block, more: &str) -> Value {
    match block {
        Block::Thinking(_) => json!({ "type": "thinking_delta", "thinking": more }),
        Block::Text(_) => json!({ "type": "text_delta", "text": more }),
        Block::ToolUse { .. } => json!({ "type": "input_json_delta", "partial_json": more }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The events in short: type, index and what they carry.
    fn brief(data: &[Value]) -> Vec<String> {
        let brief = |event: &Value| {
            let kind = event["type"].as_str().unwrap_or_default().trim_start_matches("content_block_").to_owned();
            let part = event.get("content_block").or(event.get("delta")).cloned().unwrap_or_default();
            let text = ["name", "thinking", "text", "partial_json", "signature"]
                .into_iter()
                .find_map(|key| part[key].as_str());
            format!("{} {kind} {} {}", event["index"], part["type"].as_str().unwrap_or("-"), text.unwrap_or("-"))
        };
        data.iter().map(brief).collect()
    }

    #[test]
    fn each_block_starts_grows_and_stops_under_its_index() {
        let mut content = ContentEvents::default();
        let mut data = content.add(vec![Delta::Reasoning("hm".into()), Delta::Text("so".into())]);
        data.extend(content.add(vec![
            Delta::ToolCallStart { index: 0, id: "call_1".into(), name: "f".into() },
            Delta::ToolCallArguments { index: 0, fragment: "{}".into() },
        ]));
        data.extend(content.finish());
        assert_eq!(
            brief(&data),
            [
                "0 start thinking ",
                "0 delta thinking_delta hm",
                "0 delta signature_delta cuelight",
                "0 stop - -",
                "1 start text ",
                "1 delta text_delta so",
                "1 stop - -",
                "2 start tool_use f",
                "2 delta input_json_delta {}",
                "2 stop - -",
            ]
        );
        assert_eq!(data[7]["content_block"], json!({ "type": "tool_use", "id": "call_1", "name": "f", "input": {} }));
        assert!(content.finish().is_empty());
    }
}
