//! The kernel: one block of sixteen columns of a head, row after row.
//!
//! The block is [key_dim, 16], so the columns are the lanes of a vector. The sums over the keys have one order: the even
//! ones and the odd ones by themselves, then both together. While a row updates the block, the sum `S^T k` of the next row
//! is computed, so that the block is read once for each row.

use super::factors::Factors;
use super::{BLOCK_COLUMNS, GatedDelta};
use crate::cpu::SharedMut;
use crate::per_vector;
use crate::recurrent::StateBlock;
use crate::vector::{Vector, load_some, store_some};

/// Values of two rows of a block.
const PAIR: usize = 2 * BLOCK_COLUMNS;

/// What a task computes.
pub(super) struct Block<'a> {
    pub delta: &'a GatedDelta,
    pub state: StateBlock<'a>,
    pub head: usize,
    /// The first column of the head, and their number: at most sixteen.
    pub column: usize,
    pub columns: usize,
    /// Queries, keys and values of all rows.
    pub mixed: &'a [f32],
    /// The factors of all rows.
    pub factors: &'a [f32],
    /// `[rows, value_heads * value_dim]`
    pub output: &'a SharedMut<'a, f32>,
}

/// One row of a head.
struct Row<'a> {
    query: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    factors: Factors<'a>,
}

impl<'a> Block<'a> {
    /// A row of the run.
    fn row(&self, row: usize) -> Row<'a> {
        let shape = &self.delta.shape;
        let row = self.state.run.first + row;
        let mixed = &self.mixed[row * shape.mixed_width()..][..shape.mixed_width()];
        let start = shape.key_head(self.head) * shape.key_dim;
        Row {
            query: &mixed[start..][..shape.key_dim],
            key: &mixed[shape.key_width() + start..][..shape.key_dim],
            value: &mixed[2 * shape.key_width() + self.head * shape.value_dim + self.column..][..self.columns],
            factors: Factors::of(self.delta, self.factors, row, self.head),
        }
    }
}

per_vector! {
    /// Computes the outputs of a block, and stores its states.
    ///
    /// # Safety
    /// No other task uses the block meanwhile.
    pub(super) unsafe fn scan = scan_block(block: &Block<'_>)
}

/// # Safety
/// The caller has the instruction set, and no other task uses the block.
#[inline(always)]
unsafe fn scan_block<V: Vector>(block: &Block<'_>) {
    // SAFETY: as the caller promises.
    unsafe {
        let Some(state) = block.state.begin() else { return };
        if block.delta.decays() == 1 { scan_rows::<V, false>(block, state) } else { scan_rows::<V, true>(block, state) }
    }
}

/// `PER_KEY`: each row of the state has a decay of its own.
///
/// # Safety
/// As [`scan_block`].
#[inline(always)]
unsafe fn scan_rows<V: Vector, const PER_KEY: bool>(block: &Block<'_>, state: &mut [f32]) {
    let (width, run) = (block.delta.shape.value_width(), block.state.run);
    let mut row = block.row(0);
    // SAFETY: as the caller promises.
    unsafe {
        let mut recalled = recall::<V, PER_KEY>(&row, state);
        for index in 0..run.rows {
            // After the last row, the sum is not needed.
            let next = block.row((index + 1).min(run.rows - 1));
            let Factors { beta, key_scale, query_scale, .. } = row.factors;
            let value = load_some::<V>(row.value);
            let correction = value.subtract(recalled).multiply(V::splat(beta * key_scale));
            let (sum, next_recalled) = update::<V, PER_KEY>(&row, &next, correction, state);
            let start = (run.first + index) * width + block.head * block.delta.shape.value_dim + block.column;
            // Each task writes its own columns of its own rows.
            store_some(sum.multiply(V::splat(query_scale)), block.output.slice(start, block.columns));
            block.state.keep(index, state);
            (row, recalled) = (next, next_recalled);
        }
    }
}

/// What the decayed state holds for the key of a row: `e^g S^T k`.
///
/// # Safety
/// The caller has the instruction set.
#[inline(always)]
unsafe fn recall<V: Vector, const PER_KEY: bool>(row: &Row<'_>, state: &[f32]) -> V {
    // SAFETY: the caller has the instruction set; each pair is two times sixteen values.
    unsafe {
        let mut sums = [V::splat(0.0); 2];
        for (pair, values) in state.as_chunks::<PAIR>().0.iter().enumerate() {
            for (half, sum) in sums.iter_mut().enumerate() {
                let key = V::splat(weight_of::<PER_KEY>(row, 2 * pair + half));
                let value = V::load(values.as_ptr().add(half * BLOCK_COLUMNS));
                *sum = value.multiply_add(key, *sum);
            }
        }
        recalled::<V, PER_KEY>(sums, row)
    }
}

/// Updates the state with a row. Returns `S^T q` for the row's query, and what is [recalled](recall) for the next row.
///
/// # Safety
/// The caller has the instruction set.
#[inline(always)]
unsafe fn update<V: Vector, const PER_KEY: bool>(
    row: &Row<'_>,
    next: &Row<'_>,
    correction: V,
    state: &mut [f32],
) -> (V, V) {
    // SAFETY: the caller has the instruction set; each pair is two times sixteen values.
    unsafe {
        let (mut read, mut sums) = ([V::splat(0.0); 2], [V::splat(0.0); 2]);
        for (pair, values) in state.as_chunks_mut::<PAIR>().0.iter_mut().enumerate() {
            for half in 0..2 {
                let (index, values) = (2 * pair + half, values.as_mut_ptr().add(half * BLOCK_COLUMNS));
                let decay = V::splat(row.factors.decays[if PER_KEY { index } else { 0 }]);
                let decayed = V::load(values).multiply(decay);
                let updated = V::splat(row.key[index]).multiply_add(correction, decayed);
                updated.store(values);
                read[half] = updated.multiply_add(V::splat(row.query[index]), read[half]);
                sums[half] = updated.multiply_add(V::splat(weight_of::<PER_KEY>(next, index)), sums[half]);
            }
        }
        (read[0].add(read[1]), recalled::<V, PER_KEY>(sums, next))
    }
}

/// The factor of a row of the state in the sum for a key.
#[inline(always)]
fn weight_of<const PER_KEY: bool>(row: &Row<'_>, index: usize) -> f32 {
    if PER_KEY { row.key[index] * row.factors.decays[index] } else { row.key[index] }
}

/// Scales the sums for a key.
///
/// # Safety
/// The caller has the instruction set.
#[inline(always)]
unsafe fn recalled<V: Vector, const PER_KEY: bool>(sums: [V; 2], row: &Row<'_>) -> V {
    let decay = if PER_KEY { 1.0 } else { row.factors.decays[0] };
    // SAFETY: the caller has the instruction set.
    unsafe { sums[0].add(sums[1]).multiply(V::splat(decay * row.factors.key_scale)) }
}
