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

    /// A mask for a vocabulary of `size` tokens that allows these.
    #[cfg(test)]
    pub(crate) fn of(size: usize, tokens: impl IntoIterator<Item = usize>) -> Self {
        let mut allowed = SimpleVob::alloc(size);
        tokens.into_iter().for_each(|token| allowed.allow_token(token as TokenId));
        TokenMask(allowed)
    }

    /// Sets the logits of all other tokens to minus infinity.
    pub fn apply(&self, logits: &mut [f32]) {
        for (logits, word) in logits.chunks_mut(32).zip(self.0.as_slice().iter().chain(std::iter::repeat(&0))) {
            // Without branches, so that the compiler vectorises it: most words allow some of their tokens.
            for (bit, logit) in logits.iter_mut().enumerate() {
                *logit = if word >> bit & 1 == 0 { f32::NEG_INFINITY } else { *logit };
            }
        }
    }

    /// Whether a token is allowed.
    #[must_use]
    pub fn allows(&self, token: TokenId) -> bool {
        (token as usize) < self.0.len() && self.0.is_allowed(token)
    }

    /// The tokens that are allowed, in the order of their ids.
    pub fn tokens(&self) -> impl Iterator<Item = TokenId> + '_ {
        let first = (0u32..).step_by(u32::BITS as usize);
        first.zip(self.0.as_slice()).flat_map(|(first, &word)| {
            let mut left = word;
            std::iter::from_fn(move || {
                let bit = left.trailing_zeros();
                (bit < u32::BITS).then(|| {
                    left &= left - 1;
                    first + bit
                })
            })
        })
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
