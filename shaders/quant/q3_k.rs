//! Q3_K: 256 values in 110 bytes (3.4375 bits a value): 16 groups of 16, each with a signed 6-bit scale.
//!
//! | bytes    | content                                                                                                                               |
//! |----------|---------------------------------------------------------------------------------------------------------------------------------------|
//! | 0..32    | value `32 i + j` has its third bit in bit `i` of byte `j`                                                                             |
//! | 32..96   | low 2 bits: 32 bytes for each half of 128 values; value `32 s + j` of the half in bits `2s` of byte `j`                               |
//! | 96..108  | scales: low nibbles of groups 0..8 and high of 8..16 in bytes 0..8; upper 2 bits of group `g` in bits `2 (g / 4)` of byte `8 + g % 4` |
//! | 108..110 | `d`, f16                                                                                                                              |
//!
//! `value = (d * (scale - 32)) * q`, where `q` is the low two bits, minus 4 when the third bit is 0.

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

/// 256 values in 110 bytes.
pub struct Q3K;

impl BlockFormat for Q3K {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 110;
    const GGML_ID: u32 = 11;
    const NAME: &'static str = "Q3_K";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::new(3, 4, 16).with_group_scales());
    const PACKING: Packing = Packing::Integers(Ranges::codes(0, 7).scales(-32, 31));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let (third_bits, quants) = (&block[..32], &block[32..96]);
        let scales = scales(block, scale_at(block, 108));
        for (group, out) in out[..256].chunks_exact_mut(16).enumerate() {
            let (half, shift, start) = (group / 8, group % 8 / 2 * 2, group % 2 * 16);
            let low_bits = &quants[half * 32 + start..][..16];
            let third_bits = &third_bits[start..][..16];
            for ((out, &low), &third) in out.iter_mut().zip(low_bits).zip(third_bits) {
                let q = i32::from((low >> shift) & 3) + i32::from((third >> (group / 2)) & 1) * 4 - 4;
                *out = scales[group] * q as f32;
            }
        }
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 108);
        out.scales = integer_scales(block);
        for (part, codes) in out.codes.chunks_exact_mut(32).enumerate() {
            let low_bits = &block[32 + part / 4 * 32..][..32];
            for ((code, &low), &third) in codes.iter_mut().zip(low_bits).zip(&block[..32]) {
                *code = (low >> (part % 4 * 2)) & 3 | (third >> part & 1) << 2;
            }
        }
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 108, integers.unit);
        block[..32].fill(0);
        for (part, codes) in integers.codes.chunks_exact(32).enumerate() {
            for (byte, code) in block[..32].iter_mut().zip(codes) {
                *byte |= (code >> 2) << part;
            }
        }
        for (bytes, codes) in block[32..96].chunks_exact_mut(32).zip(integers.codes.chunks_exact(128)) {
            put_quarters(codes, bytes);
        }
        block[96..108].fill(0);
        for (group, &scale) in integers.scales.iter().enumerate() {
            let scale = (scale + 32) as u8;
            block[96 + group % 8] |= (scale & 15) << (group / 8 * 4);
            block[104 + group % 4] |= (scale >> 4) << (group / 4 * 2);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            let scales = scales(block, avx2::one_scale_at(block, 108));
            let third = avx2::load_32(block);
            let (first, second) = (avx2::load_32(&block[32..]), avx2::load_32(&block[64..]));
            let parts = [
                (avx2::bits::<0>(first, 3), avx2::bits::<0>(third, 1)),
                (avx2::bits::<2>(first, 3), avx2::bits::<1>(third, 1)),
                (avx2::bits::<4>(first, 3), avx2::bits::<2>(third, 1)),
                (avx2::bits::<6>(first, 3), avx2::bits::<3>(third, 1)),
                (avx2::bits::<0>(second, 3), avx2::bits::<4>(third, 1)),
                (avx2::bits::<2>(second, 3), avx2::bits::<5>(third, 1)),
                (avx2::bits::<4>(second, 3), avx2::bits::<6>(third, 1)),
                (avx2::bits::<6>(second, 3), avx2::bits::<7>(third, 1)),
            ];
            for (part, (low, third)) in parts.into_iter().enumerate() {
                let q = _mm256_or_si256(low, _mm256_slli_epi16::<2>(third));
                let q = avx2::signed_to_f32(_mm256_sub_epi8(q, _mm256_set1_epi8(4)));
                for (eight, q) in q.into_iter().enumerate() {
                    let scale = _mm256_set1_ps(scales[part * 2 + eight / 2]);
                    sink.take(part * 4 + eight, _mm256_mul_ps(scale, q));
                }
            }
        }
    }
}

/// The scale of each group, multiplied by its unit `d`.
#[inline(always)]
fn scales(block: &[u8], d: f32) -> [f32; 16] {
    let integers = integer_scales(block);
    let mut scales = [0.0; 16];
    for (scale, integer) in scales.iter_mut().zip(integers) {
        *scale = d * f32::from(integer);
    }
    scales
}

/// The scale of each group as an integer.
#[inline(always)]
fn integer_scales(block: &[u8]) -> [i8; 16] {
    let packed = &block[96..108];
    let mut scales = [0; 16];
    for (group, scale) in scales.iter_mut().enumerate() {
        let low = (packed[group % 8] >> (group / 8 * 4)) & 15;
        let high = (packed[8 + group % 4] >> (group / 4 * 2)) & 3;
        *scale = (low | high << 4) as i8 - 32;
    }
    scales
}
