//! Q8_0: 32 values in 34 bytes (8.5 bits a value), symmetric around zero.
//!
//! | bytes | content           |
//! |-------|-------------------|
//! | 0..2  | scale `d`, f16    |
//! | 2..34 | `q`, i8 each      |
//!
//! `value = q * d`

use super::{BlockFormat, scale_at};

/// 32 values in 34 bytes.
pub struct Q8_0;

impl BlockFormat for Q8_0 {
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 34;
    const GGML_ID: u32 = 8;
    const NAME: &'static str = "Q8_0";

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let d = scale_at(block, 0);
        for (out, &byte) in out[..32].iter_mut().zip(&block[2..34]) {
            *out = f32::from(byte as i8) * d;
        }
    }
}
