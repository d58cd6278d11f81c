//! Weights packed for the integer kernels, with sixteen outputs interleaved.
//!
//! A *strip* is sixteen consecutive rows of the weight. It is stored block by block. A packed block has the blocks of
//! sixteen rows:
//!
//! | section | bytes                    | content                                                                                                       |
//! |---------|--------------------------|---------------------------------------------------------------------------------------------------------------|
//! | units   | 32, 64, or 16            | f16 of each row, then the unit of the minimum of each row if there is one; or powers of two, one byte per row |
//! | zeros   | 16, or 0                 | the zero point of each row, for formats with zero points                                                      |
//! | scales  | 16 or 32 a group, or 0   | i8 of each row, then the minimum of each row if there is one                                                  |
//! | codes   | 64 x bits per 32 columns | see below                                                                                                     |
//! | rest    | 64 a word, or 0          | for grids, the high bits of indices: the words of `Grid::block_words`                                         |
//!
//! The codes of 32 columns are eight *quads* of four consecutive columns. A quad is the operand of one integer dot
//! product in each of sixteen lanes. Codes are split into planes of 8, 4, 2 or 1 bits (5 bits are a plane of 4 and a
//! plane of 1). A plane of `p` bits is `p` registers of 64 bytes: quad `q` is in register `q mod p`, at bit `q / p * p`
//! of each byte. So a packed block has the size of the blocks in the file, except that each scale uses a whole byte.
//!
//! Formats with a [grid](crate::quant::grid) have the words of `Grid::run_words` instead: each is a register of 64 bytes.
//! Where a file omits every eighth sign, a packed block has it.

use std::marker::PhantomData;
use std::ops::Range;
use std::sync::Arc;

use super::activations;
use crate::cpu::{Team, for_each_chunk};
use crate::pages::Pages;
use crate::quant::integer::{IntegerBlock, IntegerLayout, Unit};
use crate::quant::{BlockFormat, dispatch};
use crate::weight::{PIECE_BYTES, Weight};

/// Rows of a strip.
pub const STRIP_ROWS: usize = 16;
/// Quads in 32 columns.
pub(super) const QUADS: usize = 8;
/// Bytes of a quad of every row of a strip.
pub(super) const QUAD_BYTES: usize = 4 * STRIP_ROWS;

/// The layout of a packed block of format `F`, in constants, so that one loop handles every format.
pub(super) struct Packing<F>(PhantomData<F>);

impl<F: BlockFormat> Packing<F> {
    /// The integer layout of the format. Floating-point formats have none, and this value is not used for them.
    pub(super) const LAYOUT: IntegerLayout = match F::INTEGERS {
        Some(layout) => layout,
        None => IntegerLayout::new(8, 0, 32),
    };
    /// The operands of the sixteen codes, for formats with a codebook.
    pub(super) const OPERANDS: Option<[u8; 16]> = match (Self::LAYOUT.codebook, Self::LAYOUT.grid) {
        (None, _) | (_, Some(_)) => None,
        (Some(_), None) => {
            let mut operands = [0; 16];
            let mut code = 0;
            while code < operands.len() {
                operands[code] = Self::LAYOUT.operand(code as u8);
                code += 1;
            }
            Some(operands)
        }
    };
    /// Bytes of one unit for all rows of a strip.
    pub(super) const UNIT_BYTES: usize = Self::LAYOUT.unit_bytes() * STRIP_ROWS;
    /// Runs of 32 columns in a block.
    pub(super) const RUNS: usize = F::BLOCK_LEN / activations::BLOCK_LEN;
    /// 2 for formats with scales and minima, otherwise 1.
    const KINDS: usize = 1 + Self::LAYOUT.minimum as usize;
    /// The offset of the zero points.
    pub(super) const ZERO_POINTS: usize = Self::KINDS * Self::UNIT_BYTES;
    /// The offset of the scales.
    pub(super) const SCALES: usize = Self::ZERO_POINTS + Self::LAYOUT.zero_points as usize * STRIP_ROWS;
    /// Bytes of the scales of a group for all rows, including the minima if there are any.
    pub(super) const SCALE_BYTES: usize = if Self::LAYOUT.group_scales { Self::KINDS * STRIP_ROWS } else { 0 };
    /// The offset of the codes.
    pub(super) const CODES: usize = Self::SCALES + F::BLOCK_LEN / Self::LAYOUT.group * Self::SCALE_BYTES;
    /// Bytes of the codes of 32 columns.
    pub(super) const RUN_BYTES: usize = (Self::RUN_WORDS.0 + Self::RUN_WORDS.1) * QUAD_BYTES;
    /// Words of 32 columns of a row, in the planes of low and of high bits.
    pub(super) const RUN_WORDS: (usize, usize) = Self::LAYOUT.words_of_run();
    /// Words of a row after its runs.
    pub(super) const REST_WORDS: usize = Self::LAYOUT.words_of_runs(Self::RUNS);
    /// The offset of these words.
    pub(super) const REST: usize = Self::CODES + Self::RUNS * Self::RUN_BYTES;
    /// Bytes of a block of sixteen rows.
    pub(super) const BYTES: usize = Self::REST + Self::REST_WORDS * QUAD_BYTES;
}

/// The planes of codes with `bits` bits: the width of each plane and its first bit in the code.
pub(super) const fn planes(bits: usize) -> [(usize, usize); 2] {
    match bits {
        1 | 2 | 4 | 8 => [(bits, 0), (0, 0)],
        3 => [(2, 0), (1, 2)],
        5 => [(4, 0), (1, 4)],
        6 => [(4, 0), (2, 4)],
        _ => panic!("codes have 2, 3, 4, 5, 6 or 8 bits"),
    }
}

/// A weight packed in strips.
#[derive(Clone)]
pub struct PackedWeight {
    /// Can contain other weights too.
    pages: Arc<Pages<u8>>,
    range: Range<usize>,
    strip_bytes: usize,
}

impl PackedWeight {
    /// Bytes of a packed weight; `None` if its format has no integers.
    #[must_use]
    pub fn size(weight: &Weight) -> Option<usize> {
        weight.format.integers()?;
        Some(weight.rows.div_ceil(STRIP_ROWS) * strip_bytes(weight))
    }

    /// Packs a weight; `None` if its format has no integers.
    #[must_use]
    pub fn new(weight: &Weight, team: &dyn Team) -> Option<Self> {
        Self::together(std::slice::from_ref(weight), team)?.pop()
    }

    /// Packs weights of the same shape and format into one allocation; `None` if their format has no integers, or there
    /// are no weights.
    #[must_use]
    pub fn together(weights: &[Weight], team: &dyn Team) -> Option<Vec<Self>> {
        let first = weights.first()?;
        let (size, strip_bytes) = (Self::size(first)?, strip_bytes(first));
        let is_same_shape =
            |weight: &Weight| (weight.format, weight.rows, weight.columns) == (first.format, first.rows, first.columns);
        assert!(weights.iter().all(is_same_shape), "weights that are packed together have the same shape and format");
        let strips = first.rows.div_ceil(STRIP_ROWS);
        let mut pages = Pages::zeroed_large(size * weights.len());
        let strips_of_piece = (PIECE_BYTES / (first.row_bytes() * STRIP_ROWS).max(1)).max(1);
        for (piece, packed) in pages.chunks_mut(strips_of_piece * strip_bytes.max(1)).enumerate() {
            let start = piece * strips_of_piece;
            for_each_chunk(team, packed, strip_bytes, &|index, packed| {
                let (weight, strip) = (&weights[(start + index) / strips], (start + index) % strips);
                dispatch!(weight.format, F => pack_strip::<F>(weight, strip * STRIP_ROWS, packed));
            });
            release(weights, strips, start..start + packed.len() / strip_bytes.max(1));
        }
        let pages = Arc::new(pages);
        let packed = |index: usize| PackedWeight {
            pages: Arc::clone(&pages),
            range: index * size..(index + 1) * size,
            strip_bytes,
        };
        Some((0..weights.len()).map(packed).collect())
    }

    /// The strip whose first output is `first`, a multiple of [`STRIP_ROWS`].
    #[must_use]
    pub fn strip(&self, first: usize) -> &[u8] {
        assert!(first.is_multiple_of(STRIP_ROWS));
        &self.pages[self.range.clone()][first / STRIP_ROWS * self.strip_bytes..][..self.strip_bytes]
    }
}

/// Releases the rows of some strips, which are counted through all weights.
fn release(weights: &[Weight], strips: usize, piece: Range<usize>) {
    for (index, weight) in weights.iter().enumerate() {
        let strip_of = |task: usize| task.saturating_sub(index * strips).min(strips);
        let rows = strip_of(piece.start) * STRIP_ROWS..(strip_of(piece.end) * STRIP_ROWS).min(weight.rows);
        if !rows.is_empty() {
            weight.slice_rows(rows).release();
        }
    }
}

impl std::fmt::Debug for PackedWeight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedWeight({} bytes)", self.range.len())
    }
}

fn strip_bytes(weight: &Weight) -> usize {
    dispatch!(weight.format, F => weight.columns / F::BLOCK_LEN * Packing::<F>::BYTES)
}

/// Packs up to sixteen rows, starting at `first`. Missing rows become zeros.
fn pack_strip<F: BlockFormat>(weight: &Weight, first: usize, strip: &mut [u8]) {
    let rows = STRIP_ROWS.min(weight.rows - first);
    let mut blocks = vec![IntegerBlock::ZERO; STRIP_ROWS];
    for (index, packed) in strip.chunks_exact_mut(Packing::<F>::BYTES).enumerate() {
        for (row, block) in blocks[..rows].iter_mut().enumerate() {
            F::integers(&weight.row(first + row)[index * F::BLOCK_BYTES..][..F::BLOCK_BYTES], block);
        }
        pack_block::<F>(&blocks, packed);
    }
}

fn pack_block<F: BlockFormat>(blocks: &[IntegerBlock], packed: &mut [u8]) {
    let layout = Packing::<F>::LAYOUT;
    let (units, rest) = packed.split_at_mut(Packing::<F>::SCALES);
    let (scales, codes) = rest.split_at_mut(Packing::<F>::CODES - Packing::<F>::SCALES);
    for (row, block) in blocks.iter().enumerate() {
        let mut put = |kind: usize, unit: &[u8]| {
            units[kind * Packing::<F>::UNIT_BYTES + row * unit.len()..][..unit.len()].copy_from_slice(unit);
        };
        match layout.unit {
            Unit::Half => put(0, &block.unit.to_le_bytes()),
            Unit::PowerOfTwo => put(0, &[block.unit_exponent]),
        }
        if layout.minimum {
            put(1, &block.minimum_unit.to_le_bytes());
        }
        if layout.zero_points {
            units[Packing::<F>::ZERO_POINTS + row] = block.zero_point as u8;
        }
        if layout.group_scales {
            for (group, scales) in scales.chunks_exact_mut(Packing::<F>::SCALE_BYTES).enumerate() {
                scales[row] = block.scales[group] as u8;
                if layout.minimum {
                    scales[STRIP_ROWS + row] = block.minima[group] as u8;
                }
            }
        }
    }
    let (codes, rest) = codes.split_at_mut(Packing::<F>::REST - Packing::<F>::CODES);
    for (run, packed) in codes.chunks_exact_mut(Packing::<F>::RUN_BYTES).enumerate() {
        match &layout.grid {
            Some(grid) => pack_words(blocks, |block| grid.run_words(&block.cells, &block.signs, run), packed),
            None => pack_run(layout.bits, run * activations::BLOCK_LEN, blocks, packed),
        }
    }
    if let Some(grid) = &layout.grid {
        pack_words(blocks, |block| grid.block_words(&block.cells, Packing::<F>::RUNS), rest);
    }
}

/// Writes the words of each row, one register for each word.
fn pack_words<const WORDS: usize>(
    blocks: &[IntegerBlock],
    words_of: impl Fn(&IntegerBlock) -> [u32; WORDS],
    packed: &mut [u8],
) {
    for (row, block) in blocks.iter().enumerate() {
        for (register, word) in packed.chunks_exact_mut(QUAD_BYTES).zip(words_of(block)) {
            register[4 * row..][..4].copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// Packs the codes of columns `column..column + 32`.
fn pack_run(bits: usize, column: usize, blocks: &[IntegerBlock], mut packed: &mut [u8]) {
    let mut quads = [[0_u32; STRIP_ROWS]; QUADS];
    for (row, block) in blocks.iter().enumerate() {
        for (quads, codes) in quads.iter_mut().zip(block.codes[column..].as_chunks::<4>().0) {
            quads[row] = u32::from_le_bytes(*codes);
        }
    }
    for (width, start) in planes(bits) {
        let (plane, rest) = packed.split_at_mut(width * QUAD_BYTES);
        for (register, out) in plane.chunks_exact_mut(QUAD_BYTES).enumerate() {
            let mut words = [0_u32; STRIP_ROWS];
            for (position, quads) in quads[register..].iter().step_by(width).enumerate() {
                for (word, quad) in words.iter_mut().zip(quads) {
                    let bits = (quad >> start) & (u32::from(u8::MAX >> (8 - width)) * 0x0101_0101);
                    *word |= bits << (position * width);
                }
            }
            for (out, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(words) {
                *out = word.to_le_bytes();
            }
        }
        packed = rest;
    }
}
