//! A chat template, a JSON list of messages and a JSON list of tools, separated by zero bytes.

use cuelight_engine::format::chat_template::{ChatTemplate, TemplateInputs};
use serde_json::{Value, json};

use super::text_parts;

/// Longest template. Deep nesting and long runs of operators need more, and are refused or end in a process of their own.
const MAX_TEMPLATE_BYTES: usize = 1500;

/// Instructions of a rendering.
const FUEL: u64 = 20_000;

/// A template renders the same conversation the same way, or fails with a reason.
pub fn run(data: &[u8]) {
    let [source, messages, tools] = text_parts(data);
    if source.len() > MAX_TEMPLATE_BYTES || messages.len() > MAX_TEMPLATE_BYTES {
        return;
    }
    let template = match ChatTemplate::new(&source, "<s>", "</s>") {
        Ok(template) => template.with_fuel(FUEL),
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    if can_grow(&source) {
        return;
    }
    let messages = serde_json::from_str(&messages).unwrap_or_else(|_| json!([{ "role": "user", "content": messages }]));
    let tools: Option<Value> = serde_json::from_str(&tools).ok();
    let render = |add_generation_prompt| {
        let (messages, tools) = (&messages, tools.as_ref());
        let inputs = TemplateInputs { messages, tools, documents: None, add_generation_prompt, variables: None };
        template.render(&inputs).map_err(|error| error.to_string())
    };
    let tells_time = source.contains("now") || source.contains("datetime");
    assert!(tells_time || render(true) == render(true), "a rendering is repeatable");
    let _ = render(false);
}

/// Whether few instructions of a template can make a large value. Only the limits of a process bound that.
fn can_grow(source: &str) -> bool {
    const ENLARGE: &[&str] =
        &["+", "~", "*", "[", "{\"", "{'", "indent", "batch", "slice", "format", "join", "replace", "just"];
    const REMEMBER: &[&str] = &["set", "macro", "recursive", "block", "filter", "with", "call"];
    const REPEAT: &[&str] = &["for", "macro", "block"];
    let has = |words: &[&str]| words.iter().any(|word| source.contains(word));
    let bytes = source.as_bytes();
    // A value that is made from itself grows exponentially.
    let feeds_back = has(ENLARGE) && has(REMEMBER) && has(REPEAT);
    // Without variables, only large numbers and products of numbers are large. Digits may be separated by `_`.
    let has_large_number = bytes.windows(4).any(|four| four.iter().all(u8::is_ascii_digit))
        || bytes.windows(2).any(|pair| pair[0].is_ascii_digit() && pair[1] == b'_');
    let has_number = bytes.windows(2).any(|pair| pair[0].is_ascii_digit() && pair[1].is_ascii_alphanumeric());
    let has_product = has_number && source.matches(['*', '|']).count() > 4;
    feeds_back || has_large_number || has_product
}
