//! Dot products of codes and activations with NEON and its extensions. All ways give the same integers.

use std::arch::aarch64::{
    int8x16_t, int32x4_t, vdupq_laneq_s32, vdupq_n_s32, vget_low_s8, vld1q_s8, vmull_high_s8, vmull_s8, vpadalq_s16,
    vpaddq_s16, vreinterpretq_s8_s32, vreinterpretq_s8_s64, vreinterpretq_s32_s8, vreinterpretq_s32_s64,
    vreinterpretq_s64_s8, vreinterpretq_s64_s32, vshlq_n_s32, vzip1q_s32, vzip1q_s64, vzip2q_s32, vzip2q_s64,
};

use crate::cpu::ActivationBits;
use crate::matmul::integer::activations::{BLOCK_LEN, Block, LOW_BITS};
use crate::matmul::integer::packed::QUADS;
use crate::matmul::integer::terms::{Terms, Work};
use crate::neon;

/// Columns of a half, the bytes of a register.
const HALF: usize = BLOCK_LEN / 2;

/// Quads of a half.
const HALF_QUADS: usize = QUADS / 2;

/// A way to compute dot products.
///
/// Safety: every function must be inlined into a function that is compiled for the extension, and the CPU must support
/// it.
#[allow(clippy::missing_safety_doc)]
pub(super) trait Products {
    /// Implements [`Registers::call`](crate::matmul::integer::registers::Registers::call).
    unsafe fn call<T: Terms>(work: impl Work);

    /// Implements [`Registers::add_dots`](crate::matmul::integer::registers::Registers::add_dots); codes are signed bytes.
    unsafe fn add_dots(
        dots: &mut [[int32x4_t; 2]],
        codes: &[int32x4_t; QUADS],
        activations: *const Block,
        bits: ActivationBits,
    );
}

/// The activations of a half.
///
/// # Safety
/// The pointer must be valid.
#[inline(always)]
unsafe fn load(plane: &[i8; BLOCK_LEN], half: usize) -> int8x16_t {
    // SAFETY: a half of the plane is 16 bytes.
    unsafe { vld1q_s8(plane.as_ptr().add(half * HALF)) }
}

/// Sums times a step of the high plane.
#[inline(always)]
fn scale_up(sums: int32x4_t) -> int32x4_t {
    // SAFETY: NEON is part of every aarch64 CPU.
    unsafe { vshlq_n_s32::<{ LOW_BITS as i32 }>(sums) }
}

/// Products of bytes that are added in pairs: what every CPU has.
pub(super) struct Multiplies;

/// The dot products of four bytes of `dotprod`.
pub(super) struct Dots;

/// The products of matrices of two rows and eight columns of `i8mm`.
pub(super) struct Matrices;

/// A way to compute the dot products of one row.
///
/// Safety: as [`Products`].
trait RowProducts {
    /// As [`Products::call`].
    unsafe fn call<T: Terms>(work: impl Work);

    /// Adds to each lane of `sums` the dot product of its four codes and the four values of lane `QUAD`.
    unsafe fn add_quad<const QUAD: usize>(sums: int32x4_t, codes: int8x16_t, values: int8x16_t) -> int32x4_t;
}

impl RowProducts for Multiplies {
    #[target_feature(enable = "neon")]
    #[inline(never)]
    unsafe fn call<T: Terms>(work: impl Work) {
        // SAFETY: this function is compiled for the extension; the caller guarantees the CPU feature.
        unsafe { work.run::<T>() }
    }

    #[inline(always)]
    unsafe fn add_quad<const QUAD: usize>(sums: int32x4_t, codes: int8x16_t, values: int8x16_t) -> int32x4_t {
        // SAFETY: NEON is part of every aarch64 CPU.
        unsafe {
            let values = vreinterpretq_s32_s8(values);
            // The lane is `i32` in this function and `usize` here, so each lane is written out.
            let values = vreinterpretq_s8_s32(match QUAD {
                0 => vdupq_laneq_s32::<0>(values),
                1 => vdupq_laneq_s32::<1>(values),
                2 => vdupq_laneq_s32::<2>(values),
                _ => vdupq_laneq_s32::<3>(values),
            });
            // The sum of two products fits 16 signed bits, because a value is at least -127.
            let (low, high) = (vmull_s8(vget_low_s8(codes), vget_low_s8(values)), vmull_high_s8(codes, values));
            vpadalq_s16(sums, vpaddq_s16(low, high))
        }
    }
}

impl RowProducts for Dots {
    #[target_feature(enable = "neon,dotprod")]
    #[inline(never)]
    unsafe fn call<T: Terms>(work: impl Work) {
        // SAFETY: this function is compiled for the extension; the caller guarantees the CPU feature.
        unsafe { work.run::<T>() }
    }

    #[inline(always)]
    unsafe fn add_quad<const QUAD: usize>(sums: int32x4_t, codes: int8x16_t, values: int8x16_t) -> int32x4_t {
        // SAFETY: the caller guarantees the CPU feature.
        unsafe {
            match QUAD {
                0 => neon::add_dot::<0>(sums, codes, values),
                1 => neon::add_dot::<1>(sums, codes, values),
                2 => neon::add_dot::<2>(sums, codes, values),
                _ => neon::add_dot::<3>(sums, codes, values),
            }
        }
    }
}

impl<R: RowProducts> Products for R {
    #[inline(always)]
    unsafe fn call<T: Terms>(work: impl Work) {
        // SAFETY: the caller guarantees the same.
        unsafe { <R as RowProducts>::call::<T>(work) }
    }

    #[inline(always)]
    unsafe fn add_dots(
        dots: &mut [[int32x4_t; 2]],
        codes: &[int32x4_t; QUADS],
        activations: *const Block,
        bits: ActivationBits,
    ) {
        // SAFETY: the caller guarantees one row of activations for each pair of sums, and the CPU feature.
        unsafe {
            for (row, dots) in dots.iter_mut().enumerate() {
                let block = &*activations.add(row);
                for (half, dot) in dots.iter_mut().enumerate() {
                    *dot = add_half::<R>(*dot, codes, load(&block.high, half), half);
                }
            }
            if bits == ActivationBits::Fifteen {
                for (row, dots) in dots.iter_mut().enumerate() {
                    let block = &*activations.add(row);
                    for (half, dot) in dots.iter_mut().enumerate() {
                        *dot = add_half::<R>(scale_up(*dot), codes, load(&block.low, half), half);
                    }
                }
            }
        }
    }
}

/// Adds the dot products of a half.
///
/// # Safety
/// As [`Products`].
#[inline(always)]
unsafe fn add_half<R: RowProducts>(
    sums: int32x4_t,
    codes: &[int32x4_t; QUADS],
    values: int8x16_t,
    half: usize,
) -> int32x4_t {
    // SAFETY: the caller guarantees the CPU feature.
    unsafe {
        let codes = |quad: usize| vreinterpretq_s8_s32(codes[half * HALF_QUADS + quad]);
        let sums = R::add_quad::<0>(sums, codes(0), values);
        let sums = R::add_quad::<1>(sums, codes(1), values);
        let sums = R::add_quad::<2>(sums, codes(2), values);
        R::add_quad::<3>(sums, codes(3), values)
    }
}

impl Products for Matrices {
    #[target_feature(enable = "neon,dotprod,i8mm")]
    #[inline(never)]
    unsafe fn call<T: Terms>(work: impl Work) {
        // SAFETY: this function is compiled for the extension; the caller guarantees the CPU feature.
        unsafe { work.run::<T>() }
    }

    #[inline(always)]
    unsafe fn add_dots(
        dots: &mut [[int32x4_t; 2]],
        codes: &[int32x4_t; QUADS],
        activations: *const Block,
        bits: ActivationBits,
    ) {
        // A row without a partner would leave half of a matrix empty.
        let (pairs, last) = dots.as_chunks_mut::<2>();
        let odd = 2 * pairs.len();
        // SAFETY: the caller guarantees one row of activations for each pair of sums, and the CPU features.
        unsafe {
            for (pair, dots) in pairs.iter_mut().enumerate() {
                let blocks = [&*activations.add(2 * pair), &*activations.add(2 * pair + 1)];
                for half in 0..2 {
                    let mut sums = add_half_of_pair([vdupq_n_s32(0); 2], codes, blocks.map(|block| &block.high), half);
                    if bits == ActivationBits::Fifteen {
                        sums = add_half_of_pair(sums.map(scale_up), codes, blocks.map(|block| &block.low), half);
                    }
                    // From two outputs of both rows to all outputs of each row.
                    let [first, second] = sums.map(|sums| vreinterpretq_s64_s32(sums));
                    dots[0][half] = vreinterpretq_s32_s64(vzip1q_s64(first, second));
                    dots[1][half] = vreinterpretq_s32_s64(vzip2q_s64(first, second));
                }
            }
            Dots::add_dots(last, codes, activations.add(odd), bits);
        }
    }
}

/// Adds the dot products of a half of two rows: first those of two outputs and both rows, then those of the other two.
///
/// # Safety
/// As [`Products`].
#[inline(always)]
unsafe fn add_half_of_pair(
    mut sums: [int32x4_t; 2],
    codes: &[int32x4_t; QUADS],
    planes: [&[i8; BLOCK_LEN]; 2],
    half: usize,
) -> [int32x4_t; 2] {
    // SAFETY: the caller guarantees the CPU feature.
    unsafe {
        let [first, second] = planes.map(|plane| vreinterpretq_s64_s8(load(plane, half)));
        // Eight columns of both rows.
        for (eight, values) in [vzip1q_s64(first, second), vzip2q_s64(first, second)].into_iter().enumerate() {
            let values = vreinterpretq_s8_s64(values);
            let quad = half * HALF_QUADS + 2 * eight;
            let (low, high) = (codes[quad], codes[quad + 1]);
            // Eight columns of two outputs.
            for (sums, codes) in sums.iter_mut().zip([vzip1q_s32(low, high), vzip2q_s32(low, high)]) {
                *sums = neon::add_matrix_product(*sums, values, vreinterpretq_s8_s32(codes));
            }
        }
    }
    sums
}
