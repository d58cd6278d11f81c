//! Q4_K: 256 values in 144 bytes (4.5 bits a value): 8 groups of 32, each with a 6-bit scale and a 6-bit minimum.
//!
//! | bytes   | content                                                                                           |
//! |---------|---------------------------------------------------------------------------------------------------|
//! | 0..16   | scales and minima, see [`six_bit_scales`]                                                         |
//! | 16..144 | `q`: 32 bytes for each pair of groups, the first group in the low nibbles, the second in the high |
//!
//! `value = (d * scale) * q - dmin * minimum`

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::__m256i;

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::block::BlockFormat;
use super::integer::{IntegerBlock, IntegerLayout};
use super::pack::{Packing, Ranges};
use super::six_bit_scales::{self, PairedCodes};

/// 256 values in 144 bytes.
pub struct Q4K;

impl BlockFormat for Q4K {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 144;
    const GGML_ID: u32 = 12;
    const NAME: &'static str = "Q4_K";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::new(4, 0, 32).with_group_scales().with_minimum());
    const PACKING: Packing = Packing::Integers(Ranges::codes(0, 15).scales(0, 63).minima(63));

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

impl PairedCodes for Q4K {
    #[inline(always)]
    fn pair_codes(block: &[u8], pair: usize, codes: &mut [u8]) {
        let (low, high) = codes[..64].split_at_mut(32);
        for ((low, high), &byte) in low.iter_mut().zip(high).zip(&block[16 + 32 * pair..][..32]) {
            *low = byte & 15;
            *high = byte >> 4;
        }
    }

    fn put_pair_codes(codes: &[u8], pair: usize, block: &mut [u8]) {
        let (low, high) = codes[..64].split_at(32);
        for ((byte, low), high) in block[16 + 32 * pair..][..32].iter_mut().zip(low).zip(high) {
            *byte = low | high << 4;
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn pair_codes_avx2(block: &[u8], pair: usize) -> [__m256i; 2] {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            let bytes = avx2::load_32(&block[16 + 32 * pair..]);
            [avx2::bits::<0>(bytes, 15), avx2::bits::<4>(bytes, 15)]
        }
    }
}
