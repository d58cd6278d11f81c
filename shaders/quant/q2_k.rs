//! Q2_K: 256 values in 84 bytes (2.625 bits a value): 16 groups of 16, each with a 4-bit scale and a 4-bit minimum.
//!
//! | bytes  | content                                                                                          |
//! |--------|--------------------------------------------------------------------------------------------------|
//! | 0..16  | group `g`: scale in the low nibble, minimum in the high                                          |
//! | 16..80 | `q`: 32 bytes for each half of 128 values; value `32 s + j` of the half in bits `2s` of byte `j` |
//! | 80..82 | `d`, f16, unit of the scales                                                                     |
//! | 82..84 | `dmin`, f16, unit of the minima                                                                  |
//!
//! `value = (d * scale) * q - dmin * minimum`

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm256_mul_ps, _mm256_set1_ps, _mm256_sub_ps};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::block::BlockFormat;
use super::integer::{IntegerBlock, IntegerLayout};
use super::pack::{Packing, Ranges, put_half, put_quarters};
use super::unpack::{half_at, scale_at};

/// 256 values in 84 bytes.
pub struct Q2K;

impl BlockFormat for Q2K {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 84;
    const GGML_ID: u32 = 10;
    const NAME: &'static str = "Q2_K";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::new(2, 0, 16).with_group_scales().with_minimum());
    const PACKING: Packing = Packing::Integers(Ranges::codes(0, 3).scales(0, 15).minima(15));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let (scales, quants) = (&block[..16], &block[16..80]);
        let d = scale_at(block, 80);
        let dmin = scale_at(block, 82);
        for (group, out) in out[..256].chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(scales[group] & 15);
            let minimum = dmin * f32::from(scales[group] >> 4);
            let (half, shift, start) = (group / 8, group % 8 / 2 * 2, group % 2 * 16);
            let bytes = &quants[half * 32 + start..][..16];
            for (out, &byte) in out.iter_mut().zip(bytes) {
                *out = scale * f32::from((byte >> shift) & 3) - minimum;
            }
        }
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 80);
        out.minimum_unit = -half_at(block, 82);
        for ((scale, minimum), &byte) in out.scales.iter_mut().zip(&mut out.minima).zip(&block[..16]) {
            *scale = (byte & 15) as i8;
            *minimum = (byte >> 4) as i8;
        }
        for (half, codes) in out.codes.chunks_exact_mut(128).enumerate() {
            for (quarter, codes) in codes.chunks_exact_mut(32).enumerate() {
                for (code, &byte) in codes.iter_mut().zip(&block[16 + half * 32..][..32]) {
                    *code = (byte >> (quarter * 2)) & 3;
                }
            }
        }
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 80, integers.unit);
        put_half(block, 82, -integers.minimum_unit);
        for ((byte, &scale), &minimum) in block[..16].iter_mut().zip(&integers.scales).zip(&integers.minima) {
            *byte = scale as u8 | (minimum as u8) << 4;
        }
        for (bytes, codes) in block[16..80].chunks_exact_mut(32).zip(integers.codes.chunks_exact(128)) {
            put_quarters(codes, bytes);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            let (d, dmin) = (avx2::one_scale_at(block, 80), avx2::one_scale_at(block, 82));
            let (mut scales, mut minima) = ([0.0; 16], [0.0; 16]);
            for ((scale, minimum), &byte) in scales.iter_mut().zip(&mut minima).zip(&block[..16]) {
                *scale = d * f32::from(byte & 15);
                *minimum = dmin * f32::from(byte >> 4);
            }
            for half in 0..2 {
                let bytes = avx2::load_32(&block[16 + half * 32..]);
                let quarters = [
                    avx2::bits::<0>(bytes, 3),
                    avx2::bits::<2>(bytes, 3),
                    avx2::bits::<4>(bytes, 3),
                    avx2::bits::<6>(bytes, 3),
                ];
                for (quarter, q) in quarters.into_iter().enumerate() {
                    for (eight, q) in avx2::unsigned_to_f32(q).into_iter().enumerate() {
                        let group = half * 8 + quarter * 2 + eight / 2;
                        let scale = _mm256_set1_ps(scales[group]);
                        let minimum = _mm256_set1_ps(minima[group]);
                        sink.take(half * 16 + quarter * 4 + eight, _mm256_sub_ps(_mm256_mul_ps(scale, q), minimum));
                    }
                }
            }
        }
    }
}
