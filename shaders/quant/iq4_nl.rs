//! IQ4_NL: 32 values in 18 bytes (4.5 bits a value), quantised with unequal steps that are smaller near zero.
//!
//! | bytes | content                                                                           |
//! |-------|-----------------------------------------------------------------------------------|
//! | 0..2  | scale `d`, f16                                                                    |
//! | 2..18 | codes: value `i` in the low nibble of byte `i`, value `i + 16` in the high nibble |
//!
//! `value = d * CODEBOOK[code]`

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::_mm256_mul_ps;

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::block::BlockFormat;
use super::integer::{Codebook, IntegerBlock, IntegerLayout};
use super::pack::{Packing, Ranges, put_half, put_nibbles};
use super::unpack::{half_at, look_up, nibbles, scale_at};

/// 32 values in 18 bytes.
pub struct Iq4Nl;

/// The integer that each code represents, in units of the scale.
pub const CODEBOOK: Codebook = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113];

impl BlockFormat for Iq4Nl {
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 18;
    const GGML_ID: u32 = 20;
    const NAME: &'static str = "IQ4_NL";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::with_codebook(CODEBOOK, 128, 32));
    const PACKING: Packing = Packing::Integers(Ranges::codes(0, 15));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        look_up(&CODEBOOK, scale_at(block, 0), &block[2..18], out);
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        nibbles(&block[2..18], &mut out.codes);
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 0, integers.unit);
        put_nibbles(&integers.codes, &mut block[2..18]);
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            let d = avx2::scale_at(block, 0);
            let values = avx2::signed_to_f32(avx2::look_up(&CODEBOOK, &block[2..]));
            for (eight, value) in values.into_iter().enumerate() {
                sink.take(eight, _mm256_mul_ps(d, value));
            }
        }
    }
}
