//! The two products of a low-rank change, for rows of one adapter.

use super::LowRank;
use crate::cpu::SharedMut;
use crate::per_vector;
use crate::vector::{LANES, Vector, load_some, store_some};

/// Rows of A, and strips of B, that are computed together: enough independent sums to hide the latency of one.
pub(super) const TILE: usize = 4;

/// Some rows of A for rows of one adapter: `h[r, k] = A[k] x[r]`.
pub(super) struct Shrink<'a> {
    pub change: &'a LowRank,
    /// The first of at most [`TILE`] rows of A.
    pub first: usize,
    /// Rows of x, each with its row of h.
    pub rows: &'a [(usize, usize)],
    /// [rows, columns]
    pub x: &'a [f32],
    /// [rows, max_rank]. No other task writes these columns of these rows.
    pub h: &'a SharedMut<'a, f32>,
    pub max_rank: usize,
}

/// Some strips of B for rows of one adapter: `z[r] = y[r] + scale B h[r]`.
pub(super) struct Expand<'a> {
    pub change: &'a LowRank,
    pub strips: std::ops::Range<usize>,
    /// The rows of y, each with the factor on its change.
    pub rows: &'a [(usize, f32)],
    /// [rows, outputs], or `None` where `z` holds y.
    pub y: Option<&'a [f32]>,
    /// [rows, max_rank]
    pub h: &'a [f32],
    pub max_rank: usize,
    pub outputs: usize,
    /// [rows, outputs]. No other task writes these columns of these rows.
    pub z: &'a SharedMut<'a, f32>,
}

per_vector! {
    /// Computes a task of the first product.
    pub(super) fn shrink = shrink_rows(task: &Shrink<'_>)
}

per_vector! {
    /// Computes a task of the second product.
    pub(super) fn expand = expand_rows(task: &Expand<'_>)
}

/// # Safety
/// As [`Arithmetic`](crate::vector::Arithmetic).
#[inline(always)]
unsafe fn shrink_rows<V: Vector>(task: &Shrink<'_>) {
    let a: [&[f32]; TILE] = std::array::from_fn(|index| task.change.a_row(task.first + index));
    let columns = a[0].len();
    let count = TILE.min(task.change.rank() - task.first);
    for &(x_row, row) in task.rows {
        // SAFETY: the caller has the instruction set.
        let sums = unsafe { products::<V>(a, &task.x[x_row * columns..][..columns]) };
        // SAFETY: no other task writes these values, as the field states.
        let h = unsafe { task.h.slice(row * task.max_rank + task.first, count) };
        h.copy_from_slice(&sums[..count]);
    }
}

/// The products of each row of `a` with `x`.
///
/// # Safety
/// As [`Arithmetic`](crate::vector::Arithmetic).
#[inline(always)]
unsafe fn products<V: Vector>(a: [&[f32]; TILE], x: &[f32]) -> [f32; TILE] {
    let (whole, rest) = x.as_chunks::<LANES>();
    let end = whole.len() * LANES;
    let a_whole = a.map(|a| a[..x.len()].as_chunks::<LANES>().0);
    // SAFETY: the caller has the instruction set; every chunk has sixteen values.
    unsafe {
        let mut sums = [V::splat(0.0); TILE];
        for (chunk, x) in whole.iter().enumerate() {
            let x = V::load(x.as_ptr());
            for (sum, a) in sums.iter_mut().zip(a_whole) {
                *sum = V::load(a[chunk].as_ptr()).multiply_add(x, *sum);
            }
        }
        if !rest.is_empty() {
            let x = load_some::<V>(rest);
            for (sum, a) in sums.iter_mut().zip(a) {
                *sum = load_some::<V>(&a[end..]).multiply_add(x, *sum);
            }
        }
        sums.map(|sum| total(sum))
    }
}

/// The sum of all lanes, always added in the same order.
///
/// # Safety
/// As [`Arithmetic`](crate::vector::Arithmetic).
#[inline(always)]
unsafe fn total<V: Vector>(sum: V) -> f32 {
    let mut lanes = [0.0; LANES];
    // SAFETY: the caller has the instruction set; sixteen values.
    unsafe { sum.store(lanes.as_mut_ptr()) };
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// # Safety
/// As [`Arithmetic`](crate::vector::Arithmetic).
#[inline(always)]
unsafe fn expand_rows<V: Vector>(task: &Expand<'_>) {
    for &(row, factor) in task.rows {
        let h = &task.h[row * task.max_rank..][..task.change.rank()];
        let scale = factor * task.change.scale();
        for first in task.strips.clone().step_by(TILE) {
            let b: [&[f32]; TILE] = std::array::from_fn(|index| task.change.b_strip(first + index));
            // SAFETY: the caller has the instruction set.
            let sums = unsafe { combine::<V>(b, h) };
            for (strip, sum) in (first..task.strips.end).zip(sums) {
                // SAFETY: as above.
                unsafe { add_strip(task, row, strip, scale, sum) };
            }
        }
    }
}

/// The sums of the rows of each strip, each times its value of `h`.
///
/// # Safety
/// As [`Arithmetic`](crate::vector::Arithmetic).
#[inline(always)]
unsafe fn combine<V: Vector>(b: [&[f32]; TILE], h: &[f32]) -> [V; TILE] {
    let b = b.map(|b| &b.as_chunks::<LANES>().0[..h.len()]);
    // SAFETY: the caller has the instruction set; every chunk has sixteen values.
    unsafe {
        let mut sums = [V::splat(0.0); TILE];
        for (index, h) in h.iter().enumerate() {
            let h = V::splat(*h);
            for (sum, b) in sums.iter_mut().zip(b) {
                *sum = V::load(b[index].as_ptr()).multiply_add(h, *sum);
            }
        }
        sums
    }
}

/// Writes one strip of a row: `y + scale sum`.
///
/// # Safety
/// As [`Arithmetic`](crate::vector::Arithmetic).
#[inline(always)]
unsafe fn add_strip<V: Vector>(task: &Expand<'_>, row: usize, strip: usize, scale: f32, sum: V) {
    let start = row * task.outputs + strip * LANES;
    let len = LANES.min(task.outputs - strip * LANES);
    // SAFETY: no other task writes these values, as the field states; the caller has the instruction set.
    unsafe {
        let z = task.z.slice(start, len);
        let y = load_some::<V>(task.y.map_or(&*z, |y| &y[start..start + len]));
        store_some(sum.multiply_add(V::splat(scale), y), z);
    }
}
