//! The choice as its formula is written: everything is sorted, and added up from the front.

use super::weight::{below, share_of_bits, weight};
use super::{Chosen, Terms, TokenChoice};

/// What comes of one row of logits.
#[must_use]
pub fn choose(logits: &[f32], choice: &TokenChoice) -> Chosen {
    choose_by(logits, &Terms::of(choice))
}

pub(super) fn choose_by(logits: &[f32], terms: &Terms) -> Chosen {
    if let Some(token) = logits.iter().position(|logit| logit.is_nan() || *logit == f32::INFINITY) {
        return Chosen::NotFinite(token as u32);
    }
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if max == f32::NEG_INFINITY {
        return Chosen::Nothing;
    }
    if terms.greedy {
        let best = logits.iter().position(|logit| *logit == max);
        return best.map_or(Chosen::Nothing, |token| Chosen::Token(token as u32));
    }
    let mut kept = kept(logits, max, terms);
    kept.sort_unstable_by_key(|(token, _)| *token);
    let total: u64 = kept.iter().map(|(_, scaled)| weight(*scaled)).sum();
    let mut left = below(total, terms.random);
    for (token, scaled) in kept {
        let weight = weight(scaled);
        if left < weight {
            return Chosen::Token(token);
        }
        left -= weight;
    }
    Chosen::Nothing
}

/// The tokens that the truncations keep, best first, with their scaled logits.
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

    /// The formula in float64, by probabilities in place of integers: the token, and how far the random number is from another's.
    fn by_probabilities(logits: &[f32], choice: &TokenChoice) -> (u32, f64) {
        let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let weight = |logit: f32| (f64::from(logit - max) / f64::from(choice.temperature)).exp();
        let mut kept: Vec<(u32, f64)> = (0..).zip(logits.iter().map(|logit| weight(*logit))).collect();
        kept.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        kept.retain(|(_, weight)| *weight >= f64::from(choice.min_p));
        if choice.top_k > 0 {
            kept.truncate(choice.top_k as usize);
        }
        let total = |kept: &[(u32, f64)]| kept.iter().map(|(_, weight)| weight).sum::<f64>();
        if choice.top_p < 1.0 {
            let mut left = f64::from(choice.top_p) * total(&kept);
            let last = kept.iter().position(|(_, weight)| {
                left -= weight;
                left <= 0.0
            });
            kept.truncate(last.map_or(kept.len(), |last| last + 1));
        }
        kept.sort_by_key(|(token, _)| *token);
        let total = total(&kept);
        let target = choice.random as f64 / 64f64.exp2() * total;
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
        fn integers_choose_what_probabilities_in_float64_do(
            // Whole quarters: which of nearly equal tokens is kept is a matter of rounding.
            quarters in prop::collection::vec(-36i8..36, 1..300),
            temperature in 0.3f32..2.0, top_k in 0u32..30, top_p in 0.05f32..1.0, min_p in 0f32..0.5, which in 0u8..8,
            random: u64,
        ) {
            let logits: Vec<f32> = quarters.into_iter().map(|quarter| f32::from(quarter) / 4.0).collect();
            let on = |bit: u8| which & bit != 0;
            let choice = TokenChoice {
                temperature,
                // One is greedy, and draws nothing.
                top_k: if on(1) && top_k != 1 { top_k } else { 0 },
                top_p: if on(2) { top_p } else { 1.0 },
                min_p: if on(4) { min_p } else { 0.0 },
                random,
            };
            let (expected, distance) = by_probabilities(&logits, &choice);
            let found = choose(&logits, &choice);
            prop_assert!(found == Chosen::Token(expected) || distance < 1e-6, "{found:?}, not {expected}: {choice:?}");
        }
    }
}
