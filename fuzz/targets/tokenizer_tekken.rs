//! A `tekken.json` of Mistral's own programs and a text to encode, separated by a zero byte.

use std::path::Path;

use cuelight_engine::format::tokenizer::Tokenizer;

use super::{text_parts, tokenizer_json};

/// Converts it, and checks the result as a `tokenizer.json`.
pub fn run(data: &[u8]) {
    let [tekken, text] = text_parts(data);
    match Tokenizer::json_of_tekken(Path::new("tekken.json"), &tekken) {
        Ok(json) => tokenizer_json::check(&json, &text),
        Err(error) => assert!(!error.to_string().is_empty()),
    }
}
