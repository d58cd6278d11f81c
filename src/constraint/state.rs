//! The state of a constraint after some tokens.

use std::fmt;

use llguidance::Matcher;

use super::error::ConstraintError;
use super::free_text::FreeText;
use super::mask::TokenMask;
use crate::engine::TokenId;

/// The state of a constraint on one sequence.
pub struct ConstraintState {
    matcher: Matcher,
    /// The text so far, until a trigger is found.
    free: Option<FreeText>,
}

impl fmt::Debug for ConstraintState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ConstraintState").field("is_stopped", &self.matcher.is_stopped()).finish()
    }
}

impl ConstraintState {
    pub(super) fn new(matcher: Matcher, free: Option<FreeText>) -> Self {
        ConstraintState { matcher, free }
    }

    /// The tokens that may come next. When the text is complete, these include the tokens that end a generation.
    ///
    /// # Errors
    /// [`ConstraintError`] when a limit of the library is exceeded, or no token may come next.
    pub fn mask(&mut self) -> Result<TokenMask, ConstraintError> {
        if let Some(mask) = self.free.as_ref().and_then(FreeText::mask) {
            return Ok(mask.clone());
        }
        let mask = self.matcher.compute_mask_or_eos().map_err(|error| ConstraintError(error.to_string()))?;
        if mask.is_zero() {
            return Err(ConstraintError("no token of the vocabulary continues the text".to_owned()));
        }
        Ok(TokenMask::new(mask))
    }

    /// Adds the token that was chosen.
    ///
    /// # Errors
    /// [`ConstraintError`] when the constraint does not allow it.
    pub fn accept(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        if self.matcher.is_stopped() && !self.matcher.is_error() {
            // The text is complete; only the end follows.
            return Ok(());
        }
        self.matcher.consume_token(token).map_err(|error| ConstraintError(error.to_string()))?;
        self.free = self.free.take().and_then(|mut free| free.push(token).then_some(free));
        Ok(())
    }

    /// The tokens that have to come next, because the text has no choice: the tokenizer's spelling of it, without tokens at
    /// its end that would be others if more text followed. [`ConstraintState::mask`] allows nothing but the first of them.
    pub fn forced_tokens(&mut self) -> Vec<TokenId> {
        if self.free.is_some() { Vec::new() } else { self.matcher.compute_ff_tokens() }
    }

    /// Whether the text is complete and nothing may follow.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.matcher.is_stopped() && self.matcher.stop_reason().is_ok()
    }

    /// Whether the text may end here.
    pub fn is_accepting(&mut self) -> bool {
        self.is_complete() || self.matcher.is_accepting().unwrap_or(false)
    }
}
