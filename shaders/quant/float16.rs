//! F16: IEEE 754 half precision, little-endian, a block of one. Also the scales of the other formats.

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::{_mm_loadu_si128, _mm256_cvtph_ps};

use super::BlockFormat;
#[cfg(target_arch = "x86_64")]
use super::avx2;

/// 2 bytes a value.
pub struct F16;

impl BlockFormat for F16 {
    const BLOCK_LEN: usize = 1;
    const BLOCK_BYTES: usize = 2;
    const GGML_ID: u32 = 1;
    const NAME: &'static str = "F16";

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        out[0] = to_f32(u16::from_le_bytes([block[0], block[1]]));
    }

    #[cfg(target_arch = "x86_64")]
    #[inline(always)]
    unsafe fn decode_blocks_avx2(bytes: &[u8], out: &mut [f32]) {
        let (eights, last) = bytes.as_chunks::<16>();
        let (out, last_out) = out.split_at_mut(eights.len() * avx2::LANES);
        for (eight, out) in eights.iter().zip(out.chunks_exact_mut(avx2::LANES)) {
            // SAFETY: the 16 bytes of 8 halves are read; the caller has the features.
            unsafe { avx2::store(out, _mm256_cvtph_ps(_mm_loadu_si128(eight.as_ptr().cast()))) };
        }
        Self::decode_blocks(last, last_out);
    }
}

/// The value of a half, exactly; a NaN becomes a quiet one, as in hardware.
///
/// Written without branches so that loops over it vectorise: the bits are moved to where a single has them, and a
/// multiplication by 2^112 makes up for the difference of the exponents' biases, subnormals included.
#[inline(always)]
pub(super) fn to_f32(half: u16) -> f32 {
    const BIAS_DIFFERENCE: f32 = f32::from_bits((127 + 112) << 23);
    const EXPONENT: u32 = 0x7f80_0000;
    const QUIET: u32 = 0x0040_0000;
    let magnitude = u32::from(half & 0x7fff);
    let sign = u32::from(half & 0x8000) << 16;
    let finite = (f32::from_bits(magnitude << 13) * BIAS_DIFFERENCE).to_bits();
    let infinite = if magnitude >= 0x7c00 { EXPONENT } else { 0 };
    let quiet = if magnitude > 0x7c00 { QUIET } else { 0 };
    f32::from_bits(finite | infinite | quiet | sign)
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_half_converts_as_the_half_crate_does() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits).to_f32();
            let found = super::to_f32(bits);
            assert!(found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()), "{bits:#06x}");
        }
    }
}
