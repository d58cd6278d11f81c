//! The tokens that may come next.

use toktrie::SimpleVob;

use crate::engine::TokenId;

/// The tokens that a constraint allows next, one bit for each token of the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TokenMask(SimpleVob);

impl TokenMask {
    pub(super) fn new(allowed: SimpleVob) -> Self {
        TokenMask(allowed)
    }

    /// Sets the logits of all other tokens to minus infinity.
    pub fn apply(&self, logits: &mut [f32]) {
        for (logits, word) in logits.chunks_mut(32).zip(self.0.as_slice().iter().chain(std::iter::repeat(&0))) {
            if *word == u32::MAX {
                continue;
            }
            for (bit, logit) in logits.iter_mut().enumerate() {
                if word >> bit & 1 == 0 {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
    }

    /// Whether a token is allowed.
    #[must_use]
    pub fn allows(&self, token: TokenId) -> bool {
        (token as usize) < self.0.len() && self.0.is_allowed(token)
    }

    /// Allows one more token.
    pub fn allow(&mut self, token: TokenId) {
        if (token as usize) < self.0.len() {
            self.0.allow_token(token);
        }
    }

    /// The only token that is allowed. `None` when there are several.
    #[must_use]
    pub fn only(&self) -> Option<TokenId> {
        let first = self.0.first_bit_set()?;
        (self.0.num_set() == 1).then_some(first as TokenId)
    }

    /// The number of tokens that are allowed.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.num_set()
    }
}
