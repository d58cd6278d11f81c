//! MXFP4: 32 values in 17 bytes (4.25 bits a value): 4-bit floating point with a shared power-of-two scale.
//!
//! | bytes | content                                                                           |
//! |-------|-----------------------------------------------------------------------------------|
//! | 0     | `e`: the scale is `2^(e - 128)`                                                   |
//! | 1..17 | codes: value `i` in the low nibble of byte `i`, value `i + 16` in the high nibble |
//!
//! `value = 2^(e - 128) * CODEBOOK[code]`
//!
//! A code has a sign bit, two exponent bits and one fraction bit. Its values are multiples of one half, so the codebook
//! holds them doubled, and the scale is half of the scale in the standard.
//!
//! Source: Open Compute Project 2023, "OCP Microscaling Formats (MX) Specification", 5.3.3 and 5.4.1.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm256_mul_ps, _mm256_set1_ps};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::block::BlockFormat;
use super::integer::{Codebook, IntegerBlock, IntegerLayout, power_of_two};
use super::pack::{Packing, Ranges, put_nibbles};
use super::unpack::{look_up, nibbles};

/// 32 values in 17 bytes.
pub struct Mxfp4;

/// Twice the value of each code.
pub const CODEBOOK: Codebook = [0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12];

impl BlockFormat for Mxfp4 {
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 17;
    const GGML_ID: u32 = 39;
    const NAME: &'static str = "MXFP4";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::with_codebook(CODEBOOK, 16, 32).with_powers_of_two());
    const PACKING: Packing = Packing::Integers(Ranges::codes(0, 15));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        look_up(&CODEBOOK, power_of_two(block[0]), &block[1..17], out);
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit_exponent = block[0];
        nibbles(&block[1..17], &mut out.codes);
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        block[0] = integers.unit_exponent;
        put_nibbles(&integers.codes, &mut block[1..17]);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            let scale = _mm256_set1_ps(power_of_two(block[0]));
            let values = avx2::signed_to_f32(avx2::look_up(&CODEBOOK, &block[1..]));
            for (eight, value) in values.into_iter().enumerate() {
                sink.take(eight, _mm256_mul_ps(scale, value));
            }
        }
    }
}
