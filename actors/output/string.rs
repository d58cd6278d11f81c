//! A quoted string that arrives one character at a time.

use super::json_text::{write_character, write_text};
use super::read::Read;

/// What ends the string.
#[derive(Debug, Clone)]
enum Quote {
    /// A quotation mark; a backslash escapes.
    Mark(char),
    /// A marker whose first character does not occur again in it; nothing is escaped.
    Marker { marker: String, matched: usize },
}

/// What was read last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Escape {
    None,
    Backslash,
    /// Digits that are missing of a character's number, and the number so far; `json` for `\u`, else `\x`.
    Digits {
        missing: u8,
        number: u32,
        json: bool,
    },
}

/// Reads a string of JSON or Python, and writes it as JSON without its quotation marks.
#[derive(Debug, Clone)]
pub(super) struct StringReader {
    quote: Quote,
    escape: Escape,
    /// The first half of a character that JSON writes as two numbers.
    high: Option<u32>,
}

impl StringReader {
    /// A string after its first quotation mark.
    pub(super) fn after_mark(mark: char) -> Self {
        StringReader { quote: Quote::Mark(mark), escape: Escape::None, high: None }
    }

    /// A string after a marker that also ends it.
    pub(super) fn after_marker(marker: &str) -> Self {
        let quote = Quote::Marker { marker: marker.to_owned(), matched: 0 };
        StringReader { quote, escape: Escape::None, high: None }
    }

    /// Reads one character. The end is `Done`.
    pub(super) fn read(&mut self, character: char, out: &mut String) -> Read {
        match &mut self.quote {
            Quote::Marker { marker, matched } => read_marked(marker, matched, character, out),
            Quote::Mark(mark) => {
                let mark = *mark;
                self.read_escaped(mark, character, out)
            }
        }
    }

    fn read_escaped(&mut self, mark: char, character: char, out: &mut String) -> Read {
        match self.escape {
            Escape::Backslash => self.read_escape(character, out),
            Escape::Digits { missing, number, json } => self.read_digit((missing, number, json), character, out),
            Escape::None if character == '\\' => self.escape = Escape::Backslash,
            Escape::None => {
                self.drop_high(out);
                if character == mark {
                    return Read::Done;
                }
                write_character(character, out);
            }
        }
        Read::More
    }

    fn read_escape(&mut self, character: char, out: &mut String) {
        self.escape = Escape::None;
        match character {
            'u' => return self.escape = Escape::Digits { missing: 4, number: 0, json: true },
            'x' => return self.escape = Escape::Digits { missing: 2, number: 0, json: false },
            _ => self.drop_high(out),
        }
        match character {
            '"' | '\\' | '/' | 'b' | 'f' | 'n' | 'r' | 't' => out.extend(['\\', character]),
            '\'' => out.push('\''),
            other => {
                out.push_str("\\\\");
                write_character(other, out);
            }
        }
    }

    fn read_digit(&mut self, (missing, number, json): (u8, u32, bool), character: char, out: &mut String) {
        let Some(digit) = character.to_digit(16) else {
            // The text is no number: it stands as it is, as Python leaves an unknown escape.
            self.escape = Escape::None;
            self.drop_high(out);
            out.push('\u{fffd}');
            return write_character(character, out);
        };
        let (missing, number) = (missing - 1, number * 16 + digit);
        self.escape = Escape::Digits { missing, number, json };
        if missing == 0 {
            self.escape = Escape::None;
            self.write_number(number, out);
        }
    }

    fn write_number(&mut self, number: u32, out: &mut String) {
        match (self.high.take(), number) {
            (Some(high), 0xdc00..=0xdfff) => out.push_str(&format!("\\u{high:04x}\\u{number:04x}")),
            (high, _) => {
                self.high = high;
                self.drop_high(out);
                match char::from_u32(number) {
                    Some(_) => out.push_str(&format!("\\u{number:04x}")),
                    None if number < 0xdc00 => self.high = Some(number),
                    None => out.push_str("\\ufffd"),
                }
            }
        }
    }

    fn drop_high(&mut self, out: &mut String) {
        if self.high.take().is_some() {
            out.push_str("\\ufffd");
        }
    }
}

fn read_marked(marker: &str, matched: &mut usize, character: char, out: &mut String) -> Read {
    let expected = marker[*matched..].chars().next();
    if expected == Some(character) {
        *matched += character.len_utf8();
        return if *matched == marker.len() { Read::Done } else { Read::More };
    }
    write_text(&marker[..*matched], out);
    *matched = 0;
    if marker.starts_with(character) {
        *matched = character.len_utf8();
    } else {
        write_character(character, out);
    }
    Read::More
}
