//! Scalar helpers that several decoders share: float16 scales, nibbles, fifth bits and codebook lookups.

use half::f16;

use super::integer::Codebook;

/// Converts the bits of a float16 to float32, exactly. A signalling NaN becomes a quiet one, as in hardware.
///
/// The function has no branches, so that loops over it vectorise. The bits are shifted to their position in a float32,
/// and a multiplication by 2^112 corrects the difference of the exponent biases, also for subnormal numbers.
#[inline(always)]
pub(super) fn half_to_f32(half: u16) -> f32 {
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

/// The float16 at byte `offset` of a block, as float32.
#[inline(always)]
pub(super) fn scale_at(block: &[u8], offset: usize) -> f32 {
    half_to_f32(u16::from_le_bytes([block[offset], block[offset + 1]]))
}

/// The float16 at byte `offset` of a block.
#[inline(always)]
pub(super) fn half_at(block: &[u8], offset: usize) -> f16 {
    f16::from_bits(u16::from_le_bytes([block[offset], block[offset + 1]]))
}

/// The 4-bit codes of 32 values: value `i` in the low nibble of byte `i`, value `i + 16` in the high nibble.
#[inline(always)]
pub(super) fn nibbles(bytes: &[u8], codes: &mut [u8]) {
    let (low, high) = codes[..32].split_at_mut(16);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(&bytes[..16]) {
        *low = byte & 15;
        *high = byte >> 4;
    }
}

/// Adds the fifth bits of 32 codes: bit `i` of the four bytes belongs to value `i`.
#[inline(always)]
pub(super) fn add_fifth_bits(bytes: &[u8], codes: &mut [u8]) {
    for (codes, &byte) in codes[..32].chunks_exact_mut(8).zip(&bytes[..4]) {
        for (bit, code) in codes.iter_mut().enumerate() {
            *code |= (byte >> bit & 1) << 4;
        }
    }
}

/// The values of codes of which 1 represents zero: `scale * (code - 1)`.
#[inline(always)]
pub(super) fn scaled_codes(codes: &[u8], scale: f32, out: &mut [f32]) {
    for (out, code) in out[..codes.len()].iter_mut().zip(codes) {
        *out = scale * (f32::from(*code) - 1.0);
    }
}

/// The values of 32 codes of 4 bits, packed as for [`nibbles`]: `scale * codebook[code]`.
#[inline(always)]
pub(super) fn look_up(codebook: &Codebook, scale: f32, bytes: &[u8], out: &mut [f32]) {
    let (low, high) = out[..32].split_at_mut(16);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(&bytes[..16]) {
        *low = scale * f32::from(codebook[usize::from(byte & 15)]);
        *high = scale * f32::from(codebook[usize::from(byte >> 4)]);
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn every_float16_converts_as_in_the_half_crate() {
        for bits in 0..=u16::MAX {
            let expected = half::f16::from_bits(bits).to_f32();
            let found = super::half_to_f32(bits);
            assert!(found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan()), "{bits:#06x}");
        }
    }
}
