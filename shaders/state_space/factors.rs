//! dt and the decay of each head of each row.

use super::StateSpace;
use crate::lanes::{exp, softplus};
use crate::per_kernel;

/// dt and the decay `e^(dt A)` of a head of a row.
pub(super) fn factors_of(space: &StateSpace, factors: &[f32], row: usize, head: usize) -> [f32; 2] {
    let heads = space.shape.heads;
    [factors[2 * row * heads + head], factors[(2 * row + 1) * heads + head]]
}

per_kernel! {
    /// Computes dt of all heads of one row, then their decays.
    pub(super) fn row_factors = row_factors_lanes(space: &StateSpace, dt: &[f32], factors: &mut [f32])
}

#[inline(always)]
fn row_factors_lanes<const FMA: bool>(space: &StateSpace, dt: &[f32], factors: &mut [f32]) {
    let (times, decays) = factors.split_at_mut(dt.len());
    for ((time, dt), bias) in times.iter_mut().zip(dt).zip(&*space.weights.dt_bias) {
        *time = softplus(dt + bias);
    }
    for ((decay, time), a) in decays.iter_mut().zip(times).zip(&*space.weights.a) {
        *decay = exp(*a * *time);
    }
}
