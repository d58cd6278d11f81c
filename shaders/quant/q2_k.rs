//! Q2_K: 256 values in 84 bytes (2.625 bits a value): 16 groups of 16, each with a 4-bit scale and a 4-bit minimum.
//!
//! | bytes  | content                                                                                       |
//! |--------|-----------------------------------------------------------------------------------------------|
//! | 0..16  | group `g`: scale in the low nibble, minimum in the high                                       |
//! | 16..80 | `q`: 32 bytes for each half of 128 values; value `32 s + j` of the half in bits `2s` of byte `j` |
//! | 80..82 | `d`, f16, unit of the scales                                                                  |
//! | 82..84 | `dmin`, f16, unit of the minima                                                               |
//!
//! `value = (d * scale) * q - dmin * minimum`

use super::{BlockFormat, scale_at};

/// 256 values in 84 bytes.
pub struct Q2K;

impl BlockFormat for Q2K {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 84;
    const GGML_ID: u32 = 10;
    const NAME: &'static str = "Q2_K";

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let (scales, quants) = (&block[..16], &block[16..80]);
        let d = scale_at(block, 80);
        let dmin = scale_at(block, 82);
        for (group, out) in out[..256].chunks_exact_mut(16).enumerate() {
            let scale = d * f32::from(scales[group] & 15);
            let minimum = dmin * f32::from(scales[group] >> 4);
            let (half, shift, start) = (group / 8, group % 8 / 2 * 2, group % 2 * 16);
            let bytes = &quants[half * 32 + start..][..16];
            for (out, &byte) in out.iter_mut().zip(bytes) {
                *out = scale * f32::from((byte >> shift) & 3) - minimum;
            }
        }
    }
}
