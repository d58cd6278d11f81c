//! Q5_1: 32 values in 24 bytes (6 bits a value), with a minimum.
//!
//! | bytes | content                                                                                |
//! |-------|----------------------------------------------------------------------------------------|
//! | 0..2  | scale `d`, f16                                                                         |
//! | 2..4  | minimum `m`, f16                                                                       |
//! | 4..8  | bit `i` of this u32 is bit 4 of `q[i]`                                                 |
//! | 8..24 | low 4 bits: value `i` in the low nibble of byte `i`, value `i + 16` in the high nibble |
//!
//! `value = d * q + m`

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm256_add_ps, _mm256_mul_ps};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::block::BlockFormat;
use super::integer::{IntegerBlock, IntegerLayout};
use super::pack::{Packing, Ranges, put_fifth_bits, put_half, put_nibbles};
use super::unpack::{add_fifth_bits, half_at, nibbles, scale_at};

/// 32 values in 24 bytes.
pub struct Q5_1;

impl BlockFormat for Q5_1 {
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 24;
    const GGML_ID: u32 = 7;
    const NAME: &'static str = "Q5_1";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::new(5, 0, 32).with_minimum());
    const PACKING: Packing = Packing::Integers(Ranges::codes(0, 31));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let d = scale_at(block, 0);
        let m = scale_at(block, 2);
        let fifth = u32::from_le_bytes([block[4], block[5], block[6], block[7]]);
        let (low, high) = out.split_at_mut(16);
        for (i, ((low, high), &byte)) in low.iter_mut().zip(high).zip(&block[8..24]).enumerate() {
            let low_q = u32::from(byte & 15) | ((fifth >> i) & 1) << 4;
            let high_q = u32::from(byte >> 4) | ((fifth >> (i + 16)) & 1) << 4;
            *low = d * low_q as i32 as f32 + m;
            *high = d * high_q as i32 as f32 + m;
        }
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        out.minimum_unit = half_at(block, 2);
        nibbles(&block[8..24], &mut out.codes);
        add_fifth_bits(&block[4..8], &mut out.codes);
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 0, integers.unit);
        put_half(block, 2, integers.minimum_unit);
        put_nibbles(&integers.codes, &mut block[8..24]);
        put_fifth_bits(&integers.codes, &mut block[4..8]);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            let (d, m) = (avx2::scale_at(block, 0), avx2::scale_at(block, 2));
            let q = avx2::unsigned_to_f32(avx2::five_bits(&block[4..8], &block[8..24]));
            for (eight, q) in q.into_iter().enumerate() {
                sink.take(eight, _mm256_add_ps(_mm256_mul_ps(d, q), m));
            }
        }
    }
}
