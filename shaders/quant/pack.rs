//! What a format can store, and the helpers that its packers share: the inverses of [`unpack`](super::unpack).

use half::f16;

/// How values become the bytes of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    /// Nothing packs the format.
    Never,
    /// Each value is stored by itself.
    Values,
    /// Integers within these ranges are stored.
    Integers(Ranges),
    /// Cells of the format's grid are stored.
    Cells(CellRules),
}

/// What a block of cells can store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CellRules {
    /// The largest scale of a group. Scales are odd, and the smallest is 1.
    pub last_scale: i8,
    /// Which signs can be stored.
    pub signs: SignBits,
}

impl CellRules {
    /// Odd scales from 1 to `last_scale`.
    #[must_use]
    pub const fn new(last_scale: i8, signs: SignBits) -> Self {
        CellRules { last_scale, signs }
    }
}

/// The signs of a block of cells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SignBits {
    /// Each value has any sign.
    Each,
    /// An even number of each eight values is negative.
    Even,
    /// Values have no signs. A bit for each cell lowers its integers.
    ShiftOfCell,
    /// Values have no signs. A bit for each group lowers the integers of all of its cells.
    ShiftOfGroup,
}

impl SignBits {
    /// Whether values have signs.
    #[must_use]
    pub const fn is_stored(self) -> bool {
        matches!(self, SignBits::Each | SignBits::Even)
    }
}

/// The integers that a block can store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// The smallest and the largest code.
    pub codes: (u8, u8),
    /// The smallest and the largest scale of a group.
    pub scales: (i8, i8),
    /// The largest minimum of a group; the smallest is 0.
    pub minima: i8,
}

impl Ranges {
    /// Codes from `smallest` to `largest`, in blocks without group scales.
    #[must_use]
    pub const fn codes(smallest: u8, largest: u8) -> Self {
        Ranges { codes: (smallest, largest), scales: (1, 1), minima: 1 }
    }

    /// Adds scales of groups.
    #[must_use]
    pub const fn scales(self, smallest: i8, largest: i8) -> Self {
        Ranges { scales: (smallest, largest), ..self }
    }

    /// Adds minima of groups.
    #[must_use]
    pub const fn minima(self, largest: i8) -> Self {
        Ranges { minima: largest, ..self }
    }
}

/// Stores a float16 at byte `offset` of a block.
pub(super) fn put_half(block: &mut [u8], offset: usize, value: f16) {
    block[offset..offset + 2].copy_from_slice(&value.to_le_bytes());
}

/// Stores the low 4 bits of 32 codes in 16 bytes: value `i` in the low nibble of byte `i`, value `i + 16` in the high nibble.
pub(super) fn put_nibbles(codes: &[u8], bytes: &mut [u8]) {
    let (low, high) = codes[..32].split_at(16);
    for ((byte, low), high) in bytes[..16].iter_mut().zip(low).zip(high) {
        *byte = low & 15 | (high & 15) << 4;
    }
}

/// Stores the fifth bits of 32 codes in 4 bytes: bit `i` belongs to value `i`.
pub(super) fn put_fifth_bits(codes: &[u8], bytes: &mut [u8]) {
    for (byte, codes) in bytes[..4].iter_mut().zip(codes[..32].as_chunks::<8>().0) {
        *byte = codes.iter().rev().fold(0, |byte, code| byte << 1 | code >> 4 & 1);
    }
}

/// Stores the low 2 bits of 128 codes in 32 bytes: value `32 s + j` in bits `2 s` of byte `j`.
pub(super) fn put_quarters(codes: &[u8], bytes: &mut [u8]) {
    for (index, byte) in bytes[..32].iter_mut().enumerate() {
        *byte = (0..4).fold(0, |byte, quarter| byte | (codes[32 * quarter + index] & 3) << (2 * quarter));
    }
}

/// Stores the low 8 bits of the indices of cells.
pub(super) fn put_low_bytes(cells: &[u16], bytes: &mut [u8]) {
    bytes.iter_mut().zip(cells).for_each(|(byte, cell)| *byte = *cell as u8);
}

/// Stores odd scales as nibbles, the low nibble of each byte first.
pub(super) fn put_odd_scales(scales: &[i8], bytes: &mut [u8]) {
    for (byte, scales) in bytes.iter_mut().zip(scales.as_chunks::<2>().0) {
        *byte = half_of_odd(scales[0]) | half_of_odd(scales[1]) << 4;
    }
}

/// What is stored for an odd scale: `s` for `2 s + 1`.
pub(super) fn half_of_odd(scale: i8) -> u8 {
    scale as u8 >> 1
}

/// Seven of the signs of each eight values in a word; the eighth follows from them.
pub(super) fn seven_signs(signs: u32) -> u32 {
    (0..4).fold(0, |word, eight| word | (signs >> (8 * eight) & 127) << (7 * eight))
}

/// Stores words, their lowest bytes first.
pub(super) fn put_words(words: &[u32], bytes: &mut [u8]) {
    for (bytes, word) in bytes.as_chunks_mut::<4>().0.iter_mut().zip(words) {
        *bytes = word.to_le_bytes();
    }
}
