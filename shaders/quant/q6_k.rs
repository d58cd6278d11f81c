//! Q6_K: 256 values in 210 bytes (6.5625 bits a value): 16 groups of 16, each with a signed 8-bit scale.
//!
//! | bytes    | content                                                                                                  |
//! |----------|----------------------------------------------------------------------------------------------------------|
//! | 0..128   | low 4 bits: 64 bytes for each half of 128 values; value `64 s + j` of the half in nibble `s` of byte `j` |
//! | 128..192 | upper 2 bits: 32 bytes for each half; value `32 s + j` of the half in bits `2s` of byte `j`              |
//! | 192..208 | scales, i8 each                                                                                          |
//! | 208..210 | `d`, f16                                                                                                 |
//!
//! `value = (d * scale) * (q - 32)`

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    _mm256_mul_ps, _mm256_or_si256, _mm256_set1_epi8, _mm256_set1_ps, _mm256_slli_epi16, _mm256_sub_epi8,
};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::block::BlockFormat;
use super::integer::{IntegerBlock, IntegerLayout};
use super::pack::{Packing, Ranges, put_half, put_quarters};
use super::unpack::{half_at, scale_at};

/// 256 values in 210 bytes.
pub struct Q6K;

impl BlockFormat for Q6K {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 210;
    const GGML_ID: u32 = 14;
    const NAME: &'static str = "Q6_K";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::new(6, 32, 16).with_group_scales());
    const PACKING: Packing = Packing::Integers(Ranges::codes(0, 63).scales(-128, 127));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let (low_bits, high_bits) = (&block[..128], &block[128..192]);
        let scales = scales(block, scale_at(block, 208));
        for (group, out) in out[..256].chunks_exact_mut(16).enumerate() {
            let (half, within) = (group / 8, group % 8);
            let low_bits = &low_bits[half * 64 + within % 4 * 16..][..16];
            let high_bits = &high_bits[half * 32 + within % 2 * 16..][..16];
            let (low_shift, high_shift) = (within / 4 * 4, within / 2 * 2);
            for ((out, &low), &high) in out.iter_mut().zip(low_bits).zip(high_bits) {
                let q = (low >> low_shift) & 15 | ((high >> high_shift) & 3) << 4;
                *out = scales[group] * (i32::from(q) - 32) as f32;
            }
        }
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 208);
        for (scale, &byte) in out.scales.iter_mut().zip(&block[192..208]) {
            *scale = byte as i8;
        }
        for (half, codes) in out.codes.chunks_exact_mut(128).enumerate() {
            for (quarter, codes) in codes.chunks_exact_mut(32).enumerate() {
                let low_bits = &block[half * 64 + quarter % 2 * 32..][..32];
                let high_bits = &block[128 + half * 32..][..32];
                let (low_shift, high_shift) = (quarter / 2 * 4, quarter * 2);
                for ((code, &low), &high) in codes.iter_mut().zip(low_bits).zip(high_bits) {
                    *code = (low >> low_shift) & 15 | ((high >> high_shift) & 3) << 4;
                }
            }
        }
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 208, integers.unit);
        for (byte, &scale) in block[192..208].iter_mut().zip(&integers.scales) {
            *byte = scale as u8;
        }
        for (half, codes) in integers.codes.chunks_exact(128).enumerate() {
            let (low, high) = codes.split_at(64);
            for ((byte, low), high) in block[half * 64..][..64].iter_mut().zip(low).zip(high) {
                *byte = low & 15 | (high & 15) << 4;
            }
            let upper: [u8; 128] = std::array::from_fn(|value| codes[value] >> 4);
            put_quarters(&upper, &mut block[128 + half * 32..][..32]);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        // SAFETY: the caller guarantees the CPU features.
        let scales = unsafe { scales(block, avx2::one_scale_at(block, 208)) };
        for quarter in 0..8 {
            // SAFETY: the caller guarantees the CPU features.
            unsafe { decode_quarter_avx2(block, &scales, quarter, sink) };
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_four_rows_avx2<S: avx2::Sink>(blocks: [&[u8]; 4], [a, b, c, d]: [&mut S; 4]) {
        // SAFETY: the caller guarantees the CPU features.
        let scales = unsafe {
            [
                scales(blocks[0], avx2::one_scale_at(blocks[0], 208)),
                scales(blocks[1], avx2::one_scale_at(blocks[1], 208)),
                scales(blocks[2], avx2::one_scale_at(blocks[2], 208)),
                scales(blocks[3], avx2::one_scale_at(blocks[3], 208)),
            ]
        };
        for quarter in 0..8 {
            // SAFETY: the caller guarantees the CPU features.
            unsafe {
                decode_quarter_avx2(blocks[0], &scales[0], quarter, a);
                decode_quarter_avx2(blocks[1], &scales[1], quarter, b);
                decode_quarter_avx2(blocks[2], &scales[2], quarter, c);
                decode_quarter_avx2(blocks[3], &scales[3], quarter, d);
            }
        }
    }
}

/// The scale of each group, multiplied by its unit `d`.
#[inline(always)]
fn scales(block: &[u8], d: f32) -> [f32; 16] {
    let mut scales = [0.0; 16];
    for (scale, &byte) in scales.iter_mut().zip(&block[192..208]) {
        *scale = d * f32::from(byte as i8);
    }
    scales
}

/// Decodes 32 values: quarter `quarter % 4` of half `quarter / 4`.
///
/// # Safety
/// The CPU must support AVX2, FMA and F16C.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn decode_quarter_avx2(block: &[u8], scales: &[f32; 16], quarter: usize, sink: &mut impl avx2::Sink) {
    // SAFETY: the caller guarantees the CPU features.
    unsafe {
        let low = avx2::load_32(&block[quarter / 4 * 64 + quarter % 2 * 32..]);
        let high = avx2::load_32(&block[128 + quarter / 4 * 32..]);
        let (low, high) = match quarter % 4 {
            0 => (avx2::bits::<0>(low, 15), avx2::bits::<0>(high, 3)),
            1 => (avx2::bits::<0>(low, 15), avx2::bits::<2>(high, 3)),
            2 => (avx2::bits::<4>(low, 15), avx2::bits::<4>(high, 3)),
            _ => (avx2::bits::<4>(low, 15), avx2::bits::<6>(high, 3)),
        };
        let q = _mm256_or_si256(low, _mm256_slli_epi16::<4>(high));
        let q = avx2::signed_to_f32(_mm256_sub_epi8(q, _mm256_set1_epi8(32)));
        for (eight, q) in q.into_iter().enumerate() {
            let scale = _mm256_set1_ps(scales[quarter * 2 + eight / 2]);
            sink.take(quarter * 4 + eight, _mm256_mul_ps(scale, q));
        }
    }
}
