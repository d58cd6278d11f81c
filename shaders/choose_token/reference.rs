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
