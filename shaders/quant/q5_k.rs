//! Q5_K: 256 values in 176 bytes (5.5 bits a value): 8 groups of 32, each with a 6-bit scale and a 6-bit minimum.
//!
//! | bytes   | content                                                                                              |
//! |---------|------------------------------------------------------------------------------------------------------|
//! | 0..2    | `d`, f16, unit of the scales                                                                         |
//! | 2..4    | `dmin`, f16, unit of the minima                                                                      |
//! | 4..16   | scales and minima, packed as in Q4_K                                                                 |
//! | 16..48  | value `j` of group `g` has its fifth bit in bit `g` of byte `j`                                      |
//! | 48..176 | low 4 bits: 32 bytes for each pair of groups, the first in the low nibbles, the second in the high   |
//!
//! `value = (d * scale) * q - dmin * minimum`

use super::q4_k::scale_and_minimum;
use super::{BlockFormat, scale_at};

/// 256 values in 176 bytes.
pub struct Q5K;

impl BlockFormat for Q5K {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 176;
    const GGML_ID: u32 = 13;
    const NAME: &'static str = "Q5_K";

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let (scales, fifth_bits, quants) = (&block[4..16], &block[16..48], &block[48..176]);
        let d = scale_at(block, 0);
        let dmin = scale_at(block, 2);
        for (group, out) in out[..256].chunks_exact_mut(32).enumerate() {
            let (scale, minimum) = scale_and_minimum(scales, group);
            let (scale, minimum) = (d * scale, dmin * minimum);
            let low_bits = &quants[group / 2 * 32..][..32];
            for ((out, &low), &fifth) in out.iter_mut().zip(low_bits).zip(fifth_bits) {
                let q = (low >> (group % 2 * 4)) & 15 | ((fifth >> group) & 1) << 4;
                *out = scale * f32::from(q) - minimum;
            }
        }
    }
}
