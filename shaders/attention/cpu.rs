//! Attention on the CPU: how rows are grouped into tasks, and how partial results are merged.
//!
//! The positions of a sequence are divided into *pieces* of [`PIECE_TOKENS`]. Each query has a partial result for each
//! piece, and the partials are merged in the order of the pieces. So threads can share a long context, and the bits of
//! a query depend neither on that nor on other queries. [`super::gather`] computes the partials of one piece.

use std::mem::MaybeUninit;
use std::ops::Range;

use super::gather::{GREATEST, HEADER, Queries, TASK_QUERIES, UPCONVERTED, WEIGHT, gather};
use super::{Attention, PIECE_TOKENS, RowsInStep};
use crate::cpu::{Kernel, SharedMut};
use crate::kv::{BLOCK_TOKENS, KvCache, KvShape, MAX_HEAD_DIM};
use crate::lanes::exp;
use crate::op::{Batch, CpuArgs, Sight};

/// The maximum number of heads of a task, so that several rows share the keys and values that are read.
const TASK_HEADS: usize = 16;

/// With fewer tasks than this for each thread, contexts are split into a task for each piece.
const TASKS_PER_THREAD: usize = 8;

/// Scratch memory in values: the partials of few rows for each piece, at most a few megabytes.
pub(super) fn scratch_len(attention: &Attention, rows: usize, context_tokens: usize) -> usize {
    const MOST: usize = 1 << 20;
    (rows * attention.n_heads * context_tokens.div_ceil(PIECE_TOKENS) * partial_len(attention)).min(MOST)
}

/// Values of the partial of one query and one piece.
fn partial_len(attention: &Attention) -> usize {
    HEADER + attention.kv.value_dim.next_multiple_of(BLOCK_TOKENS)
}

/// Stores the keys and values of the rows in a layer of the cache. Values that are part of their keys are empty. With pools, the
/// values are entries, and those of the last rows of pools are stored.
pub(super) fn store((layer, kv): (usize, KvShape), [key, value]: [&[f32]; 2], args: &CpuArgs<'_>) {
    let (key_width, value_width) = (kv.key_width(), kv.stored_value_width());
    let batch = args.batch;
    // Rows of one block share cache lines, so as many rows as a block has form a task.
    args.team.for_each(args.rows.div_ceil(BLOCK_TOKENS), &|task| {
        for row in task * BLOCK_TOKENS..args.rows.min((task + 1) * BLOCK_TOKENS) {
            let position = batch.positions[row] as usize;
            let block = batch.block_table(row, kv)[position / BLOCK_TOKENS];
            let key = &key[row * key_width..][..key_width];
            let ends_no_pool = (position + 1).checked_rem(kv.pool).is_some_and(|rest| rest > 0);
            let value = if ends_no_pool { &[][..] } else { &value[row * value_width..][..value_width] };
            // SAFETY: no two rows of a step share a position of a sequence, and no two sequences write to the same
            // block.
            unsafe { args.kv.store(layer, block, position % BLOCK_TOKENS, key, value) };
        }
    });
}

/// Computes the attention of every row to its sequence.
pub(super) fn attend(attention: &Attention, args: &mut CpuArgs<'_>) {
    let (kernel, rows) = (args.kernel, args.rows);
    let (group, n_kv_heads) = (attention.group(), attention.kv.n_kv_heads);
    let positions = args.batch.positions.iter().max().map_or(0, |last| *last as usize + 1);
    let lists_cells = attention.lists_cells(positions);
    // The heads of a row share its cells, and other rows have others.
    let heads_of_task = group.min(if lists_cells { TASK_QUERIES } else { TASK_HEADS });
    let head_tasks = n_kv_heads * group.div_ceil(heads_of_task);
    let enough_tasks = TASKS_PER_THREAD * args.team.threads();
    // Few enough rows that each thread has some tasks: the later rows of a long prompt take longer than its first.
    let most_rows = if lists_cells { 1 } else { TASK_QUERIES / heads_of_task };
    let task_rows = (rows * head_tasks / enough_tasks).clamp(1, most_rows);
    let row_tasks = rows.div_ceil(task_rows);

    let pieces = attention.most_visible(positions).div_ceil(PIECE_TOKENS);
    let partials_len = rows * attention.n_heads * pieces * partial_len(attention);
    let split = args.team.threads() > 1 && pieces > 1 && row_tasks * head_tasks < enough_tasks;
    let split = split && partials_len <= args.scratch.len();

    let (partials, output) = (SharedMut::new(&mut *args.scratch), SharedMut::new(args.outputs[0]));
    let (whole, piece) = match attention.kv.key_dim.max(attention.kv.value_dim) {
        ..=SHORT_HEAD_DIM => (whole::<SHORT_HEAD_DIM> as Whole, piece::<SHORT_HEAD_DIM> as Piece),
        _ => (whole::<MAX_HEAD_DIM> as Whole, piece::<MAX_HEAD_DIM> as Piece),
    };
    let selected = args.inputs.last().copied().filter(|_| attention.selects(positions).is_some());
    let (batch, query) = (args.batch, args.inputs[0]);
    let view =
        View { kernel, attention, batch, query, lists_cells, selected, output: &output, partials: &partials, pieces };
    // The rows and heads of a task.
    let share = |task: usize| {
        let (row_task, head_task) = (task / head_tasks, task % head_tasks);
        let (kv_head, chunk) = (head_task % n_kv_heads, head_task / n_kv_heads);
        let first = kv_head * group + chunk * heads_of_task;
        let heads = first..(first + heads_of_task).min((kv_head + 1) * group);
        (row_task * task_rows..rows.min((row_task + 1) * task_rows), kv_head, heads)
    };
    if !split {
        args.team.for_each(row_tasks * head_tasks, &|task| {
            let (rows, kv_head, heads) = share(task);
            view.for_each_sequence(rows, |rows| {
                whole(&view, &view.queries(args.kv, rows, kv_head, heads.clone()));
            });
        });
        return;
    }
    args.team.for_each(row_tasks * head_tasks * pieces, &|task| {
        let (rows, kv_head, heads) = share(task / pieces);
        view.for_each_sequence(rows, |rows| {
            piece(&view, &view.queries(args.kv, rows, kv_head, heads.clone()), task % pieces);
        });
    });
    args.team.for_each(row_tasks * head_tasks, &|task| {
        let (rows, kv_head, heads) = share(task);
        view.for_each_sequence(rows, |rows| view.merge_partials(&view.queries(args.kv, rows, kv_head, heads.clone())));
    });
}

type Whole = fn(&View<'_>, &Queries<'_>);
type Piece = fn(&View<'_>, &Queries<'_>, usize);

/// What all tasks share.
struct View<'a> {
    kernel: Kernel,
    attention: &'a Attention,
    batch: Batch<'a>,
    /// [rows, n_heads * key_dim]
    query: &'a [f32],
    /// Whether rows see cells that are not adjacent.
    lists_cells: bool,
    /// [rows, lists, the most positions or pools of a list], if a row does not see all of them
    selected: Option<&'a [f32]>,
    /// [rows, n_heads * value_dim]
    output: &'a SharedMut<'a, f32>,
    /// The partials, if contexts are split: `[rows, n_heads, pieces, partial]`.
    partials: &'a SharedMut<'a, f32>,
    pieces: usize,
}

impl<'a> View<'a> {
    /// Calls `body` with each run of rows of one sequence.
    fn for_each_sequence(&self, mut rest: Range<usize>, mut body: impl FnMut(Range<usize>)) {
        while !rest.is_empty() {
            let sequence = self.batch.sequences[rest.start];
            let end = rest.clone().find(|row| self.batch.sequences[*row] != sequence).unwrap_or(rest.end);
            body(rest.start..end);
            rest.start = end;
        }
    }

    fn queries(&self, kv: &'a KvCache, rows: Range<usize>, kv_head: usize, heads: Range<usize>) -> Queries<'a> {
        let first_position = self.batch.positions[rows.start] as usize;
        let sight = self.batch.sight(rows.start);
        let sees_later = self.attention.sees_later || sight != Sight::Before;
        let of_sequence = RowsInStep {
            sight,
            start: first_position - self.rows_before(rows.start),
            end: first_position + rows.len() + if sees_later { self.rows_after(rows.end) } else { 0 },
        };
        Queries {
            kernel: self.kernel,
            attention: self.attention,
            layer: kv.layer(self.attention.layer),
            block_table: self.batch.block_table(rows.start, self.attention.kv),
            query: self.query,
            lists_cells: self.lists_cells,
            selected: self.selected.map(|selected| {
                let lists = self.attention.selection.map_or(1, |selection| selection.lists);
                let most = selected.len() / (self.batch.rows() * lists);
                &selected[(rows.start * lists + self.attention.list(kv_head, lists)) * most..][..most]
            }),
            kv_head,
            first_row: rows.start,
            first_position,
            of_sequence,
            rows: rows.len(),
            heads,
        }
    }

    /// The number of rows before `start` that belong to its sequence.
    fn rows_before(&self, start: usize) -> usize {
        let sequences = self.batch.sequences;
        sequences[..start].iter().rev().take_while(|sequence| **sequence == sequences[start]).count()
    }

    /// The number of rows from `end` on that belong to the sequence of the row before.
    fn rows_after(&self, end: usize) -> usize {
        let sequences = self.batch.sequences;
        sequences[end..].iter().take_while(|sequence| **sequence == sequences[end - 1]).count()
    }

    /// The offset of the partials of a query.
    fn partials_of(&self, queries: &Queries<'_>, index: usize) -> usize {
        let (row, head) = queries.row_and_head(index);
        (row * self.attention.n_heads + head) * self.pieces * partial_len(self.attention)
    }

    /// Merges the partials of the queries and writes their results.
    fn merge_partials(&self, queries: &Queries<'_>) {
        let len = partial_len(self.attention);
        for index in 0..queries.len() {
            // SAFETY: the task owns the partials of its queries, and holds no other slice of them.
            let partials = unsafe { self.partials.slice(self.partials_of(queries, index), self.pieces * len) };
            let visible = pieces_seen(queries);
            let (total, rest) = partials[visible.start * len..visible.end * len].split_at_mut(len);
            rest.chunks_exact(len).for_each(|partial| merge(total, partial));
            self.finish(queries, index, total);
        }
    }

    /// Writes the result of a query whose partials are merged.
    fn finish(&self, queries: &Queries<'_>, index: usize, total: &[f32]) {
        let (row, head) = queries.row_and_head(index);
        let value_dim = self.attention.kv.value_dim;
        let start = (row * self.attention.n_heads + head) * value_dim;
        // SAFETY: the task owns the outputs of its queries, and holds no other slice of them.
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

/// The factor and the divisor of the values of a query when a sink, which is a score without a value, joins its
/// softmax.
fn with_sink(total: &[f32], sink: f32) -> (f32, f32) {
    let greatest = if total[GREATEST] > sink { total[GREATEST] } else { sink };
    let factor = exp(total[GREATEST] - greatest);
    (factor, total[WEIGHT] * factor + exp(sink - greatest))
}

/// Merges the partial of a piece into that of the earlier pieces.
fn merge(total: &mut [f32], partial: &[f32]) {
    // The greatest score has a weight of 1, so a sum of 0 means that the query sees no position of the piece.
    if partial[WEIGHT] == 0.0 {
        return;
    }
    if total[WEIGHT] == 0.0 {
        total.copy_from_slice(partial);
        return;
    }
    let greatest = if total[GREATEST] > partial[GREATEST] { total[GREATEST] } else { partial[GREATEST] };
    let factor = |score: f32| if score == greatest { 1.0 } else { exp(score - greatest) };
    let (ours, theirs) = (factor(total[GREATEST]), factor(partial[GREATEST]));
    total[GREATEST] = greatest;
    total[WEIGHT] = total[WEIGHT] * ours + partial[WEIGHT] * theirs;
    for (total, partial) in total[HEADER..].iter_mut().zip(&partial[HEADER..]) {
        *total = *total * ours + partial * theirs;
    }
}

/// Memory of a task on the stack, of which only the used part is cleared.
struct Scratch<T>(MaybeUninit<T>);

/// The partials of all queries of a task.
type Partials<const HEAD_DIM: usize> = Scratch<([[f32; HEADER]; TASK_QUERIES], [[f32; HEAD_DIM]; TASK_QUERIES])>;

impl<T> Scratch<T> {
    fn new() -> Self {
        Scratch(MaybeUninit::uninit())
    }

    /// The first `len` values, set to 0.
    fn zeros(&mut self, len: usize) -> &mut [f32] {
        assert!(len * size_of::<f32>() <= size_of::<T>() && align_of::<T>() >= align_of::<f32>());
        // SAFETY: the memory is large enough by the assertion, zero bytes are valid values, and the borrow is that of
        // the memory.
        unsafe {
            let start: *mut f32 = self.0.as_mut_ptr().cast();
            start.write_bytes(0, len);
            std::slice::from_raw_parts_mut(start, len)
        }
    }
}

/// The length that most heads do not exceed. Memory for longer heads would cost time.
const SHORT_HEAD_DIM: usize = 128;

/// Computes the queries over their whole context, piece by piece. `HEAD_DIM` is the maximum length of a head.
fn whole<const HEAD_DIM: usize>(view: &View<'_>, queries: &Queries<'_>) {
    let len = partial_len(view.attention);
    let (mut partials, mut totals) = (Partials::<HEAD_DIM>::new(), Partials::<HEAD_DIM>::new());
    let mut upconverted = Scratch::<[[f32; HEAD_DIM]; UPCONVERTED]>::new();
    let upconverted = upconverted.zeros(queries.upconverted_len());
    let totals = totals.zeros(queries.len() * len);
    for piece in pieces_seen(queries) {
        let partials = partials.zeros(queries.len() * len);
        // SAFETY: keys and values are written before attention begins.
        unsafe { gather(queries.kernel, queries, piece_positions(piece), partials, upconverted) };
        totals.chunks_exact_mut(len).zip(partials.chunks_exact(len)).for_each(|(total, partial)| merge(total, partial));
    }
    totals.chunks_exact(len).enumerate().for_each(|(index, total)| view.finish(queries, index, total));
}

/// Computes the partials of the queries for one piece.
fn piece<const HEAD_DIM: usize>(view: &View<'_>, queries: &Queries<'_>, piece: usize) {
    if !pieces_seen(queries).contains(&piece) {
        return;
    }
    let len = partial_len(view.attention);
    let (mut partials, mut upconverted) =
        (Partials::<HEAD_DIM>::new(), Scratch::<[[f32; HEAD_DIM]; UPCONVERTED]>::new());
    let partials = partials.zeros(queries.len() * len);
    let upconverted = upconverted.zeros(queries.upconverted_len());
    // SAFETY: keys and values are written before attention begins.
    unsafe { gather(queries.kernel, queries, piece_positions(piece), partials, upconverted) };
    for (index, partial) in partials.chunks_exact(len).enumerate() {
        // SAFETY: the task owns the partials of its queries for this piece.
        let out = unsafe { view.partials.slice(view.partials_of(queries, index) + piece * len, len) };
        out.copy_from_slice(partial);
    }
}
