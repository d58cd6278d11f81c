//! F8_E4M3: 32 values in 36 bytes (9 bits a value): 8-bit floating point with a float32 scale.
//!
//! | bytes | content                                                                                       |
//! |-------|-----------------------------------------------------------------------------------------------|
//! | 0..4  | scale, f32                                                                                    |
//! | 4..36 | codes: a sign bit, 4 exponent bits with bias 7, 3 fraction bits; 0x7f and 0xff are not numbers |
//!
//! `value = code * scale`, rounded once. There are no infinities. Codes that are not numbers give NaN.
//!
//! GGUF files have no such type. It holds weights of Hugging Face directories, whose scales belong to blocks of the matrix,
//! to rows or to the whole matrix: each block of 32 values has a copy.
//!
//! Source: Micikevicius et al. 2022, "FP8 Formats for Deep Learning", table 1.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{
    __m256i, __m512i, _mm256_and_si256, _mm256_castsi256_si128, _mm256_cmpeq_epi8, _mm256_cvtepi8_epi16,
    _mm256_cvtph_ps, _mm256_extracti128_si256, _mm256_movemask_epi8, _mm256_mul_ps, _mm256_set1_epi8,
    _mm256_set1_epi16, _mm256_set1_ps, _mm256_slli_epi16, _mm512_and_si512, _mm512_castsi256_si512,
    _mm512_castsi512_ps, _mm512_inserti64x4, _mm512_loadu_si512, _mm512_mask_blend_ps, _mm512_mul_ps,
    _mm512_permutex2var_epi8, _mm512_permutexvar_epi8, _mm512_set1_epi8, _mm512_set1_epi32, _mm512_set1_ps,
    _mm512_slli_epi32, _mm512_ternarylogic_epi32, _mm512_unpackhi_epi8, _mm512_unpacklo_epi8,
};

use super::block::BlockFormat;
#[cfg(target_arch = "x86_64")]
use super::block::decode_in_memory;
#[cfg(target_arch = "x86_64")]
use super::{avx2, avx512};

/// 32 values in 36 bytes.
pub struct F8E4M3;

/// The code of a number that is none, without its sign.
const NOT_A_NUMBER: u8 = 0x7f;

/// The factor of a code whose bits are moved to their position in a float32: the exponents have other biases.
const SINGLE_BIAS: f32 = f32::from_bits((127 + 120) << 23);

/// Likewise for a float16.
#[cfg(target_arch = "x86_64")]
const HALF_BIAS: f32 = 256.0;

impl BlockFormat for F8E4M3 {
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 36;
    const SCALE_BYTES: usize = 4;
    const GGML_ID: u32 = 0xf8e4_0003;
    const IS_IN_GGUF: bool = false;
    const NAME: &'static str = "F8_E4M3";
    const DECODES_PAIRS: bool = true;

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let scale = scale_of(block);
        for (out, code) in out[..32].iter_mut().zip(&block[4..36]) {
            *out = value(*code) * scale;
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        let scale = scale_of(block) * HALF_BIAS;
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            let codes = avx2::load_32(&block[4..]);
            // Weights of models take neither way: the product of the scale and the bias would round to infinity.
            if !scale.is_finite() || has_not_a_number(codes) {
                return decode_in_memory::<Self>(block, sink);
            }
            let scale = _mm256_set1_ps(scale);
            let halves = [_mm256_castsi256_si128(codes), _mm256_extracti128_si256::<1>(codes)];
            for (sixteen, codes) in halves.into_iter().enumerate() {
                // The sign is extended to all upper bits. After the shift all but one are removed.
                let moved = _mm256_slli_epi16::<7>(_mm256_cvtepi8_epi16(codes));
                let half = _mm256_and_si256(moved, _mm256_set1_epi16(0xbf80_u16 as i16));
                let first = _mm256_cvtph_ps(_mm256_castsi256_si128(half));
                let second = _mm256_cvtph_ps(_mm256_extracti128_si256::<1>(half));
                sink.take(2 * sixteen, _mm256_mul_ps(first, scale));
                sink.take(2 * sixteen + 1, _mm256_mul_ps(second, scale));
            }
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_pair_avx512(blocks: [&[u8]; 2], sink: &mut impl avx512::PairSink) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            let first = _mm512_castsi256_si512(avx2::load_32(&blocks[0][4..]));
            let codes = _mm512_inserti64x4::<1>(first, avx2::load_32(&blocks[1][4..]));
            let (low, high) = bfloat16_of(_mm512_permutexvar_epi8(load(&PAIR_ORDER), codes));
            let second = _mm512_set1_ps(scale_of(blocks[1]));
            let scales = _mm512_mask_blend_ps(0xff00, _mm512_set1_ps(scale_of(blocks[0])), second);
            let upper_half = _mm512_set1_epi32(0xffff_0000_u32 as i32);
            // A BF16 value is the upper half of a float32.
            let first = _mm512_unpacklo_epi8(low, high);
            sink.take(0, _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(first)), scales));
            sink.take(1, _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(first, upper_half)), scales));
            let second = _mm512_unpackhi_epi8(low, high);
            sink.take(2, _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32::<16>(second)), scales));
            sink.take(3, _mm512_mul_ps(_mm512_castsi512_ps(_mm512_and_si512(second, upper_half)), scales));
        }
    }
}

/// The low and the high byte of every number without a sign, as a BF16 value, which has enough bits.
#[cfg(target_arch = "x86_64")]
static BFLOAT16_BYTES: [[[u8; 64]; 2]; 2] = {
    let mut bytes = [[[0; 64]; 2]; 2];
    let mut code = 0;
    while code < 128 {
        let bits = value(code as u8).to_bits().to_le_bytes();
        bytes[0][code / 64][code % 64] = bits[2];
        bytes[1][code / 64][code % 64] = bits[3];
        code += 1;
    }
    bytes
};

/// For each byte of a register, which code of two blocks it receives. After the bytes of BF16 values are interleaved within
/// quarters of the register, the even values of its low half are columns 0 to 7 of both blocks, the odd ones columns 8 to 15. The high
/// half has the other columns.
#[cfg(target_arch = "x86_64")]
static PAIR_ORDER: [u8; 64] = {
    let mut order = [0; 64];
    let mut byte = 0;
    while byte < 64 {
        let (quarter, within) = (byte / 16, byte % 16);
        let lane = 4 * quarter + within % 8 / 2;
        let eight = within / 8 * 2 + within % 2;
        order[byte] = (lane / 8 * 32 + eight * 8 + lane % 8) as u8;
        byte += 1;
    }
    order
};

/// The low and the high bytes of 64 codes as BF16 values.
///
/// # Safety
/// The CPU must support AVX-512 (F, BW, VBMI).
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn bfloat16_of(codes: __m512i) -> (__m512i, __m512i) {
    const OR_OF_FIRST_AND_MASKED_SECOND: i32 = 0xf8;
    let [low, high] = &BFLOAT16_BYTES;
    // SAFETY: the caller guarantees the CPU features.
    unsafe {
        // The permutation ignores the upper bit of an index, which is the sign.
        let low = _mm512_permutex2var_epi8(load(&low[0]), codes, load(&low[1]));
        let high = _mm512_permutex2var_epi8(load(&high[0]), codes, load(&high[1]));
        let sign = _mm512_set1_epi8(i8::MIN);
        (low, _mm512_ternarylogic_epi32::<OR_OF_FIRST_AND_MASKED_SECOND>(high, codes, sign))
    }
}

/// Loads 64 bytes.
///
/// # Safety
/// The CPU must support AVX-512.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn load(bytes: &[u8; 64]) -> __m512i {
    // SAFETY: the load reads the 64 bytes; the caller guarantees the CPU features.
    unsafe { _mm512_loadu_si512(bytes.as_ptr().cast()) }
}

#[inline(always)]
fn scale_of(block: &[u8]) -> f32 {
    f32::from_le_bytes([block[0], block[1], block[2], block[3]])
}

/// The number that a code represents. Without branches, so that loops over it vectorise.
#[inline(always)]
const fn value(code: u8) -> f32 {
    let magnitude = code & NOT_A_NUMBER;
    let sign = ((code ^ magnitude) as u32) << 24;
    let number = (f32::from_bits((magnitude as u32) << 20) * SINGLE_BIAS).to_bits() | sign;
    f32::from_bits(if magnitude == NOT_A_NUMBER { f32::NAN.to_bits() } else { number })
}

/// Whether one of the codes is not a number.
///
/// # Safety
/// The CPU must support AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn has_not_a_number(codes: __m256i) -> bool {
    // SAFETY: the caller guarantees the CPU features.
    unsafe {
        let pattern = _mm256_set1_epi8(NOT_A_NUMBER as i8);
        _mm256_movemask_epi8(_mm256_cmpeq_epi8(_mm256_and_si256(codes, pattern), pattern)) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What a code represents, from its fields.
    fn from_fields(code: u8) -> f64 {
        let (exponent, fraction) = (i32::from(code >> 3 & 15), f64::from(code & 7));
        let magnitude =
            if exponent == 0 { fraction / 512.0 } else { (1.0 + fraction / 8.0) * 2_f64.powi(exponent - 7) };
        if code & 0x80 == 0 { magnitude } else { -magnitude }
    }

    #[test]
    fn every_code_is_the_number_of_its_fields() {
        for code in (0..=u8::MAX).filter(|code| code & NOT_A_NUMBER != NOT_A_NUMBER) {
            let (found, expected) = (f64::from(value(code)), from_fields(code));
            assert_eq!((found, found.is_sign_negative()), (expected, code & 0x80 != 0), "{code:#04x}");
        }
        assert_eq!(value(0x7e), 448.0);
        assert!(value(0x7f).is_nan() && value(0xff).is_nan());
    }
}
