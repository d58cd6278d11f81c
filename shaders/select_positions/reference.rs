//! The selection in float64, over contiguous rows.

use super::SelectPositions;

/// The scores of the positions up to `position`.
///
/// `query` is the one of the row, [n_heads * key_dim], and `weight` its weights, `[n_heads]`; `key` is [positions, key_dim] of its
/// sequence.
#[must_use]
pub fn scores(op: &SelectPositions, position: usize, query: &[f32], weight: &[f32], key: &[f32]) -> Vec<f64> {
    let product = |q: &[f32], k: &[f32]| q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum::<f64>();
    let heads = || query.chunks_exact(op.key_dim).zip(weight);
    let score = |key| heads().map(|(q, w)| f64::from(*w) * product(q, key).max(0.0)).sum();
    key.chunks_exact(op.key_dim).take(position + 1).map(score).collect()
}

/// The positions with the `top_k` highest scores, ascending.
#[must_use]
pub fn select(op: &SelectPositions, scores: &[f64]) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..scores.len()).collect();
    positions.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    positions.truncate(op.top_k);
    positions.sort_unstable();
    positions
}
