//! The integer view of a block: small codes, and the scales that turn them into values.
//!
//! `value = (unit * scale) * (code - offset) + minimum_unit * minimum`
//!
//! with one `unit` and `minimum_unit` for a block and one `scale` and `minimum` for a group of it. Every quantised
//! format of GGUF is of this kind. A format that says how its blocks are taken apart ([`BlockFormat::integers`]) has all
//! that the integer kernels ask of it: how codes are packed for them is the same for all formats.
//!
//! [`BlockFormat::integers`]: super::BlockFormat::integers

use half::f16;

use super::MAX_BLOCK_LEN;

/// The shape of a format's integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegerLayout {
    /// Bits of a code: 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
    /// The code that stands for zero, but for the minimum: 0, 4, 8, 16, 32 or 128.
    pub offset: u8,
    /// Values that share a scale: 16 or 32.
    pub group: usize,
    /// Whether groups have scales of their own; without, a block is one group and `unit` its scale.
    pub group_scales: bool,
    /// Whether there is a minimum: one of each group where groups have scales, else `minimum_unit` is it.
    pub minimum: bool,
}

/// Most groups in a block.
pub const MAX_GROUPS: usize = 16;

/// A block taken apart.
#[derive(Clone, Debug)]
pub struct IntegerBlock {
    /// The code of each value, in order.
    pub codes: [u8; MAX_BLOCK_LEN],
    /// What one step of a scale is worth.
    pub unit: f16,
    /// What one step of a minimum is worth; its sign is that of the minimum in the sum.
    pub minimum_unit: f16,
    /// The scale of each group, where groups have them.
    pub scales: [i8; MAX_GROUPS],
    /// The minimum of each group, where groups have them.
    pub minima: [i8; MAX_GROUPS],
}

impl IntegerBlock {
    /// All zeros: a block whose values are 0.
    pub const ZERO: IntegerBlock = IntegerBlock {
        codes: [0; MAX_BLOCK_LEN],
        unit: f16::ZERO,
        minimum_unit: f16::ZERO,
        scales: [0; MAX_GROUPS],
        minima: [0; MAX_GROUPS],
    };
}

/// The half at `offset` of a block.
#[inline(always)]
pub(super) fn half_at(block: &[u8], offset: usize) -> f16 {
    f16::from_bits(u16::from_le_bytes([block[offset], block[offset + 1]]))
}

/// The 4-bit codes of 32 values: value `i` in the low nibble of byte `i`, value `i + 16` in the high.
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
