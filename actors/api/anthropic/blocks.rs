//! Divides the deltas of an answer into content blocks.

use serde_json::{Map, Value, json};

use crate::output::Delta;

/// A content block, as far as it is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Block {
    Thinking(String),
    Text(String),
    ToolUse {
        id: String,
        name: String,
        /// A JSON object, unless the answer was cut off.
        input: String,
    },
}

/// What happens to the blocks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Change {
    /// A new block, which is empty.
    Open(Block),
    /// More of the open block.
    Append(String),
    /// The open block is complete.
    Close,
}

/// The state between deltas.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    open: Option<Kind>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Thinking,
    Text,
    ToolUse,
}

impl Blocks {
    /// What a delta changes.
    pub fn add(&mut self, delta: Delta) -> Vec<Change> {
        let mut changes = Vec::new();
        match delta {
            Delta::Text(text) => self.extend(Kind::Text, Block::Text(String::new()), text, &mut changes),
            Delta::Reasoning(text) => self.extend(Kind::Thinking, Block::Thinking(String::new()), text, &mut changes),
            Delta::ToolCallStart { id, name, .. } => {
                changes.extend(self.finish());
                self.open = Some(Kind::ToolUse);
                changes.push(Change::Open(Block::ToolUse { id, name, input: String::new() }));
            }
            Delta::ToolCallArguments { fragment, .. } => {
                changes.extend((self.open == Some(Kind::ToolUse)).then_some(Change::Append(fragment)));
            }
        }
        changes
    }

    /// Ends the open block, if there is one.
    pub fn finish(&mut self) -> Option<Change> {
        self.open.take().map(|_| Change::Close)
    }

    fn extend(&mut self, kind: Kind, empty: Block, text: String, changes: &mut Vec<Change>) {
        if self.open != Some(kind) {
            changes.extend(self.finish());
            self.open = Some(kind);
            changes.push(Change::Open(empty));
        }
        changes.push(Change::Append(text));
    }
}

impl Block {
    /// Adds to the text, the thinking or the input.
    pub fn append(&mut self, more: &str) {
        match self {
            Block::Thinking(text) | Block::Text(text) | Block::ToolUse { input: text, .. } => text.push_str(more),
        }
    }

    /// The block of a whole answer. `None` for a call that was cut off.
    pub fn json(self) -> Option<Value> {
        match self {
            Block::Thinking(text) => Some(json!({ "type": "thinking", "thinking": text, "signature": SIGNATURE })),
            Block::Text(text) => Some(json!({ "type": "text", "text": text })),
            Block::ToolUse { id, name, input } => {
                let input: Map<String, Value> = serde_json::from_str(&input).ok()?;
                Some(json!({ "type": "tool_use", "id": id, "name": name, "input": input }))
            }
        }
    }
}

/// Clients require a signature of thinking and send it back. This server does not check it.
pub(super) const SIGNATURE: &str = "cuelight";

#[cfg(test)]
mod tests {
    use super::*;

    fn start(index: usize, name: &str) -> Delta {
        Delta::ToolCallStart { index, id: format!("call_{index}"), name: name.to_owned() }
    }

    fn arguments(index: usize, fragment: &str) -> Delta {
        Delta::ToolCallArguments { index, fragment: fragment.to_owned() }
    }

    fn whole(deltas: Vec<Delta>) -> Vec<Block> {
        let mut blocks = Blocks::default();
        let mut found: Vec<Block> = Vec::new();
        let mut changes: Vec<Change> = deltas.into_iter().flat_map(|delta| blocks.add(delta)).collect();
        changes.extend(blocks.finish());
        let count = |wanted: fn(&Change) -> bool| changes.iter().filter(|change| wanted(change)).count();
        assert_eq!(count(|change| matches!(change, Change::Open(_))), count(|change| *change == Change::Close));
        for change in changes {
            match change {
                Change::Open(block) => found.push(block),
                Change::Append(more) => found.last_mut().unwrap().append(&more),
                Change::Close => {}
            }
        }
        found
    }

    fn answer() -> Vec<Delta> {
        vec![
            Delta::Reasoning("I must".into()),
            Delta::Reasoning(" look.".into()),
            Delta::Text("Let me ".into()),
            Delta::Text("look.".into()),
            start(0, "ls"),
            arguments(0, "{\"path\""),
            arguments(0, ": \"/\"}"),
            start(1, "pwd"),
            arguments(1, "{}"),
            Delta::Text("Done.".into()),
        ]
    }

    #[test]
    fn deltas_of_one_kind_are_one_block() {
        let blocks: Vec<Value> = whole(answer()).into_iter().filter_map(Block::json).collect();
        assert_eq!(
            json!(blocks),
            json!([
                { "type": "thinking", "thinking": "I must look.", "signature": SIGNATURE },
                { "type": "text", "text": "Let me look." },
                { "type": "tool_use", "id": "call_0", "name": "ls", "input": { "path": "/" } },
                { "type": "tool_use", "id": "call_1", "name": "pwd", "input": {} },
                { "type": "text", "text": "Done." },
            ])
        );
    }

    #[test]
    fn a_call_that_was_cut_off_is_no_block_of_a_whole_answer() {
        let blocks = whole(vec![Delta::Text("a".into()), start(0, "ls"), arguments(0, "{\"pa")]);
        let blocks: Vec<Value> = blocks.into_iter().filter_map(Block::json).collect();
        assert_eq!(json!(blocks), json!([{ "type": "text", "text": "a" }]));
    }
}
