//! The scores and the selection on the CPU.
//!
//! Scores are computed for some rows at a time, in tasks of a row and a *piece* of its positions, then selected in a task for
//! each row.

use std::ops::Range;

use super::SelectPositions;
use crate::cpu::SharedMut;
use crate::kv::{BLOCK_TOKENS, Layer, MAX_HEAD_DIM, PlainHead, SCALE_GROUP, Storage, Store, StoredHead};
use crate::op::CpuArgs;
use crate::per_vector;
use crate::selection::{Selection, Unit};
use crate::vector::Vector;

/// Rows whose scores are in memory at once.
pub(super) const ROWS: usize = 64;

/// Positions of a piece: whole blocks, and enough that a task takes longer than starting it.
pub(super) const PIECE_TOKENS: usize = 1024;

/// Scratch memory in values: the scores of some rows.
pub(super) fn scratch_len(rows: usize, context_tokens: usize) -> usize {
    rows.min(ROWS) * context_tokens.next_multiple_of(BLOCK_TOKENS)
}

/// Stores the index keys of the rows in the cache.
pub(super) fn store(op: &SelectPositions, args: &CpuArgs<'_>) {
    let (key, batch) = (args.inputs[1], args.batch);
    // Rows of one block share cache lines, so as many rows as a block has form a task.
    args.team.for_each(args.rows.div_ceil(BLOCK_TOKENS), &|task| {
        for row in task * BLOCK_TOKENS..args.rows.min((task + 1) * BLOCK_TOKENS) {
            let position = batch.positions[row] as usize;
            let block = batch.block_table(row, op.index())[position / BLOCK_TOKENS];
            let key = &key[row * op.key_dim..][..op.key_dim];
            // SAFETY: no two rows of a step share a position of a sequence, and no two sequences write to the same
            // block.
            unsafe { args.kv.store_index(op.layer, block, position % BLOCK_TOKENS, key) };
        }
    });
}

/// Selects the positions of every row.
pub(super) fn select(op: &SelectPositions, args: &mut CpuArgs<'_>) {
    let (batch, kernel, layer) = (args.batch, args.kernel, args.kv.index(op.layer));
    let [query, weight] = [args.inputs[0], args.inputs[2]];
    let longest = batch.positions.iter().max().map_or(0, |last| *last as usize + 1);
    let stride = longest.next_multiple_of(BLOCK_TOKENS);
    let (pieces, most) = (longest.div_ceil(PIECE_TOKENS), op.selection.most);
    let (scores, output) = (SharedMut::new(&mut *args.scratch), SharedMut::new(args.outputs[0]));
    for first in (0..args.rows).step_by(ROWS) {
        let rows = ROWS.min(args.rows - first);
        args.team.for_each(rows * pieces, &|task| {
            let (index, piece) = (task / pieces, task % pieces);
            let row = first + index;
            let seen = batch.positions[row] as usize + 1;
            let positions = piece * PIECE_TOKENS..seen.min((piece + 1) * PIECE_TOKENS);
            if !op.selection.is_partial(seen) || positions.is_empty() {
                return;
            }
            let len = positions.len().next_multiple_of(BLOCK_TOKENS);
            // SAFETY: the task owns the scores of its row and piece.
            let scores = unsafe { scores.slice(index * stride + positions.start, len) };
            let indexer = Indexer {
                op,
                layer,
                block_table: batch.block_table(row, op.index()),
                query: &query[row * op.n_heads * op.key_dim..][..op.n_heads * op.key_dim],
                weight: &weight[row * op.n_heads..][..op.n_heads],
            };
            // SAFETY: keys are written before positions are selected.
            unsafe { score(kernel, &indexer, positions, scores) };
        });
        args.team.for_each(rows, &|index| {
            let row = first + index;
            let seen = batch.positions[row] as usize + 1;
            // SAFETY: the task owns the scores and the output of its row.
            let (scores, output) = unsafe { (scores.slice(index * stride, stride), output.slice(row * most, most)) };
            choose(op.selection, &mut scores[..seen], output);
        });
    }
}

/// One row and the index keys of its sequence.
struct Indexer<'a> {
    op: &'a SelectPositions,
    layer: &'a Layer,
    block_table: &'a [u32],
    /// [n_heads * key_dim]
    query: &'a [f32],
    /// `[n_heads]`
    weight: &'a [f32],
}

per_vector! {
    /// Writes the scores of some positions, which start with a block; `scores` has whole blocks.
    ///
    /// # Safety
    /// No thread may write the positions at the same time.
    unsafe fn score = score_vectors(indexer: &Indexer<'_>, positions: Range<usize>, scores: &mut [f32])
}

/// # Safety
/// As [`Vector`]; no thread may write the positions at the same time.
#[inline(always)]
unsafe fn score_vectors<V: Vector>(indexer: &Indexer<'_>, positions: Range<usize>, scores: &mut [f32]) {
    // SAFETY: the caller fulfils the same conditions.
    unsafe {
        match &indexer.layer.store {
            Store::F16(planes) => score_stored::<V, _>(indexer, planes, positions, scores),
            Store::F32(planes) => score_stored::<V, _>(indexer, planes, positions, scores),
            Store::Q8(planes) => score_stored::<V, _>(indexer, planes, positions, scores),
        }
    }
}

/// # Safety
/// As [`score_vectors`].
#[inline(always)]
unsafe fn score_stored<V: Vector, S: Storage>(
    indexer: &Indexer<'_>,
    storage: &S,
    positions: Range<usize>,
    scores: &mut [f32],
) {
    let pool = indexer.op.selection.pool;
    let blocks = &indexer.block_table[positions.start / BLOCK_TOKENS..positions.end.div_ceil(BLOCK_TOKENS)];
    let head = |block: &u32| storage.head(indexer.layer.head_index(*block, 0));
    // SAFETY: the caller fulfils the same conditions.
    unsafe {
        if pool > 1 && BLOCK_TOKENS.is_multiple_of(pool) {
            return score_pools::<V, _>(indexer, blocks.iter().map(head), scores);
        }
        for (block, scores) in blocks.iter().zip(scores.as_chunks_mut::<BLOCK_TOKENS>().0) {
            score_block::<V, _>(indexer, head(block)).store(scores.as_mut_ptr());
        }
    }
}

/// Writes the scores of the last positions of pools, of which a block has several. Their keys are collected until they fill a block.
///
/// # Safety
/// As [`score_vectors`].
#[inline(always)]
unsafe fn score_pools<V: Vector, H: StoredHead>(
    indexer: &Indexer<'_>,
    mut blocks: impl ExactSizeIterator<Item = H>,
    scores: &mut [f32],
) {
    let (pool, key_dim) = (indexer.op.selection.pool, indexer.op.key_dim);
    let mut collected = [[0.0; BLOCK_TOKENS]; MAX_HEAD_DIM];
    for scores in scores.chunks_mut(pool * BLOCK_TOKENS) {
        for (index, block) in (0..pool).zip(&mut blocks) {
            let first = index * (BLOCK_TOKENS / pool);
            // SAFETY: the caller fulfils the same conditions.
            unsafe { collect_last::<V, H>(block, (pool, first), &mut collected[..key_dim]) };
        }
        let keys = PlainHead::of(collected.as_ptr().cast::<f32>(), std::ptr::null(), [key_dim, 0]);
        let mut of_pools = [0.0; BLOCK_TOKENS];
        // SAFETY: the head has the dimensions of the keys, and its values are not read; the caller has the instruction set.
        unsafe { score_block::<V, _>(indexer, keys).store(of_pools.as_mut_ptr()) };
        scores.iter_mut().skip(pool - 1).step_by(pool).zip(of_pools).for_each(|(score, of_pool)| *score = of_pool);
    }
}

/// Collects the keys of the last positions of the pools of a block, from the slot `first` on: [key_dim, slots].
///
/// # Safety
/// As [`StoredHead`].
#[inline(always)]
unsafe fn collect_last<V: Vector, H: StoredHead>(
    block: H,
    (pool, first): (usize, usize),
    collected: &mut [[f32; BLOCK_TOKENS]],
) {
    for (group, dims) in collected.chunks_mut(SCALE_GROUP).enumerate() {
        // SAFETY: the dimensions are those of the head; the caller fulfils the other conditions.
        let scales = unsafe { block.key_scales::<V>(group) };
        for (dim, slots) in (group * SCALE_GROUP..).zip(dims) {
            let mut keys = [0.0; BLOCK_TOKENS];
            // SAFETY: as above.
            unsafe { block.keys::<V>(dim, scales).store(keys.as_mut_ptr()) };
            let last = keys.iter().skip(pool - 1).step_by(pool);
            slots[first..].iter_mut().zip(last).for_each(|(slot, key)| *slot = *key);
        }
    }
}

/// Heads for which a key is read once.
pub(super) const TOGETHER: usize = 4;

/// The scores of the positions of a block.
///
/// # Safety
/// As [`StoredHead`].
#[inline(always)]
unsafe fn score_block<V: Vector, H: StoredHead>(indexer: &Indexer<'_>, keys: H) -> V {
    let n_heads = indexer.op.n_heads;
    // SAFETY: the heads are those of the row; the caller fulfils the other conditions.
    unsafe {
        let mut score = V::splat(0.0);
        let together = n_heads - n_heads % TOGETHER;
        for head in (0..together).step_by(TOGETHER) {
            score = add_heads::<V, _, TOGETHER>(indexer, keys, head, score);
        }
        for head in together..n_heads {
            score = add_heads::<V, _, 1>(indexer, keys, head, score);
        }
        score
    }
}

/// Adds the weighted positive products of `N` heads from `first` on with the keys of a block.
///
/// # Safety
/// As [`StoredHead`]; the row has the heads.
#[inline(always)]
unsafe fn add_heads<V: Vector, H: StoredHead, const N: usize>(
    indexer: &Indexer<'_>,
    keys: H,
    first: usize,
    mut score: V,
) -> V {
    let key_dim = indexer.op.key_dim;
    let queries = &indexer.query[first * key_dim..][..N * key_dim];
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
        for (sum, weight) in sums.into_iter().zip(&indexer.weight[first..first + N]) {
            score = V::splat(*weight).multiply_add(sum.maximum(V::splat(0.0)), score);
        }
    }
    score
}

/// Writes the selected positions or pools, ascending; 0 after the last one. `scores` are those of the positions that the row sees.
fn choose(selection: Selection, scores: &mut [f32], output: &mut [f32]) {
    let (seen, pool) = (scores.len(), selection.pool);
    if !selection.is_partial(seen) {
        return choose_all(selection.count(seen), output);
    }
    choose_pools(selection, seen, of_pools(scores, pool), output);
}

/// Writes what the row selects of the pools with the highest of these scores, as [`choose`]. The row does not select all.
pub(super) fn choose_pools(selection: Selection, seen: usize, pools: &[f32], output: &mut [f32]) {
    let (lowest, mut wanted) = lowest_selected(pools, selection.pools());
    let mut next = 0;
    let mut write = |numbers: Range<usize>| {
        output[next..].iter_mut().zip(numbers.clone()).for_each(|(output, number)| *output = number as f32);
        next += numbers.len();
    };
    for (index, order) in pools.iter().map(|score| order(*score)).enumerate() {
        let is_wanted = order == lowest && wanted > 0;
        wanted -= usize::from(is_wanted);
        if order > lowest || is_wanted {
            write(selection.of_pool(index, seen));
        }
    }
    if selection.unit == Unit::Positions {
        write(pools.len() * selection.pool..seen);
    }
    output[next..].fill(0.0);
}

/// The scores of whole pools, which are those of their last positions, in the place of the first scores.
fn of_pools(scores: &mut [f32], pool: usize) -> &[f32] {
    let count = scores.len() / pool;
    if pool > 1 {
        (0..count).for_each(|index| scores[index] = scores[index * pool + pool - 1]);
    }
    &scores[..count]
}

/// Writes the first `count` numbers; 0 after the last one.
pub(super) fn choose_all(count: usize, output: &mut [f32]) {
    let (selected, rest) = output.split_at_mut(count);
    selected.iter_mut().enumerate().for_each(|(position, selected)| *selected = position as f32);
    rest.fill(0.0);
}

/// The order of the lowest of the `count` highest scores, and how many scores of exactly this order are among them. It is
/// found byte by byte, from the highest byte on.
fn lowest_selected(scores: &[f32], count: usize) -> (u32, usize) {
    let (mut lowest, mut known, mut wanted) = (0, 0, count);
    for shift in [24, 16, 8, 0] {
        let mut counts = [0; 256];
        for order in scores.iter().map(|score| order(*score)).filter(|order| order & known == lowest) {
            counts[(order >> shift) as usize & 255] += 1;
        }
        let mut value = 255;
        while value > 0 && counts[value] < wanted {
            wanted -= counts[value];
            value -= 1;
        }
        lowest |= (value as u32) << shift;
        known |= 255 << shift;
    }
    (lowest, wanted)
}

/// A number that is larger for a larger score. Zeros are equal.
fn order(score: f32) -> u32 {
    let bits = (score + 0.0).to_bits();
    if bits >> 31 == 1 { !bits } else { bits | 1 << 31 }
}
