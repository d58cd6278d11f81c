//! The value of one parameter, whose text grows.

use super::coerce::{coerce, may_be_other};
use super::json_text::write_character;
use super::literal::literal;
use super::schema::Types;

/// Bytes of a value that may still be a number or a constant.
const MAX_UNDECIDED: usize = 600;

/// What is known of the value's type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// By the schema.
    Types(Types),
    /// The model says that it is JSON.
    Json,
}

/// Writes a value as JSON. Strings are written as they grow, everything else at its end.
#[derive(Debug, Clone)]
pub(super) struct ValueWriter {
    kind: Kind,
    /// A line break on both sides is no part of the value.
    lines: bool,
    at_start: bool,
    /// The value so far, while its type is open.
    text: String,
    /// The type is known: a string was begun.
    is_string: bool,
    /// A line break that may be the value's last.
    held: bool,
    /// The first character that is no white space.
    first: Option<char>,
}

impl ValueWriter {
    pub(super) fn new(kind: Kind, lines: bool) -> Self {
        ValueWriter { kind, lines, at_start: lines, text: String::new(), is_string: false, held: false, first: None }
    }

    /// Nothing but white space was written.
    pub(super) fn is_blank(&self) -> bool {
        !self.is_string && self.first.is_none()
    }

    /// Adds a character of the value.
    pub(super) fn write(&mut self, character: char, out: &mut String) {
        if std::mem::take(&mut self.at_start) && character == '\n' {
            return;
        }
        if self.is_string {
            return self.write_string(character, out);
        }
        if self.first.is_none() && !character.is_whitespace() {
            self.first = Some(character);
        }
        self.text.push(character);
        if self.must_be_string() {
            self.is_string = true;
            out.push('"');
            let text = std::mem::take(&mut self.text);
            text.chars().for_each(|character| self.write_string(character, out));
        }
    }

    /// Looks at the beginning only while it is short.
    fn must_be_string(&self) -> bool {
        let Kind::Types(types) = self.kind else { return false };
        let container = types.object && self.first == Some('{') || types.array && self.first == Some('[');
        let undecided = container || self.text.len() <= MAX_UNDECIDED && may_be_other(&self.text, types);
        types.string && (types == Types::STRING || !undecided)
    }

    fn write_string(&mut self, character: char, out: &mut String) {
        self.flush_held(out);
        match character {
            '\n' if self.lines => self.held = true,
            _ => write_character(character, out),
        }
    }

    fn flush_held(&mut self, out: &mut String) {
        if std::mem::take(&mut self.held) {
            out.push_str("\\n");
        }
    }

    /// The value is complete.
    pub(super) fn end(self, out: &mut String) {
        if self.is_string {
            return out.push('"');
        }
        let last = if self.lines { self.text.strip_suffix('\n') } else { None };
        let text = last.unwrap_or(&self.text);
        match self.kind {
            Kind::Types(types) => out.push_str(&coerce(text, types)),
            Kind::Json => out.push_str(&literal(text).unwrap_or_else(|| coerce(text, Types::ANY))),
        }
    }

    /// The value ends in the middle: what is certain is written.
    pub(super) fn abandon(mut self, out: &mut String) {
        if self.is_string {
            self.flush_held(out);
        }
    }

    /// The text of a value that is not known to be a string.
    pub(super) fn text(&self) -> Option<&str> {
        (!self.is_string).then_some(self.text.as_str())
    }
}
