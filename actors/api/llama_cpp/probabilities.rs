//! How likely the tokens of an answer were, in llama.cpp's form.

use std::sync::Arc;

use cuelight_engine::format::tokenizer::Tokenizer;
use serde_json::{Value, json};

use crate::core::request::{PositionLogprobs, TokenLogprob};

/// Writes probabilities with the texts of a vocabulary.
pub(super) struct Probabilities {
    pub tokenizer: Arc<Tokenizer>,
}

impl Probabilities {
    /// `completion_probabilities`: one entry for each token, with its alternatives.
    pub fn of(&self, positions: &[PositionLogprobs]) -> Value {
        positions.iter().map(|position| self.position(position)).collect()
    }

    fn position(&self, position: &PositionLogprobs) -> Value {
        let mut entry = self.entry(&position.sampled);
        entry["top_logprobs"] = position.top.iter().map(|token| self.entry(token)).collect();
        entry
    }

    /// A token that is an incomplete character has U+FFFD as its text. Its bytes are exact.
    fn entry(&self, token: &TokenLogprob) -> Value {
        let bytes = self.tokenizer.token_bytes(token.token, false);
        json!({
            "id": token.token,
            "token": String::from_utf8_lossy(bytes),
            "bytes": bytes,
            // JSON has no infinity.
            "logprob": token.logprob.max(f32::MIN),
        })
    }
}
