//! A compiler over a vocabulary of single bytes, for tests.

#![allow(clippy::unwrap_used)]

use std::sync::Arc;

use super::compiler::{Constraint, ConstraintCompiler};
use super::error::GrammarError;
use super::grammar::Grammar;
use crate::engine::TokenId;
use crate::format::gguf::Gguf;
use crate::format::gguf::write::GgufBuilder;
use crate::format::tokenizer::Tokenizer;

/// Ends a generation.
pub(super) const END: TokenId = 256;

/// A token for each byte, and one that ends a generation.
pub(super) fn tokenizer() -> Arc<Tokenizer> {
    let spelling = |byte: u8| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => char::from(byte),
        0..=0x20 => char::from_u32(0x100 + u32::from(byte)).unwrap(),
        0x7F..=0xA0 => char::from_u32(0x100 + 33 + u32::from(byte) - 0x7F).unwrap(),
        0xAD => char::from_u32(0x100 + 67).unwrap(),
    };
    let mut tokens: Vec<String> = (0..=255).map(|byte| spelling(byte).to_string()).collect();
    tokens.push("<|end|>".into());
    let tokens: Vec<&str> = tokens.iter().map(String::as_str).collect();
    let kinds: Vec<i32> = (0..=END).map(|token| if token == END { 3 } else { 1 }).collect();
    let bytes = GgufBuilder::new()
        .key("tokenizer.ggml.model", "gpt2")
        .key("tokenizer.ggml.pre", "gpt-2")
        .key("tokenizer.ggml.tokens", &tokens[..])
        .key("tokenizer.ggml.token_type", &kinds[..])
        .key("tokenizer.ggml.merges", &[][..] as &[&str])
        .key("tokenizer.ggml.eos_token_id", END)
        .build();
    Arc::new(Tokenizer::from_gguf(&Gguf::from_bytes("bytes.gguf", bytes).unwrap()).unwrap())
}

pub(super) fn compiler() -> ConstraintCompiler {
    ConstraintCompiler::new(tokenizer(), 260)
}

/// Whether the constraint allows every byte of a text in turn, and the end after it.
pub(super) fn accepts(constraint: &Constraint, text: &str) -> bool {
    let tokenizer = tokenizer();
    let mut state = constraint.start();
    for token in tokenizer.encode(text, false, false).unwrap() {
        if !state.mask().unwrap().allows(token) {
            return false;
        }
        state.accept(token).unwrap();
    }
    state.mask().unwrap().allows(END)
}

pub(super) fn refusal(grammar: Grammar) -> (Option<String>, String) {
    match compiler().compile(&grammar).unwrap_err() {
        GrammarError::Refused { pointer, message } => (pointer, message),
        other => panic!("{other:?}"),
    }
}
