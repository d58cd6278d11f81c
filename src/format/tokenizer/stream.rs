//! Tokens to text, one at a time.

use super::Tokenizer;
use crate::engine::TokenId;

/// Turns tokens into text as they come, never with half a character.
///
/// All texts it returns, one after the other and with [`StreamDecoder::finish`], are what [`Tokenizer::decode`] makes
/// of the tokens at once.
#[derive(Debug, Clone, Default)]
pub struct StreamDecoder {
    /// The start of a character whose other bytes have not come.
    pending: Vec<u8>,
    /// Whether text has come before, so that a leading space is part of the text.
    started: bool,
}

impl StreamDecoder {
    /// For tokens that continue a text: a leading space of the first is kept, where one that [`Tokenizer::encode`]
    /// added at the start of a text would be taken away.
    #[must_use]
    pub fn continuing() -> Self {
        StreamDecoder { pending: Vec::new(), started: true }
    }

    /// The text that this token completes; often one word, sometimes none. Special tokens have no text when
    /// `skip_special` is set.
    pub fn push(&mut self, tokenizer: &Tokenizer, token: TokenId, skip_special: bool) -> String {
        let bytes = tokenizer.token_bytes(token, skip_special);
        let bytes = if self.started { bytes } else { tokenizer.without_added_space(token, bytes) };
        // A token that stands for nothing, such as a skipped BOS, starts no text; the added space alone does.
        self.started |= !tokenizer.token_bytes(token, skip_special).is_empty();
        self.pending.extend_from_slice(bytes);
        self.take(complete_bytes(&self.pending))
    }

    /// What is left, an incomplete character as U+FFFD. The decoder then starts a new text.
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

/// How many bytes are whole characters or can never become one.
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
