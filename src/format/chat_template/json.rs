//! Writes JSON in the format of Python's `json.dumps`.

use std::fmt::Write;

use serde_json::{Number, Value};

/// The options of `json.dumps`.
#[derive(Debug, Clone, Default)]
pub(super) struct JsonLayout {
    /// Whether to escape non-ASCII characters.
    pub(super) ensure_ascii: bool,
    /// Spaces per level, with one item per line; `None` for a single line.
    pub(super) indent: Option<usize>,
    /// The separators between items and between key and value; `None` for Python's defaults.
    pub(super) separators: Option<[String; 2]>,
    /// Whether to sort keys.
    pub(super) sort_keys: bool,
}

impl JsonLayout {
    /// The value as text.
    pub(super) fn write(&self, value: &Value) -> String {
        let mut out = String::new();
        self.put(value, 0, &mut out);
        out
    }

    fn put(&self, value: &Value, depth: usize, out: &mut String) {
        match value {
            Value::Null | Value::Bool(_) => out.push_str(&value.to_string()),
            Value::Number(number) => out.push_str(&number_text(number)),
            Value::String(text) => self.put_string(text, out),
            Value::Array(items) => {
                self.put_items(['[', ']'], items, |item, out| self.put(item, depth + 1, out), depth, out);
            }
            Value::Object(entries) => {
                let mut entries: Vec<(&String, &Value)> = entries.iter().collect();
                if self.sort_keys {
                    entries.sort_by_key(|(key, _)| *key);
                }
                let put_entry = |(key, value): &(&String, &Value), out: &mut String| {
                    self.put_string(key, out);
                    out.push_str(self.separators.as_ref().map_or(": ", |[_, colon]| colon));
                    self.put(value, depth + 1, out);
                };
                self.put_items(['{', '}'], &entries, put_entry, depth, out);
            }
        }
    }

    fn put_items<T>(
        &self,
        [open, close]: [char; 2],
        items: &[T],
        put: impl Fn(&T, &mut String),
        depth: usize,
        out: &mut String,
    ) {
        let comma = match &self.separators {
            Some([comma, _]) => comma,
            None if self.indent.is_some() => ",",
            None => ", ",
        };
        out.push(open);
        for (index, item) in items.iter().enumerate() {
            if index > 0 {
                out.push_str(comma);
            }
            self.break_line(depth + 1, out);
            put(item, out);
        }
        if !items.is_empty() {
            self.break_line(depth, out);
        }
        out.push(close);
    }

    fn break_line(&self, depth: usize, out: &mut String) {
        // A template may set any indent, so the size of the output is bounded here.
        const INDENT_MAX: usize = 16;
        if let Some(indent) = self.indent {
            out.push('\n');
            out.extend(std::iter::repeat_n(' ', indent.min(INDENT_MAX) * depth));
        }
    }

    fn put_string(&self, text: &str, out: &mut String) {
        out.push('"');
        for character in text.chars() {
            match character {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\x08' => out.push_str("\\b"),
                '\x0c' => out.push_str("\\f"),
                '\0'..='\x1f' => put_escape(character, out),
                _ if self.ensure_ascii && (!character.is_ascii()) => put_escape(character, out),
                _ => out.push(character),
            }
        }
        out.push('"');
    }
}

/// Writes a character as escaped UTF-16 units.
fn put_escape(character: char, out: &mut String) {
    for unit in character.encode_utf16(&mut [0; 2]) {
        write!(out, "\\u{unit:04x}").expect("writing to a string cannot fail");
    }
}

/// Integers in full; floats with the fewest digits that identify them, in scientific notation if very large or small.
fn number_text(number: &Number) -> String {
    let Some(float) = number.as_f64().filter(|_| number.is_f64()) else { return number.to_string() };
    let scientific = format!("{float:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    match exponent.parse::<i32>().unwrap_or_default() {
        -4..16 => {
            let plain = float.to_string();
            if plain.contains('.') { plain } else { plain + ".0" }
        }
        exponent @ 16.. => format!("{digits}e+{exponent:02}"),
        exponent => format!("{digits}e-{:02}", exponent.unsigned_abs()),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn layouts_match_json_dumps() {
        let value = json!({"b": [1, 2.5, "ä\"\n\u{1}"], "a": {}, "c": []});
        let layout = JsonLayout::default();
        assert_eq!(layout.write(&value), r#"{"b": [1, 2.5, "ä\"\n\u0001"], "a": {}, "c": []}"#);
        let layout = JsonLayout { indent: Some(2), sort_keys: true, ensure_ascii: true, ..JsonLayout::default() };
        let expected =
            "{\n  \"a\": {},\n  \"b\": [\n    1,\n    2.5,\n    \"\\u00e4\\\"\\n\\u0001\"\n  ],\n  \"c\": []\n}";
        assert_eq!(layout.write(&value), expected);
        let layout = JsonLayout { separators: Some([",".to_owned(), ":".to_owned()]), ..JsonLayout::default() };
        assert_eq!(layout.write(&value), r#"{"b":[1,2.5,"ä\"\n\u0001"],"a":{},"c":[]}"#);
        let layout = JsonLayout { ensure_ascii: true, ..JsonLayout::default() };
        assert_eq!(layout.write(&json!("😀")), r#""\ud83d\ude00""#);
    }

    #[test]
    fn numbers_match_python() {
        let cases = [
            (json!(1.0), "1.0"),
            (json!(-0.0), "-0.0"),
            (json!(0.0001), "0.0001"),
            (json!(0.00001), "1e-05"),
            (json!(1.5e-7), "1.5e-07"),
            (json!(1e15), "1000000000000000.0"),
            (json!(1e16), "1e+16"),
            (json!(1.25e300), "1.25e+300"),
            (json!(123_456_789_012_345_678_u64), "123456789012345678"),
        ];
        for (number, expected) in cases {
            assert_eq!(JsonLayout::default().write(&number), expected);
        }
    }
}
