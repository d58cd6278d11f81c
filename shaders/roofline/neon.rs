//! NEON, and the integer products of its extensions.

use std::arch::aarch64::{
    float32x4_t, int8x16_t, int32x4_t, vaddq_s8, vdupq_n_f32, vdupq_n_s8, vdupq_n_s32, vdupq_n_u64, veorq_u64,
    vfmaq_f32, vget_low_s8, vgetq_lane_u64, vld1q_u64, vmull_high_s8, vmull_s8, vpadalq_s16, vpaddq_s16,
};
use std::hint::black_box;

use super::sizes::{READ_BYTES, ROUNDS};
use crate::neon::{add_dot, add_matrix_product};
use crate::prefetch::prefetch;

const REGISTER_BYTES: usize = size_of::<int8x16_t>();

/// The exclusive or of all words.
#[target_feature(enable = "neon")]
pub(super) fn read(blocks: &[[u8; READ_BYTES]], prefetch_ahead: usize) -> u64 {
    const CACHE_LINE: usize = 64;
    let mut sums = [vdupq_n_u64(0); 8];
    for block in blocks {
        for (index, register) in block.as_chunks::<REGISTER_BYTES>().0.iter().enumerate() {
            if (index * REGISTER_BYTES).is_multiple_of(CACHE_LINE) {
                prefetch(register.as_ptr().wrapping_add(prefetch_ahead));
            }
            // SAFETY: the block has the bytes of the register.
            sums[index % 8] = veorq_u64(sums[index % 8], unsafe { vld1q_u64(register.as_ptr().cast()) });
        }
    }
    let words = sums.map(|sum| vgetq_lane_u64::<0>(sum) ^ vgetq_lane_u64::<1>(sum));
    words.into_iter().fold(0, |sum, word| sum ^ word)
}

/// Registers in flight, enough to hide the latency of an operation.
const CHAINS: usize = 16;

/// Runs an operation on registers, and returns how often.
#[inline(always)]
fn repeat<T: Copy>(start: T, operation: impl Fn(T) -> T) -> u64 {
    let mut sums = [start; CHAINS];
    for _ in 0..ROUNDS {
        sums = sums.map(&operation);
    }
    black_box(sums);
    ROUNDS * CHAINS as u64
}

/// Dot products of what every CPU has: products of bytes, and sums of pairs of them.
#[target_feature(enable = "neon")]
pub(super) fn dot_products() -> u64 {
    let values: [int8x16_t; CHAINS] = black_box(std::array::from_fn(|index| vdupq_n_s8(index as i8)));
    let (one, mut codes, mut sums) = (vdupq_n_s8(1), black_box(vdupq_n_s8(1)), [vdupq_n_s32(0); CHAINS]);
    for _ in 0..ROUNDS {
        // The codes change in each round; otherwise the compiler would compute the products only once.
        codes = vaddq_s8(codes, one);
        for (sum, values) in sums.iter_mut().zip(values) {
            let low = vmull_s8(vget_low_s8(codes), vget_low_s8(values));
            *sum = vpadalq_s16(*sum, vpaddq_s16(low, vmull_high_s8(codes, values)));
        }
    }
    black_box(sums);
    2 * ROUNDS * (CHAINS * REGISTER_BYTES) as u64
}

/// Dot products in one instruction.
#[target_feature(enable = "neon,dotprod")]
pub(super) fn dot_products_of_four() -> u64 {
    let (codes, values) = black_box((vdupq_n_s8(3), vdupq_n_s8(-5)));
    // SAFETY: this function enables the CPU feature.
    let operation = |sum: int32x4_t| unsafe { add_dot::<0>(sum, codes, values) };
    2 * repeat(vdupq_n_s32(0), operation) * REGISTER_BYTES as u64
}

/// Products of matrices in one instruction: twice as many.
#[target_feature(enable = "neon,i8mm")]
pub(super) fn matrix_products() -> u64 {
    let (codes, values) = black_box((vdupq_n_s8(3), vdupq_n_s8(-5)));
    // SAFETY: this function enables the CPU feature.
    let operation = |sum: int32x4_t| unsafe { add_matrix_product(sum, codes, values) };
    2 * repeat(vdupq_n_s32(0), operation) * 2 * REGISTER_BYTES as u64
}

/// Multiplies and adds in float32; returns the number of operations.
#[target_feature(enable = "neon")]
pub(super) fn multiply_adds() -> u64 {
    let (factor, term) = black_box((vdupq_n_f32(0.5), vdupq_n_f32(1.0)));
    let operation = |sum: float32x4_t| vfmaq_f32(term, sum, factor);
    2 * repeat(vdupq_n_f32(0.0), operation) * (REGISTER_BYTES / size_of::<f32>()) as u64
}
