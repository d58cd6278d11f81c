//! The parser of an answer that is a sequence of messages.

use super::call::CallReader;
use super::channels::Message;
use super::marks::Mark;
use super::parser::{Mode, OutputParser};
use super::region::{Kind, Region};

/// Characters of a header.
const MAX_HEADER: usize = 1024;

impl OutputParser {
    /// A message ended, and with `HeaderBegin` the next one's header begins.
    pub(super) fn end_message(&mut self, kind: Mark, marker: &str) {
        if std::mem::take(&mut self.keeps_markers) && kind == Mark::MessageEnd {
            self.region.write_text(marker, &mut self.emitter);
        }
        self.region = Region::after_marker(Kind::Text);
        self.raw.clear();
        self.header.clear();
        if kind == Mark::HeaderBegin {
            self.raw.push_str(marker);
            let channels = self.format.channels.as_ref();
            if channels.is_some_and(|channels| channels.channel == marker) {
                self.header.push_str(marker);
            }
            self.mode = Mode::Header;
        } else {
            self.mode = Mode::Region;
        }
    }

    /// Reads a character of a header.
    pub(super) fn character_in_header(&mut self, character: char) {
        self.raw.push(character);
        self.header.push(character);
        let plausible = |header: &str| match &self.format.channels {
            Some(channels) => channels.may_be_header(header),
            None => false,
        };
        if self.header.len() > MAX_HEADER || !plausible(&self.header) {
            self.give_back();
        }
    }

    /// The header is complete.
    pub(super) fn begin_message(&mut self) {
        let header = std::mem::take(&mut self.header);
        let Some(channels) = &self.format.channels else { return };
        self.raw.push_str(&channels.header_end);
        let message = channels.message(&header);
        self.mode = Mode::Region;
        let (kind, parsed) = match &message {
            Message::Text => (Kind::Text, true),
            Message::Reasoning => (Kind::Reasoning, self.options.parse_reasoning),
            Message::Call(_) => (Kind::Text, self.options.parse_tool_calls),
        };
        if !parsed {
            self.keeps_markers = true;
            return self.give_back();
        }
        self.region = Region::after_marker(kind);
        match message {
            Message::Call(name) => {
                self.region = Region::first(Kind::Text);
                self.calls = 0;
                self.mode = match self.format.tools {
                    Some(_) => Mode::Section,
                    None => Mode::Call(CallReader::of_arguments(&name, &mut self.emitter)),
                };
            }
            _ => self.raw.clear(),
        }
    }
}
