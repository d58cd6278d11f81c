//! The factors of each row: decays, betas, and the scales of queries and keys.

use super::{DecayForm, EPSILON, GatedDelta};
use crate::lanes::{LANES, exp, horizontal_sum, multiply_add, softplus};
use crate::per_kernel;

/// Values of the factors of a row: decays, betas, scales of queries, scales of keys.
pub(super) fn factors_len(delta: &GatedDelta) -> usize {
    delta.dt_bias.len() + delta.shape.value_heads + 2 * delta.shape.key_heads
}

/// The factors of a row, as the scan reads them.
pub(super) struct Factors<'a> {
    /// `e^g` of each head, or of each row of its state.
    pub decays: &'a [f32],
    pub beta: f32,
    pub query_scale: f32,
    pub key_scale: f32,
}

impl<'a> Factors<'a> {
    pub(super) fn of(delta: &GatedDelta, factors: &'a [f32], row: usize, head: usize) -> Self {
        let (shape, decays) = (&delta.shape, delta.decays());
        let row = &factors[row * factors_len(delta)..][..factors_len(delta)];
        let (all_decays, rest) = row.split_at(delta.dt_bias.len());
        let (betas, scales) = rest.split_at(shape.value_heads);
        let key_head = shape.key_head(head);
        Factors {
            decays: &all_decays[head * decays..][..decays],
            beta: betas[head],
            query_scale: scales[key_head],
            key_scale: scales[shape.key_heads + key_head],
        }
    }
}

per_kernel! {
    /// Computes the factors of one row.
    pub(super) fn row_factors = row_factors_lanes(delta: &GatedDelta, inputs: &[&[f32]], row: usize, factors: &mut [f32])
}

#[inline(always)]
fn row_factors_lanes<const FMA: bool>(delta: &GatedDelta, inputs: &[&[f32]], row: usize, factors: &mut [f32]) {
    let (shape, decays) = (&delta.shape, delta.decays());
    let row_of = |input: usize, width: usize| &inputs[input][row * width..][..width];
    let (to_decay, rest) = factors.split_at_mut(delta.dt_bias.len());
    let (to_beta, scales) = rest.split_at_mut(shape.value_heads);
    let dt = row_of(1, to_decay.len()).iter().zip(&*delta.dt_bias);
    for (decay, (dt, bias)) in to_decay.iter_mut().zip(dt) {
        *decay = dt + bias;
    }
    for (decays, a) in to_decay.chunks_exact_mut(decays).zip(&*delta.a) {
        match delta.form {
            DecayForm::Softplus => decays.iter_mut().for_each(|decay| *decay = exp(*a * softplus(*decay))),
            DecayForm::Bounded(bound) => {
                decays.iter_mut().for_each(|decay| *decay = exp(bound / (1.0 + exp(-(*a * *decay)))));
            }
        }
    }
    for (beta, b) in to_beta.iter_mut().zip(row_of(2, shape.value_heads)) {
        *beta = 1.0 / (1.0 + exp(-b));
    }
    let heads = row_of(0, shape.mixed_width()).chunks_exact(shape.key_dim);
    for (scale, head) in scales.iter_mut().zip(heads) {
        *scale = 1.0 / (squares::<FMA>(head) + EPSILON).sqrt();
    }
    let (queries, _) = scales.split_at_mut(shape.key_heads);
    let root = (shape.key_dim as f32).sqrt();
    queries.iter_mut().for_each(|scale| *scale /= root);
}

/// The sum of the squares.
#[inline(always)]
fn squares<const FMA: bool>(values: &[f32]) -> f32 {
    let mut sums = [0.0f32; LANES];
    let (chunks, rest) = values.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, value) in sums.iter_mut().zip(chunk) {
            *sum = multiply_add::<FMA>(*value, *value, *sum);
        }
    }
    for (sum, value) in sums.iter_mut().zip(rest) {
        *sum = multiply_add::<FMA>(*value, *value, *sum);
    }
    horizontal_sum(sums)
}
