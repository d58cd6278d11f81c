//! JSON texts: writing characters of a string, and reading a whole value that may be Python.

use std::fmt::Write;

use super::literal::LiteralReader;
use super::read::Read;

/// Writes a character as it must stand in a JSON string.
pub(super) fn write_character(character: char, out: &mut String) {
    match character {
        '"' => out.push_str("\\\""),
        '\\' => out.push_str("\\\\"),
        '\n' => out.push_str("\\n"),
        '\r' => out.push_str("\\r"),
        '\t' => out.push_str("\\t"),
        control if control < ' ' => {
            // Writing to a string cannot fail.
            let _ = write!(out, "\\u{:04x}", control as u32);
        }
        other => out.push(other),
    }
}

/// Writes the characters of a text as they must stand in a JSON string.
pub(super) fn write_text(text: &str, out: &mut String) {
    text.chars().for_each(|character| write_character(character, out));
}

/// A text as a JSON string.
pub(super) fn quoted(text: &str) -> String {
    let mut out = String::with_capacity(text.len() + 2);
    out.push('"');
    write_text(text, &mut out);
    out.push('"');
    out
}

/// A text that is one JSON or Python literal, as JSON. `None` for any other text.
pub(super) fn literal(text: &str) -> Option<String> {
    let (mut reader, mut out) = (LiteralReader::new(None), String::new());
    let mut characters = text.trim().chars();
    while let Some(character) = characters.next() {
        match reader.read(character, &mut out) {
            Read::More => {}
            Read::Done => return characters.as_str().is_empty().then_some(out),
            Read::DoneBefore | Read::Bad => return None,
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
