//! A `tokenizer.model` of SentencePiece.

use std::path::Path;

use cuelight_engine::format::tokenizer::piece_keys::{PieceFile, PieceSettings};

/// Encodes and decodes with a tokenizer that is accepted.
pub fn run(data: &[u8]) {
    let settings = PieceSettings::default();
    let file = PieceFile { path: Path::new("tokenizer.model"), bytes: data, settings: &settings };
    let tokenizer = match file.tokenizer() {
        Ok(tokenizer) => tokenizer,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    assert!(file.memory_bytes().is_ok_and(|bytes| bytes > data.len() as u64), "its memory is not planned");
    for text in ["Hello, wörld! <s> 12345\n\n  x", "Ａ light ①  <tool>", "\u{a0}▁▁"] {
        let Ok(tokens) = tokenizer.encode(text, true, false) else { continue };
        assert!(tokens.iter().all(|&token| (token as usize) < tokenizer.vocab_size()));
        let _ = (tokenizer.decode(&tokens, true), tokenizer.decode(&tokens, false));
    }
}
