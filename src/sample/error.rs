//! Errors in logits.

use crate::engine::TokenId;

/// Logits that do not form a distribution. The engine is at fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidLogits {
    /// A logit is NaN or positive infinity.
    #[error("the logit of token {0} is not a finite number")]
    NotFinite(TokenId),
    /// No token has a probability above 0.
    #[error("no token has a probability above 0")]
    Empty,
    /// The row is shorter than the vocabulary.
    #[error("the row of logits has no entry for token {0}")]
    MissingToken(TokenId),
}
