//! The integer view of a block: small codes, and the scales that turn them into values.
//!
//! `value = (unit * scale) * (code - offset) + minimum_unit * minimum`
//!
//! with one `unit` and `minimum_unit` for a block and one `scale` and `minimum` for a group of it. In some formats a code is
//! not itself the integer but the place of one in a table of sixteen, the format's [`Codebook`]; what is said about integers
//! then holds for what the table has there. A format that says how its blocks are taken apart ([`BlockFormat::integers`]) has all
//! that the integer kernels ask of it: how codes are packed for them is the same for all formats.
//!
//! [`BlockFormat::integers`]: super::BlockFormat::integers

use half::f16;

use super::MAX_BLOCK_LEN;

/// What each 4-bit code stands for.
pub type Codebook = [i8; 16];

/// How a block's unit is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A half.
    Half,
    /// A power of two: the byte `e` stands for `2^(e - 128)`, of which halves have but a few.
    PowerOfTwo,
}

/// The shape of a format's integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegerLayout {
    /// Bits of a code: 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
    /// The code that stands for zero, but for the minimum: 0, 4, 8, 16, 32 or 128. With a codebook, what makes all of its
    /// integers positive.
    pub offset: u8,
    /// What a code stands for, where that is not `code - offset`.
    pub codebook: Option<Codebook>,
    /// Values that share a scale: 16 or 32.
    pub group: usize,
    /// Whether groups have scales of their own; without, a block is one group and `unit` its scale.
    pub group_scales: bool,
    /// Whether there is a minimum: one of each group where groups have scales, else `minimum_unit` is it.
    pub minimum: bool,
    /// How units are stored.
    pub unit: Unit,
}

impl IntegerLayout {
    /// Codes less an offset, a half as the scale of each block of `group` values, and nothing else.
    #[must_use]
    pub const fn new(bits: usize, offset: u8, group: usize) -> Self {
        IntegerLayout { bits, offset, codebook: None, group, group_scales: false, minimum: false, unit: Unit::Half }
    }

    /// Codes of 4 bits that are looked up. Operands of products are what the table has, plus `offset`, in a byte.
    #[must_use]
    pub const fn looked_up(codebook: Codebook, offset: u8, group: usize) -> Self {
        IntegerLayout { codebook: Some(codebook), ..Self::new(4, offset, group) }
    }

    /// With scales of groups.
    #[must_use]
    pub const fn with_group_scales(self) -> Self {
        IntegerLayout { group_scales: true, ..self }
    }

    /// With minima.
    #[must_use]
    pub const fn with_minimum(self) -> Self {
        IntegerLayout { minimum: true, ..self }
    }

    /// With units that are powers of two.
    #[must_use]
    pub const fn with_powers_of_two(self) -> Self {
        IntegerLayout { unit: Unit::PowerOfTwo, ..self }
    }

    /// Bytes of a unit.
    #[must_use]
    pub const fn unit_bytes(&self) -> usize {
        match self.unit {
            Unit::Half => size_of::<f16>(),
            Unit::PowerOfTwo => 1,
        }
    }

    /// The integer that a code stands for.
    #[must_use]
    pub const fn integer(&self, code: u8) -> i16 {
        match &self.codebook {
            Some(codebook) => codebook[code as usize % codebook.len()] as i16,
            None => code as i16 - self.offset as i16,
        }
    }

    /// A code's integer plus the offset: the unsigned operand of a product.
    #[must_use]
    pub const fn operand(&self, code: u8) -> u8 {
        (self.integer(code) + self.offset as i16) as u8
    }

    /// Bits of the largest operand; an AVX2 product without VNNI takes 7, or 8 around 128.
    #[must_use]
    pub const fn operand_bits(&self) -> usize {
        match self.codebook {
            Some(_) if self.offset == 128 => 8,
            Some(_) => 7,
            None => self.bits,
        }
    }
}

/// `2^(exponent - 128)`, which for the smallest two exponents is subnormal.
#[inline(always)]
#[must_use]
pub const fn power_of_two(exponent: u8) -> f32 {
    const SMALLEST: u32 = 0x0020_0000;
    const FRACTION_BITS: u32 = 23;
    let exponent = exponent as u32;
    f32::from_bits(if exponent < 2 { SMALLEST << exponent } else { (exponent - 1) << FRACTION_BITS })
}

/// Most groups in a block.
pub const MAX_GROUPS: usize = 16;

/// A block taken apart.
#[derive(Clone, Debug)]
pub struct IntegerBlock {
    /// The code of each value, in order.
    pub codes: [u8; MAX_BLOCK_LEN],
    /// What one step of a scale is worth, where units are halves.
    pub unit: f16,
    /// The same where they are powers of two: see [`power_of_two`].
    pub unit_exponent: u8,
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
        unit_exponent: 0,
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

/// The values of 32 codes of 4 bits, as [`nibbles`] has them: `scale` times what the table has there.
#[inline(always)]
pub(super) fn look_up(codebook: &Codebook, scale: f32, bytes: &[u8], out: &mut [f32]) {
    let (low, high) = out[..32].split_at_mut(16);
    for ((low, high), &byte) in low.iter_mut().zip(high).zip(&bytes[..16]) {
        *low = scale * f32::from(codebook[usize::from(byte & 15)]);
        *high = scale * f32::from(codebook[usize::from(byte >> 4)]);
    }
}
