//! Q5_0: 32 values in 22 bytes (5.5 bits a value), symmetric around zero.
//!
//! | bytes | content                                                                                |
//! |-------|----------------------------------------------------------------------------------------|
//! | 0..2  | scale `d`, f16                                                                         |
//! | 2..6  | bit `i` of this u32 is bit 4 of `q[i]`                                                 |
//! | 6..22 | low 4 bits: value `i` in the low nibble of byte `i`, value `i + 16` in the high nibble |
//!
//! `value = d * (q - 16)`

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm256_mul_ps, _mm256_set1_epi8, _mm256_sub_epi8};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::block::BlockFormat;
use super::integer::{IntegerBlock, IntegerLayout};
use super::pack::{Packing, Ranges, put_fifth_bits, put_half, put_nibbles};
use super::unpack::{add_fifth_bits, half_at, nibbles, scale_at};

/// 32 values in 22 bytes.
pub struct Q5_0;

impl BlockFormat for Q5_0 {
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 22;
    const GGML_ID: u32 = 6;
    const NAME: &'static str = "Q5_0";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::new(5, 16, 32));
    const PACKING: Packing = Packing::Integers(Ranges::codes(0, 31));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let d = scale_at(block, 0);
        let fifth = u32::from_le_bytes([block[2], block[3], block[4], block[5]]);
        let (low, high) = out.split_at_mut(16);
        for (i, ((low, high), &byte)) in low.iter_mut().zip(high).zip(&block[6..22]).enumerate() {
            let low_q = u32::from(byte & 15) | ((fifth >> i) & 1) << 4;
            let high_q = u32::from(byte >> 4) | ((fifth >> (i + 16)) & 1) << 4;
            *low = d * (low_q as i32 - 16) as f32;
            *high = d * (high_q as i32 - 16) as f32;
        }
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        nibbles(&block[6..22], &mut out.codes);
        add_fifth_bits(&block[2..6], &mut out.codes);
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 0, integers.unit);
        put_nibbles(&integers.codes, &mut block[6..22]);
        put_fifth_bits(&integers.codes, &mut block[2..6]);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            let d = avx2::scale_at(block, 0);
            let q = avx2::five_bits(&block[2..6], &block[6..22]);
            let q = avx2::signed_to_f32(_mm256_sub_epi8(q, _mm256_set1_epi8(16)));
            for (eight, q) in q.into_iter().enumerate() {
                sink.take(eight, _mm256_mul_ps(d, q));
            }
        }
    }
}
