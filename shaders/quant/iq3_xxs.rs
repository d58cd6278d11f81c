//! IQ3_XXS: 256 values in 98 bytes (3.0625 bits a value): 8 groups of 32, each with a 4-bit scale. Four values are the index
//! of a cell.
//!
//! | bytes  | content                                                                         |
//! |--------|---------------------------------------------------------------------------------|
//! | 0..2   | `d`, f16, unit of the scales                                                    |
//! | 2..66  | the indices of the cells                                                        |
//! | 66..98 | a word for each group: seven signs for each eight values, and the scale         |
//!
//! `value = d (2 scale + 1) / 4 * (+-CODEBOOK[code])`
//!
//! Signs are stored as in [`iq2_xxs`](super::iq2_xxs).

use super::block::BlockFormat;
use super::cells::{self, all_signs, odd, word_at};
use super::grid::{self, Grid, Signs};
use super::integer::{Codebook, IntegerBlock, IntegerLayout};
use super::pack::{CellRules, Packing, SignBits, half_of_odd, put_half, put_low_bytes, seven_signs};
use super::unpack::half_at;

/// 256 values in 98 bytes.
pub struct Iq3Xxs;

/// The integer of each code.
const CODEBOOK: Codebook = [4, 12, 20, 28, 36, 44, 52, 62, 0, 0, 0, 0, 0, 0, 0, 0];

static CELLS: [u16; 256] = grid::read(include_bytes!("grids/iq3_xxs.bin"));
static QUADS: [u32; 256] = grid::quads(&CELLS, &CODEBOOK, 0);
const GRID: Grid = Grid { cells: &CELLS, quads: &QUADS, cell_len: 4, high_bits: 0, signs: Signs::Negate };

impl BlockFormat for Iq3Xxs {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 98;
    const GGML_ID: u32 = 18;
    const NAME: &'static str = "IQ3_XXS";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::with_grid(GRID, CODEBOOK, 64, 32, 2));
    const PACKING: Packing = Packing::Cells(CellRules::new(31, SignBits::Even));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        cells::decode::<Self>(block, out);
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        for (cell, byte) in out.cells.iter_mut().zip(&block[2..66]) {
            *cell = u16::from(*byte);
        }
        for group in 0..8 {
            let word = word_at(block, 66 + 4 * group);
            out.scales[group] = odd(word >> 28);
            out.signs[group] = all_signs(word);
        }
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 0, integers.unit);
        put_low_bytes(&integers.cells, &mut block[2..66]);
        for (group, bytes) in block[66..98].chunks_exact_mut(4).enumerate() {
            let scale = u32::from(half_of_odd(integers.scales[group]));
            bytes.copy_from_slice(&(seven_signs(integers.signs[group]) | scale << 28).to_le_bytes());
        }
    }
}
