//! Q5_K: 256 values in 176 bytes (5.5 bits a value): 8 groups of 32, each with a 6-bit scale and a 6-bit minimum.
//!
//! | bytes   | content                                                                                            |
//! |---------|----------------------------------------------------------------------------------------------------|
//! | 0..16   | scales and minima, see [`six_bit_scales`]                                                          |
//! | 16..48  | value `j` of group `g` has its fifth bit in bit `g` of byte `j`                                    |
//! | 48..176 | low 4 bits: 32 bytes for each pair of groups, the first in the low nibbles, the second in the high |
//!
//! `value = (d * scale) * q - dmin * minimum`

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{__m256i, _mm256_and_si256, _mm256_cmpeq_epi8, _mm256_or_si256, _mm256_set1_epi8};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::block::BlockFormat;
use super::integer::{IntegerBlock, IntegerLayout};
use super::pack::{Packing, Ranges};
use super::six_bit_scales::{self, PairedCodes};

/// 256 values in 176 bytes.
pub struct Q5K;

impl BlockFormat for Q5K {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 176;
    const GGML_ID: u32 = 13;
    const NAME: &'static str = "Q5_K";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::new(5, 0, 32).with_group_scales().with_minimum());
    const PACKING: Packing = Packing::Integers(Ranges::codes(0, 31).scales(0, 63).minima(63));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        six_bit_scales::decode::<Self>(block, out);
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        six_bit_scales::integers::<Self>(block, out);
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        six_bit_scales::pack::<Self>(integers, block);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe { six_bit_scales::decode_eights_avx2::<Self>(block, sink) };
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_four_rows_avx2<S: avx2::Sink>(blocks: [&[u8]; 4], sinks: [&mut S; 4]) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe { six_bit_scales::decode_four_rows_avx2::<Self, S>(blocks, sinks) };
    }
}

impl PairedCodes for Q5K {
    #[inline(always)]
    fn pair_codes(block: &[u8], pair: usize, codes: &mut [u8]) {
        let (fifth_bits, low_bits) = (&block[16..48], &block[48 + 32 * pair..][..32]);
        let (low, high) = codes[..64].split_at_mut(32);
        for (((low, high), &byte), &fifth) in low.iter_mut().zip(high).zip(low_bits).zip(fifth_bits) {
            *low = byte & 15 | (fifth >> (2 * pair) & 1) << 4;
            *high = byte >> 4 | (fifth >> (2 * pair + 1) & 1) << 4;
        }
    }

    fn put_pair_codes(codes: &[u8], pair: usize, block: &mut [u8]) {
        let (low, high) = codes[..64].split_at(32);
        for (index, (low, high)) in low.iter().zip(high).enumerate() {
            block[48 + 32 * pair + index] = low & 15 | (high & 15) << 4;
            let group_bits = 3 << (2 * pair);
            block[16 + index] = block[16 + index] & !group_bits | (low >> 4 | high >> 4 << 1) << (2 * pair);
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pair_codes_avx2(block: &[u8], pair: usize) -> [__m256i; 2] {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            let bytes = avx2::load_32(&block[48 + 32 * pair..]);
            let fifth = avx2::load_32(&block[16..]);
            [
                with_fifth_bit(avx2::bits::<0>(bytes, 15), fifth, 2 * pair),
                with_fifth_bit(avx2::bits::<4>(bytes, 15), fifth, 2 * pair + 1),
            ]
        }
    }
}

/// Adds bit `group` of each byte of `fifth` to the 4-bit codes `low`, as bit 4.
///
/// # Safety
/// The CPU must support AVX2.
#[cfg(target_arch = "x86_64")]
#[inline(always)]
unsafe fn with_fifth_bit(low: __m256i, fifth: __m256i, group: usize) -> __m256i {
    // SAFETY: the caller guarantees the CPU features.
    unsafe {
        let mask = _mm256_set1_epi8((1_u8 << group) as i8);
        let is_set = _mm256_cmpeq_epi8(_mm256_and_si256(fifth, mask), mask);
        _mm256_or_si256(low, _mm256_and_si256(is_set, _mm256_set1_epi8(16)))
    }
}
