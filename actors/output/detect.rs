//! Finds the format of a chat template.

use super::format::{Format, JsonKeys};
use super::reasoning::reasoning_of;
use super::table::{ENTRIES, Entry, json};

/// The markers of the text for the reader.
const CONTENT_MARKS: &[&str] = &[
    "<|START_RESPONSE|>",
    "<|END_RESPONSE|>",
    "<|START_TEXT|>",
    "<|END_TEXT|>",
    "<|CHATBOT_TOKEN|>",
    "<|END_OF_TURN_TOKEN|>",
];

/// The same of Kimi K3, whose template puts them together.
const KIMI_K3_MARKS: &[&str] = &["<|open|>response<|sep|>", "<|close|>response<|sep|>", "<|close|>message<|sep|>"];

/// The format of a template.
pub(super) fn detect(source: &str) -> Format {
    let entry = ENTRIES.iter().find(|entry| entry.fits(source));
    let marks = CONTENT_MARKS.iter().filter(|mark| source.contains(**mark));
    let kimi_k3 = KIMI_K3_MARKS.iter().filter(|_| entry.is_some_and(|entry| entry.name == "kimi-k3"));
    Format {
        tools: entry.map_or_else(|| hermes(source), |entry| (entry.tools)()),
        channels: entry.and_then(|entry| (entry.channels)()),
        reasoning: reasoning_of(source),
        content_marks: marks.chain(kimi_k3).map(|mark| (*mark).to_owned()).collect(),
        answer_header: String::new(),
    }
}

fn hermes(source: &str) -> Option<super::format::ToolFormat> {
    source.contains("<tool_call>").then(|| json("<tool_call>", &["</tool_call>"], JsonKeys::default()))
}

impl Entry {
    fn fits(&self, source: &str) -> bool {
        self.signs.iter().all(|sign| source.contains(sign)) && !self.without.iter().any(|sign| source.contains(sign))
    }
}
