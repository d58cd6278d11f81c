//! Q5_K: 256 values in 176 bytes (5.5 bits a value): 8 groups of 32, each with a 6-bit scale and a 6-bit minimum.
//!
//! | bytes   | content                                                                                              |
//! |---------|------------------------------------------------------------------------------------------------------|
//! | 0..2    | `d`, f16, unit of the scales                                                                         |
//! | 2..4    | `dmin`, f16, unit of the minima                                                                      |
//! | 4..16   | scales and minima, packed as in Q4_K                                                                 |
//! | 16..48  | value `j` of group `g` has its fifth bit in bit `g` of byte `j`                                      |
//! | 48..176 | low 4 bits: 32 bytes for each pair of groups, the first in the low nibbles, the second in the high   |
//!
//! `value = (d * scale) * q - dmin * minimum`

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_mul_ps, _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_ps,
    _mm256_sub_ps,
};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::integer::{IntegerBlock, IntegerLayout, half_at};
#[cfg(target_arch = "x86_64")]
use super::q4_k::scales_and_minima_avx2;
use super::q4_k::{integer_scales_and_minima, scales_and_minima};
use super::{BlockFormat, scale_at};

/// 256 values in 176 bytes.
pub struct Q5K;

impl BlockFormat for Q5K {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 176;
    const GGML_ID: u32 = 13;
    const NAME: &'static str = "Q5_K";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::new(5, 0, 32).with_group_scales().with_minimum());

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let (fifth_bits, quants) = (&block[16..48], &block[48..176]);
        let (scales, minima) = scales_and_minima(block, scale_at(block, 0), scale_at(block, 2));
        for (group, out) in out[..256].chunks_exact_mut(32).enumerate() {
            let low_bits = &quants[group / 2 * 32..][..32];
            for ((out, &low), &fifth) in out.iter_mut().zip(low_bits).zip(fifth_bits) {
                let q = (low >> (group % 2 * 4)) & 15 | ((fifth >> group) & 1) << 4;
                *out = scales[group] * f32::from(q) - minima[group];
            }
        }
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        out.minimum_unit = -half_at(block, 2);
        (out.scales, out.minima) = integer_scales_and_minima(block);
        let (fifth_bits, quants) = (&block[16..48], &block[48..176]);
        for (pair, (codes, bytes)) in out.codes.chunks_exact_mut(64).zip(quants.chunks_exact(32)).enumerate() {
            let (low, high) = codes.split_at_mut(32);
            for (((low, high), &byte), &fifth) in low.iter_mut().zip(high).zip(bytes).zip(fifth_bits) {
                *low = byte & 15 | (fifth >> (2 * pair) & 1) << 4;
                *high = byte >> 4 | (fifth >> (2 * pair + 1) & 1) << 4;
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        // SAFETY: the caller has the features.
        let scales = unsafe { scales_and_minima_avx2(block) };
        for pair in 0..4 {
            // SAFETY: the caller has the features.
            unsafe { decode_pair_avx2(block, &scales, pair, sink) };
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_four_rows_avx2<S: avx2::Sink>(blocks: [&[u8]; 4], [a, b, c, d]: [&mut S; 4]) {
        // SAFETY: the caller has the features.
        let scales = unsafe {
            [
                scales_and_minima_avx2(blocks[0]),
                scales_and_minima_avx2(blocks[1]),
                scales_and_minima_avx2(blocks[2]),
                scales_and_minima_avx2(blocks[3]),
            ]
        };
        for pair in 0..4 {
            // SAFETY: the caller has the features.
            unsafe {
                decode_pair_avx2(blocks[0], &scales[0], pair, a);
                decode_pair_avx2(blocks[1], &scales[1], pair, b);
                decode_pair_avx2(blocks[2], &scales[2], pair, c);
                decode_pair_avx2(blocks[3], &scales[3], pair, d);
            }
        }
    }
}

/// Decodes one pair of groups.
///
/// # Safety
/// The machine must have AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn decode_pair_avx2(
    block: &[u8],
    (scales, minima): &([f32; 8], [f32; 8]),
    pair: usize,
    sink: &mut impl avx2::Sink,
) {
    // SAFETY: the caller has the features.
    unsafe {
        let bytes = avx2::load_32(&block[48 + 32 * pair..]);
        let fifth = avx2::load_32(&block[16..]);
        for (group, low) in [(2 * pair, avx2::bits::<0>(bytes, 15)), (2 * pair + 1, avx2::bits::<4>(bytes, 15))] {
            let present = _mm256_set1_epi8((1_u8 << group) as i8);
            let fifth = _mm256_cmpeq_epi8(_mm256_and_si256(fifth, present), present);
            let q = _mm256_or_si256(low, _mm256_and_si256(fifth, _mm256_set1_epi8(16)));
            let (scale, minimum) = (_mm256_set1_ps(scales[group]), _mm256_set1_ps(minima[group]));
            for (eight, q) in avx2::unsigned_to_f32(q).into_iter().enumerate() {
                sink.take(group * 4 + eight, _mm256_sub_ps(_mm256_mul_ps(scale, q), minimum));
            }
        }
    }
}
