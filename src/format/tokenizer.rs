//! Text to tokens and back (contract; being built). Until then: a token is a byte, 256 ends the generation.
use crate::engine::TokenId;
/// A tokenizer.
pub struct Tokenizer;
/// Why not.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct TokenizerError(pub String);
static BYTES: [u8; 256] = {
    let mut bytes = [0; 256];
    let mut i = 0;
    while i < 256 {
        bytes[i] = i as u8;
        i += 1;
    }
    bytes
};
#[allow(missing_docs, unused_variables)]
impl Tokenizer {
    pub fn from_gguf(gguf: &super::gguf::Gguf) -> Result<Self, TokenizerError> {
        Ok(Tokenizer)
    }
    /// `add_special`: BOS/EOS as the model wants; `parse_special`: text like "<|im_end|>" becomes that token.
    pub fn encode(&self, text: &str, add_special: bool, parse_special: bool) -> Result<Vec<TokenId>, TokenizerError> {
        Ok(text.bytes().map(TokenId::from).collect())
    }
    pub fn decode(&self, tokens: &[TokenId], skip_special: bool) -> String {
        let bytes: Vec<u8> = tokens.iter().flat_map(|&token| self.token_bytes(token, skip_special).to_vec()).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }
    /// The bytes a token stands for (empty for control tokens when skip_special).
    pub fn token_bytes(&self, token: TokenId, skip_special: bool) -> &[u8] {
        BYTES.get(token as usize..token as usize + 1).unwrap_or_default()
    }
    /// A token's own spelling, for logprobs.
    pub fn token_text(&self, token: TokenId) -> String {
        self.decode(&[token], false)
    }
    pub fn vocab_size(&self) -> usize {
        257
    }
    pub fn bos(&self) -> Option<TokenId> {
        None
    }
    pub fn eos(&self) -> Option<TokenId> {
        Some(256)
    }
    /// Tokens that end a generation (EOS, EOT, EOM ...).
    pub fn end_of_generation(&self) -> &[TokenId] {
        &[256]
    }
    pub fn is_special(&self, token: TokenId) -> bool {
        token == 256
    }
}
/// Tokens to text, one at a time, never half a character.
#[derive(Default)]
pub struct StreamDecoder {
    pending: Vec<u8>,
}
#[allow(missing_docs)]
impl StreamDecoder {
    pub fn push(&mut self, tokenizer: &Tokenizer, token: TokenId, skip_special: bool) -> String {
        self.pending.extend_from_slice(tokenizer.token_bytes(token, skip_special));
        let valid = match std::str::from_utf8(&self.pending) {
            Err(error) if error.error_len().is_none() => error.valid_up_to(),
            _ => self.pending.len(),
        };
        let rest = self.pending.split_off(valid);
        String::from_utf8_lossy(&std::mem::replace(&mut self.pending, rest)).into_owned()
    }
    /// What is left, incomplete characters as U+FFFD.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.pending)).into_owned()
    }
}
