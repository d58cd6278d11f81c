//! Log-probabilities in the shapes of the three protocols that report them: chat's, legacy completions', and vLLM's
//! for prompts.

use cuelight_engine::engine::TokenId;
use cuelight_engine::format::tokenizer::Tokenizer;
use serde_json::{Map, Value, json};

use crate::request::{PositionLogprobs, TokenLogprob};

/// How tokens are written in log-probabilities.
#[derive(Clone, Copy)]
pub(super) struct Spelling<'a> {
    pub tokenizer: &'a Tokenizer,
    /// As `token_id:123` rather than as text.
    pub as_ids: bool,
}

impl Spelling<'_> {
    fn token(&self, token: TokenId) -> String {
        if self.as_ids { format!("token_id:{token}") } else { self.text(token) }
    }

    /// A token that is only part of a character becomes U+FFFD; its bytes tell more.
    fn text(&self, token: TokenId) -> String {
        String::from_utf8_lossy(self.bytes(token)).into_owned()
    }

    fn bytes(&self, token: TokenId) -> &[u8] {
        self.tokenizer.token_bytes(token, false)
    }
}

/// `logprobs` of a chat choice or chunk.
pub(super) fn chat(positions: &[PositionLogprobs], spelling: Spelling<'_>) -> Value {
    let entry = |token: &TokenLogprob| {
        json!({
            "token": spelling.token(token.token),
            "logprob": finite(token.logprob),
            "bytes": spelling.bytes(token.token),
        })
    };
    let content = positions.iter().map(|position| {
        let mut content = entry(&position.chosen);
        content["top_logprobs"] = position.top.iter().map(entry).collect();
        content
    });
    json!({ "content": content.collect::<Vec<_>>(), "refusal": null })
}

/// `prompt_logprobs` as vLLM words it: for each token of the prompt, those at its place by id; `null` for the first.
pub(super) fn prompt(positions: &[Option<PositionLogprobs>], spelling: Spelling<'_>) -> Value {
    let describe = |position: &PositionLogprobs| {
        let mut by_id = Map::new();
        let ranked = position.top.iter().zip(1..);
        for (token, rank) in std::iter::once((&position.chosen, position.rank)).chain(ranked) {
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
    /// For a text without tokens yet, that leaves special tokens out or not.
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

    /// Adds a token that stands in the text, or in the prompt.
    pub fn push(&mut self, position: &PositionLogprobs, spelling: Spelling<'_>) {
        let token_logprob = finite(position.chosen.logprob);
        self.token_logprobs.push(json!(token_logprob));
        // The chosen token is always among them. Tokens may be spelled alike: then the more likely counts.
        let mut top = Map::new();
        for token in position.top.iter().chain([&position.chosen]) {
            top.entry(spelling.token(token.token)).or_insert_with(|| json!(finite(token.logprob)));
        }
        self.top_logprobs.push(Value::Object(top));
        self.push_text(position.chosen.token, spelling);
    }

    /// Adds the prompt's first token, that nothing precedes and that so has no probability.
    pub fn push_first(&mut self, token: TokenId, spelling: Spelling<'_>) {
        self.token_logprobs.push(Value::Null);
        self.top_logprobs.push(Value::Null);
        self.push_text(token, spelling);
    }

    fn push_text(&mut self, token: TokenId, spelling: Spelling<'_>) {
        self.tokens.push(spelling.token(token));
        self.text_offset.push(self.offset);
        // Counts the bytes that begin a character, so that one shared by several tokens is counted once.
        let bytes = spelling.tokenizer.token_bytes(token, self.skip_special);
        self.offset += bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count();
    }

    /// The object for what was added since this was last asked; offsets go on.
    pub fn take(&mut self) -> Value {
        json!({
            "text_offset": std::mem::take(&mut self.text_offset),
            "token_logprobs": std::mem::take(&mut self.token_logprobs),
            "tokens": std::mem::take(&mut self.tokens),
            "top_logprobs": std::mem::take(&mut self.top_logprobs),
        })
    }
}

/// JSON has no infinity: an impossible token gets what vLLM writes for one.
fn finite(logprob: f32) -> f32 {
    logprob.max(-9999.0)
}
