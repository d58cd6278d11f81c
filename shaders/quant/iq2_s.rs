//! IQ2_S: 256 values in 82 bytes (2.5625 bits a value): 16 groups of 16, each with a 4-bit scale. Eight values are the index
//! of a cell. Codes use the codebook of [`iq2_xxs`](super::iq2_xxs).
//!
//! | bytes  | content                                                                                   |
//! |--------|-------------------------------------------------------------------------------------------|
//! | 0..2   | `d`, f16, unit of the scales                                                              |
//! | 2..34  | low 8 bits of the indices of the cells                                                    |
//! | 34..66 | a sign bit for each value                                                                 |
//! | 66..74 | upper 2 bits of the indices: cell `4 i + j` in bits `2 j` of byte `i`                     |
//! | 74..82 | scales: group `2 i` in the low nibble of byte `i`, group `2 i + 1` in the high            |
//!
//! `value = d (2 scale + 1) / 8 * (+-CODEBOOK[code])`

use super::block::BlockFormat;
use super::cells::{self, scales_of_nibbles, word_at};
use super::grid::{self, Grid, Signs};
use super::integer::{IntegerBlock, IntegerLayout};
use super::iq2_xxs::CODEBOOK;
use super::pack::{CellRules, Packing, SignBits, put_half, put_low_bytes, put_odd_scales, put_words};
use super::unpack::half_at;

/// 256 values in 82 bytes.
pub struct Iq2S;

static CELLS: [u16; 1024] = grid::read(include_bytes!("grids/iq2_s.bin"));
static QUADS: [u32; 2048] = grid::quads(&CELLS, &CODEBOOK, 0);
const GRID: Grid = Grid { cells: &CELLS, quads: &QUADS, cell_len: 8, high_bits: 2, signs: Signs::Negate };

impl BlockFormat for Iq2S {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 82;
    const GGML_ID: u32 = 22;
    const NAME: &'static str = "IQ2_S";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::with_grid(GRID, CODEBOOK, 64, 16, 3));
    const PACKING: Packing = Packing::Cells(CellRules::new(31, SignBits::Each));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        cells::decode::<Self>(block, out);
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        for (position, (cell, low)) in out.cells.iter_mut().zip(&block[2..34]).enumerate() {
            let high = block[66 + position / 4] >> (position % 4 * 2) & 3;
            *cell = u16::from_le_bytes([*low, high]);
        }
        for (run, signs) in out.signs.iter_mut().enumerate() {
            *signs = word_at(block, 34 + 4 * run);
        }
        scales_of_nibbles(&block[74..82], &mut out.scales);
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 0, integers.unit);
        put_low_bytes(&integers.cells, &mut block[2..34]);
        put_words(&integers.signs, &mut block[34..66]);
        for (byte, cells) in block[66..74].iter_mut().zip(integers.cells.as_chunks::<4>().0) {
            *byte = cells.iter().rev().fold(0, |byte, cell| byte << 2 | (cell >> 8) as u8 & 3);
        }
        put_odd_scales(&integers.scales, &mut block[74..82]);
    }
}
