//! A direct implementation of the sampling formula: all tokens are sorted, and weights are added from the front.

use super::terms::Terms;
use super::weight::{below, share_of_bits, weight};
use super::{RowSamplingParams, SampledToken};

/// Samples a token from one row of logits.
#[must_use]
pub fn sample(logits: &[f32], params: &RowSamplingParams) -> SampledToken {
    sample_terms(logits, &Terms::of(params))
}

pub(super) fn sample_terms(logits: &[f32], terms: &Terms) -> SampledToken {
    if let Some(token) = logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY) {
        return SampledToken::NotFinite(token as u32);
    }
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return SampledToken::Nothing;
    }
    if terms.greedy {
        let best = logits.iter().position(|logit| *logit == max);
        return best.map_or(SampledToken::Nothing, |token| SampledToken::Token(token as u32));
    }
    let mut kept = kept(logits, max, terms);
    kept.sort_unstable_by_key(|(token, _)| *token);
    let total: u64 = kept.iter().map(|(_, scaled)| weight(*scaled)).sum();
    let mut left = below(total, terms.random);
    for (token, scaled) in kept {
        let weight = weight(scaled);
        if left < weight {
            return SampledToken::Token(token);
        }
        left -= weight;
    }
    SampledToken::Nothing
}

/// The tokens that remain after the truncations, by rank, with their scaled logits.
fn kept(logits: &[f32], max: f32, terms: &Terms) -> Vec<(u32, f32)> {
    let scaled = logits.iter().map(|logit| (logit - max) * terms.inverse_temperature);
    let mut kept: Vec<(u32, f32)> = (0..).zip(scaled).collect();
    kept.retain(|(_, scaled)| *scaled >= terms.floor);
    kept.sort_by(|(a, a_scaled), (b, b_scaled)| b_scaled.total_cmp(a_scaled).then(a.cmp(b)));
    if terms.top_k > 0 {
        kept.truncate(terms.top_k as usize);
    }
    if terms.top_p > 0 {
        let goal = share_of_bits(kept.iter().map(|(_, scaled)| weight(*scaled)).sum(), terms.top_p);
        let mut sum = 0;
        let enough = kept.iter().position(|(_, scaled)| {
            sum += weight(*scaled);
            sum >= goal
        });
        kept.truncate(enough.map_or(kept.len(), |last| last + 1));
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The formula in float64 with probabilities: the token, and the distance of the random number from the nearest
    /// boundary between two tokens.
    fn by_probabilities(logits: &[f32], params: &RowSamplingParams) -> (u32, f64) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |logit: f32| (f64::from(logit - max) / f64::from(params.temperature)).exp();
        let mut kept: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|logit| weight(*logit))).collect();
        kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        kept.retain(|(_, weight)| *weight >= f64::from(params.min_p));
        if params.top_k > 0 {
            kept.truncate(params.top_k as usize);
        }
        let total = |kept: &[(u32, f64)]| kept.iter().map(|(_, weight)| weight).sum::<f64>();
        if params.top_p < 1.0 {
            let mut left = f64::from(params.top_p) * total(&kept);
            let last = kept.iter().position(|(_, weight)| {
                left -= weight;
                left <= 0.0
            });
            kept.truncate(last.map_or(kept.len(), |last| last + 1));
        }
        kept.sort_by_key(|(token, _)| *token);
        let total = total(&kept);
        let target = params.random as f64 / 64f64.exp2() * total;
        let ends = kept.iter().scan(0.0, |end, (token, weight)| {
            *end += weight;
            Some((*token, *end))
        });
        let ends: Vec<(u32, f64)> = ends.collect();
        let found = ends.iter().find(|(_, end)| *end > target).or(ends.last()).map_or(0, |(token, _)| *token);
        let nearest = ends.iter().map(|(_, end)| (end - target).abs()).fold(f64::INFINITY, f64::min);
        (found, nearest / total)
    }

    proptest! {
        #[test]
        fn integer_weights_give_the_token_of_float64_probabilities(
            // Multiples of a quarter: rounding would decide between logits that are nearly equal.
            quarters in prop::collection::vec(-36i8..36, 1..300),
            temperature in 0.3f32..2.0, top_k in 0u32..30, top_p in 0.05f32..1.0, min_p in 0f32..0.5, which in 0u8..8,
            random: u64,
        ) {
            let logits: Vec<f32> = quarters.into_iter().map(|quarter| f32::from(quarter) / 4.0).collect();
            let on = |bit: u8| which & bit != 0;
            let params = RowSamplingParams {
                temperature,
                // top_k = 1 is greedy.
                top_k: if on(1) && top_k != 1 { top_k } else { 0 },
                top_p: if on(2) { top_p } else { 1.0 },
                min_p: if on(4) { min_p } else { 0.0 },
                random,
            };
            let (expected, distance) = by_probabilities(&logits, &params);
            let found = sample(&logits, &params);
            prop_assert!(found == SampledToken::Token(expected) || distance < 1e-6, "{found:?}, not {expected}: {params:?}");
        }
    }
}
