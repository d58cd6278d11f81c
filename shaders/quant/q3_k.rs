//! Q3_K: 256 values in 110 bytes (3.4375 bits a value): 16 groups of 16, each with a signed 6-bit scale.
//!
//! | bytes    | content                                                                                              |
//! |----------|------------------------------------------------------------------------------------------------------|
//! | 0..32    | value `32 i + j` has its third bit, inverted, in bit `i` of byte `j`                                 |
//! | 32..96   | low 2 bits: 32 bytes for each half of 128 values; value `32 s + j` of the half in bits `2s` of byte `j` |
//! | 96..108  | scales: low nibbles of groups 0..8 and high of 8..16 in bytes 0..8; upper 2 bits of group `g` in bits `2 (g / 4)` of byte `8 + g % 4` |
//! | 108..110 | `d`, f16                                                                                             |
//!
//! `value = (d * (scale - 32)) * q`, where `q` is the low two bits, less 4 when the third bit is absent.

use super::{BlockFormat, scale_at};

/// 256 values in 110 bytes.
pub struct Q3K;

impl BlockFormat for Q3K {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 110;
    const GGML_ID: u32 = 11;
    const NAME: &'static str = "Q3_K";

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let (third_bits, quants, scales) = (&block[..32], &block[32..96], &block[96..108]);
        let d = scale_at(block, 108);
        for (group, out) in out[..256].chunks_exact_mut(16).enumerate() {
            let low = (scales[group % 8] >> (group / 8 * 4)) & 15;
            let high = (scales[8 + group % 4] >> (group / 4 * 2)) & 3;
            let scale = d * (i32::from(low | high << 4) - 32) as f32;
            let (half, shift, start) = (group / 8, group % 8 / 2 * 2, group % 2 * 16);
            let low_bits = &quants[half * 32 + start..][..16];
            let third_bits = &third_bits[start..][..16];
            for ((out, &low), &third) in out.iter_mut().zip(low_bits).zip(third_bits) {
                let q = i32::from((low >> shift) & 3) + i32::from((third >> (group / 2)) & 1) * 4 - 4;
                *out = scale * q as f32;
            }
        }
    }
}
