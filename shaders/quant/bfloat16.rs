//! BF16: the upper 16 bits of a float32, little-endian, one value per block.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm_loadu_si128, _mm256_castsi256_ps, _mm256_cvtepu16_epi32, _mm256_slli_epi32};

use half::bf16;

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::block::BlockFormat;
use super::pack::Packing;

/// 1 value in 2 bytes.
pub struct Bf16;

impl BlockFormat for Bf16 {
    const BLOCK_LEN: usize = 1;
    const BLOCK_BYTES: usize = 2;
    const GGML_ID: u32 = 30;
    const NAME: &'static str = "BF16";
    const PACKING: Packing = Packing::Values;

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        out[0] = f32::from_bits(u32::from(u16::from_le_bytes([block[0], block[1]])) << 16);
    }

    fn pack_value(value: f32, block: &mut [u8]) {
        block.copy_from_slice(&bf16::from_f32(value).to_le_bytes());
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(values: &[u8], sink: &mut impl avx2::Sink) {
        for (eight, bytes) in values.as_chunks::<16>().0.iter().enumerate() {
            // SAFETY: the load reads the 16 bytes; the caller guarantees the CPU features.
            unsafe {
                let upper = _mm256_cvtepu16_epi32(_mm_loadu_si128(bytes.as_ptr().cast()));
                sink.take(eight, _mm256_castsi256_ps(_mm256_slli_epi32::<16>(upper)));
            }
        }
    }
}
