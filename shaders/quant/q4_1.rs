//! Q4_1: 32 values in 20 bytes (5 bits a value), with a minimum.
//!
//! | bytes | content                                                                         |
//! |-------|---------------------------------------------------------------------------------|
//! | 0..2  | scale `d`, f16                                                                  |
//! | 2..4  | minimum `m`, f16                                                                |
//! | 4..20 | `q`: value `i` in the low nibble of byte `i`, value `i + 16` in the high nibble |
//!
//! `value = d * q + m`

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm256_add_ps, _mm256_cvtepi32_ps, _mm256_mul_ps};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::block::BlockFormat;
use super::integer::{IntegerBlock, IntegerLayout};
use super::pack::{Packing, Ranges, put_half, put_nibbles};
use super::unpack::{half_at, nibbles, scale_at};

/// 32 values in 20 bytes.
pub struct Q4_1;

impl BlockFormat for Q4_1 {
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 20;
    const GGML_ID: u32 = 3;
    const NAME: &'static str = "Q4_1";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::new(4, 0, 32).with_minimum());
    const PACKING: Packing = Packing::Integers(Ranges::codes(0, 15));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let d = scale_at(block, 0);
        let m = scale_at(block, 2);
        let (low, high) = out.split_at_mut(16);
        for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block[4..20]) {
            *low = d * f32::from(byte & 15) + m;
            *high = d * f32::from(byte >> 4) + m;
        }
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        out.minimum_unit = half_at(block, 2);
        nibbles(&block[4..20], &mut out.codes);
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 0, integers.unit);
        put_half(block, 2, integers.minimum_unit);
        put_nibbles(&integers.codes, &mut block[4..20]);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            let (d, m) = (avx2::scale_at(block, 0), avx2::scale_at(block, 2));
            let value = |q| _mm256_add_ps(_mm256_mul_ps(d, _mm256_cvtepi32_ps(q)), m);
            let (first, third) = avx2::nibbles_of_8(&block[4..]);
            let (second, fourth) = avx2::nibbles_of_8(&block[12..]);
            for (eight, q) in [first, second, third, fourth].into_iter().enumerate() {
                sink.take(eight, value(q));
            }
        }
    }
}
