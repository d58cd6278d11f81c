//! IQ2_XXS: 256 values in 66 bytes (2.0625 bits a value): 8 groups of 32, each with a 4-bit scale. Eight values are the
//! index of a cell.
//!
//! | bytes | content                                                                                      |
//! |-------|----------------------------------------------------------------------------------------------|
//! | 0..2  | `d`, f16, unit of the scales                                                                 |
//! | 2..66 | 8 bytes a group: the indices of 4 cells, then a word: seven signs of each cell, and the scale |
//!
//! `value = d (2 scale + 1) / 8 * (+-CODEBOOK[code])`
//!
//! The signs of a cell are seven bits for seven values. The number of negative values is even, which gives the eighth.

use super::block::BlockFormat;
use super::cells::{self, all_signs, odd, word_at};
use super::grid::{self, Grid, Signs};
use super::integer::{Codebook, IntegerBlock, IntegerLayout};
use super::pack::{CellRules, Packing, SignBits, half_of_odd, put_half, put_low_bytes, seven_signs};
use super::unpack::half_at;

/// 256 values in 66 bytes.
pub struct Iq2Xxs;

/// The integer of each code.
pub(super) const CODEBOOK: Codebook = [8, 25, 43, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

static CELLS: [u16; 256] = grid::read(include_bytes!("grids/iq2_xxs.bin"));
static QUADS: [u32; 512] = grid::quads(&CELLS, &CODEBOOK, 0);
const GRID: Grid = Grid { cells: &CELLS, quads: &QUADS, cell_len: 8, high_bits: 0, signs: Signs::Negate };

impl BlockFormat for Iq2Xxs {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 66;
    const GGML_ID: u32 = 16;
    const NAME: &'static str = "IQ2_XXS";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::with_grid(GRID, CODEBOOK, 64, 32, 3));
    const PACKING: Packing = Packing::Cells(CellRules::new(31, SignBits::Even));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        cells::decode::<Self>(block, out);
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        for (group, bytes) in block[2..66].chunks_exact(8).enumerate() {
            let word = word_at(bytes, 4);
            out.scales[group] = odd(word >> 28);
            out.signs[group] = all_signs(word);
            for (cell, byte) in out.cells[4 * group..][..4].iter_mut().zip(bytes) {
                *cell = u16::from(*byte);
            }
        }
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 0, integers.unit);
        for (group, bytes) in block[2..66].chunks_exact_mut(8).enumerate() {
            put_low_bytes(&integers.cells[4 * group..][..4], &mut bytes[..4]);
            let scale = u32::from(half_of_odd(integers.scales[group]));
            bytes[4..].copy_from_slice(&(seven_signs(integers.signs[group]) | scale << 28).to_le_bytes());
        }
    }
}
