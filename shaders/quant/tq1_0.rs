//! TQ1_0: 256 values in 54 bytes (1.6875 bits a value): each value is -1, 0 or 1, and five of them share a byte.
//!
//! | bytes  | content                                                                                        |
//! |--------|------------------------------------------------------------------------------------------------|
//! | 0..32  | five digits in base 3 in each byte: value `32 n + i` is digit `n` of byte `i`                  |
//! | 32..48 | likewise: value `160 + 16 n + i` is digit `n` of byte `32 + i`                                 |
//! | 48..52 | four digits: value `240 + 4 n + i` is digit `n` of byte `48 + i`                               |
//! | 52..54 | `d`, f16                                                                                       |
//!
//! `value = d * (digit - 1)`
//!
//! A byte is a fraction of 256, rounded up. So digit `n` is the integer part of `3 fraction(3^n byte / 256)`.

use super::block::BlockFormat;
use super::integer::{IntegerBlock, IntegerLayout};
use super::pack::{Packing, Ranges, put_half};
use super::unpack::{half_at, scale_at, scaled_codes};

/// 256 values in 54 bytes.
pub struct Tq1_0;

impl BlockFormat for Tq1_0 {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 54;
    const GGML_ID: u32 = 34;
    const NAME: &'static str = "TQ1_0";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::new(2, 1, 256));
    const PACKING: Packing = Packing::Integers(Ranges::codes(0, 2));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let mut codes = [0; 256];
        digits(block, &mut codes);
        scaled_codes(&codes, scale_at(block, 52), out);
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 52);
        digits(block, &mut out.codes);
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 52, integers.unit);
        for (index, byte) in block[..52].iter_mut().enumerate() {
            let (first, step) = match index {
                0..32 => (index, 32),
                32..48 => (160 + index - 32, 16),
                _ => (240 + index - 48, 4),
            };
            let digits = if index < 48 { 5 } else { 4 };
            let number =
                (0..digits).fold(0, |number, digit| 3 * number + u16::from(integers.codes[first + digit * step]));
            // A missing fifth digit is 0. The fraction of 243 becomes one of 256, rounded up.
            let number = if digits == 4 { 3 * number } else { number };
            *byte = (number * 256).div_ceil(243) as u8;
        }
    }
}

/// The digits of a block, in the order of its values.
#[inline(always)]
fn digits(block: &[u8], codes: &mut [u8; 256]) {
    for (bytes, first, count) in [(&block[..32], 0, 5), (&block[32..48], 160, 5), (&block[48..52], 240, 4)] {
        let mut power = 1_u8;
        for codes in codes[first..first + count * bytes.len()].chunks_exact_mut(bytes.len()) {
            for (code, byte) in codes.iter_mut().zip(bytes) {
                *code = ((u16::from(byte.wrapping_mul(power)) * 3) >> 8) as u8;
            }
            power = power.wrapping_mul(3);
        }
    }
}
