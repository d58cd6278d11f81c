//! A call in one line, and what became of it.

use std::time::Duration;

use crate::config::ByteSize;
use crate::mcp::tool_result::ToolResult;

/// Characters of the arguments in a line about a call that has run.
const SHORT: usize = 120;

/// Characters of the arguments that the user decides about.
const LONG: usize = 4000;

/// A call that the user decides about: `tool files.read {"path":"a.txt"}`.
pub fn asked(tool: &str, arguments: &str) -> String {
    format!("tool {tool} {}", cut(&compact(arguments), LONG))
}

/// A call that has run: `tool files.read {"path":"a.txt"} → 1.2 KiB in 0.03 s`.
pub fn done(tool: &str, arguments: &str, result: &ToolResult, time: Duration) -> String {
    let first_line = result.text.lines().next().unwrap_or_default();
    let outcome = match (result.is_error, result.images.len()) {
        (true, _) => cut(first_line, SHORT),
        (false, 0) => ByteSize(result.bytes as u64).to_string(),
        (false, images) => {
            format!("{} and {images} image{}", ByteSize(result.bytes as u64), if images == 1 { "" } else { "s" })
        }
    };
    format!("tool {tool} {} → {outcome} in {:.2} s", cut(&compact(arguments), SHORT), time.as_secs_f64())
}

/// The arguments on one line. A text that is no JSON stays as it is, apart from line breaks.
fn compact(arguments: &str) -> String {
    match serde_json::from_str::<serde_json::Value>(arguments) {
        Ok(value) => value.to_string(),
        Err(_) => arguments.replace('\n', " "),
    }
}

fn cut(text: &str, characters: usize) -> String {
    match text.char_indices().nth(characters) {
        Some((end, _)) => format!("{}… ({} more characters)", &text[..end], text[end..].chars().count()),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_is_one_line() {
        let result = ToolResult { text: "x".repeat(1234), bytes: 1234, ..ToolResult::default() };
        let line = done("files.read", "{\n  \"path\": \"a.txt\"\n}", &result, Duration::from_millis(30));
        assert_eq!(line, "tool files.read {\"path\":\"a.txt\"} → 1.2 KiB in 0.03 s");
        let failed =
            ToolResult { text: "Error: no such file\nat line 5".into(), is_error: true, ..ToolResult::default() };
        let line = done("files.read", "{}", &failed, Duration::from_secs(1));
        assert_eq!(line, "tool files.read {} → Error: no such file in 1.00 s");
        let seen = ToolResult { images: vec![Vec::new()], ..ToolResult::default() };
        assert!(done("a.b", "{}", &seen, Duration::ZERO).contains("0 B and 1 image in"));
    }

    #[test]
    fn long_arguments_are_cut() {
        let arguments = format!("{{\"text\":\"{}\"}}", "é".repeat(200));
        let line = done("a.b", &arguments, &ToolResult::default(), Duration::ZERO);
        assert!(line.contains("… (91 more characters) → 0 B"), "{line}");
        assert!(asked("a.b", &arguments).ends_with("\"}"), "the user sees all of them");
    }
}
