//! Q2_0: 64 values in 18 bytes (2.25 bits a value).
//!
//! | bytes | content                                                    |
//! |-------|------------------------------------------------------------|
//! | 0..2  | scale `d`, f16                                             |
//! | 2..18 | value `4 i + j` has its code in bits `2 j` of byte `i`     |
//!
//! `value = d * (code - 1)`

use super::block::BlockFormat;
use super::integer::{IntegerBlock, IntegerLayout};
use super::pack::{Packing, Ranges, put_half};
use super::unpack::{half_at, scale_at, scaled_codes};

/// 64 values in 18 bytes.
pub struct Q2_0;

impl BlockFormat for Q2_0 {
    const BLOCK_LEN: usize = 64;
    const BLOCK_BYTES: usize = 18;
    const GGML_ID: u32 = 42;
    const NAME: &'static str = "Q2_0";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::new(2, 1, 64));
    const PACKING: Packing = Packing::Integers(Ranges::codes(0, 3));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let mut codes = [0; 64];
        unpack(block, &mut codes);
        scaled_codes(&codes, scale_at(block, 0), out);
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        unpack(block, &mut out.codes);
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 0, integers.unit);
        for (byte, codes) in block[2..18].iter_mut().zip(integers.codes.as_chunks::<4>().0) {
            *byte = codes.iter().rev().fold(0, |byte, code| byte << 2 | code);
        }
    }
}

#[inline(always)]
fn unpack(block: &[u8], codes: &mut [u8]) {
    for (codes, byte) in codes.as_chunks_mut::<4>().0.iter_mut().zip(&block[2..18]) {
        *codes = [byte & 3, byte >> 2 & 3, byte >> 4 & 3, byte >> 6];
    }
}
