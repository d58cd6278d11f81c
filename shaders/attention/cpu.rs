//! Attention on the CPU: which rows are worked on together, and how their parts become a result.
//!
//! A sequence's positions are cut into *pieces* of [`PIECE_TOKENS`]. What a query gathers in a piece starts from nothing,
//! and the pieces are merged in their order: so a long context can be shared among the threads, and a query's bits
//! depend neither on that nor on other queries. Inside a piece see [`super::gather`].

use std::mem::MaybeUninit;
use std::ops::Range;

use super::cache::BLOCK_TOKENS;
use super::gather::{GREATEST, HEADER, Queries, TASK_QUERIES, WEIGHT, WIDENED, gather};
use super::{Attention, MAX_HEAD_DIM};
use crate::cpu::{Kernel, SharedMut};
use crate::lanes::exp;
use crate::op::{Batch, CpuArgs};

/// Positions of a piece: a whole number of spans.
const PIECE_TOKENS: usize = 256;

/// Heads of a task at most, so that several rows share what is read of the cache.
const TASK_HEADS: usize = 16;

/// Tasks for each thread below which contexts are shared out piece by piece.
const TASKS_PER_THREAD: usize = 8;

/// Scratch memory in values: what is gathered piece by piece of few rows, at most a few megabytes.
pub(super) fn scratch_len(attention: &Attention, rows: usize, context_tokens: usize) -> usize {
    const MOST: usize = 1 << 20;
    (rows * attention.n_heads * context_tokens.div_ceil(PIECE_TOKENS) * part_len(attention)).min(MOST)
}

/// Values of what one query gathers in one piece.
fn part_len(attention: &Attention) -> usize {
    HEADER + attention.kv.value_dim.next_multiple_of(BLOCK_TOKENS)
}

/// Writes the rows' keys and values into their slots.
pub(super) fn store(attention: &Attention, args: &CpuArgs<'_>) {
    let (key_width, value_width) = (attention.kv.key_width(), attention.kv.stored_value_width());
    // Values that are part of their keys are no input.
    let (key, value) = (args.inputs[1], args.inputs.get(2).copied().unwrap_or_default());
    let batch = args.batch;
    // Rows of one block share cache lines: a block's worth of rows is one task.
    args.team.for_each(args.rows.div_ceil(BLOCK_TOKENS), &|task| {
        for row in task * BLOCK_TOKENS..args.rows.min((task + 1) * BLOCK_TOKENS) {
            let position = batch.positions[row] as usize;
            let block = batch.block_tables[batch.sequences[row] as usize][position / BLOCK_TOKENS];
            let key = &key[row * key_width..][..key_width];
            let value = &value[row * value_width..][..value_width];
            // SAFETY: no two rows of a step share a position of a sequence, and no two sequences a block they write.
            unsafe { args.kv.store(attention.layer, block, position % BLOCK_TOKENS, key, value) };
        }
    });
}

/// Lets every row look at its sequence.
pub(super) fn attend(attention: &Attention, args: &mut CpuArgs<'_>) {
    let (kernel, rows) = (args.kernel, args.rows);
    let (group, n_kv_heads) = (attention.group(), attention.kv.n_kv_heads);
    let heads_of_task = group.min(TASK_HEADS);
    let head_parts = n_kv_heads * group.div_ceil(heads_of_task);
    let wanted = TASKS_PER_THREAD * args.team.threads();
    // As many rows as leave some tasks for each thread: a long prompt's later rows take longer than its first.
    let task_rows = (rows * head_parts / wanted).clamp(1, TASK_QUERIES / heads_of_task);
    let row_parts = rows.div_ceil(task_rows);

    let positions = args.batch.positions.iter().max().map_or(0, |last| *last as usize + 1);
    let pieces = positions.div_ceil(PIECE_TOKENS);
    let parts_len = rows * attention.n_heads * pieces * part_len(attention);
    let split = args.team.threads() > 1 && pieces > 1 && row_parts * head_parts < wanted;
    let split = split && parts_len <= args.scratch.len();

    let (parts, output) = (SharedMut::new(&mut *args.scratch), SharedMut::new(args.outputs[0]));
    let (whole, piece) = match attention.kv.key_dim.max(attention.kv.value_dim) {
        ..=SHORT_HEAD_DIM => (whole::<SHORT_HEAD_DIM> as Whole, piece::<SHORT_HEAD_DIM> as Piece),
        _ => (whole::<MAX_HEAD_DIM> as Whole, piece::<MAX_HEAD_DIM> as Piece),
    };
    let view = View { attention, batch: args.batch, query: args.inputs[0], output: &output, parts: &parts, pieces };
    // The rows and heads of a task, by its number.
    let share = |task: usize| {
        let (row_part, head_part) = (task / head_parts, task % head_parts);
        let (kv_head, chunk) = (head_part % n_kv_heads, head_part / n_kv_heads);
        let first = kv_head * group + chunk * heads_of_task;
        let heads = first..(first + heads_of_task).min((kv_head + 1) * group);
        (row_part * task_rows..rows.min((row_part + 1) * task_rows), kv_head, heads)
    };
    if !split {
        args.team.for_each(row_parts * head_parts, &|task| {
            let (rows, kv_head, heads) = share(task);
            view.for_each_sequence(rows, |rows| {
                whole(kernel, &view, &view.queries(args.kv, rows, kv_head, heads.clone()));
            });
        });
        return;
    }
    args.team.for_each(row_parts * head_parts * pieces, &|task| {
        let (rows, kv_head, heads) = share(task / pieces);
        view.for_each_sequence(rows, |rows| {
            piece(kernel, &view, &view.queries(args.kv, rows, kv_head, heads.clone()), task % pieces);
        });
    });
    args.team.for_each(row_parts * head_parts, &|task| {
        let (rows, kv_head, heads) = share(task);
        view.for_each_sequence(rows, |rows| view.merge_parts(&view.queries(args.kv, rows, kv_head, heads.clone())));
    });
}

type Whole = fn(Kernel, &View<'_>, &Queries<'_>);
type Piece = fn(Kernel, &View<'_>, &Queries<'_>, usize);

/// What every task looks at.
struct View<'a> {
    attention: &'a Attention,
    batch: Batch<'a>,
    /// [rows, n_heads * key_dim]
    query: &'a [f32],
    /// [rows, n_heads * value_dim]
    output: &'a SharedMut<'a, f32>,
    /// Where a context is split: `[rows, n_heads, pieces, part]`.
    parts: &'a SharedMut<'a, f32>,
    pieces: usize,
}

impl<'a> View<'a> {
    /// Calls with each run of rows of one sequence.
    fn for_each_sequence(&self, mut rest: Range<usize>, mut body: impl FnMut(Range<usize>)) {
        while !rest.is_empty() {
            let sequence = self.batch.sequences[rest.start];
            let end = rest.clone().find(|row| self.batch.sequences[*row] != sequence).unwrap_or(rest.end);
            body(rest.start..end);
            rest.start = end;
        }
    }

    fn queries(&self, kv: &'a super::KvCache, rows: Range<usize>, kv_head: usize, heads: Range<usize>) -> Queries<'a> {
        Queries {
            attention: self.attention,
            layer: kv.layer(self.attention.layer),
            block_table: self.batch.block_tables[self.batch.sequences[rows.start] as usize],
            query: self.query,
            kv_head,
            first_row: rows.start,
            first_position: self.batch.positions[rows.start] as usize,
            rows: rows.len(),
            heads,
        }
    }

    /// Where the parts of a query start.
    fn parts_of(&self, queries: &Queries<'_>, index: usize) -> usize {
        let (row, head) = queries.row_and_head(index);
        (row * self.attention.n_heads + head) * self.pieces * part_len(self.attention)
    }

    /// Merges the pieces of the queries, and writes their results.
    fn merge_parts(&self, queries: &Queries<'_>) {
        let len = part_len(self.attention);
        for index in 0..queries.len() {
            // SAFETY: the task owns its queries' parts, and holds no other slice of them.
            let parts = unsafe { self.parts.slice(self.parts_of(queries, index), self.pieces * len) };
            let visible = pieces_seen(queries);
            let (total, rest) = parts[visible.start * len..visible.end * len].split_at_mut(len);
            rest.chunks_exact(len).for_each(|part| merge(total, part));
            self.finish(queries, index, total);
        }
    }

    /// Writes the result of a query that has seen everything.
    fn finish(&self, queries: &Queries<'_>, index: usize, total: &[f32]) {
        let (row, head) = queries.row_and_head(index);
        let value_dim = self.attention.kv.value_dim;
        let start = (row * self.attention.n_heads + head) * value_dim;
        // SAFETY: the task owns its queries' share of the output, and holds no other slice of it.
        let output = unsafe { self.output.slice(start, value_dim) };
        let Some(sinks) = &self.attention.sinks else {
            for (output, value) in output.iter_mut().zip(&total[HEADER..]) {
                *output = value / total[WEIGHT];
            }
            return;
        };
        let (factor, weight) = with_sink(total, sinks[head]);
        for (output, value) in output.iter_mut().zip(&total[HEADER..]) {
            *output = value * factor / weight;
        }
    }
}

/// The pieces that any of the queries sees.
fn pieces_seen(queries: &Queries<'_>) -> Range<usize> {
    let visible = queries.visible();
    visible.start / PIECE_TOKENS..visible.end.div_ceil(PIECE_TOKENS)
}

fn piece_positions(piece: usize) -> Range<usize> {
    piece * PIECE_TOKENS..(piece + 1) * PIECE_TOKENS
}

/// What the values of a query that has seen everything are multiplied with, and divided by, when a score without a value
/// joins its softmax.
fn with_sink(total: &[f32], sink: f32) -> (f32, f32) {
    let greatest = if total[GREATEST] > sink { total[GREATEST] } else { sink };
    let factor = exp(total[GREATEST] - greatest);
    (factor, total[WEIGHT] * factor + exp(sink - greatest))
}

/// Adds what a query gathered in a piece to what it gathered in those before.
fn merge(total: &mut [f32], part: &[f32]) {
    // The greatest score has a weight of 1: whose sum is 0 has seen nothing.
    if part[WEIGHT] == 0.0 {
        return;
    }
    if total[WEIGHT] == 0.0 {
        total.copy_from_slice(part);
        return;
    }
    let greatest = if total[GREATEST] > part[GREATEST] { total[GREATEST] } else { part[GREATEST] };
    let factor = |score: f32| if score == greatest { 1.0 } else { exp(score - greatest) };
    let (ours, theirs) = (factor(total[GREATEST]), factor(part[GREATEST]));
    total[GREATEST] = greatest;
    total[WEIGHT] = total[WEIGHT] * ours + part[WEIGHT] * theirs;
    for (total, part) in total[HEADER..].iter_mut().zip(&part[HEADER..]) {
        *total = *total * ours + part * theirs;
    }
}

/// Memory of a task, on the stack, of which only what is used is cleared.
struct Room<T>(MaybeUninit<T>);

/// What as many queries as a task has gather.
type Parts<const HEAD_DIM: usize> = Room<([[f32; HEADER]; TASK_QUERIES], [[f32; HEAD_DIM]; TASK_QUERIES])>;

impl<T> Room<T> {
    fn new() -> Self {
        Room(MaybeUninit::uninit())
    }

    /// The first `len` float32, as zeros.
    fn zeros(&mut self, len: usize) -> &mut [f32] {
        assert!(len * size_of::<f32>() <= size_of::<T>() && align_of::<T>() >= align_of::<f32>());
        // SAFETY: there is room for them, zero bytes are such values, and they are borrowed as long as the room.
        unsafe {
            let start: *mut f32 = self.0.as_mut_ptr().cast();
            start.write_bytes(0, len);
            std::slice::from_raw_parts_mut(start, len)
        }
    }
}

/// What most heads are not longer than: touching room for long ones takes time.
const SHORT_HEAD_DIM: usize = 128;

/// All that the queries see, piece by piece. `HEAD_DIM`: the longest head there is room for.
fn whole<const HEAD_DIM: usize>(kernel: Kernel, view: &View<'_>, queries: &Queries<'_>) {
    let len = part_len(view.attention);
    let (mut parts, mut totals) = (Parts::<HEAD_DIM>::new(), Parts::<HEAD_DIM>::new());
    let mut widened = Room::<[[f32; HEAD_DIM]; WIDENED]>::new();
    let widened = widened.zeros(queries.widened_len());
    let totals = totals.zeros(queries.len() * len);
    for piece in pieces_seen(queries) {
        let parts = parts.zeros(queries.len() * len);
        gather(kernel, queries, piece_positions(piece), parts, widened);
        totals.chunks_exact_mut(len).zip(parts.chunks_exact(len)).for_each(|(total, part)| merge(total, part));
    }
    totals.chunks_exact(len).enumerate().for_each(|(index, total)| view.finish(queries, index, total));
}

/// What the queries see of one piece, into their parts.
fn piece<const HEAD_DIM: usize>(kernel: Kernel, view: &View<'_>, queries: &Queries<'_>, piece: usize) {
    if !pieces_seen(queries).contains(&piece) {
        return;
    }
    let len = part_len(view.attention);
    let (mut parts, mut widened) = (Parts::<HEAD_DIM>::new(), Room::<[[f32; HEAD_DIM]; WIDENED]>::new());
    let parts = parts.zeros(queries.len() * len);
    gather(kernel, queries, piece_positions(piece), parts, widened.zeros(queries.widened_len()));
    for (index, part) in parts.chunks_exact(len).enumerate() {
        // SAFETY: the task owns this piece of its queries' parts.
        let out = unsafe { view.parts.slice(view.parts_of(queries, index) + piece * len, len) };
        out.copy_from_slice(part);
    }
}
