//! Inputs of the cases and tests of products.

use crate::quant::random;

/// Values in `-2.0..=2.0` that the integer kernels represent exactly: 15 bits and one scale for each block of 32.
pub(crate) fn exact_activations(len: usize, seed: u64) -> Vec<f32> {
    const LARGEST: f32 = 127.0 * 128.0;
    const STEP: f32 = 1.0 / 8192.0;
    let mut values = random::activations(len, seed);
    for block in values.chunks_mut(32) {
        block.iter_mut().for_each(|value| *value = (*value * LARGEST).round() * STEP);
        block[block.len() / 4] = LARGEST * STEP;
    }
    values
}

/// The sum of the magnitudes of the terms of a row for kernels that multiply codes and minima separately. If the
/// magnitude of a weight is at most [`random::LIMIT`], then those of its scaled code and its minimum are together at
/// most three times that.
pub(crate) fn parts(row: &[f32]) -> f64 {
    3.0 * f64::from(random::LIMIT) * row.iter().map(|x| f64::from(x.abs())).sum::<f64>()
}
