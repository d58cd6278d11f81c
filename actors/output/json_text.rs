//! Texts as they must stand in JSON strings.

use std::fmt::Write;

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
