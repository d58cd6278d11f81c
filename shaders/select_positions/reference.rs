//! The selection in float64, over contiguous rows.

use super::SelectPositions;
use crate::selection::Unit;

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

/// The selected positions, ascending: all, or those of the pools with the highest scores and those after the last whole pool. Or the
/// selected pools.
#[must_use]
pub fn select(op: &SelectPositions, scores: &[f64]) -> Vec<usize> {
    let (seen, pool) = (scores.len(), op.selection.pool);
    if !op.selection.is_partial(seen) {
        return (0..op.selection.count(seen)).collect();
    }
    let last = |index: &usize| scores[index * pool + pool - 1];
    let mut pools: Vec<usize> = (0..seen / pool).collect();
    pools.sort_by(|a, b| last(b).total_cmp(&last(a)));
    pools.truncate(op.selection.pools());
    pools.sort_unstable();
    if op.selection.unit == Unit::Pools {
        return pools;
    }
    let of_pools = pools.into_iter().flat_map(|index| index * pool..(index + 1) * pool);
    of_pools.chain(seen / pool * pool..seen).collect()
}
