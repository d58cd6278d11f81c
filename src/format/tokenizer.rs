//! Text to tokens and back (contract; being built).
use crate::engine::TokenId;
/// A tokenizer.
pub struct Tokenizer;
/// Why not.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TokenizerError(pub String);
#[allow(missing_docs, clippy::unimplemented, unused_variables)]
impl Tokenizer {
    /// `add_special`: BOS/EOS as the model wants; `parse_special`: text like "<|im_end|>" becomes that token.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<TokenId>, TokenizerError> {
        unimplemented!()
    }
    pub fn decode(&self, tokens: &[TokenId], skip_special: bool) -> String {
        unimplemented!()
    }
    /// The bytes a token stands for (empty for control tokens when skip_special).
    pub fn token_bytes(&self, token: TokenId, skip_special: bool) -> &[u8] {
        unimplemented!()
    }
    /// A token's own spelling, for logprobs.
    pub fn token_text(&self, token: TokenId) -> String {
        unimplemented!()
    }
    pub fn vocab_size(&self) -> usize {
        unimplemented!()
    }
    pub fn bos(&self) -> Option<TokenId> {
        unimplemented!()
    }
    pub fn eos(&self) -> Option<TokenId> {
        unimplemented!()
    }
    /// Tokens that end a generation (EOS, EOT, EOM ...).
    pub fn end_of_generation(&self) -> &[TokenId] {
        unimplemented!()
    }
    pub fn is_special(&self, token: TokenId) -> bool {
        unimplemented!()
    }
}
/// Tokens to text, one at a time, never half a character.
#[derive(Default)]
pub struct StreamDecoder {
    pending: Vec<u8>,
}
#[allow(missing_docs, clippy::unimplemented, unused_variables)]
impl StreamDecoder {
    pub fn push(&mut self, tokenizer: &Tokenizer, token: TokenId, skip_special: bool) -> String {
        unimplemented!()
    }
    /// What is left, incomplete characters as U+FFFD.
    pub fn finish(&mut self) -> String {
        let _ = &self.pending;
        unimplemented!()
    }
}
