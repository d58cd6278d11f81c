//! A Hugging Face `tokenizer.json` and a text to encode, separated by a zero byte.

use cuelight_engine::format::tokenizer::Tokenizer;

use super::text_parts;

/// Encodes and decodes with a tokenizer that is accepted.
pub fn run(data: &[u8]) {
    let [json, text] = text_parts(data);
    check(&json, &text);
}

/// The same for its content. Without a text, another is encoded.
pub fn check(json: &str, text: &str) {
    let tokenizer = match Tokenizer::from_json_text("tokenizer.json", json) {
        Ok(tokenizer) => tokenizer,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let text = if text.is_empty() { "Hello, wörld! <s> 12345\n\n  x" } else { text };
    for (add_special, parse_special) in [(false, false), (true, true)] {
        let Ok(tokens) = tokenizer.encode(text, add_special, parse_special) else { continue };
        let _ = (tokenizer.decode(&tokens, true), tokenizer.decode(&tokens, false));
    }
    let known = |token: u32| (token as usize) < tokenizer.vocab_size();
    assert!(tokenizer.end_of_generation().iter().all(|&token| known(token)));
}
