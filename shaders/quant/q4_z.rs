//! Q4_Z: 32 values in 19 bytes (4.75 bits a value), with a zero point.
//!
//! | bytes | content                                                                         |
//! |-------|---------------------------------------------------------------------------------|
//! | 0..2  | scale `d`, f16                                                                  |
//! | 2     | `z` in the low nibble: the code that represents zero. The high nibble is unused |
//! | 3..19 | `q`: value `i` in the low nibble of byte `i`, value `i + 16` in the high nibble |
//!
//! `value = d * (q - z)`. The integer is exact, so a value is rounded at most once, and never with a finite `d`.
//!
//! GGUF files have no such type: Q4_1 has a minimum in float16, which would round `-d * z`. It holds weights of Hugging
//! Face directories, whose scales and zero points belong to groups of inputs or to rows: each block of 32 values has a copy.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm256_cvtepi32_ps, _mm256_mul_ps, _mm256_set1_epi32, _mm256_sub_epi32};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::block::BlockFormat;
use super::integer::{IntegerBlock, IntegerLayout};
use super::unpack::{half_at, nibbles, scale_at};

/// 32 values in 19 bytes.
pub struct Q4Z;

impl BlockFormat for Q4Z {
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 19;
    const GGML_ID: u32 = 0xc0e1_0004;
    const IS_IN_GGUF: bool = false;
    const NAME: &'static str = "Q4_Z";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::new(4, 8, 32).with_zero_points());

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let (d, zero) = (scale_at(block, 0), zero_code(block));
        let (low, high) = out.split_at_mut(16);
        for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block[3..19]) {
            *low = d * (i32::from(byte & 15) - zero) as f32;
            *high = d * (i32::from(byte >> 4) - zero) as f32;
        }
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        out.zero_point = (block[2] & 15) as i8 - 8;
        nibbles(&block[3..19], &mut out.codes);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            let (d, zero) = (avx2::scale_at(block, 0), _mm256_set1_epi32(zero_code(block)));
            let value = |q| _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_sub_epi32(q, zero)));
            let (first, third) = avx2::nibbles_of_8(&block[3..]);
            let (second, fourth) = avx2::nibbles_of_8(&block[11..]);
            for (eight, q) in [first, second, third, fourth].into_iter().enumerate() {
                sink.take(eight, value(q));
            }
        }
    }
}

/// The code that represents zero.
#[inline(always)]
fn zero_code(block: &[u8]) -> i32 {
    i32::from(block[2] & 15)
}
