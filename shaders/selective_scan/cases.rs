//! The expected results of the selective scan.

use super::reference::reference;
use super::{ScanShape, SelectiveScan};
use crate::cases::{Case, CaseCache};
use crate::quant::random;
use crate::recurrent::StatePart;
use crate::recurrent::scenario::{self, Inputs};

/// The expected results: the state of models, larger and smaller ones, and channels that fill no vector or workgroup.
#[must_use]
pub fn cases() -> Vec<Case> {
    [(64, 16), (200, 16), (40, 64), (33, 3), (5, 1)].map(|(channels, state_dim)| case(channels, state_dim)).into()
}

/// A [channels, state_dim] and D \[channels\], with decays from 0.1 to 0.99.
fn weights(shape: ScanShape) -> [Vec<f32>; 2] {
    let a = random::activations(shape.channels * shape.state_dim, 1);
    [a.iter().map(|value| -1.1 - value).collect(), random::activations(shape.channels, 2)]
}

/// A scan with the state at `start` of layer 0.
fn scan_of(shape: ScanShape, start: usize) -> SelectiveScan {
    let part = StatePart { layer: 0, start, len: shape.state_len() };
    let [a, d] = weights(shape);
    SelectiveScan::new(shape, &a, d.into(), part).expect("the shapes fit")
}

fn case(channels: usize, state_dim: usize) -> Case {
    let shape = ScanShape { channels, state_dim };
    let [a, d] = weights(shape);
    let steps = scenario::steps(shape.state_len(), &inputs(&widths(shape)), 1e-5, |state, inputs| {
        reference(&shape, [&a, &d], state, inputs)
    });
    let cache = CaseCache::of_states(vec![shape.state_len() + 7], scenario::SLOTS);
    Case { name: format!("{shape:?}"), op: Box::new(scan_of(shape, 7)), cache: Some(cache), steps }
}

fn widths(shape: ScanShape) -> [usize; 4] {
    [shape.channels, shape.channels, shape.state_dim, shape.state_dim]
}

/// Values between -1 and 1, dt over a wider range.
fn inputs(widths: &[usize]) -> Inputs<'_> {
    Inputs { widths, scale: |input, value| if input == 1 { 4.0 * value - 2.0 } else { value } }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_the_same_bits_in_any_chunks() {
        let shape = ScanShape { channels: 150, state_dim: 16 };
        scenario::assert_invariant(&scan_of(shape, 0), shape.state_len(), &inputs(&widths(shape)));
    }

    #[test]
    fn sizes_that_do_not_fit_are_refused() {
        let shape = ScanShape { channels: 3, state_dim: 4 };
        let part = StatePart { layer: 0, start: 0, len: shape.state_len() };
        let error = SelectiveScan::new(shape, &[0.0; 8], [0.0; 3].into(), part).expect_err("12 values are needed");
        assert_eq!(error.to_string(), "selective_scan: length of A is 8, but must be 12");
    }
}
