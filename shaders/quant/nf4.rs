//! NF4: 64 values in 36 bytes (4.5 bits a value): 4-bit codes of a codebook of numbers, with a float32 scale.
//!
//! | bytes  | content                                                                              |
//! |--------|--------------------------------------------------------------------------------------|
//! | 0..4   | scale, f32                                                                           |
//! | 4..36  | codes: byte 4 + i holds value i in its low bits and value i + 16 in its high bits, for i in 0..16 and 32..48 |
//!
//! `value = CODEBOOK[code] * scale`, rounded once. The numbers of the codebook have equally many values of a normal distribution
//! near them; 0 and both ends are exact.
//!
//! GGUF files have no such type. It holds weights that bitsandbytes has quantized.
//!
//! Source: Dettmers et al. 2023, "QLoRA", section 3; the numbers are those of the package `bitsandbytes` (`get_4bit_type`).

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256, __m256i, _mm256_and_si256, _mm256_blendv_ps, _mm256_castsi256_ps, _mm256_cvtepu8_epi32, _mm256_loadu_ps,
    _mm256_mul_ps, _mm256_permutevar8x32_ps, _mm256_set1_epi32, _mm256_set1_ps, _mm256_slli_epi32, _mm256_srli_epi32,
};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::block::BlockFormat;

/// 64 values in 36 bytes.
pub struct Nf4;

/// The number of each code.
pub const CODEBOOK: [f32; 16] = [
    -1.0,
    -0.696_192_8,
    -0.525_073_05,
    -0.394_917_5,
    -0.284_441_38,
    -0.184_773_43,
    -0.091_050_036,
    0.0,
    0.079_580_3,
    0.160_930_2,
    0.246_112_3,
    0.337_915_24,
    0.440_709_83,
    0.562_617,
    0.722_956_84,
    1.0,
];

/// Values of a half of a block, whose codes are in 16 bytes.
const HALF: usize = 32;

impl BlockFormat for Nf4 {
    const BLOCK_LEN: usize = 64;
    const BLOCK_BYTES: usize = 36;
    const SCALE_BYTES: usize = 4;
    const GGML_ID: u32 = 0xf4e0_0064;
    const IS_IN_GGUF: bool = false;
    const NAME: &'static str = "NF4";

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let scale = scale_of(block);
        for (out, codes) in out[..64].chunks_exact_mut(HALF).zip(block[4..36].chunks_exact(HALF / 2)) {
            let (low, high) = out.split_at_mut(HALF / 2);
            for ((low, high), code) in low.iter_mut().zip(high).zip(codes) {
                *low = CODEBOOK[usize::from(code & 15)] * scale;
                *high = CODEBOOK[usize::from(code >> 4)] * scale;
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            let scale = _mm256_set1_ps(scale_of(block));
            for half in 0..2 {
                let codes = &block[4 + 16 * half..20 + 16 * half];
                let eights = [0, 8].map(|start| _mm256_cvtepu8_epi32(avx2::load_8(&codes[start..])));
                for (index, eight) in eights.into_iter().enumerate() {
                    sink.take(4 * half + index, _mm256_mul_ps(look_up(eight), scale));
                }
                for (index, eight) in eights.into_iter().enumerate() {
                    sink.take(4 * half + 2 + index, _mm256_mul_ps(look_up(_mm256_srli_epi32::<4>(eight)), scale));
                }
            }
        }
    }
}

#[inline(always)]
fn scale_of(block: &[u8]) -> f32 {
    f32::from_le_bytes([block[0], block[1], block[2], block[3]])
}

/// The numbers of eight codes, of which the lowest four bits count.
///
/// # Safety
/// The CPU must support AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn look_up(codes: __m256i) -> __m256 {
    // SAFETY: the caller guarantees the CPU features. The codebook has two runs of eight numbers.
    unsafe {
        let [low, high] = [0, 8].map(|first| _mm256_loadu_ps(CODEBOOK[first..].as_ptr()));
        let [low, high] = [low, high].map(|numbers| _mm256_permutevar8x32_ps(numbers, codes));
        // The sign says whether a code is 8 or above.
        let is_high = _mm256_slli_epi32::<28>(_mm256_and_si256(codes, _mm256_set1_epi32(8)));
        _mm256_blendv_ps(low, high, _mm256_castsi256_ps(is_high))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_byte_holds_values_that_are_16_apart() {
        let mut block = [0x77; 36];
        block[..4].copy_from_slice(&2.0_f32.to_le_bytes());
        (block[4], block[20]) = (0xf0, 0x2e);
        let mut values = [f32::NAN; 64];
        Nf4::decode(&block, &mut values);
        let expected = [(0, -2.0), (16, 2.0), (32, 2.0 * CODEBOOK[14]), (48, 2.0 * CODEBOOK[2])];
        for (index, value) in values.iter().enumerate() {
            let expected = expected.iter().find(|(at, _)| *at == index).map_or(0.0, |(_, value)| *value);
            assert_eq!(*value, expected, "value {index}");
        }
    }

    #[test]
    fn the_numbers_rise_and_are_nearly_symmetric() {
        assert!(CODEBOOK.is_sorted());
        assert_eq!((CODEBOOK[0], CODEBOOK[7], CODEBOOK[15]), (-1.0, 0.0, 1.0));
    }
}
