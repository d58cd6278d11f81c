//! The deltas of an answer as the `delta` of chunks.

use std::collections::HashSet;

use serde_json::{Value, json};

use super::custom_tool;
use crate::output::Delta;

/// Encodes the deltas of one choice.
#[derive(Debug, Default)]
pub(super) struct DeltaEncoder {
    /// The call of a custom tool that is not complete: its index, and its arguments so far.
    open: Option<(usize, String)>,
}

impl DeltaEncoder {
    /// Encodes some deltas. The input of a custom tool is known when its call is complete, so there may be none.
    pub fn encode(&mut self, deltas: Vec<Delta>, custom_tools: &HashSet<String>) -> Vec<Value> {
        let mut encoded = Vec::with_capacity(deltas.len());
        for delta in deltas {
            match (&mut self.open, delta) {
                (Some((open, arguments)), Delta::ToolCallArguments { index, fragment }) if *open == index => {
                    arguments.push_str(&fragment);
                }
                (_, delta) => {
                    encoded.extend(self.end());
                    encoded.push(self.encode_one(delta, custom_tools));
                }
            }
        }
        encoded
    }

    /// The input of a call that is complete now.
    pub fn end(&mut self) -> Option<Value> {
        let (index, arguments) = self.open.take()?;
        let input = custom_tool::input(&arguments);
        Some(json!({ "tool_calls": [{ "index": index, "custom": { "input": input } }] }))
    }

    fn encode_one(&mut self, delta: Delta, custom_tools: &HashSet<String>) -> Value {
        match delta {
            Delta::Text(text) => json!({ "content": text }),
            Delta::Reasoning(text) => json!({ "reasoning_content": text, "reasoning": text }),
            Delta::ToolCallStart { index, id, name } if custom_tools.contains(&name) => {
                self.open = Some((index, String::new()));
                json!({ "tool_calls": [
                    { "index": index, "id": id, "type": "custom", "custom": { "name": name, "input": "" } }
                ] })
            }
            Delta::ToolCallStart { index, id, name } => json!({ "tool_calls": [
                { "index": index, "id": id, "type": "function", "function": { "name": name, "arguments": "" } }
            ] }),
            Delta::ToolCallArguments { index, fragment } => {
                json!({ "tool_calls": [{ "index": index, "function": { "arguments": fragment } }] })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_input_of_a_custom_tool_comes_when_its_call_is_complete() {
        let custom = HashSet::from(["patch".to_owned()]);
        let start = |index, name: &str| Delta::ToolCallStart { index, id: "c".into(), name: name.into() };
        let more = |index, text: &str| Delta::ToolCallArguments { index, fragment: text.into() };
        let mut encoder = DeltaEncoder::default();
        let begun = encoder.encode(vec![start(0, "patch"), more(0, r#"{"input": "#)], &custom);
        let call = json!({ "index": 0, "id": "c", "type": "custom", "custom": { "name": "patch", "input": "" } });
        assert_eq!(begun, [json!({ "tool_calls": [call] })]);
        assert!(encoder.encode(vec![more(0, r#""a"}"#)], &custom).is_empty());
        let next = encoder.encode(vec![start(1, "f"), more(1, "{}")], &custom);
        assert_eq!(next[0], json!({ "tool_calls": [{ "index": 0, "custom": { "input": "a" } }] }));
        assert_eq!(next[2], json!({ "tool_calls": [{ "index": 1, "function": { "arguments": "{}" } }] }));
        assert_eq!(encoder.end(), None);
    }
}
