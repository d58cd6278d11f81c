//! The constraint of one sequence: which token may come next.
//!
//! The mask for the next token is computed on a blocking thread as soon as the last token is known, while the device computes
//! the logits. All state follows from the tokens, so a new sampler restores it from them.

use cuelight_engine::constraint::{Constraint, ConstraintError, ConstraintState, TokenMask};
use cuelight_engine::engine::TokenId;
use tokio::task::JoinHandle;

/// The constraint of a sequence after some tokens of its answer.
#[derive(Debug)]
pub(super) enum OutputConstraint {
    /// The state, and the mask for the next token once it is computed.
    Known(Box<ConstraintState>, Option<Result<TokenMask, ConstraintError>>),
    /// A blocking thread computes the mask.
    Computing(JoinHandle<(Box<ConstraintState>, Result<TokenMask, ConstraintError>)>),
    /// The thread panicked.
    Lost,
}

impl OutputConstraint {
    pub fn new(constraint: &Constraint) -> Self {
        OutputConstraint::Known(Box::new(constraint.start()), None)
    }

    /// Begins to compute the mask for the next token.
    pub fn precompute(&mut self) {
        *self = match std::mem::replace(self, OutputConstraint::Lost) {
            OutputConstraint::Known(mut state, None) => {
                OutputConstraint::Computing(tokio::task::spawn_blocking(move || {
                    let mask = state.mask();
                    (state, mask)
                }))
            }
            other => other,
        };
    }

    /// Waits until the mask is computed.
    pub async fn settle(&mut self) {
        if let OutputConstraint::Computing(computing) = self {
            *self = match computing.await {
                Ok((state, mask)) => OutputConstraint::Known(state, Some(mask)),
                Err(_) => OutputConstraint::Lost,
            };
        }
    }

    /// The tokens that may come next.
    ///
    /// # Errors
    /// [`ConstraintError`] when the constraint cannot be continued.
    pub fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
        let OutputConstraint::Known(state, mask) = self else { return Err(lost()) };
        mask.get_or_insert_with(|| state.mask()).clone()
    }

    /// The tokens that have to come next.
    pub fn forced_tokens(&mut self) -> Vec<TokenId> {
        match self {
            OutputConstraint::Known(state, _) => state.forced_tokens(),
            OutputConstraint::Computing(_) | OutputConstraint::Lost => Vec::new(),
        }
    }

    /// Whether the text is complete, so that only its end may follow.
    pub fn is_complete(&self) -> bool {
        matches!(self, OutputConstraint::Known(state, _) if state.is_complete())
    }

    /// Adds a token of the answer.
    ///
    /// # Errors
    /// [`ConstraintError`] when the constraint does not allow it.
    pub fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        let OutputConstraint::Known(state, mask) = self else { return Err(lost()) };
        *mask = None;
        state.accept(token)
    }
}

fn lost() -> ConstraintError {
    ConstraintError("computing the allowed tokens panicked".to_owned())
}
