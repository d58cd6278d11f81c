//! The integer view of a block: small integer codes, and the scales that convert them to values.
//!
//! `value = (unit * scale) * (code - offset) + minimum_unit * minimum`
//!
//! A block has one `unit` and one `minimum_unit`. Each group of the block has one `scale` and one `minimum`. In some
//! formats a code is an index into a table of sixteen integers, the format's [`Codebook`]; the table entry then
//! replaces `code - offset`.
//!
//! Integer kernels need nothing from a format beyond [`BlockFormat::integers`], which unpacks a block. They repack the
//! codes in the same way for all formats.
//!
//! [`BlockFormat::integers`]: super::BlockFormat::integers

use half::f16;

/// The longest block of any format, in values.
pub const MAX_BLOCK_LEN: usize = 256;

/// The largest number of groups in a block.
pub const MAX_GROUPS: usize = 16;

/// The integer that each 4-bit code represents.
pub type Codebook = [i8; 16];

/// How the unit of a block is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// As a float16.
    Half,
    /// As a byte `e` that represents `2^(e - 128)`. Float16 has only a few of these values.
    PowerOfTwo,
}

/// The layout of a format's integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegerLayout {
    /// Bits of a code: 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
    /// The code that represents zero before the minimum is added: 0, 4, 8, 16, 32 or 128. With a codebook, the number
    /// that makes all of its integers positive when it is added to them.
    pub offset: u8,
    /// The integer of each code, where that is not `code - offset`.
    pub codebook: Option<Codebook>,
    /// Values that share a scale: 16 or 32.
    pub group: usize,
    /// Whether each group has its own scale. Otherwise a block is one group, and `unit` is its scale.
    pub group_scales: bool,
    /// Whether there is a minimum: one for each group if groups have scales, otherwise `minimum_unit` itself.
    pub minimum: bool,
    /// How units are stored.
    pub unit: Unit,
}

impl IntegerLayout {
    /// Codes with an offset, and a float16 scale for each block of `group` values. No group scales and no minima.
    #[must_use]
    pub const fn new(bits: usize, offset: u8, group: usize) -> Self {
        IntegerLayout { bits, offset, codebook: None, group, group_scales: false, minimum: false, unit: Unit::Half }
    }

    /// Codes of 4 bits that index `codebook`. The operand of a product is the table entry plus `offset`, in a byte.
    #[must_use]
    pub const fn with_codebook(codebook: Codebook, offset: u8, group: usize) -> Self {
        IntegerLayout { codebook: Some(codebook), ..Self::new(4, offset, group) }
    }

    /// Adds a scale for each group.
    #[must_use]
    pub const fn with_group_scales(self) -> Self {
        IntegerLayout { group_scales: true, ..self }
    }

    /// Adds minima.
    #[must_use]
    pub const fn with_minimum(self) -> Self {
        IntegerLayout { minimum: true, ..self }
    }

    /// Stores units as powers of two.
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

    /// The integer that a code represents.
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

    /// Bits of the largest operand. An AVX2 product without VNNI supports 7 bits, or 8 bits with an offset of 128.
    #[must_use]
    pub const fn operand_bits(&self) -> usize {
        match self.codebook {
            Some(_) if self.offset == 128 => 8,
            Some(_) => 7,
            None => self.bits,
        }
    }
}

/// `2^(exponent - 128)`. The results for the two smallest exponents are subnormal.
#[inline(always)]
#[must_use]
pub const fn power_of_two(exponent: u8) -> f32 {
    const SMALLEST: u32 = 0x0020_0000;
    const FRACTION_BITS: u32 = 23;
    let exponent = exponent as u32;
    f32::from_bits(if exponent < 2 { SMALLEST << exponent } else { (exponent - 1) << FRACTION_BITS })
}

/// An unpacked block.
#[derive(Clone, Debug)]
pub struct IntegerBlock {
    /// The code of each value, in order.
    pub codes: [u8; MAX_BLOCK_LEN],
    /// The factor of the scales, for [`Unit::Half`].
    pub unit: f16,
    /// The factor of the scales, for [`Unit::PowerOfTwo`]: the argument of [`power_of_two`].
    pub unit_exponent: u8,
    /// The factor of the minima. Its sign is that of the minimum in the sum.
    pub minimum_unit: f16,
    /// The scale of each group, where groups have scales.
    pub scales: [i8; MAX_GROUPS],
    /// The minimum of each group, where groups have minima.
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
