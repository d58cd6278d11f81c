//! The deltas of an answer as the `delta` of chunks.

use serde_json::{Value, json};

use super::custom_tool::InputReader;
use super::tool_name::ClientTools;
use crate::output::Delta;

/// Encodes the deltas of one choice.
#[derive(Debug, Default)]
pub(super) struct DeltaEncoder {
    /// The call of a custom tool that is not complete: its index and its input.
    open: Option<(usize, InputReader)>,
}

impl DeltaEncoder {
    /// Encodes some deltas. A piece of a custom tool's arguments need not be a part of its input.
    pub fn encode(&mut self, deltas: Vec<Delta>, client_tools: &ClientTools) -> Vec<Value> {
        let mut encoded = Vec::with_capacity(deltas.len());
        for delta in deltas {
            match (&mut self.open, delta) {
                (Some((open, reader)), Delta::ToolCallArguments { index, fragment }) if *open == index => {
                    encoded.extend(input_json(index, &reader.push(&fragment)));
                }
                (_, delta) => {
                    encoded.extend(self.end());
                    encoded.push(self.encode_one(delta, client_tools));
                }
            }
        }
        encoded
    }

    /// The rest of the input of a call that is complete now.
    pub fn end(&mut self) -> Option<Value> {
        let (index, reader) = self.open.take()?;
        input_json(index, &reader.finish())
    }

    fn encode_one(&mut self, delta: Delta, client_tools: &ClientTools) -> Value {
        match delta {
            Delta::Text(text) => json!({ "content": text }),
            Delta::Reasoning(text) => json!({ "reasoning_content": text, "reasoning": text }),
            Delta::ToolCallStart { index, id, name } if client_tools.is_custom(&name) => {
                self.open = Some((index, InputReader::default()));
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

fn input_json(index: usize, input: &str) -> Option<Value> {
    (!input.is_empty()).then(|| json!({ "tool_calls": [{ "index": index, "custom": { "input": input } }] }))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_input_of_a_custom_tool_comes_as_it_grows() {
        let custom = ClientTools { custom: HashSet::from(["patch".to_owned()]), ..ClientTools::default() };
        let start = |index, name: &str| Delta::ToolCallStart { index, id: "c".into(), name: name.into() };
        let more = |index, text: &str| Delta::ToolCallArguments { index, fragment: text.into() };
        let mut encoder = DeltaEncoder::default();
        let begun = encoder.encode(vec![start(0, "patch"), more(0, r#"{"input": "a"#)], &custom);
        let call = json!({ "index": 0, "id": "c", "type": "custom", "custom": { "name": "patch", "input": "" } });
        let input = |text: &str| json!({ "tool_calls": [{ "index": 0, "custom": { "input": text } }] });
        assert_eq!(begun, [json!({ "tool_calls": [call] }), input("a")]);
        assert_eq!(encoder.encode(vec![more(0, r#"\nb"}"#)], &custom), [input("\nb")]);
        let next = encoder.encode(vec![start(1, "f"), more(1, "{}")], &custom);
        assert_eq!(next[1], json!({ "tool_calls": [{ "index": 1, "function": { "arguments": "{}" } }] }));
        assert_eq!(encoder.end(), None);
    }
}
