//! Attention on the CPU: one task for some rows and a KV head.
//!
//! The rows of a task that belong to one sequence walk through its cache together, so that a block is widened to float32
//! once for all of them and for all query heads of the KV head. What is computed for a row does not depend on the others:
//! its own blocks in their order, sixteen scores at a time, and within a block its own sums.

use std::ops::Range;

use super::cache::BLOCK_TOKENS;
use super::{Attention, MAX_HEAD_DIM};
use crate::cpu::SharedMut;
use crate::elementwise::softcap;
use crate::lanes::{add_weighted_rows, dot_columns, exp};
use crate::op::{Batch, CpuArgs};
use crate::per_kernel;

/// Rows of a task at most.
const TASK_ROWS: usize = 16;
/// Queries, that is a row and a head, that walk through the cache together at most.
const MAX_QUERIES: usize = 128;

/// What most heads are not longer than.
const SHORT_HEAD_DIM: usize = 128;

/// Writes the rows' keys and values into their slots.
pub(super) fn store(attention: &Attention, args: &CpuArgs<'_>) {
    let (key, value) = (args.inputs[1], args.inputs[2]);
    let width = attention.n_kv_heads * attention.head_dim;
    let batch = args.batch;
    // Rows of one block share cache lines: a block's worth of rows is one task.
    args.team.for_each(args.rows.div_ceil(BLOCK_TOKENS), &|task| {
        for row in task * BLOCK_TOKENS..args.rows.min((task + 1) * BLOCK_TOKENS) {
            let position = batch.positions[row] as usize;
            let block = batch.block_tables[batch.sequences[row] as usize][position / BLOCK_TOKENS];
            let range = row * width..(row + 1) * width;
            // SAFETY: no two rows of a step share a position of a sequence, and no two sequences a block they write.
            unsafe {
                args.kv.store(attention.layer, block, position % BLOCK_TOKENS, &key[range.clone()], &value[range]);
            }
        }
    });
}

/// Lets every row look at its sequence.
pub(super) fn attend(attention: &Attention, args: &mut CpuArgs<'_>) {
    let (kernel, batch, kv, rows) = (args.kernel, args.batch, args.kv, args.rows);
    let output = SharedMut::new(args.outputs[0]);
    let view = View { attention, kv, query: args.inputs[0], output: &output };
    // As many rows as leave a few tasks for each thread: a long prompt's later rows take longer than its first.
    const TASKS_PER_THREAD: usize = 8;
    let tasks = TASKS_PER_THREAD * args.team.threads();
    let task_rows = (rows * attention.n_kv_heads / tasks).clamp(1, TASK_ROWS);
    args.team.for_each(rows.div_ceil(task_rows) * attention.n_kv_heads, &|task| {
        let (part, kv_head) = (task / attention.n_kv_heads, task % attention.n_kv_heads);
        let mut rest = part * task_rows..rows.min((part + 1) * task_rows);
        while !rest.is_empty() {
            let sequence = batch.sequences[rest.start];
            let end = rest.clone().find(|row| batch.sequences[*row] != sequence).unwrap_or(rest.end);
            attend_heads(kernel, &view, batch, rest.start..end, kv_head);
            rest.start = end;
        }
    });
}

/// What every task looks at.
struct View<'a> {
    attention: &'a Attention,
    kv: &'a super::KvCache,
    /// [rows, n_heads * head_dim]
    query: &'a [f32],
    /// As `query`.
    output: &'a SharedMut<'a, f32>,
}

/// Some rows at successive positions of one sequence, and some query heads of one KV head.
struct Queries<'a> {
    view: &'a View<'a>,
    block_table: &'a [u32],
    kv_head: usize,
    first_row: usize,
    first_position: usize,
    rows: usize,
    heads: Range<usize>,
}

impl Queries<'_> {
    /// Where query `index`, counted row after row, has its values.
    #[inline(always)]
    fn offset(&self, index: usize) -> usize {
        let (row, head) = (self.first_row + index / self.heads.len(), self.heads.start + index % self.heads.len());
        (row * self.view.attention.n_heads + head) * self.view.attention.head_dim
    }

    #[inline(always)]
    fn query(&self, index: usize) -> &[f32] {
        &self.view.query[self.offset(index)..][..self.view.attention.head_dim]
    }

    /// # Safety
    /// No other slice of this query's output may live.
    #[inline(always)]
    #[allow(clippy::mut_from_ref)]
    unsafe fn output(&self, index: usize) -> &mut [f32] {
        // SAFETY: the task owns its rows' share of this KV head; not aliased by the caller's promise.
        unsafe { self.view.output.slice(self.offset(index), self.view.attention.head_dim) }
    }

    /// The slots of a block that a query sees.
    #[inline(always)]
    fn visible(&self, index: usize, block: usize) -> Range<usize> {
        let position = self.first_position + index / self.heads.len();
        let start = block * BLOCK_TOKENS;
        let first = self.view.attention.first_visible(position).saturating_sub(start).min(BLOCK_TOKENS);
        first..(position + 1).saturating_sub(start).min(BLOCK_TOKENS)
    }
}

per_kernel! {
    /// All query heads of a KV head, for rows of one sequence.
    fn attend_heads = attend_heads_lanes(view: &View<'_>, batch: Batch<'_>, rows: Range<usize>, kv_head: usize)
}

#[inline(always)]
fn attend_heads_lanes<const FMA: bool>(view: &View<'_>, batch: Batch<'_>, rows: Range<usize>, kv_head: usize) {
    let group = view.attention.n_heads / view.attention.n_kv_heads;
    let heads = kv_head * group..(kv_head + 1) * group;
    for first_head in heads.clone().step_by(MAX_QUERIES / TASK_ROWS) {
        let queries = Queries {
            view,
            block_table: batch.block_tables[batch.sequences[rows.start] as usize],
            kv_head,
            first_row: rows.start,
            first_position: batch.positions[rows.start] as usize,
            rows: rows.len(),
            heads: first_head..heads.end.min(first_head + MAX_QUERIES / TASK_ROWS),
        };
        // Most heads are short, and room for long ones takes time to clear.
        if view.attention.head_dim <= SHORT_HEAD_DIM {
            attend_queries::<FMA, SHORT_HEAD_DIM>(&queries);
        } else {
            attend_queries::<FMA, MAX_HEAD_DIM>(&queries);
        }
    }
}

/// `ROOM`: the longest head that there is room for.
#[inline(always)]
fn attend_queries<const FMA: bool, const ROOM: usize>(queries: &Queries<'_>) {
    let Attention { layer, head_dim, .. } = *queries.view.attention;
    let (mut keys, mut values) = ([[0.0; BLOCK_TOKENS]; ROOM], [[0.0; BLOCK_TOKENS]; ROOM]);
    let keys = &mut keys.as_flattened_mut()[..BLOCK_TOKENS * head_dim];
    let values = &mut values.as_flattened_mut()[..BLOCK_TOKENS * head_dim];
    let count = queries.rows * queries.heads.len();
    let mut softmax = [OnlineSoftmax::START; MAX_QUERIES];
    for index in 0..count {
        // SAFETY: the slice is dropped at once.
        unsafe { queries.output(index) }.fill(0.0);
    }
    let last = queries.first_position + queries.rows - 1;
    for block in queries.view.attention.first_visible(queries.first_position) / BLOCK_TOKENS..=last / BLOCK_TOKENS {
        let slots = (last + 1 - block * BLOCK_TOKENS).min(BLOCK_TOKENS);
        // SAFETY: all of the step's keys and values were stored before any row attends; FMA is set only for kernels that
        // need F16C.
        unsafe {
            queries.view.kv.load::<FMA>(layer, queries.block_table[block], queries.kv_head, slots, keys, values);
        }
        if let Some(next) = queries.block_table.get(block + 1).filter(|_| block < last / BLOCK_TOKENS) {
            queries.view.kv.prefetch(layer, *next, queries.kv_head);
        }
        // Rows before the block do not see it, nor those whose window lies behind it.
        let sees = |index: &usize| !queries.visible(*index, block).is_empty();
        let first = (0..count).find(sees).unwrap_or(count);
        let end = (first..count).find(|index| !sees(index)).unwrap_or(count);
        let mut index = first;
        while index < end {
            index += match end - index {
                4.. => attend_block::<FMA, 4>(queries, index, block, keys, values, &mut softmax),
                2.. => attend_block::<FMA, 2>(queries, index, block, keys, values, &mut softmax),
                _ => attend_block::<FMA, 1>(queries, index, block, keys, values, &mut softmax),
            };
        }
    }
    for (index, softmax) in softmax[..count].iter().enumerate() {
        let sum = softmax.sum();
        // SAFETY: the slice is dropped before the next.
        for y in unsafe { queries.output(index) } {
            *y /= sum;
        }
    }
}

/// Lets the queries `first..first + N` see one block; returns `N`.
#[inline(always)]
fn attend_block<const FMA: bool, const N: usize>(
    queries: &Queries<'_>,
    first: usize,
    block: usize,
    keys: &[f32],
    values: &[f32],
    softmax: &mut [OnlineSoftmax; MAX_QUERIES],
) -> usize {
    let attention = queries.view.attention;
    // Filled by a loop, since a function that makes an array of them is not inlined.
    let mut inputs: [&[f32]; N] = [&[]; N];
    let mut outputs: [&mut [f32]; N] = std::array::from_fn(|_| Default::default());
    for n in 0..N {
        inputs[n] = queries.query(first + n);
        // SAFETY: these are slices of different queries, and the only ones.
        outputs[n] = unsafe { queries.output(first + n) };
    }
    let mut scores = dot_columns::<FMA, N, BLOCK_TOKENS>(inputs, keys);
    let mut all_visible = true;
    for n in 0..N {
        let scores = &mut scores[n];
        for score in scores.iter_mut() {
            *score *= attention.scale;
        }
        if let Some(cap) = attention.softcap {
            for score in scores.iter_mut() {
                *score = softcap(*score, cap);
            }
        }
        let visible = queries.visible(first + n, block);
        if visible.len() < BLOCK_TOKENS {
            all_visible = false;
            // Slots outside keep a weight of exactly 0, whatever is in the cache there.
            scores[..visible.start].fill(f32::NEG_INFINITY);
            scores[visible.end..].fill(f32::NEG_INFINITY);
        }
        let rescale = softmax[first + n].take_block(scores);
        if rescale != 1.0 {
            for y in outputs[n].iter_mut() {
                *y *= rescale;
            }
        }
    }
    if all_visible {
        add_weighted_rows::<FMA, N, BLOCK_TOKENS>(&mut outputs, &scores, values, 0..BLOCK_TOKENS);
    } else {
        for (n, output) in outputs.into_iter().enumerate() {
            let visible = queries.visible(first + n, block);
            add_weighted_rows::<FMA, 1, BLOCK_TOKENS>(&mut [output], &[scores[n]], values, visible);
        }
    }
    N
}

/// The running maximum and sum of one head's softmax.
#[derive(Clone, Copy)]
struct OnlineSoftmax {
    max: f32,
    /// The sum of the weights, each slot of the blocks by itself.
    sums: [f32; BLOCK_TOKENS],
}

impl OnlineSoftmax {
    const START: OnlineSoftmax = OnlineSoftmax { max: f32::NEG_INFINITY, sums: [0.0; BLOCK_TOKENS] };

    /// Turns a block's scores into weights relative to the new maximum, and returns by what the earlier sums must be
    /// multiplied.
    #[inline(always)]
    fn take_block(&mut self, scores: &mut [f32; BLOCK_TOKENS]) -> f32 {
        let max = fold_halves(*scores, |a, b| if a > b { a } else { b });
        let max = if max > self.max { max } else { self.max };
        let rescale = if self.max == max { 1.0 } else { exp(self.max - max) };
        for (score, sum) in scores.iter_mut().zip(&mut self.sums) {
            let weight = exp(*score - max);
            *score = if *score == f32::NEG_INFINITY { 0.0 } else { weight };
            *sum = *sum * rescale + *score;
        }
        self.max = max;
        rescale
    }

    /// The sum of all weights.
    #[inline(always)]
    fn sum(&self) -> f32 {
        fold_halves(self.sums, |a, b| a + b)
    }
}

/// Folds the upper half onto the lower until one value is left: an order that vectorises.
#[inline(always)]
fn fold_halves(values: [f32; BLOCK_TOKENS], fold: impl Fn(f32, f32) -> f32) -> f32 {
    let (mut eight, mut four) = ([0.0; 8], [0.0; 4]);
    for lane in 0..8 {
        eight[lane] = fold(values[lane], values[lane + 8]);
    }
    for lane in 0..4 {
        four[lane] = fold(eight[lane], eight[lane + 4]);
    }
    fold(fold(four[0], four[2]), fold(four[1], four[3]))
}
