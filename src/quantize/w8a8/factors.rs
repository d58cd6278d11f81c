//! The factors that move from a norm to the matrices that read it.
//!
//! Column j of the activations is divided by `s = max|X_j|^a / max|W_j|^(1-a)`, column j of the matrices is multiplied by it.
//! Source: Xiao et al. 2022, "SmoothQuant", equation 4. The weight of the norm is divided by s and rounded to its format; the
//! matrices are multiplied by what it was divided by after rounding, so rounding of the norm changes no result.

use cuelight_shaders::quant::Format;

use super::options::Strength;
use super::rows::encoded;

/// Factors are at most this far from 1.
const LARGEST_FACTOR: f32 = 1e4;

/// The weight of a norm.
pub(super) struct NormWeight<'a> {
    pub format: Format,
    pub bytes: &'a [u8],
    /// Whether the stored values lack 1.
    pub lacks_one: bool,
}

/// The factors of a norm.
#[derive(Debug)]
pub(super) struct Factors {
    /// The new bytes of its weight.
    pub norm: Vec<u8>,
    /// What each column of its matrices is multiplied by.
    pub columns: Vec<f32>,
}

/// For each column what activations are to be divided by. 1 where activations or weights are all zero.
pub(super) fn wanted(inputs: &[f32], weights: &[f32], strength: Strength) -> Vec<f32> {
    let exponent = strength.value();
    let factor = |(input, weight): (&f32, &f32)| {
        let factor = input.powf(exponent) / weight.powf(1.0 - exponent);
        let is_usable = *input > 0.0 && *weight > 0.0 && factor.is_finite();
        if is_usable { factor.clamp(1.0 / LARGEST_FACTOR, LARGEST_FACTOR) } else { 1.0 }
    };
    inputs.iter().zip(weights).map(factor).collect()
}

impl NormWeight<'_> {
    /// The weight divided by about these factors, and the exact factors after rounding.
    pub(super) fn divided(&self, wanted: &[f32]) -> Factors {
        let one = if self.lacks_one { 1.0 } else { 0.0 };
        let stored = decoded(self.format, self.bytes);
        let divided: Vec<f32> = stored.iter().zip(wanted).map(|(value, factor)| (value + one) / factor - one).collect();
        let mut rounded = decoded(self.format, &encoded(self.format, &divided));
        let mut columns = Vec::with_capacity(stored.len());
        for (new, old) in rounded.iter_mut().zip(&stored) {
            let factor = (old + one) / (*new + one);
            let is_usable = factor.is_finite() && factor > 0.0;
            *new = if is_usable { *new } else { *old };
            columns.push(if is_usable { factor } else { 1.0 });
        }
        Factors { norm: encoded(self.format, &rounded), columns }
    }
}

/// A bias in its format, divided by factors.
pub(super) fn divided_bias(format: Format, bytes: &[u8], factors: &[f32]) -> Vec<u8> {
    let values = decoded(format, bytes);
    encoded(format, &values.iter().zip(factors).map(|(value, factor)| value / factor).collect::<Vec<_>>())
}

fn decoded(format: Format, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / format.block_bytes()];
    format.dequantize(bytes, &mut values);
    values
}
