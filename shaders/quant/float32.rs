//! F32: IEEE 754 single precision, little-endian, one value per block.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::_mm256_loadu_ps;

#[cfg(target_arch = "x86_64")]
use super::avx2;
use super::block::BlockFormat;
use super::pack::Packing;

/// 1 value in 4 bytes.
pub struct F32;

impl BlockFormat for F32 {
    const BLOCK_LEN: usize = 1;
    const BLOCK_BYTES: usize = 4;
    const GGML_ID: u32 = 0;
    const NAME: &'static str = "F32";
    const PACKING: Packing = Packing::Values;

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        out[0] = f32::from_le_bytes([block[0], block[1], block[2], block[3]]);
    }

    fn pack_value(value: f32, block: &mut [u8]) {
        block.copy_from_slice(&value.to_le_bytes());
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_eights_avx2(values: &[u8], sink: &mut impl avx2::Sink) {
        for (eight, bytes) in values.as_chunks::<32>().0.iter().enumerate() {
            // SAFETY: the load reads the 32 bytes; the caller guarantees the CPU features.
            unsafe { sink.take(eight, _mm256_loadu_ps(bytes.as_ptr().cast())) };
        }
    }
}
