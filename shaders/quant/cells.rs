//! What the decoders of formats with a [grid](super::grid) share.

use super::block::BlockFormat;
use super::integer::{IntegerBlock, MAX_GROUPS};

/// Decodes a block of a format with a grid: its integers times their scales, which float32 represents exactly.
#[inline(always)]
pub(super) fn decode<F: BlockFormat>(block: &[u8], out: &mut [f32]) {
    let Some(layout) = F::INTEGERS else { return };
    let mut integers = IntegerBlock::ZERO;
    F::integers(block, &mut integers);
    let unit = integers.unit.to_f32() * layout.unit_factor();
    for (group, out) in out[..F::BLOCK_LEN].chunks_exact_mut(layout.group).enumerate() {
        let scale = unit * f32::from(integers.scales[group]);
        for (position, out) in out.iter_mut().enumerate() {
            *out = scale * f32::from(layout.integer_at(&integers, group * layout.group + position));
        }
    }
}

/// The eighth sign bit of eight values of which seven are stored: the number of negative values is even.
#[inline(always)]
pub(super) fn with_eighth_sign(signs: u32) -> u32 {
    let signs = signs & 127;
    signs | (signs.count_ones() & 1) << 7
}

/// The signs of 32 values of which the word has seven for each eight.
#[inline(always)]
pub(super) fn all_signs(word: u32) -> u32 {
    (0..4).fold(0, |signs, eight| signs | with_eighth_sign(word >> (7 * eight)) << (8 * eight))
}

/// The odd scales of 16 nibbles, the low nibble of each byte first.
#[inline(always)]
pub(super) fn scales_of_nibbles(bytes: &[u8], scales: &mut [i8; MAX_GROUPS]) {
    for (scales, byte) in scales.as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        *scales = [odd(u32::from(byte & 15)), odd(u32::from(byte >> 4))];
    }
}

/// The odd scale `2 s + 1` of a stored number `s`.
#[inline(always)]
pub(super) fn odd(stored: u32) -> i8 {
    2 * stored as i8 + 1
}

/// The little-endian 32-bit number at byte `offset` of a block.
#[inline(always)]
pub(super) fn word_at(block: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(block[offset..offset + 4].try_into().expect("the slice has 4 bytes"))
}

/// The little-endian 16-bit number at byte `offset` of a block.
#[inline(always)]
pub(super) fn half_word_at(block: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes([block[offset], block[offset + 1]])
}
