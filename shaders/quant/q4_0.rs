//! Q4_0: 32 values in 18 bytes (4.5 bits a value), symmetric around zero.
//!
//! | bytes | content                                                                         |
//! |-------|---------------------------------------------------------------------------------|
//! | 0..2  | scale `d`, f16                                                                  |
//! | 2..18 | `q`: value `i` in the low nibble of byte `i`, value `i + 16` in the high nibble |
//!
//! `value = d * (q - 8)`

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm256_cvtepi32_ps, _mm256_mul_ps, _mm256_set1_epi32, _mm256_sub_epi32};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::block::BlockFormat;
use super::integer::{IntegerBlock, IntegerLayout};
use super::pack::{Packing, Ranges, put_half, put_nibbles};
use super::unpack::{half_at, nibbles, scale_at};

/// 32 values in 18 bytes.
pub struct Q4_0;

impl BlockFormat for Q4_0 {
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 18;
    const GGML_ID: u32 = 2;
    const NAME: &'static str = "Q4_0";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::new(4, 8, 32));
    const PACKING: Packing = Packing::Integers(Ranges::codes(0, 15));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let d = scale_at(block, 0);
        let (low, high) = out.split_at_mut(16);
        for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block[2..18]) {
            *low = d * (i32::from(byte & 15) - 8) as f32;
            *high = d * (i32::from(byte >> 4) - 8) as f32;
        }
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        nibbles(&block[2..18], &mut out.codes);
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 0, integers.unit);
        put_nibbles(&integers.codes, &mut block[2..18]);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            let d = avx2::scale_at(block, 0);
            let value = |q| _mm256_mul_ps(d, _mm256_cvtepi32_ps(_mm256_sub_epi32(q, _mm256_set1_epi32(8))));
            let (first, third) = avx2::nibbles_of_8(&block[2..]);
            let (second, fourth) = avx2::nibbles_of_8(&block[10..]);
            for (eight, q) in [first, second, third, fourth].into_iter().enumerate() {
                sink.take(eight, value(q));
            }
        }
    }
}
