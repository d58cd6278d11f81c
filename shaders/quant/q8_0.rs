//! Q8_0: 32 values in 34 bytes (8.5 bits a value), symmetric around zero.
//!
//! | bytes | content        |
//! |-------|----------------|
//! | 0..2  | scale `d`, f16 |
//! | 2..34 | `q`, i8 each   |
//!
//! `value = q * d`

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_mul_ps};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::block::BlockFormat;
use super::integer::{IntegerBlock, IntegerLayout};
use super::pack::{Packing, Ranges, put_half};
use super::unpack::{half_at, scale_at};

/// 32 values in 34 bytes.
pub struct Q8_0;

impl BlockFormat for Q8_0 {
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 34;
    const GGML_ID: u32 = 8;
    const NAME: &'static str = "Q8_0";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::new(8, 128, 32));
    const PACKING: Packing = Packing::Integers(Ranges::codes(1, 255));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let d = scale_at(block, 0);
        for (out, &byte) in out[..32].iter_mut().zip(&block[2..34]) {
            *out = f32::from(byte as i8) * d;
        }
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        for (code, &byte) in out.codes[..32].iter_mut().zip(&block[2..34]) {
            // Maps -128..128 to 0..256.
            *code = byte ^ 0x80;
        }
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 0, integers.unit);
        for (byte, &code) in block[2..34].iter_mut().zip(&integers.codes) {
            *byte = code ^ 0x80;
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            let d = avx2::scale_at(block, 0);
            for eight in 0..4 {
                let q = _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(avx2::load_8(&block[2 + 8 * eight..])));
                sink.take(eight, _mm256_mul_ps(q, d));
            }
        }
    }
}
