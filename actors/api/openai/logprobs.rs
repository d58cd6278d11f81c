//! Log-probabilities in three formats: of chat completions, of legacy completions, and vLLM's for prompts.

use cuelight_engine::engine::TokenId;
use cuelight_engine::format::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::core::request::{PositionLogprobs, TokenLogprob};

/// How tokens are written.
#[derive(Clone, Copy)]
pub(in crate::api) struct Spelling<'a> {
    pub tokenizer: &'a Tokenizer,
    /// As `token_id:123` rather than as text.
    pub as_ids: bool,
}

impl Spelling<'_> {
    fn token(&self, token: TokenId) -> String {
        if self.as_ids { format!("token_id:{token}") } else { self.text(token) }
    }

    /// A token that is an incomplete character becomes U+FFFD. Its bytes are exact.
    fn text(&self, token: TokenId) -> String {
        String::from_utf8_lossy(self.bytes(token)).into_owned()
    }

    fn bytes(&self, token: TokenId) -> &[u8] {
        self.tokenizer.token_bytes(token, false)
    }
}

/// `logprobs` of a chat choice or chunk.
pub(in crate::api) fn chat(positions: &[PositionLogprobs], spelling: Spelling<'_>) -> Value {
    json!({ "content": entries(positions, spelling), "refusal": null })
}

/// One entry for each token, with its alternatives.
pub(super) fn entries(positions: &[PositionLogprobs], spelling: Spelling<'_>) -> Vec<Value> {
    let entry = |token: &TokenLogprob| {
        json!({
            "token": spelling.token(token.token),
            "logprob": finite(token.logprob),
            "bytes": spelling.bytes(token.token),
        })
    };
    let with_top = |position: &PositionLogprobs| {
        let mut content = entry(&position.sampled);
        content["top_logprobs"] = position.top.iter().map(entry).collect();
        content
    };
    positions.iter().map(with_top).collect()
}

/// `prompt_logprobs` as vLLM defines it: for each position of the prompt, log-probabilities by token id; `null` for the
/// first position.
pub(super) fn prompt(positions: &[Option<PositionLogprobs>], spelling: Spelling<'_>) -> Value {
    let describe = |position: &PositionLogprobs| {
        let mut by_id = Map::new();
        let ranked = position.top.iter().zip(1..);
        for (token, rank) in std::iter::once((&position.sampled, position.rank)).chain(ranked) {
            by_id.entry(token.token.to_string()).or_insert_with(
                || json!({ "logprob": finite(token.logprob), "rank": rank, "decoded_token": spelling.text(token.token) }),
            );
        }
        Value::Object(by_id)
    };
    positions.iter().map(|position| position.as_ref().map_or(Value::Null, describe)).collect()
}

/// The `logprobs` object of legacy completions, built token by token.
#[derive(Debug)]
pub(super) struct LegacyLogprobs {
    /// Characters of the text before the next token.
    offset: usize,
    skip_special: bool,
    tokens: Vec<String>,
    token_logprobs: Vec<Value>,
    top_logprobs: Vec<Value>,
    text_offset: Vec<usize>,
}

impl LegacyLogprobs {
    /// For an empty text. `skip_special`: the text leaves special tokens out.
    pub fn new(skip_special: bool) -> Self {
        LegacyLogprobs {
            offset: 0,
            skip_special,
            tokens: Vec::new(),
            token_logprobs: Vec::new(),
            top_logprobs: Vec::new(),
            text_offset: Vec::new(),
        }
    }

    /// Adds a token of the answer or of the echoed prompt.
    pub fn push(&mut self, position: &PositionLogprobs, spelling: Spelling<'_>) {
        let token_logprob = finite(position.sampled.logprob);
        self.token_logprobs.push(json!(token_logprob));
        // The sampled token is always included. When two tokens have the same text, the more likely one is reported.
        let mut top = Map::new();
        for token in position.top.iter().chain([&position.sampled]) {
            top.entry(spelling.token(token.token)).or_insert_with(|| json!(finite(token.logprob)));
        }
        self.top_logprobs.push(Value::Object(top));
        self.push_text(position.sampled.token, spelling);
    }

    /// Adds the prompt's first token, which has no probability because no token precedes it.
    pub fn push_first(&mut self, token: TokenId, spelling: Spelling<'_>) {
        self.token_logprobs.push(Value::Null);
        self.top_logprobs.push(Value::Null);
        self.push_text(token, spelling);
    }

    fn push_text(&mut self, token: TokenId, spelling: Spelling<'_>) {
        self.tokens.push(spelling.token(token));
        self.text_offset.push(self.offset);
        // Counts the first bytes of characters, so that a character split over several tokens counts once.
        let bytes = spelling.tokenizer.token_bytes(token, self.skip_special);
        self.offset += bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count();
    }

    /// The object for the tokens added since the last call. Offsets continue.
    pub fn take(&mut self) -> Value {
        json!({
            "text_offset": std::mem::take(&mut self.text_offset),
            "token_logprobs": std::mem::take(&mut self.token_logprobs),
            "tokens": std::mem::take(&mut self.tokens),
            "top_logprobs": std::mem::take(&mut self.top_logprobs),
        })
    }
}

/// The log-probability, or vLLM's value for an impossible token, because JSON has no infinity.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
