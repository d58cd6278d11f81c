//! Q1_0: 128 values in 18 bytes (1.125 bits a value): each value is the scale or its negative.
//!
//! | bytes | content                                       |
//! |-------|-----------------------------------------------|
//! | 0..2  | scale `d`, f16                                |
//! | 2..18 | value `8 i + j` has its code in bit `j` of byte `i` |
//!
//! `value = d * CODEBOOK[code]`

use super::block::BlockFormat;
use super::integer::{Codebook, IntegerBlock, IntegerLayout};
use super::pack::{Packing, Ranges, put_half};
use super::unpack::{half_at, scale_at};

/// 128 values in 18 bytes.
pub struct Q1_0;

/// The sign of each code.
const CODEBOOK: Codebook = [-1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

impl BlockFormat for Q1_0 {
    const BLOCK_LEN: usize = 128;
    const BLOCK_BYTES: usize = 18;
    const GGML_ID: u32 = 41;
    const NAME: &'static str = "Q1_0";
    const INTEGERS: Option<IntegerLayout> =
        Some(IntegerLayout { bits: 1, ..IntegerLayout::with_codebook(CODEBOOK, 1, 128) });
    const PACKING: Packing = Packing::Integers(Ranges::codes(0, 1));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let d = scale_at(block, 0);
        for (out, byte) in out[..128].as_chunks_mut::<8>().0.iter_mut().zip(&block[2..18]) {
            for (bit, out) in out.iter_mut().enumerate() {
                *out = if byte >> bit & 1 == 1 { d } else { -d };
            }
        }
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        for (codes, byte) in out.codes.as_chunks_mut::<8>().0.iter_mut().zip(&block[2..18]) {
            for (bit, code) in codes.iter_mut().enumerate() {
                *code = byte >> bit & 1;
            }
        }
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 0, integers.unit);
        for (byte, codes) in block[2..18].iter_mut().zip(integers.codes.as_chunks::<8>().0) {
            *byte = codes.iter().rev().fold(0, |byte, code| byte << 1 | code);
        }
    }
}
