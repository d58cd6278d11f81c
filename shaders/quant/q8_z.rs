//! Q8_Z: 32 values in 35 bytes (8.75 bits a value), with a zero point.
//!
//! | bytes | content                              |
//! |-------|--------------------------------------|
//! | 0..2  | scale `d`, f16                       |
//! | 2     | `z`, i8: the `q` that represents zero |
//! | 3..35 | `q`, i8 each                         |
//!
//! `value = d * (q - z)`. The integer is exact, so a value is rounded at most once, and never with a finite `d`.
//!
//! GGUF files have no such type. It holds weights of Hugging Face directories, as [`q4_z`](super::q4_z) does. Codes and zero
//! points without a sign are stored less 128.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm256_cvtepi8_epi32, _mm256_cvtepi32_ps, _mm256_mul_ps, _mm256_set1_epi32, _mm256_sub_epi32};

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::block::BlockFormat;
use super::integer::{IntegerBlock, IntegerLayout};
use super::unpack::{half_at, scale_at};

/// 32 values in 35 bytes.
pub struct Q8Z;

impl BlockFormat for Q8Z {
    const BLOCK_LEN: usize = 32;
    const BLOCK_BYTES: usize = 35;
    const GGML_ID: u32 = 0xc0e1_0008;
    const IS_IN_GGUF: bool = false;
    const NAME: &'static str = "Q8_Z";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::new(8, 128, 32).with_zero_points());

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        let (d, zero) = (scale_at(block, 0), zero_code(block));
        for (out, &byte) in out[..32].iter_mut().zip(&block[3..35]) {
            *out = d * (i32::from(byte as i8) - zero) as f32;
        }
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        out.zero_point = block[2] as i8;
        for (code, &byte) in out.codes[..32].iter_mut().zip(&block[3..35]) {
            // Maps -128..128 to 0..256.
            *code = byte ^ 0x80;
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(block: &[u8], sink: &mut impl avx2::Sink) {
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            let (d, zero) = (avx2::scale_at(block, 0), _mm256_set1_epi32(zero_code(block)));
            for eight in 0..4 {
                let q = _mm256_sub_epi32(_mm256_cvtepi8_epi32(avx2::load_8(&block[3 + 8 * eight..])), zero);
                sink.take(eight, _mm256_mul_ps(d, _mm256_cvtepi32_ps(q)));
            }
        }
    }
}

/// The code that represents zero.
#[inline(always)]
fn zero_code(block: &[u8]) -> i32 {
    i32::from(block[2] as i8)
}
