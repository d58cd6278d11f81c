//! IQ3_S: 256 values in 110 bytes (3.4375 bits a value): 8 groups of 32, each with a 4-bit scale. Four values are the index
//! of a cell.
//!
//! | bytes    | content                                                                                     |
//! |----------|---------------------------------------------------------------------------------------------|
//! | 0..2     | `d`, f16, unit of the scales                                                                |
//! | 2..66    | low 8 bits of the indices of the cells                                                      |
//! | 66..74   | ninth bits: a byte for each group, a bit for each of its 8 cells                            |
//! | 74..106  | a sign bit for each value                                                                   |
//! | 106..110 | scales: group `2 i` in the low nibble of byte `i`, group `2 i + 1` in the high              |
//!
//! `value = d (2 scale + 1) * (+-CODEBOOK[code])`

use super::block::BlockFormat;
use super::cells::{self, odd, word_at};
use super::grid::{self, Grid, Signs};
use super::integer::{Codebook, IntegerBlock, IntegerLayout};
use super::pack::{CellRules, Packing, SignBits, put_half, put_low_bytes, put_odd_scales, put_words};
use super::unpack::half_at;

/// 256 values in 110 bytes.
pub struct Iq3S;

/// The integer of each code.
const CODEBOOK: Codebook = [1, 3, 5, 7, 9, 11, 13, 15, 0, 0, 0, 0, 0, 0, 0, 0];

static CELLS: [u16; 512] = grid::read(include_bytes!("grids/iq3_s.bin"));
static QUADS: [u32; 512] = grid::quads(&CELLS, &CODEBOOK, 0);
const GRID: Grid = Grid { cells: &CELLS, quads: &QUADS, cell_len: 4, high_bits: 1, signs: Signs::Negate };

impl BlockFormat for Iq3S {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 110;
    const GGML_ID: u32 = 21;
    const NAME: &'static str = "IQ3_S";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::with_grid(GRID, CODEBOOK, 16, 32, 0));
    const PACKING: Packing = Packing::Cells(CellRules::new(31, SignBits::Each));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        cells::decode::<Self>(block, out);
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        for (position, (cell, low)) in out.cells.iter_mut().zip(&block[2..66]).enumerate() {
            let high = block[66 + position / 8] >> (position % 8) & 1;
            *cell = u16::from_le_bytes([*low, high]);
        }
        for group in 0..8 {
            out.scales[group] = odd(u32::from(block[106 + group / 2] >> (group % 2 * 4) & 15));
            out.signs[group] = word_at(block, 74 + 4 * group);
        }
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 0, integers.unit);
        put_low_bytes(&integers.cells, &mut block[2..66]);
        for (byte, cells) in block[66..74].iter_mut().zip(integers.cells.as_chunks::<8>().0) {
            *byte = cells.iter().rev().fold(0, |byte, cell| byte << 1 | (cell >> 8) as u8 & 1);
        }
        put_words(&integers.signs, &mut block[74..106]);
        put_odd_scales(&integers.scales, &mut block[106..110]);
    }
}
