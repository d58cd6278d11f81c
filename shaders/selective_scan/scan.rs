//! The kernel: one block of sixteen channels, row after row.
//!
//! The block is [state_dim, 16], so the channels are the lanes of a vector. The sum over the values of a state has one order.

use std::ops::Range;

use super::{BLOCK_CHANNELS, SelectiveScan};
use crate::cpu::SharedMut;
use crate::per_vector;
use crate::recurrent::StateBlock;
use crate::vector::{Vector, exp, load_some, store_some};

/// What a task computes.
pub(super) struct Block<'a> {
    pub op: &'a SelectiveScan,
    pub state: StateBlock<'a>,
    /// At most sixteen.
    pub channels: Range<usize>,
    /// `[rows, channels]`
    pub x: &'a [f32],
    /// dt of all rows, `[rows, channels]`.
    pub times: &'a [f32],
    /// `[rows, state_dim]`
    pub b: &'a [f32],
    /// `[rows, state_dim]`
    pub c: &'a [f32],
    /// `[rows, channels]`
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
    let (op, shape, run) = (block.op, &block.op.shape, block.state.run);
    let a = &op.a[block.state.start..][..block.state.len];
    // SAFETY: as the caller promises. Each task writes its own channels of its own rows.
    unsafe {
        let Some(state) = block.state.begin() else { return };
        let d = load_some::<V>(&op.d[block.channels.clone()]);
        for index in 0..run.rows {
            let row = run.first + index;
            let own = row * shape.channels + block.channels.start..row * shape.channels + block.channels.end;
            let [b, c] = [block.b, block.c].map(|values| &values[row * shape.state_dim..][..shape.state_dim]);
            let x = load_some::<V>(&block.x[own.clone()]);
            let time = load_some::<V>(&block.times[own.clone()]);
            let sum = update(a, time, x, [b, c], state);
            store_some(x.multiply_add(d, sum), block.output.slice(own.start, own.len()));
            block.state.keep(index, state);
        }
    }
}

/// `S = e^(time a) S + time x b`; returns `S c`.
///
/// # Safety
/// The caller has the instruction set.
#[inline(always)]
unsafe fn update<V: Vector>(a: &[f32], time: V, x: V, [b, c]: [&[f32]; 2], state: &mut [f32]) -> V {
    let rows = a.as_chunks::<BLOCK_CHANNELS>().0.iter().zip(state.as_chunks_mut::<BLOCK_CHANNELS>().0);
    // SAFETY: the caller has the instruction set; each row is sixteen values.
    unsafe {
        let added = x.multiply(time);
        let mut sum = V::splat(0.0);
        for ((a, values), (b, c)) in rows.zip(b.iter().zip(c)) {
            let decay = exp(V::load(a.as_ptr()).multiply(time));
            let updated = V::splat(*b).multiply_add(added, V::load(values.as_ptr()).multiply(decay));
            updated.store(values.as_mut_ptr());
            sum = updated.multiply_add(V::splat(*c), sum);
        }
        sum
    }
}
