//! Decodes tokens to text, one at a time.

use super::Tokenizer;
use crate::engine::TokenId;

/// Decodes a stream of tokens and returns only whole characters.
///
/// The texts of all calls, [`StreamDecoder::finish`] included, join to the result of [`Tokenizer::decode`] on all tokens.
#[derive(Debug, Clone, Default)]
pub struct StreamDecoder {
    /// The first bytes of a character whose other bytes have not arrived.
    pending: Vec<u8>,
    /// Whether the text has started, so a leading space is part of it.
    started: bool,
}

impl StreamDecoder {
    /// A decoder for tokens that continue a text. It keeps the first token's leading space, which at the start of a text
    /// would count as added by [`Tokenizer::encode`] and be removed.
    #[must_use]
    pub fn continuing() -> Self {
        StreamDecoder { pending: Vec::new(), started: true }
    }

    /// The text that this token completes: often one word, sometimes empty. Special tokens give no text if `skip_special` is
    /// set.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: TokenId, skip_special: bool) -> String {
        let bytes = tokenizer.token_bytes(token, skip_special);
        let bytes = if self.started { bytes } else { tokenizer.without_added_space(token, bytes) };
        // A token without bytes, such as a skipped BOS, does not start the text; the added space does.
        self.started |= !tokenizer.token_bytes(token, skip_special).is_empty();
        self.pending.extend_from_slice(bytes);
        self.take(complete_bytes(&self.pending))
    }

    /// The remaining text; an incomplete character becomes U+FFFD. The next token starts a new text.
    pub fn finish(&mut self) -> String {
        self.started = false;
        self.take(self.pending.len())
    }

    fn take(&mut self, n_bytes: usize) -> String {
        let rest = self.pending.split_off(n_bytes);
        let taken = std::mem::replace(&mut self.pending, rest);
        String::from_utf8(taken).unwrap_or_else(|invalid| String::from_utf8_lossy(invalid.as_bytes()).into_owned())
    }
}

/// Number of leading bytes that are whole characters or can never become one.
fn complete_bytes(bytes: &[u8]) -> usize {
    let mut complete = 0;
    loop {
        match str::from_utf8(&bytes[complete..]) {
            Ok(_) => return bytes.len(),
            Err(error) => match error.error_len() {
                Some(invalid) => complete += error.valid_up_to() + invalid,
                None => return complete + error.valid_up_to(),
            },
        }
    }
}

impl Tokenizer {
    /// The text of tokens.
    ///
    /// Bytes that are not UTF-8 become U+FFFD. Unknown ids have no text; special tokens have none if `skip_special` is set.
    #[must_use]
    pub fn decode(&self, tokens: &[TokenId], skip_special: bool) -> String {
        let mut decoder = StreamDecoder::default();
        let mut text: String = tokens.iter().map(|&token| decoder.push(self, token, skip_special)).collect();
        text.push_str(&decoder.finish());
        text
    }
}
