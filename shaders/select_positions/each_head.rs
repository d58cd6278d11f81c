//! The scores and the selection on the CPU where each head selects by itself.
//!
//! The scores of pools are computed for some rows at a time, in tasks of a row and a *piece* of its positions, then selected in a task
//! for each row and head.

use std::ops::Range;

use super::SelectPositions;
use super::cpu::{PIECE_TOKENS, ROWS, TOGETHER, choose_all, choose_pools};
use crate::cpu::SharedMut;
use crate::kv::{BLOCK_TOKENS, Layer, SCALE_GROUP, Storage, Store, StoredHead};
use crate::op::CpuArgs;
use crate::per_vector;
use crate::selection::Selection;
use crate::vector::Vector;

/// Scratch memory in values: the scores of the pools of some rows.
pub(super) fn scratch_len(op: &SelectPositions, rows: usize, context_tokens: usize) -> usize {
    rows.min(ROWS) * op.n_heads * context_tokens.div_ceil(op.selection.pool)
}

/// Selects the positions of every row for each head, of which those of the `last` pools in any case.
pub(super) fn select(op: &SelectPositions, last: usize, args: &mut CpuArgs<'_>) {
    let (batch, kernel, layer, query) = (args.batch, args.kernel, args.kv.index(op.layer), args.inputs[0]);
    let Selection { most, pool, lists, .. } = op.selection;
    let longest = batch.positions.iter().max().map_or(0, |last| *last as usize + 1);
    let (stride, piece_tokens) = (longest.div_ceil(pool), piece_tokens(pool));
    let pieces = longest.div_ceil(piece_tokens);
    let (scores, output) = (SharedMut::new(&mut *args.scratch), SharedMut::new(args.outputs[0]));
    for first in (0..args.rows).step_by(ROWS) {
        let rows = ROWS.min(args.rows - first);
        args.team.for_each(rows * pieces, &|task| {
            let (index, piece) = (task / pieces, task % pieces);
            let row = first + index;
            let seen = batch.positions[row] as usize + 1;
            let positions = piece * piece_tokens..seen.min((piece + 1) * piece_tokens);
            if !op.selection.is_partial(seen) || positions.is_empty() {
                return;
            }
            let row = Row {
                op,
                layer,
                block_table: batch.block_table(row, op.index()),
                query: &query[row * op.n_heads * op.key_dim..][..op.n_heads * op.key_dim],
                scores: &scores,
                start: index * lists * stride,
                stride,
            };
            // SAFETY: keys are written before positions are selected; the task owns the scores of the pools of its row and piece.
            unsafe { score(kernel, &row, positions) };
        });
        args.team.for_each(rows * lists, &|task| {
            let seen = batch.positions[first + task / lists] as usize + 1;
            let pools = seen.div_ceil(pool);
            // SAFETY: the task owns the scores and the output of its row and head.
            let (scores, output) =
                unsafe { (scores.slice(task * stride, pools), output.slice((first * lists + task) * most, most)) };
            if !op.selection.is_partial(seen) {
                return choose_all(op.selection.count(seen), output);
            }
            scores[pools - last..].fill(f32::INFINITY);
            choose_pools(op.selection, seen, scores, output);
        });
    }
}

/// Positions of a piece: whole blocks and pools, and enough that a task takes longer than starting it.
fn piece_tokens(pool: usize) -> usize {
    PIECE_TOKENS.next_multiple_of(if pool.is_multiple_of(BLOCK_TOKENS) { pool } else { pool * BLOCK_TOKENS })
}

/// One row, the index keys of its sequence, and the scores of its pools.
struct Row<'a> {
    op: &'a SelectPositions,
    layer: &'a Layer,
    block_table: &'a [u32],
    /// [n_heads * key_dim]
    query: &'a [f32],
    /// The scores of all rows.
    scores: &'a SharedMut<'a, f32>,
    /// The first of this row, [n_heads, stride].
    start: usize,
    stride: usize,
}

per_vector! {
    /// Writes the scores of the pools of some positions, which start with a block and a pool.
    ///
    /// # Safety
    /// No thread may write the positions at the same time, or use the scores of these pools.
    unsafe fn score = score_vectors(row: &Row<'_>, positions: Range<usize>)
}

/// # Safety
/// As [`Vector`] and as [`score`].
#[inline(always)]
unsafe fn score_vectors<V: Vector>(row: &Row<'_>, positions: Range<usize>) {
    // SAFETY: the caller fulfils the same conditions.
    unsafe {
        match &row.layer.store {
            Store::F16(planes) => score_stored::<V, _>(row, planes, positions),
            Store::F32(planes) => score_stored::<V, _>(row, planes, positions),
            Store::Q8(planes) => score_stored::<V, _>(row, planes, positions),
        }
    }
}

/// # Safety
/// As [`score_vectors`].
#[inline(always)]
unsafe fn score_stored<V: Vector, S: Storage>(row: &Row<'_>, storage: &S, positions: Range<usize>) {
    let n_heads = row.op.n_heads;
    let together = n_heads - n_heads % TOGETHER;
    // SAFETY: the heads are those of the row; the caller fulfils the other conditions.
    unsafe {
        for head in (0..together).step_by(TOGETHER) {
            score_heads::<V, S, TOGETHER>(row, storage, head, positions.clone());
        }
        for head in together..n_heads {
            score_heads::<V, S, 1>(row, storage, head, positions.clone());
        }
    }
}

/// Writes the scores of the pools of some positions for `N` heads from `first` on.
///
/// # Safety
/// As [`score_vectors`]; the row has the heads.
#[inline(always)]
unsafe fn score_heads<V: Vector, S: Storage, const N: usize>(
    row: &Row<'_>,
    storage: &S,
    first: usize,
    positions: Range<usize>,
) {
    let (key_dim, pool) = (row.op.key_dim, row.op.selection.pool);
    let queries = &row.query[first * key_dim..][..N * key_dim];
    let pools = positions.start / pool..positions.end.div_ceil(pool);
    let mut highest: [&mut [f32]; N] = std::array::from_fn(|head| {
        let start = row.start + (first + head) * row.stride + pools.start;
        // SAFETY: the caller owns the scores of these pools, and each head has others.
        unsafe { row.scores.slice(start, pools.len()) }
    });
    highest.iter_mut().for_each(|highest| highest.fill(f32::NEG_INFINITY));
    for start in positions.clone().step_by(BLOCK_TOKENS) {
        let keys = storage.head(row.layer.head_index(row.block_table[start / BLOCK_TOKENS], 0));
        let mut scores = [[0.0; BLOCK_TOKENS]; N];
        // SAFETY: a block has a vector of scores; the caller fulfils the other conditions.
        unsafe {
            let products = products::<V, _, N>(queries, key_dim, keys);
            products.into_iter().zip(&mut scores).for_each(|(sums, scores)| sums.store(scores.as_mut_ptr()));
        }
        let (mut position, end) = (start, positions.end.min(start + BLOCK_TOKENS));
        while position < end {
            let index = position / pool;
            let end_of_pool = end.min((index + 1) * pool);
            for (highest, scores) in highest.iter_mut().zip(&scores) {
                let of_pool = &scores[position - start..end_of_pool - start];
                let highest = &mut highest[index - pools.start];
                *highest = of_pool.iter().copied().fold(*highest, f32::max);
            }
            position = end_of_pool;
        }
    }
}

/// The products of `N` queries of `key_dim` values with the keys of a block.
///
/// # Safety
/// As [`StoredHead`].
#[inline(always)]
unsafe fn products<V: Vector, H: StoredHead, const N: usize>(queries: &[f32], key_dim: usize, keys: H) -> [V; N] {
    // SAFETY: the caller fulfils the same conditions.
    unsafe {
        let mut sums = [V::splat(0.0); N];
        for group in (0..key_dim).step_by(SCALE_GROUP) {
            let scales = keys.key_scales::<V>(group / SCALE_GROUP);
            for dim in group..key_dim.min(group + SCALE_GROUP) {
                let keys = keys.keys::<V>(dim, scales);
                for (sum, query) in sums.iter_mut().zip(queries.chunks_exact(key_dim)) {
                    *sum = V::splat(query[dim]).multiply_add(keys, *sum);
                }
            }
        }
        sums
    }
}
