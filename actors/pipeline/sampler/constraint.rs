//! The constraint of one sequence: which token may come next, after the reasoning if there is some.
//!
//! The mask for the next token is computed on a blocking thread as soon as the last token is known, while the device computes
//! the logits. All state follows from the tokens, so a new sampler restores it from them.

use cuelight_engine::constraint::{ConstraintError, ConstraintState, TokenMask};
use cuelight_engine::engine::TokenId;
use tokio::task::JoinHandle;

use crate::core::request::{ReasoningMarkers, SequenceConstraint};

/// The constraint of a sequence after some tokens.
#[derive(Debug)]
pub(super) struct OutputConstraint {
    phase: Phase,
    state: State,
}

/// Where in the answer the sequence is.
#[derive(Debug)]
enum Phase {
    /// Nothing was generated. Reasoning may begin.
    Start(ReasoningMarkers),
    /// In the reasoning, with the last characters of its text.
    Reasoning { markers: ReasoningMarkers, tail: String },
    /// In the part that is constrained.
    Constrained,
}

#[derive(Debug)]
enum State {
    /// The state, and the mask for the next token once it is computed.
    Known(Box<ConstraintState>, Option<Result<TokenMask, ConstraintError>>),
    /// A blocking thread computes the mask.
    Computing(JoinHandle<(Box<ConstraintState>, Result<TokenMask, ConstraintError>)>),
    /// The thread panicked.
    Lost,
}

/// What may come next.
pub(super) enum Allowed {
    /// Every token but those that end the generation.
    NoEnd,
    /// The tokens of a mask. `is_complete`: the text is complete, and only its end follows.
    Mask { mask: TokenMask, is_complete: bool },
}

impl OutputConstraint {
    pub fn new(constraint: &SequenceConstraint) -> Self {
        let phase = match &constraint.reasoning {
            None => Phase::Constrained,
            Some(markers) if markers.is_open => Phase::Reasoning { markers: markers.clone(), tail: String::new() },
            Some(markers) => Phase::Start(markers.clone()),
        };
        OutputConstraint { phase, state: State::Known(Box::new(constraint.constraint.start()), None) }
    }

    /// Begins to compute the mask for the next token.
    pub fn precompute(&mut self) {
        if matches!(self.phase, Phase::Reasoning { .. }) {
            return;
        }
        self.state = match std::mem::replace(&mut self.state, State::Lost) {
            State::Known(mut state, None) => State::Computing(tokio::task::spawn_blocking(move || {
                let mask = state.mask();
                (state, mask)
            })),
            other => other,
        };
    }

    /// Waits until the mask is computed.
    pub async fn settle(&mut self) {
        if let State::Computing(computing) = &mut self.state {
            self.state = match computing.await {
                Ok((state, mask)) => State::Known(state, Some(mask)),
                Err(_) => State::Lost,
            };
        }
    }

    /// What may come next.
    ///
    /// # Errors
    /// [`ConstraintError`] when the constraint cannot be continued.
    pub fn allowed(&mut self) -> Result<Allowed, ConstraintError> {
        if matches!(self.phase, Phase::Reasoning { .. }) {
            return Ok(Allowed::NoEnd);
        }
        let State::Known(state, mask) = &mut self.state else { return Err(lost()) };
        let mut mask = mask.get_or_insert_with(|| state.mask()).clone()?;
        if let Phase::Start(ReasoningMarkers { start: Some(start), .. }) = &self.phase {
            mask.allow(*start);
        }
        Ok(Allowed::Mask { mask, is_complete: state.is_complete() })
    }

    /// Whether the text is complete, so that only its end may follow.
    pub fn is_complete(&self) -> bool {
        matches!(&self.state, State::Known(state, _) if matches!(self.phase, Phase::Constrained) && state.is_complete())
    }

    /// Adds the token that was sampled, with its text.
    ///
    /// # Errors
    /// [`ConstraintError`] when the constraint does not allow it.
    pub fn accept(&mut self, token: TokenId, text: &str) -> Result<(), ConstraintError> {
        self.phase = match std::mem::replace(&mut self.phase, Phase::Constrained) {
            Phase::Start(markers) if markers.start == Some(token) => {
                self.forget_mask();
                Phase::Reasoning { markers, tail: String::new() }
            }
            Phase::Reasoning { markers, tail } => after_reasoning(markers, tail + text),
            Phase::Start(_) | Phase::Constrained => return self.advance(token),
        };
        Ok(())
    }

    fn advance(&mut self, token: TokenId) -> Result<(), ConstraintError> {
        self.forget_mask();
        let State::Known(state, _) = &mut self.state else { return Err(lost()) };
        state.accept(token)
    }

    fn forget_mask(&mut self) {
        if let State::Known(_, mask) = &mut self.state {
            *mask = None;
        }
    }
}

fn lost() -> ConstraintError {
    ConstraintError("computing the allowed tokens panicked".to_owned())
}

/// The phase after more text of the reasoning.
fn after_reasoning(markers: ReasoningMarkers, mut tail: String) -> Phase {
    if tail.contains(&*markers.end) {
        return Phase::Constrained;
    }
    let kept = tail.len().saturating_sub(markers.end.len());
    tail.drain(..tail.floor_char_boundary(kept));
    Phase::Reasoning { markers, tail }
}
