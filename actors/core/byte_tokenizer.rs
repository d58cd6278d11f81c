//! Tokenizers over single bytes, which need no file.

use std::sync::Arc;

use cuelight_engine::format::gguf::Gguf;
use cuelight_engine::format::gguf::write::GgufBuilder;
use cuelight_engine::format::tokenizer::Tokenizer;

/// One token per byte with the value of the byte, 256 as end of generation, then more control tokens and more usual ones. In
/// `words` each byte stands as in byte-level vocabularies.
#[must_use]
pub fn byte_tokenizer(control: &[&str], words: &[&str]) -> Arc<Tokenizer> {
    const END: u32 = 256;
    const NORMAL: i32 = 1;
    const CONTROL: i32 = 3;
    let mut tokens: Vec<String> = (0..=255).map(|byte| spelling(byte).to_string()).collect();
    let mut kinds = vec![NORMAL; tokens.len()];
    tokens.push("<|end|>".into());
    tokens.extend(control.iter().map(|&text| text.to_owned()));
    kinds.resize(tokens.len(), CONTROL);
    tokens.extend(words.iter().map(|&text| text.to_owned()));
    kinds.resize(tokens.len(), NORMAL);
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let bytes = GgufBuilder::new()
        .key("tokenizer.ggml.model", "gpt2")
        .key("tokenizer.ggml.pre", "gpt-2")
        .key("tokenizer.ggml.tokens", &tokens[..])
        .key("tokenizer.ggml.token_type", &kinds[..])
        .key("tokenizer.ggml.merges", &[][..] as &[&str])
        .key("tokenizer.ggml.eos_token_id", END)
        .build();
    let gguf = Gguf::from_bytes("bytes.gguf", bytes).expect("the file is valid");
    Arc::new(Tokenizer::from_gguf(&gguf).expect("the vocabulary is complete"))
}

/// The character that represents a byte in byte-level vocabularies: itself when printable, else one from U+0100 on.
fn spelling(byte: u8) -> char {
    let is_printable = |byte: u8| matches!(byte, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    if is_printable(byte) {
        return char::from(byte);
    }
    let unprintable_before = (0..byte).filter(|&byte| !is_printable(byte)).count();
    (0x100..).map_while(char::from_u32).nth(unprintable_before).expect("fewer than 256 bytes are unprintable")
}
