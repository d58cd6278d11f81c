//! BF16: the upper 16 bits of a single, little-endian, a block of one.

use super::BlockFormat;

/// 2 bytes a value.
pub struct Bf16;

impl BlockFormat for Bf16 {
    const BLOCK_LEN: usize = 1;
    const BLOCK_BYTES: usize = 2;
    const GGML_ID: u32 = 30;
    const NAME: &'static str = "BF16";

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        out[0] = f32::from_bits(u32::from(u16::from_le_bytes([block[0], block[1]])) << 16);
    }
}
