//! The selection in float64, over contiguous rows.

use super::SelectPositions;
use crate::selection::Unit;

/// The scores of the positions up to `position`.
///
/// `query` is the one of the row, [n_heads * key_dim], and `weight` its weights, `[n_heads]`; `key` is [positions, key_dim] of its
/// sequence.
#[must_use]
pub fn scores(op: &SelectPositions, position: usize, query: &[f32], weight: &[f32], key: &[f32]) -> Vec<f64> {
    let heads = || query.chunks_exact(op.key_dim).zip(weight);
    let score = |key| heads().map(|(q, w)| f64::from(*w) * product(q, key).max(0.0)).sum();
    key.chunks_exact(op.key_dim).take(position + 1).map(score).collect()
}

/// The scores of the positions up to `position` for each head by itself, as [`scores`].
#[must_use]
pub fn scores_of_heads(op: &SelectPositions, position: usize, query: &[f32], key: &[f32]) -> Vec<Vec<f64>> {
    let keys = || key.chunks_exact(op.key_dim).take(position + 1);
    query.chunks_exact(op.key_dim).map(|query| keys().map(|key| product(query, key)).collect()).collect()
}

fn product(query: &[f32], key: &[f32]) -> f64 {
    query.iter().zip(key).map(|(q, k)| f64::from(*q) * f64::from(*k)).sum()
}

/// The selected positions, ascending: all, or those of the pools with the highest scores and those after the last whole pool. Or the
/// selected pools. Or the positions of the last pools and of those others that have the positions with the highest scores.
#[must_use]
pub fn select(op: &SelectPositions, scores: &[f64]) -> Vec<usize> {
    let (seen, pool) = (scores.len(), op.selection.pool);
    if !op.selection.is_partial(seen) {
        return (0..op.selection.count(seen)).collect();
    }
    let count = if op.selection.has_own_pool() { seen.div_ceil(pool) } else { seen / pool };
    let score = |index: &usize| match op.selection.unit {
        Unit::Positions | Unit::Pools => scores[index * pool + pool - 1],
        Unit::LastPools(last) if index + last >= count => f64::INFINITY,
        Unit::LastPools(_) => scores.chunks(pool).nth(*index).into_iter().flatten().copied().fold(f64::MIN, f64::max),
    };
    let mut pools: Vec<usize> = (0..count).collect();
    pools.sort_by(|a, b| score(b).total_cmp(&score(a)));
    pools.truncate(op.selection.pools());
    pools.sort_unstable();
    let of_pools = pools.into_iter().flat_map(|index| op.selection.of_pool(index, seen));
    match op.selection.unit {
        Unit::Positions => of_pools.chain(seen / pool * pool..seen).collect(),
        Unit::LastPools(_) | Unit::Pools => of_pools.collect(),
    }
}
