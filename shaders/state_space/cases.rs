//! The expected results of the state space.

use super::reference::reference;
use super::{SpaceShape, SpaceWeights, StateSpace};
use crate::cases::{Case, CaseCache};
use crate::quant::random;
use crate::recurrent::StatePart;
use crate::recurrent::scenario::{self, Inputs};

/// The expected results: heads of models, and some that fill no vector or workgroup; one group and several.
#[must_use]
pub fn cases() -> Vec<Case> {
    let shape = |heads, head_dim, groups, state_dim| SpaceShape { heads, head_dim, groups, state_dim };
    [shape(4, 16, 2, 8), shape(3, 64, 1, 128), shape(2, 40, 2, 18), shape(6, 5, 3, 2)].map(case).into()
}

/// A state space whose decays are from 0.1 to 0.99, with the state at `start` of layer 0.
fn space_of(shape: SpaceShape, start: usize) -> StateSpace {
    let weights = SpaceWeights {
        a: random::activations(shape.heads, 1).iter().map(|value| -1.1 - value).collect(),
        d: random::activations(shape.heads, 2).into(),
        dt_bias: random::activations(shape.heads, 3).into(),
    };
    let part = StatePart { layer: 0, start, len: shape.state_len() };
    StateSpace::new(shape, weights, part).expect("the shapes fit")
}

fn case(shape: SpaceShape) -> Case {
    let space = space_of(shape, 7);
    let widths = [shape.mixed_width(), shape.heads];
    let weights = space.weights.clone();
    let steps = scenario::steps(shape.state_len(), &inputs(&widths), 1e-5, |state, inputs| {
        reference(&shape, &weights, state, inputs)
    });
    let cache = CaseCache::of_states(vec![shape.state_len() + 7], scenario::SLOTS);
    Case { name: format!("{shape:?}"), op: Box::new(space), cache: Some(cache), steps }
}

/// Values between -1 and 1, dt over a wider range.
fn inputs(widths: &[usize]) -> Inputs<'_> {
    Inputs { widths, scale: |input, value| if input == 0 { value } else { 4.0 * value - 2.0 } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_same_bits_in_any_chunks() {
        let shape = SpaceShape { heads: 4, head_dim: 24, groups: 2, state_dim: 18 };
        let widths = [shape.mixed_width(), shape.heads];
        scenario::assert_invariant(&space_of(shape, 0), shape.state_len(), &inputs(&widths));
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let shape = SpaceShape { heads: 3, head_dim: 8, groups: 2, state_dim: 4 };
        let part = StatePart { layer: 0, start: 0, len: shape.state_len() };
        let weights = SpaceWeights { a: [0.0; 3].into(), d: [0.0; 3].into(), dt_bias: [0.0; 3].into() };
        let error = StateSpace::new(shape, weights, part).expect_err("3 is not a multiple of 2");
        assert_eq!(error.to_string(), "state_space: heads modulo groups is 1, but must be 0");
    }
}
