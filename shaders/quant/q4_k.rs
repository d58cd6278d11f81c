//! Q4_K: 256 values in 144 bytes (4.5 bits a value): 8 groups of 32, each with a 6-bit scale and a 6-bit minimum.
//!
//! | bytes   | content                                                                                              |
//! |---------|------------------------------------------------------------------------------------------------------|
//! | 0..2    | `d`, f16, unit of the scales                                                                         |
//! | 2..4    | `dmin`, f16, unit of the minima                                                                      |
//! | 4..16   | scales and minima, see `scales_and_minima`                                                           |
//! | 16..144 | `q`: 32 bytes for each pair of groups, the first group in the low nibbles, the second in the high    |
//!
//! `value = (d * scale) * q - dmin * minimum`

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256, _mm256_cvtepi32_ps, _mm256_mul_ps, _mm256_set1_ps, _mm256_sub_ps};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::{BlockFormat, scale_at};

/// 256 values in 144 bytes.
pub struct Q4K;

impl BlockFormat for Q4K {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 144;
    const GGML_ID: u32 = 12;
    const NAME: &'static str = "Q4_K";

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let (scales, minima) = scales_and_minima(block);
        for (pair, (out, bytes)) in out[..256].chunks_exact_mut(64).zip(block[16..144].chunks_exact(32)).enumerate() {
            let (low, high) = out.split_at_mut(32);
            for ((low, high), &byte) in low.iter_mut().zip(high).zip(bytes) {
                *low = scales[2 * pair] * f32::from(byte & 15) - minima[2 * pair];
                *high = scales[2 * pair + 1] * f32::from(byte >> 4) - minima[2 * pair + 1];
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], mut sink: impl FnMut(usize, __m256)) {
        // SAFETY: the caller has the features.
        unsafe {
            let (scales, minima) = scales_and_minima(block);
            for pair in 0..4 {
                let bytes = &block[16 + 32 * pair..][..32];
                let nibbles: [_; 4] = std::array::from_fn(|eight| avx2::nibbles_of_8(&bytes[8 * eight..]));
                let low = nibbles.map(|(low, _)| low);
                let high = nibbles.map(|(_, high)| high);
                for (group, quants) in [(2 * pair, low), (2 * pair + 1, high)] {
                    let (scale, minimum) = (_mm256_set1_ps(scales[group]), _mm256_set1_ps(minima[group]));
                    for (eight, q) in quants.into_iter().enumerate() {
                        let value = _mm256_sub_ps(_mm256_mul_ps(scale, _mm256_cvtepi32_ps(q)), minimum);
                        sink(group * 4 + eight, value);
                    }
                }
            }
        }
    }
}

/// The scale and the minimum of each group, from the start of a block, in units of float32.
///
/// Groups 0..4 have their 6-bit scale in the low bits of byte `4 + g`, and their minimum in those of byte `8 + g`.
/// Groups 4..8 have the low 4 bits in byte `8 + g` (scale in the low nibble, minimum in the high), and the upper two in
/// the two bits left over of bytes `g` (scale) and `4 + g` (minimum).
#[inline(always)]
pub(super) fn scales_and_minima(block: &[u8]) -> ([f32; 8], [f32; 8]) {
    let (d, dmin) = (scale_at(block, 0), scale_at(block, 2));
    let (mut scales, mut minima) = ([0.0; 8], [0.0; 8]);
    for group in 0..4 {
        let (first, second, third) = (block[4 + group], block[8 + group], block[12 + group]);
        scales[group] = d * f32::from(first & 63);
        minima[group] = dmin * f32::from(second & 63);
        scales[4 + group] = d * f32::from((third & 15) | (first >> 6) << 4);
        minima[4 + group] = dmin * f32::from((third >> 4) | (second >> 6) << 4);
    }
    (scales, minima)
}
