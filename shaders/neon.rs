//! Instructions of aarch64 that Rust has no stable function for: conversions of float16, and products of bytes.

use std::arch::aarch64::{float32x4_t, int8x16_t, int32x4_t, uint16x4_t, vld1_u16, vst1q_f32};
use std::arch::asm;

/// Converts four float16 to float32, exactly.
#[inline(always)]
#[must_use]
pub fn upconvert_four(halves: uint16x4_t) -> float32x4_t {
    let values;
    // SAFETY: every aarch64 CPU has the instruction, which only writes its result.
    unsafe {
        asm!(
            "fcvtl {values:v}.4s, {halves:v}.4h",
            values = lateout(vreg) values,
            halves = in(vreg) halves,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    values
}

/// Converts as many little-endian float16 as `out` is long, exactly; a multiple of four.
#[inline(always)]
pub fn upconvert(halves: &[[u8; 2]], out: &mut [f32]) {
    for (halves, out) in halves.as_chunks::<4>().0.iter().zip(out.as_chunks_mut::<4>().0) {
        // SAFETY: both are four values, and NEON is part of every aarch64 CPU.
        unsafe { vst1q_f32(out.as_mut_ptr(), upconvert_four(vld1_u16(halves.as_ptr().cast()))) };
    }
}

/// Adds to each lane of `sums` the dot product of its four bytes in `a` and the four bytes of lane `LANE` of `b`.
///
/// # Safety
/// The function is inlined into one with the feature `dotprod`, which the CPU must support.
#[inline(always)]
#[must_use]
pub unsafe fn add_dot<const LANE: u32>(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the caller guarantees the CPU feature; the instruction only changes `sums`.
    unsafe {
        asm!(
            "sdot {sums:v}.4s, {a:v}.16b, {b:v}.4b[{lane}]",
            sums = inlateout(vreg) sums,
            a = in(vreg) a,
            b = in(vreg) b,
            lane = const LANE,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// Adds to `sums` the product of two matrices: `sums[2 i + j] += sum_k a[8 i + k] * b[8 j + k]` for `i` and `j` below 2 and
/// `k` below 8.
///
/// # Safety
/// The function is inlined into one with the feature `i8mm`, which the CPU must support.
#[inline(always)]
#[must_use]
pub unsafe fn add_matrix_product(mut sums: int32x4_t, a: int8x16_t, b: int8x16_t) -> int32x4_t {
    // SAFETY: the caller guarantees the CPU feature; the instruction only changes `sums`.
    unsafe {
        asm!(
            "smmla {sums:v}.4s, {a:v}.16b, {b:v}.16b",
            sums = inlateout(vreg) sums,
            a = in(vreg) a,
            b = in(vreg) b,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}
