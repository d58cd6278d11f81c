//! Dot products one quad at a time, for instruction sets with instructions for it.

use super::activations::{BLOCK_LEN, Block, LOW_BITS};
use super::packed::QUADS;
use super::registers::Registers;
use crate::cpu::ActivationBits;

/// Registers with dot products of a quad.
///
/// Safety: as [`Registers`].
#[allow(clippy::missing_safety_doc)]
pub trait QuadRegisters: Registers {
    /// Adds to each lane of `sums` the dot product of the four codes of the lane, of at most `BITS` bits, and the four
    /// values. The result is exact.
    unsafe fn add_dot<const BITS: usize>(
        sums: Self::Integers,
        codes: Self::Integers,
        values: *const i8,
    ) -> Self::Integers;
}

/// Implements [`Registers::add_dots`].
///
/// The rows are interleaved quad by quad, because each row is two dependent chains of additions, and work on the other
/// rows hides their latency.
///
/// # Safety
/// As [`Registers`].
#[inline(always)]
pub(super) unsafe fn add_dots<R: QuadRegisters, const BITS: usize>(
    dots: &mut [[R::Integers; 2]],
    codes: &[R::Integers; QUADS],
    activations: *const Block,
    bits: ActivationBits,
) {
    // SAFETY: the caller guarantees one row of activations for each pair of sums, and the CPU features.
    unsafe {
        for quad in 0..QUADS / 2 {
            for (row, dots) in dots.iter_mut().enumerate() {
                add_quads::<R, BITS>(dots, codes, &(*activations.add(row)).high, quad);
            }
        }
        if bits == ActivationBits::Fifteen {
            for dot in dots.as_flattened_mut() {
                *dot = R::scale_up::<LOW_BITS>(*dot);
            }
            for quad in 0..QUADS / 2 {
                for (row, dots) in dots.iter_mut().enumerate() {
                    add_quads::<R, BITS>(dots, codes, &(*activations.add(row)).low, quad);
                }
            }
        }
    }
}

/// Adds the dot products of one quad of each half.
#[inline(always)]
unsafe fn add_quads<R: QuadRegisters, const BITS: usize>(
    dots: &mut [R::Integers; 2],
    codes: &[R::Integers; QUADS],
    plane: &[i8; BLOCK_LEN],
    quad: usize,
) {
    for (half, dot) in dots.iter_mut().enumerate() {
        let quad = half * (QUADS / 2) + quad;
        // SAFETY: eight quads are the 32 values of the plane; the caller guarantees the CPU features.
        unsafe { *dot = R::add_dot::<BITS>(*dot, codes[quad], plane.as_ptr().add(4 * quad)) };
    }
}
