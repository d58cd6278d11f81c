//! The kernel: one block of sixteen columns of a head, row after row.
//!
//! The block is [state_dim, 16], so the columns are the lanes of a vector. The sums over the rows of the state have one
//! order: the even ones and the odd ones by themselves, then both together.

use super::factors::factors_of;
use super::{BLOCK_COLUMNS, StateSpace};
use crate::cpu::SharedMut;
use crate::per_vector;
use crate::recurrent::StateBlock;
use crate::vector::{Vector, load_some, store_some};

/// Values of two rows of a block.
const PAIR: usize = 2 * BLOCK_COLUMNS;

/// What a task computes.
pub(super) struct Block<'a> {
    pub space: &'a StateSpace,
    pub state: StateBlock<'a>,
    pub head: usize,
    /// The first column of the head, and their number: at most sixteen.
    pub column: usize,
    pub columns: usize,
    /// x, B and C of all rows.
    pub mixed: &'a [f32],
    /// dt and the decays of all rows.
    pub factors: &'a [f32],
    /// `[rows, heads * head_dim]`
    pub output: &'a SharedMut<'a, f32>,
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
    let (space, shape, run) = (block.space, &block.space.shape, block.state.run);
    let own = block.head * shape.head_dim + block.column;
    // SAFETY: as the caller promises. Each task writes its own columns of its own rows.
    unsafe {
        let Some(state) = block.state.begin() else { return };
        for index in 0..run.rows {
            let row = run.first + index;
            let mixed = &block.mixed[row * shape.mixed_width()..][..shape.mixed_width()];
            let (inner, outer) = mixed[shape.start_of_b(block.head)..].split_at(shape.groups * shape.state_dim);
            let [time, decay] = factors_of(space, block.factors, row, block.head);
            let x = load_some::<V>(&mixed[own..][..block.columns]);
            let (b, c) = (&inner[..shape.state_dim], &outer[..shape.state_dim]);
            let sum = update(V::splat(decay), b, x.multiply(V::splat(time)), c, state);
            let y = x.multiply_add(V::splat(space.weights.d[block.head]), sum);
            store_some(y, block.output.slice(row * shape.width() + own, block.columns));
            block.state.keep(index, state);
        }
    }
}

/// `S = decay S + b x^T`; returns `S^T c`.
///
/// # Safety
/// The caller has the instruction set.
#[inline(always)]
unsafe fn update<V: Vector>(decay: V, b: &[f32], x: V, c: &[f32], state: &mut [f32]) -> V {
    // SAFETY: the caller has the instruction set; each pair is two times sixteen values.
    unsafe {
        let mut sums = [V::splat(0.0); 2];
        for (pair, values) in state.as_chunks_mut::<PAIR>().0.iter_mut().enumerate() {
            for (half, sum) in sums.iter_mut().enumerate() {
                let (index, values) = (2 * pair + half, values.as_mut_ptr().add(half * BLOCK_COLUMNS));
                let updated = V::splat(b[index]).multiply_add(x, V::load(values).multiply(decay));
                updated.store(values);
                *sum = updated.multiply_add(V::splat(c[index]), *sum);
            }
        }
        sums[0].add(sums[1])
    }
}
