//! The expected results of the gated delta rule.

use std::sync::Arc;

use super::reference::reference;
use super::{DecayForm, DeltaShape, GatedDelta, HeadOrder};
use crate::cases::{Case, CaseCache};
use crate::quant::random;
use crate::recurrent::StatePart;
use crate::recurrent::scenario::{self, Inputs};

/// The expected results: both orders of heads, heads that fill no vector or workgroup, decays of each key, bounded
/// decays.
#[must_use]
pub fn cases() -> Vec<Case> {
    let shape = |key_heads, value_heads, key_dim, value_dim, order| DeltaShape {
        key_heads,
        value_heads,
        key_dim,
        value_dim,
        order,
    };
    let shapes = [
        (shape(2, 4, 16, 16, HeadOrder::Grouped), false),
        (shape(2, 4, 16, 16, HeadOrder::Tiled), false),
        (shape(1, 3, 128, 128, HeadOrder::Grouped), false),
        (shape(3, 3, 40, 24, HeadOrder::Tiled), false),
        (shape(1, 2, 14, 33, HeadOrder::Grouped), false),
        (shape(2, 2, 32, 64, HeadOrder::Grouped), true),
        (shape(1, 2, 10, 5, HeadOrder::Tiled), true),
    ];
    let by_softplus = shapes.into_iter().map(|(shape, per_key)| case(shape, per_key, DecayForm::Softplus));
    let bounded = [(shape(2, 2, 32, 64, HeadOrder::Grouped), true), (shape(1, 2, 10, 5, HeadOrder::Tiled), false)];
    let bounded = bounded.into_iter().map(|(shape, per_key)| case(shape, per_key, DecayForm::Bounded(-5.0)));
    by_softplus.chain(bounded).collect()
}

/// A delta rule with the state at `start` of layer 0. Decays by softplus are from 0.1 to 0.99.
pub(super) fn delta_of(shape: DeltaShape, per_key: bool, form: DecayForm, start: usize) -> GatedDelta {
    let channels = if per_key { shape.key_dim } else { 1 };
    let sign = if form == DecayForm::Softplus { -1.0 } else { 1.0 };
    let a: Arc<[f32]> = random::activations(shape.value_heads, 1).iter().map(|value| sign * (1.1 + value)).collect();
    let dt_bias = random::activations(shape.value_heads * channels, 2);
    let part = StatePart { layer: 0, start, len: shape.state_len() };
    GatedDelta::new(shape, a, dt_bias.into(), part).expect("the shapes fit").with_decays(form)
}

fn case(shape: DeltaShape, per_key: bool, form: DecayForm) -> Case {
    let delta = delta_of(shape, per_key, form, 5);
    let widths = [shape.mixed_width(), delta.dt_bias.len(), shape.value_heads];
    let (a, dt_bias) = (Arc::clone(&delta.a), Arc::clone(&delta.dt_bias));
    let steps = scenario::steps(shape.state_len(), &inputs(&widths), 1e-5, |state, inputs| {
        reference((&shape, form), &a, &dt_bias, state, inputs)
    });
    let cache = CaseCache::of_states(vec![shape.state_len() + 5], scenario::SLOTS);
    let name = format!("{shape:?}, a decay of each key: {per_key}, {form:?}");
    Case { name, op: Box::new(delta), cache: Some(cache), steps }
}

/// Values between -1 and 1, decays and betas over a wider range.
pub(super) fn inputs(widths: &[usize]) -> Inputs<'_> {
    Inputs { widths, scale: |input, value| if input == 0 { value } else { 4.0 * value - 2.0 } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_same_bits_in_any_chunks() {
        for (value_dim, per_key) in [(48, false), (20, true)] {
            let order = HeadOrder::Tiled;
            let shape = DeltaShape { key_heads: 2, value_heads: 4, key_dim: 24, value_dim, order };
            let delta = delta_of(shape, per_key, DecayForm::Softplus, 0);
            let widths = [shape.mixed_width(), delta.dt_bias.len(), shape.value_heads];
            scenario::assert_invariant(&delta, shape.state_len(), &inputs(&widths));
        }
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let shape = DeltaShape { key_heads: 2, value_heads: 3, key_dim: 8, value_dim: 8, order: HeadOrder::Tiled };
        let part = StatePart { layer: 0, start: 0, len: shape.state_len() };
        let error =
            GatedDelta::new(shape, [0.0; 3].into(), [0.0; 3].into(), part).expect_err("3 is not a multiple of 2");
        assert_eq!(error.to_string(), "gated_delta: value heads modulo key heads is 1, but must be 0");
        let shape = DeltaShape { key_heads: 1, ..shape };
        let error = GatedDelta::new(shape, [0.0; 3].into(), [0.0; 5].into(), part).expect_err("neither heads nor keys");
        assert_eq!(error.to_string(), "gated_delta: length of the bias of dt is 5, but must be 24");
    }
}
