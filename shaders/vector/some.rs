//! Vectors of which only the first lanes are used.

use super::lanes::{LANES, Vector};

/// At most sixteen values; zeros in the other lanes.
///
/// # Panics
/// When there are more than sixteen values.
///
/// # Safety
/// As [`Arithmetic`](super::Arithmetic).
#[inline(always)]
pub unsafe fn load_some<V: Vector>(values: &[f32]) -> V {
    let mut padded = [0.0; LANES];
    padded[..values.len()].copy_from_slice(values);
    // SAFETY: the caller has the instruction set; sixteen values.
    unsafe { V::load(padded.as_ptr()) }
}

/// Stores the first lanes.
///
/// # Panics
/// When there are more than sixteen values.
///
/// # Safety
/// As [`Arithmetic`](super::Arithmetic).
#[inline(always)]
pub unsafe fn store_some<V: Vector>(vector: V, values: &mut [f32]) {
    let mut all = [0.0; LANES];
    // SAFETY: the caller has the instruction set; sixteen values.
    unsafe { vector.store(all.as_mut_ptr()) };
    values.copy_from_slice(&all[..values.len()]);
}
