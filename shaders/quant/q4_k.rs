//! Q4_K: 256 values in 144 bytes (4.5 bits a value): 8 groups of 32, each with a 6-bit scale and a 6-bit minimum.
//!
//! | bytes   | content                                                                                              |
//! |---------|------------------------------------------------------------------------------------------------------|
//! | 0..2    | `d`, f16, unit of the scales                                                                         |
//! | 2..4    | `dmin`, f16, unit of the minima                                                                      |
//! | 4..16   | scales and minima, see [`scale_and_minimum`]                                                         |
//! | 16..144 | `q`: 32 bytes for each pair of groups, the first group in the low nibbles, the second in the high    |
//!
//! `value = (d * scale) * q - dmin * minimum`

use super::{BlockFormat, scale_at};

/// 256 values in 144 bytes.
pub struct Q4K;

impl BlockFormat for Q4K {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 144;
    const GGML_ID: u32 = 12;
    const NAME: &'static str = "Q4_K";

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let (scales, quants) = (&block[4..16], &block[16..144]);
        let d = scale_at(block, 0);
        let dmin = scale_at(block, 2);
        for (pair, (out, bytes)) in out[..256].chunks_exact_mut(64).zip(quants.chunks_exact(32)).enumerate() {
            let (low_scale, low_minimum) = scale_and_minimum(scales, 2 * pair);
            let (high_scale, high_minimum) = scale_and_minimum(scales, 2 * pair + 1);
            let (low_scale, low_minimum) = (d * low_scale, dmin * low_minimum);
            let (high_scale, high_minimum) = (d * high_scale, dmin * high_minimum);
            let (low, high) = out.split_at_mut(32);
            for ((low, high), &byte) in low.iter_mut().zip(high).zip(bytes) {
                *low = low_scale * f32::from(byte & 15) - low_minimum;
                *high = high_scale * f32::from(byte >> 4) - high_minimum;
            }
        }
    }
}

/// The 6-bit scale and minimum of a group, out of the 12 bytes that hold those of all 8.
///
/// Groups 0..4 have their scale in the low 6 bits of byte `g` and their minimum in those of byte `g + 4`. Groups 4..8
/// have their low 4 bits in byte `g + 4` (scale in the low nibble, minimum in the high), and the upper two in the two
/// bits left over of bytes `g - 4` and `g`.
#[inline(always)]
pub(super) fn scale_and_minimum(bytes: &[u8], group: usize) -> (f32, f32) {
    let (scale, minimum) = if group < 4 {
        (bytes[group] & 63, bytes[group + 4] & 63)
    } else {
        let low = bytes[group + 4];
        ((low & 15) | (bytes[group - 4] >> 6) << 4, (low >> 4) | (bytes[group] >> 6) << 4)
    };
    (f32::from(scale), f32::from(minimum))
}
