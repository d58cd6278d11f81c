//! The float64 reference of [`Linear`](super::Linear).

use crate::weight::Weight;

/// One result of the reference.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Product {
    /// The result.
    pub value: f64,
    /// The sum of the magnitudes of its terms. Tolerances for rounding errors of float32 sums are relative to it.
    pub magnitude: f64,
}

/// `x * w^T + b` for one weight, [rows, weight.rows], computed in float64 with the decoded weights.
///
/// # Panics
/// When `input` is not [rows, weight.columns], or the bias is not [weight.rows].
#[must_use]
pub fn linear(weight: &Weight, bias: Option<&[f32]>, input: &[f32]) -> Vec<Product> {
    assert!(input.len().is_multiple_of(weight.columns) && bias.is_none_or(|bias| bias.len() == weight.rows));
    let values = weight.to_f32();
    let mut products = Vec::with_capacity(input.len() / weight.columns * weight.rows);
    for input in input.chunks_exact(weight.columns) {
        for (output, weights) in values.chunks_exact(weight.columns).enumerate() {
            let bias = f64::from(bias.map_or(0.0, |bias| bias[output]));
            let mut product = Product { value: bias, magnitude: bias.abs() };
            for (&x, &w) in input.iter().zip(weights) {
                let term = f64::from(x) * f64::from(w);
                product.value += term;
                product.magnitude += term.abs();
            }
            products.push(product);
        }
    }
    products
}
