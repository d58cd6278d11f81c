//! F16: IEEE 754 half precision, little-endian, one value per block. The scales of other formats are stored in this way
//! too.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps};

use half::f16;

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::block::BlockFormat;
use super::pack::Packing;
use super::unpack::half_to_f32;
#[cfg(target_arch = "aarch64")]
use crate::neon;

/// 1 value in 2 bytes.
pub struct F16;

impl BlockFormat for F16 {
    const BLOCK_LEN: usize = 1;
    const BLOCK_BYTES: usize = 2;
    const GGML_ID: u32 = 1;
    const NAME: &'static str = "F16";
    const PACKING: Packing = Packing::Values;

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        out[0] = half_to_f32(u16::from_le_bytes([block[0], block[1]]));
    }

    fn pack_value(value: f32, block: &mut [u8]) {
        block.copy_from_slice(&f16::from_f32(value).to_le_bytes());
    }

    #[cfg(target_arch = "aarch64")]
    #[inline(always)]
    fn decode_blocks(bytes: &[u8], out: &mut [f32]) {
        let halves = bytes.as_chunks().0;
        let count = halves.len().min(out.len());
        let fours = count - count % 4;
        neon::upconvert(&halves[..fours], &mut out[..fours]);
        for (half, out) in halves[fours..count].iter().zip(&mut out[fours..count]) {
            Self::decode(half, std::slice::from_mut(out));
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(values: &[u8], sink: &mut impl avx2::Sink) {
        for (eight, bytes) in values.as_chunks::<16>().0.iter().enumerate() {
            // SAFETY: the load reads the 16 bytes; the caller guarantees the CPU features.
            unsafe { sink.take(eight, _mm256_cvtph_ps(_mm_loadu_si128(bytes.as_ptr().cast()))) };
        }
    }
}
