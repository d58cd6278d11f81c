//! A kind of grammar, the grammar, and bytes that choose among the allowed tokens, separated by zero bytes.

use std::sync::OnceLock;

use cuelight::pipeline::simulation::tokenizer;
use cuelight_engine::constraint::{ConstraintCompiler, Grammar};
use cuelight_engine::format::tokenizer::Tokenizer;
use serde_json::Value;

use super::text_parts;

/// Most bytes of a grammar.
const MAX_GRAMMAR_BYTES: usize = 4000;

/// Whatever is chosen among the allowed tokens is accepted, and a complete answer to a schema is JSON.
pub fn run(data: &[u8]) {
    let [kind, text, choices] = text_parts(data);
    if text.len() > MAX_GRAMMAR_BYTES {
        return;
    }
    let grammar = match kind.as_str() {
        "regex" => Grammar::Regex(text),
        "choice" => Grammar::Choice(text.split(',').map(str::to_owned).collect()),
        "lark" => Grammar::Lark(text),
        "gbnf" => Grammar::Gbnf(text),
        _ => match serde_json::from_str(&text) {
            Ok(schema) => Grammar::JsonSchema(schema),
            Err(_) => return,
        },
    };
    let (compiler, tokenizer) = compiler();
    let constraint = match compiler.compile(&grammar) {
        Ok(constraint) => constraint,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let mut state = constraint.start();
    let mut tokens = Vec::new();
    for choice in choices.bytes() {
        let Ok(mask) = state.mask() else { return };
        let allowed: Vec<u32> = (0..tokenizer.vocab_size() as u32).filter(|&token| mask.allows(token)).collect();
        assert!(!allowed.is_empty());
        let token = allowed[usize::from(choice) % allowed.len()];
        if state.accept(token).is_err() {
            return;
        }
        if tokenizer.end_of_generation().contains(&token) {
            let answer = tokenizer.decode(&tokens, true);
            let is_schema = matches!(grammar, Grammar::JsonSchema(_));
            assert!(!is_schema || serde_json::from_str::<Value>(&answer).is_ok(), "{answer:?}");
            return;
        }
        tokens.push(token);
    }
}

fn compiler() -> &'static (ConstraintCompiler, std::sync::Arc<Tokenizer>) {
    static COMPILER: OnceLock<(ConstraintCompiler, std::sync::Arc<Tokenizer>)> = OnceLock::new();
    COMPILER.get_or_init(|| {
        let tokenizer = tokenizer();
        (ConstraintCompiler::new(tokenizer.clone(), tokenizer.vocab_size()), tokenizer)
    })
}
