//! TQ2_0: 256 values in 66 bytes (2.0625 bits a value): each value is -1, 0 or 1.
//!
//! | bytes  | content                                                                                                    |
//! |--------|------------------------------------------------------------------------------------------------------------|
//! | 0..64  | codes: 32 bytes for each half of 128 values; value `32 s + i` of the half in bits `2 s` of byte `i`        |
//! | 64..66 | `d`, f16                                                                                                   |
//!
//! `value = d * (code - 1)`. A code of 3, which no encoder writes, is 2.

use super::block::BlockFormat;
use super::integer::{IntegerBlock, IntegerLayout};
use super::pack::{Packing, Ranges, put_half, put_quarters};
use super::unpack::{half_at, scale_at, scaled_codes};

/// 256 values in 66 bytes.
pub struct Tq2_0;

impl BlockFormat for Tq2_0 {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 66;
    const GGML_ID: u32 = 35;
    const NAME: &'static str = "TQ2_0";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::new(2, 1, 256));
    const PACKING: Packing = Packing::Integers(Ranges::codes(0, 2));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let mut codes = [0; 256];
        unpack(block, &mut codes);
        scaled_codes(&codes, scale_at(block, 64), out);
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 64);
        unpack(block, &mut out.codes);
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 64, integers.unit);
        for (bytes, codes) in block.chunks_exact_mut(32).zip(integers.codes.chunks_exact(128)) {
            put_quarters(codes, bytes);
        }
    }
}

#[inline(always)]
fn unpack(block: &[u8], codes: &mut [u8; 256]) {
    for (part, codes) in codes.chunks_exact_mut(32).enumerate() {
        for (code, byte) in codes.iter_mut().zip(&block[part / 4 * 32..][..32]) {
            *code = byte >> (part % 4 * 2) & 3;
        }
    }
}
