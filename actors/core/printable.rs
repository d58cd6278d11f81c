//! Text from files and models, made safe for a terminal or a log.

use std::borrow::Cow;

/// The text with control characters replaced by visible ones, except line feeds and tabs. Otherwise a model's name or
/// answer could move the cursor, change the clipboard, or forge log lines.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_hidden) {
        return Cow::Borrowed(text);
    }
    Cow::Owned(text.chars().filter(|&c| c != '\r').map(|c| if is_hidden(c) { picture(c) } else { c }).collect())
}

fn is_hidden(c: char) -> bool {
    c.is_control() && c != '\n' && c != '\t'
}

/// The symbol for a control character: "␛" for escape.
fn picture(control: char) -> char {
    match u32::from(control) {
        code @ 0..0x20 => char::from_u32(0x2400 + code).unwrap_or(char::REPLACEMENT_CHARACTER),
        0x7F => '\u{2421}',
        _ => char::REPLACEMENT_CHARACTER,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_become_visible() {
        assert_eq!(printable("plain\n\ttext é"), "plain\n\ttext é");
        assert_eq!(printable("a\x1b[2Jb\x07\r\n\x7f\u{9b}c"), "a␛[2Jb␇\n␡\u{FFFD}c");
        assert!(matches!(printable("plain"), Cow::Borrowed(_)));
    }
}
