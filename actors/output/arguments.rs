//! The arguments of a call as a JSON object that grows.

use super::literal::{LiteralReader, literal};
use super::read::Read;

/// Reads arguments: an object that is passed on at once, or its text in a string, or nothing at all.
#[derive(Debug, Clone)]
pub(super) struct ArgumentsReader {
    reader: LiteralReader,
    /// The first character was `{`.
    object: Option<bool>,
    /// A value that is no object, until it ends.
    other: String,
}

impl ArgumentsReader {
    /// With the marker of strings, where the dialect has one.
    pub(super) fn new(marker: Option<String>) -> Self {
        ArgumentsReader { reader: LiteralReader::new(marker), object: None, other: String::new() }
    }

    /// Nothing but white space was read.
    pub(super) fn is_empty(&self) -> bool {
        self.object.is_none()
    }

    /// Reads one character.
    pub(super) fn read(&mut self, character: char, out: &mut String) -> Read {
        if self.object.is_none() && !character.is_whitespace() {
            self.object = Some(character == '{');
        }
        match self.object {
            None => Read::More,
            Some(true) => self.reader.read(character, out),
            Some(false) => match self.reader.read(character, &mut self.other) {
                end @ (Read::Done | Read::DoneBefore) => self.end_other(end, out),
                read => read,
            },
        }
    }

    fn end_other(&mut self, end: Read, out: &mut String) -> Read {
        let Some(object) = object_of(&self.other) else { return Read::Bad };
        out.push_str(&object);
        end
    }
}

/// The object that a value that is no object stands for.
fn object_of(value: &str) -> Option<String> {
    match serde_json::from_str(value).ok()? {
        serde_json::Value::Null => Some("{}".to_owned()),
        serde_json::Value::String(text) if text.trim().is_empty() => Some("{}".to_owned()),
        serde_json::Value::String(text) => literal(&text).filter(|object| object.starts_with('{')),
        _ => None,
    }
}
