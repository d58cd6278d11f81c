//! NVFP4: 64 values in 36 bytes (4.5 bits a value): 4-bit floating point, with a scale of 8 bits for 16 values.
//!
//! | bytes | content                                                                                                    |
//! |-------|------------------------------------------------------------------------------------------------------------|
//! | 0..4  | the scale of each group: 4 exponent bits and 3 fraction bits                                               |
//! | 4..36 | codes, 8 bytes a group: value `i` of the group in the low nibble of byte `i`, value `i + 8` in the high nibble |
//!
//! `value = scale / 2 * CODEBOOK[code]`, with the codebook of [`mxfp4`](super::mxfp4): it holds values doubled.
//!
//! A file can have a factor for all values of a tensor, in a tensor of its own. It is not part of the format.

use half::f16;

use super::block::BlockFormat;
use super::integer::{IntegerBlock, IntegerLayout, float8};
use super::mxfp4::CODEBOOK;
use super::pack::{Packing, Ranges};

/// 64 values in 36 bytes.
pub struct Nvfp4;

/// The unit of all scales.
const UNIT: f16 = f16::from_f32_const(0.5);

impl BlockFormat for Nvfp4 {
    const BLOCK_LEN: usize = 64;
    const BLOCK_BYTES: usize = 36;
    const GGML_ID: u32 = 40;
    const NAME: &'static str = "NVFP4";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::with_codebook(CODEBOOK, 16, 16).with_float8_scales());
    const PACKING: Packing = Packing::Integers(Ranges::codes(0, 15));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let mut codes = [0; 64];
        unpack(block, &mut codes);
        for (group, (out, codes)) in out[..64].chunks_exact_mut(16).zip(codes.chunks_exact(16)).enumerate() {
            let scale = float8(block[group]) * 0.5;
            for (out, code) in out.iter_mut().zip(codes) {
                *out = scale * f32::from(CODEBOOK[usize::from(code & 15)]);
            }
        }
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = UNIT;
        for (scale, byte) in out.scales[..4].iter_mut().zip(block) {
            *scale = *byte as i8;
        }
        unpack(block, &mut out.codes);
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        for (byte, scale) in block[..4].iter_mut().zip(integers.scales) {
            *byte = scale as u8;
        }
        for (bytes, codes) in block[4..36].chunks_exact_mut(8).zip(integers.codes.chunks_exact(16)) {
            let (low, high) = codes.split_at(8);
            for ((byte, low), high) in bytes.iter_mut().zip(low).zip(high) {
                *byte = low & 15 | (high & 15) << 4;
            }
        }
    }
}

#[inline(always)]
fn unpack(block: &[u8], codes: &mut [u8]) {
    for (codes, bytes) in codes.chunks_exact_mut(16).zip(block[4..36].chunks_exact(8)) {
        let (low, high) = codes.split_at_mut(8);
        for ((low, high), byte) in low.iter_mut().zip(high).zip(bytes) {
            *low = byte & 15;
            *high = byte >> 4;
        }
    }
}
