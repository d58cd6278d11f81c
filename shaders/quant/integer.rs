//! The integer view of a block: small integer codes, and the scales that convert them to values.
//!
//! `value = (unit * scale) * (code - offset) + minimum_unit * minimum`
//!
//! A block has one `unit` and one `minimum_unit`. Each group of the block has one `scale` and one `minimum`. In some
//! formats a code is an index into a table of sixteen integers, the format's [`Codebook`]; the table entry then
//! replaces `code - offset`. In formats with zero points a block has a `zero_point` instead of a minimum:
//!
//! `value = unit * (code - offset - zero_point)`
//!
//! Integer kernels need nothing from a format beyond [`BlockFormat::integers`], which unpacks a block. They repack the
//! codes in the same way for all formats.
//!
//! In formats with a [`Grid`] the codes of four or eight values are stored together, as the index of a cell.
//!
//! [`BlockFormat::integers`]: super::BlockFormat::integers

use half::f16;

use super::grid::Grid;

/// The longest block of any format, in values.
pub const MAX_BLOCK_LEN: usize = 256;

/// The largest number of cells in a block.
pub const MAX_CELLS: usize = MAX_BLOCK_LEN / 4;

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

/// How the scale of a group is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// As an integer.
    Integer,
    /// As a number of 4 exponent bits and 3 fraction bits, see [`float8`].
    Float8,
}

/// The layout of a format's integers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IntegerLayout {
    /// Bits of a code: 1, 2, 3, 4, 5, 6 or 8.
    pub bits: usize,
    /// The code that represents zero before the minimum is added: 0 or a power of two. With a codebook, the number
    /// that makes all of its integers positive when it is added to them.
    pub offset: u8,
    /// The integer of each code, where that is not `code - offset`.
    pub codebook: Option<Codebook>,
    /// The cells of codes, where codes are not stored one by one. A codebook is then needed too.
    pub grid: Option<Grid>,
    /// Values that share a scale: 16 or 32, or all of a block without group scales.
    pub group: usize,
    /// Whether each group has its own scale. Otherwise a block is one group, and `unit` is its scale.
    pub group_scales: bool,
    /// Whether there is a minimum: one for each group if groups have scales, otherwise `minimum_unit` itself.
    pub minimum: bool,
    /// Whether each block has a zero point, which is subtracted from the integers. Blocks then have 32 values, a unit and
    /// neither group scales nor a minimum.
    pub zero_points: bool,
    /// How the scales of groups are stored.
    pub scale: Scale,
    /// How units are stored.
    pub unit: Unit,
    /// The stored unit is `2^unit_shift` times the unit.
    pub unit_shift: u32,
}

impl IntegerLayout {
    /// Codes with an offset, and a float16 scale for each block of `group` values. No group scales and no minima.
    #[must_use]
    pub const fn new(bits: usize, offset: u8, group: usize) -> Self {
        IntegerLayout {
            bits,
            offset,
            codebook: None,
            grid: None,
            group,
            group_scales: false,
            minimum: false,
            zero_points: false,
            scale: Scale::Integer,
            unit: Unit::Half,
            unit_shift: 0,
        }
    }

    /// Codes of 4 bits that index `codebook`. The operand of a product is the table entry plus `offset`, in a byte.
    #[must_use]
    pub const fn with_codebook(codebook: Codebook, offset: u8, group: usize) -> Self {
        IntegerLayout { codebook: Some(codebook), ..Self::new(4, offset, group) }
    }

    /// Cells of a grid, whose codes index `codebook`. Each group has a scale, and a stored unit is `2^unit_shift` units.
    #[must_use]
    pub const fn with_grid(grid: Grid, codebook: Codebook, offset: u8, group: usize, unit_shift: u32) -> Self {
        let (bits, grid, codebook) = (grid.code_bits(), Some(grid), Some(codebook));
        IntegerLayout { bits, grid, codebook, unit_shift, ..Self::new(4, offset, group) }.with_group_scales()
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

    /// Adds a zero point to each block of 32 values.
    #[must_use]
    pub const fn with_zero_points(self) -> Self {
        IntegerLayout { zero_points: true, ..self }
    }

    /// Stores units as powers of two.
    #[must_use]
    pub const fn with_powers_of_two(self) -> Self {
        IntegerLayout { unit: Unit::PowerOfTwo, ..self }
    }

    /// Stores the scales of groups in floating point.
    #[must_use]
    pub const fn with_float8_scales(self) -> Self {
        IntegerLayout { group_scales: true, scale: Scale::Float8, ..self }
    }

    /// Whether the values of a block are products of its scales and the integers of its codes, plus something.
    #[must_use]
    pub const fn has_addend(&self) -> bool {
        self.minimum || self.zero_points
    }

    /// The factor of a stored unit.
    #[must_use]
    pub const fn unit_factor(&self) -> f32 {
        1.0 / (1_u32 << self.unit_shift) as f32
    }

    /// 32-bit words that 32 columns have in the plane of low bits and in the plane of high bits.
    #[must_use]
    pub const fn words_of_run(&self) -> (usize, usize) {
        match (&self.grid, self.bits) {
            (Some(grid), _) => grid.words_of_run(),
            (None, 3) => (2, 1),
            (None, 5) => (4, 1),
            (None, 6) => (4, 2),
            (None, whole) => (whole, 0),
        }
    }

    /// Words that `runs` runs of 32 columns have together after their words in the plane of high bits.
    #[must_use]
    pub const fn words_of_runs(&self, runs: usize) -> usize {
        match &self.grid {
            Some(grid) => grid.words_of_runs(runs),
            None => 0,
        }
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

    /// The integer of value `index` of a block.
    #[must_use]
    pub const fn integer_at(&self, block: &IntegerBlock, index: usize) -> i16 {
        match (&self.grid, &self.codebook) {
            (Some(grid), Some(codebook)) => grid.integer_at(codebook, &block.cells, &block.signs, index),
            _ => self.integer(block.codes[index]),
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

/// The value of a byte of 4 exponent bits and 3 fraction bits. There is no sign: the top bit has no meaning. 127 is 0.
#[inline(always)]
#[must_use]
pub const fn float8(byte: u8) -> f32 {
    if byte == 127 { 0.0 } else { f32::from_bits((byte as u32 & 127) << 20) * FLOAT8_BIAS_DIFFERENCE }
}

/// The factor of a [`float8`] whose bits are moved to their position in a float32: the exponents have other biases.
pub const FLOAT8_BIAS_DIFFERENCE: f32 = f32::from_bits((127 + 120) << 23);

/// The unit of all blocks of groups with [`float8`] scales. Blocks do not store it.
pub const FLOAT8_UNIT: f16 = f16::from_f32_const(0.5);

/// The byte of the largest [`float8`], 448.
pub const LAST_FLOAT8: u8 = 126;

/// The byte of the [`float8`] nearest to a number that is not negative.
#[must_use]
pub fn nearest_float8(value: f32) -> u8 {
    // The values ascend with their bytes.
    let (mut first, mut last) = (0, LAST_FLOAT8);
    while first < last {
        let middle = first + (last - first) / 2;
        if float8(middle) + float8(middle + 1) < 2.0 * value && middle < LAST_FLOAT8 {
            first = middle + 1;
        } else {
            last = middle;
        }
    }
    first
}

/// An unpacked block.
#[derive(Clone, Debug)]
pub struct IntegerBlock {
    /// The code of each value, in order.
    pub codes: [u8; MAX_BLOCK_LEN],
    /// The index of each cell, in order, for formats with a grid.
    pub cells: [u16; MAX_CELLS],
    /// The sign bits of each 32 values, for formats with a grid.
    pub signs: [u32; MAX_BLOCK_LEN / 32],
    /// The factor of the scales, for [`Unit::Half`].
    pub unit: f16,
    /// The factor of the scales, for [`Unit::PowerOfTwo`]: the argument of [`power_of_two`].
    pub unit_exponent: u8,
    /// The factor of the minima. Its sign is that of the minimum in the sum.
    pub minimum_unit: f16,
    /// The zero point, for formats with zero points.
    pub zero_point: i8,
    /// The scale of each group, where groups have scales: the integer, or the byte of a [`float8`].
    pub scales: [i8; MAX_GROUPS],
    /// The minimum of each group, where groups have minima.
    pub minima: [i8; MAX_GROUPS],
}

impl IntegerBlock {
    /// All zeros: a block whose values are 0.
    pub const ZERO: IntegerBlock = IntegerBlock {
        codes: [0; MAX_BLOCK_LEN],
        cells: [0; MAX_CELLS],
        signs: [0; MAX_BLOCK_LEN / 32],
        unit: f16::ZERO,
        unit_exponent: 0,
        minimum_unit: f16::ZERO,
        zero_point: 0,
        scales: [0; MAX_GROUPS],
        minima: [0; MAX_GROUPS],
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_float8_is_found_for_every_value_and_between_all() {
        for byte in 0..=LAST_FLOAT8 {
            assert_eq!(nearest_float8(float8(byte)), byte);
            let next = float8(byte.min(LAST_FLOAT8 - 1) + 1);
            assert_eq!(nearest_float8(float8(byte) + 0.4 * (next - float8(byte)).max(0.0)), byte);
        }
        assert_eq!(nearest_float8(1e9), LAST_FLOAT8);
    }
}
