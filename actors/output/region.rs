//! A stretch of text or of reasoning.

use super::emit::Emitter;

/// What the text is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    Text,
    Reasoning,
}

/// A stretch whose white space at its borders to markers is no content.
#[derive(Debug, Clone)]
pub(super) struct Region {
    kind: Kind,
    /// White space that is content only if something else follows.
    space: String,
    /// White space at the beginning only separates.
    trims: bool,
    /// Nothing but white space was read.
    fresh: bool,
    /// The last character that was written.
    last: Option<char>,
}

impl Region {
    /// The beginning of an answer.
    pub(super) fn first(kind: Kind) -> Self {
        Region { kind, space: String::new(), trims: false, fresh: true, last: None }
    }

    /// The text after a marker.
    pub(super) fn after_marker(kind: Kind) -> Self {
        Region { trims: true, ..Region::first(kind) }
    }

    pub(super) fn kind(&self) -> Kind {
        self.kind
    }

    pub(super) fn is_fresh(&self) -> bool {
        self.fresh
    }

    /// Writes a character. Without `holds` white space is written at once.
    pub(super) fn write(&mut self, character: char, holds: bool, emitter: &mut Emitter) {
        self.space.push(character);
        if !holds || !character.is_whitespace() {
            self.flush(emitter);
            self.fresh &= character.is_whitespace();
        }
    }

    /// Writes text. White space at its end is held back.
    pub(super) fn write_text(&mut self, text: &str, emitter: &mut Emitter) {
        let end = text.trim_end().len();
        self.space.push_str(&text[..end]);
        if end > 0 {
            self.flush(emitter);
            self.fresh = false;
        }
        self.space.push_str(&text[end..]);
    }

    /// The character before a marker shows that the text only mentions it: a space on the same line, or a quotation mark.
    pub(super) fn mentions(&self) -> bool {
        let before = self.space.chars().next_back().or(self.last);
        !self.fresh && matches!(before, Some(' ' | '`' | '"' | '\'' | '('))
    }

    /// The white space that stands before a marker.
    pub(super) fn take_space(&mut self) -> String {
        std::mem::take(&mut self.space)
    }

    /// A marker that is no content was read.
    pub(super) fn drop_space_if_fresh(&mut self) {
        if self.fresh {
            self.space.clear();
        }
    }

    /// No more text follows. White space after a marker is no content.
    pub(super) fn finish(&mut self, emitter: &mut Emitter) {
        if !(self.trims && self.fresh) {
            self.flush(emitter);
        }
        self.space.clear();
    }

    fn flush(&mut self, emitter: &mut Emitter) {
        let trims = std::mem::take(&mut self.trims);
        let text = if trims { self.space.trim_start() } else { &self.space };
        self.last = text.chars().next_back().or(self.last);
        match self.kind {
            Kind::Text => emitter.text(text),
            Kind::Reasoning => emitter.reasoning(text),
        }
        self.space.clear();
    }
}
