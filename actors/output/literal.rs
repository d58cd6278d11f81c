//! A value that arrives one character at a time, written as JSON.
//!
//! JSON is passed on as it stands. What models often write in its place is put right: Python's constants and quotation marks,
//! line breaks in strings, unknown escapes, commas before a closing bracket. Gemma writes strings between markers and keys
//! without quotation marks.

use super::json_text::quoted;
use super::read::Read;
use super::string::StringReader;

/// Containers within containers. Readers of JSON commonly allow 128.
const MAX_DEPTH: usize = 120;
/// Characters of a word or a number.
const MAX_WORD: usize = 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Container {
    Array,
    Object,
}

#[derive(Debug, Clone)]
enum State {
    /// A value must follow; `end` if the container may also end.
    Value {
        end: bool,
    },
    /// A key must follow, or the object's end.
    Key {
        end: bool,
    },
    Colon,
    /// A comma or the container's end must follow.
    After,
    String {
        reader: StringReader,
        key: bool,
    },
    /// A constant, a number or a key without quotation marks.
    Word {
        text: String,
        key: bool,
    },
    /// The beginning of the marker before a string.
    Marker {
        matched: usize,
        key: bool,
    },
}

/// Reads one value.
#[derive(Debug, Clone)]
pub(super) struct LiteralReader {
    /// Stands on both sides of strings, if the dialect has it.
    marker: Option<String>,
    containers: Vec<Container>,
    state: State,
    /// A comma with the space after it, which is only written if a value follows.
    comma: String,
}

impl LiteralReader {
    /// A reader for JSON and Python. With a marker also for strings between two of it and for keys without quotation marks.
    pub(super) fn new(marker: Option<String>) -> Self {
        LiteralReader { marker, containers: Vec::new(), state: State::Value { end: false }, comma: String::new() }
    }

    /// Reads one character, and writes what is known of the value to `out`.
    pub(super) fn read(&mut self, character: char, out: &mut String) -> Read {
        match &mut self.state {
            State::String { reader, key } => match reader.read(character, out) {
                Read::Done => {
                    out.push('"');
                    let key = *key;
                    self.ended(key)
                }
                other => other,
            },
            State::Word { text, .. } if is_word(character) && text.len() < MAX_WORD => {
                text.push(character);
                Read::More
            }
            State::Word { .. } => self.end_word(character, out),
            State::Marker { matched, key } => {
                let (matched, key) = (*matched, *key);
                self.read_marker(matched, key, character)
            }
            _ if character.is_whitespace() => self.space(character, out),
            State::Value { end } if closes(character) && *end => self.close(character, out),
            State::Value { .. } => self.begin_value(character, out),
            State::Key { end } if character == '}' && *end => self.close(character, out),
            State::Key { .. } => self.begin_key(character, out),
            State::Colon => self.colon(character, out),
            State::After => self.after(character, out),
        }
    }

    /// No more text follows. Returns whether the value is complete.
    pub(super) fn finish(&mut self, out: &mut String) -> bool {
        matches!(self.state, State::Word { .. })
            && self.containers.is_empty()
            && self.end_word(' ', out) == Read::DoneBefore
    }

    fn space(&mut self, character: char, out: &mut String) -> Read {
        // JSON knows four kinds of white space.
        let character = if matches!(character, ' ' | '\n' | '\r' | '\t') { character } else { ' ' };
        let began = !self.containers.is_empty();
        match began {
            true if self.comma.is_empty() => out.push(character),
            true => self.comma.push(character),
            false => {}
        }
        Read::More
    }

    fn begin_value(&mut self, character: char, out: &mut String) -> Read {
        match character {
            '{' => self.open(Container::Object, out),
            '[' => self.open(Container::Array, out),
            _ => self.begin_scalar(character, false, out),
        }
    }

    fn begin_key(&mut self, character: char, out: &mut String) -> Read {
        self.begin_scalar(character, true, out)
    }

    fn begin_scalar(&mut self, character: char, key: bool, out: &mut String) -> Read {
        let marked = self.marker.as_ref().is_some_and(|marker| marker.starts_with(character));
        self.state = match character {
            '"' | '\'' => State::String { reader: StringReader::after_mark(character), key },
            _ if marked => State::Marker { matched: character.len_utf8(), key },
            _ if is_word(character) && (!key || self.marker.is_some()) => {
                State::Word { text: character.to_string(), key }
            }
            _ => return Read::Bad,
        };
        out.push_str(&std::mem::take(&mut self.comma));
        if !matches!(self.state, State::Word { .. }) {
            out.push('"');
        }
        Read::More
    }

    fn read_marker(&mut self, matched: usize, key: bool, character: char) -> Read {
        let marker = self.marker.as_deref().unwrap_or_default();
        if !marker[matched..].starts_with(character) {
            return Read::Bad;
        }
        let matched = matched + character.len_utf8();
        self.state = if matched == marker.len() {
            State::String { reader: StringReader::after_marker(marker), key }
        } else {
            State::Marker { matched, key }
        };
        Read::More
    }

    fn open(&mut self, container: Container, out: &mut String) -> Read {
        if self.containers.len() == MAX_DEPTH {
            return Read::Bad;
        }
        out.push_str(&std::mem::take(&mut self.comma));
        self.containers.push(container);
        self.state = match container {
            Container::Array => State::Value { end: true },
            Container::Object => State::Key { end: true },
        };
        out.push(if container == Container::Array { '[' } else { '{' });
        Read::More
    }

    fn close(&mut self, character: char, out: &mut String) -> Read {
        let expected = if character == ']' { Container::Array } else { Container::Object };
        if self.containers.last() != Some(&expected) {
            return Read::Bad;
        }
        self.containers.pop();
        out.push_str(self.comma.trim_start_matches(','));
        self.comma.clear();
        out.push(character);
        self.ended(false)
    }

    /// A key or a value ended with this character.
    fn ended(&mut self, key: bool) -> Read {
        self.state = if key { State::Colon } else { State::After };
        if self.containers.is_empty() { Read::Done } else { Read::More }
    }

    fn end_word(&mut self, next: char, out: &mut String) -> Read {
        let State::Word { text, key } = &self.state else { return Read::Bad };
        let key = *key;
        let word = if key { Some(quoted(text)) } else { word(text, self.marker.is_some()) };
        let Some(word) = word else { return Read::Bad };
        out.push_str(&word);
        match self.ended(key) {
            Read::Done => Read::DoneBefore,
            _ => self.read(next, out),
        }
    }

    fn colon(&mut self, character: char, out: &mut String) -> Read {
        if character != ':' {
            return Read::Bad;
        }
        out.push(':');
        self.state = State::Value { end: false };
        Read::More
    }

    fn after(&mut self, character: char, out: &mut String) -> Read {
        match character {
            ',' => {
                self.comma.push(',');
                let object = self.containers.last() == Some(&Container::Object);
                self.state = if object { State::Key { end: true } } else { State::Value { end: true } };
                Read::More
            }
            ']' | '}' => self.close(character, out),
            _ => Read::Bad,
        }
    }
}

fn closes(character: char) -> bool {
    matches!(character, ']' | '}')
}

fn is_word(character: char) -> bool {
    character.is_alphanumeric() || matches!(character, '-' | '+' | '.' | '_' | '$')
}

/// A word as JSON; `bare` if a word that is nothing else is a string.
fn word(text: &str, bare: bool) -> Option<String> {
    match text {
        "true" | "True" => return Some("true".to_owned()),
        "false" | "False" => return Some("false".to_owned()),
        "null" | "None" => return Some("null".to_owned()),
        _ => {}
    }
    number(text).or_else(|| bare.then(|| quoted(text)))
}

/// A number as JSON. Python's forms that JSON lacks become JSON's.
fn number(text: &str) -> Option<String> {
    if serde_json::from_str::<serde_json::Number>(text).is_ok() {
        return Some(text.to_owned());
    }
    let begins = text.starts_with(|c: char| c.is_ascii_digit() || matches!(c, '-' | '+' | '.'));
    let number = text.parse::<f64>().ok().filter(|number| begins && number.is_finite())?;
    serde_json::Number::from_f64(number).map(|number| number.to_string())
}

/// A text that is one JSON or Python literal, as JSON. `None` for any other text.
pub(super) fn literal(text: &str) -> Option<String> {
    let (mut reader, mut out) = (LiteralReader::new(None), String::new());
    let mut characters = text.trim().chars();
    while let Some(character) = characters.next() {
        match reader.read(character, &mut out) {
            Read::More => {}
            Read::Done => return characters.as_str().is_empty().then_some(out),
            Read::DoneBefore | Read::Refused | Read::Bad => return None,
        }
    }
    reader.finish(&mut out).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn literals_become_json() {
        let cases = [
            ("1", Some("1")),
            (" -2.5e3 ", Some("-2.5e3")),
            ("True", Some("true")),
            ("None", Some("null")),
            ("'it\\'s'", Some("\"it's\"")),
            ("{'a': [1, None,], \"b\": 'x\"y'}", Some("{\"a\": [1, null], \"b\": \"x\\\"y\"}")),
            ("[]", Some("[]")),
            ("{ }", Some("{ }")),
            ("\"a\nb\"", Some("\"a\\nb\"")),
            ("\"\\d\"", Some("\"\\\\d\"")),
            ("\"\\ud83d\\ude00\\ud83d!\\ude00\"", Some("\"\\ud83d\\ude00\\ufffd!\\ufffd\"")),
            ("", None),
            ("1 2", None),
            ("nope", None),
            ("{\"a\" 1}", None),
            ("{a: 1}", None),
            ("[1,,2]", None),
            ("[1", None),
            ("1.2.3", None),
            ("\"open", None),
        ];
        for (text, expected) in cases {
            assert_eq!(literal(text).as_deref(), expected, "{text}");
            if let Some(expected) = expected {
                serde_json::from_str::<serde_json::Value>(expected).expect("JSON");
            }
        }
    }

    #[test]
    fn a_deep_literal_is_refused() {
        assert!(literal(&format!("{}{}", "[".repeat(100), "]".repeat(100))).is_some());
        assert_eq!(literal(&"[".repeat(100_000)), None);
    }
}
