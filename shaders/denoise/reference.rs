//! The formula in float64.

use crate::op::DenoiseParams;
use crate::sample_token::SampledToken;
use crate::sample_token::reference::sample;

/// The most likely token, the sampled token, the entropy, and the mean `[hidden]` of a row of logits. `table` is [vocabulary,
/// hidden].
#[must_use]
pub fn denoise(
    logits: &[f32],
    params: &DenoiseParams,
    table: &[f32],
    scale: f32,
) -> (u32, SampledToken, f64, Vec<f64>) {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let best = logits.iter().position(|logit| *logit == largest).unwrap_or_default();
    let scaled = logits.iter().map(|logit| f64::from(logit - largest) / f64::from(params.temperature));
    let exponentials: Vec<f64> = scaled.map(f64::exp).collect();
    let sum: f64 = exponentials.iter().sum();
    let probabilities: Vec<f64> = exponentials.iter().map(|value| value / sum).collect();
    let entropy = probabilities.iter().filter(|p| **p > 0.0).map(|p| -p * p.ln()).sum();
    let hidden = table.len() / logits.len();
    let mut mean = vec![0.0; hidden];
    for (probability, embedding) in probabilities.iter().zip(table.chunks_exact(hidden)) {
        for (mean, value) in mean.iter_mut().zip(embedding) {
            *mean += probability * f64::from(*value) * f64::from(scale);
        }
    }
    (best as u32, sample(logits, &params.sampling), entropy, mean)
}
