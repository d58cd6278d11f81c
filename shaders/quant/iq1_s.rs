//! IQ1_S: 256 values in 50 bytes (1.5625 bits a value): 8 groups of 32, each with a 3-bit scale. Eight values are the index
//! of a cell.
//!
//! | bytes  | content                                                                                                         |
//! |--------|-----------------------------------------------------------------------------------------------------------------|
//! | 0..2   | `d`, f16, unit of the scales                                                                                    |
//! | 2..34  | low 8 bits of the indices of the cells                                                                          |
//! | 34..50 | a 16-bit number for each group: 3 upper bits of the index of each of its 4 cells, the scale, a bit for the shift |
//!
//! `value = d (2 scale + 1) * (code - 1 + 1/8)`, or minus one eighth if the bit is set. All are multiples of one eighth, so the
//! codebook holds them multiplied by 8: `value = d (2 scale + 1) / 8 * (CODEBOOK[code] - 2 bit)`.

use super::block::BlockFormat;
use super::cells::{self, half_word_at, odd};
use super::grid::{self, Grid, Signs};
use super::integer::{Codebook, IntegerBlock, IntegerLayout};
use super::pack::{CellRules, Packing, SignBits, half_of_odd, put_half, put_low_bytes};
use super::unpack::half_at;

/// 256 values in 50 bytes.
pub struct Iq1S;

/// Eight times the value of each code, plus 1.
pub(super) const CODEBOOK: Codebook = [-7, 1, 9, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// The number that makes all integers positive.
pub(super) const OFFSET: u8 = 16;

static CELLS: [u16; 2048] = grid::read(include_bytes!("grids/iq1.bin"));
static QUADS: [u32; 4096] = grid::quads(&CELLS, &CODEBOOK, OFFSET);
/// The grid of both formats.
pub(super) const GRID: Grid = Grid { cells: &CELLS, quads: &QUADS, cell_len: 8, high_bits: 4, signs: Signs::Lower };

impl BlockFormat for Iq1S {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 50;
    const GGML_ID: u32 = 19;
    const NAME: &'static str = "IQ1_S";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::with_grid(GRID, CODEBOOK, OFFSET, 32, 3));
    const PACKING: Packing = Packing::Cells(CellRules::new(15, SignBits::ShiftOfGroup));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        cells::decode::<Self>(block, out);
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        for group in 0..8 {
            let stored = half_word_at(block, 34 + 2 * group);
            out.scales[group] = odd(u32::from(stored >> 12 & 7));
            for position in 0..4 {
                let high = stored >> (3 * position) & 7 | (stored >> 15) << 3;
                out.cells[4 * group + position] = u16::from(block[2 + 4 * group + position]) | high << 8;
            }
        }
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 0, integers.unit);
        put_low_bytes(&integers.cells, &mut block[2..34]);
        let groups = integers.cells.as_chunks::<4>().0.iter().zip(&integers.scales);
        for (bytes, (cells, scale)) in block[34..50].chunks_exact_mut(2).zip(groups) {
            let high = cells.iter().rev().fold(0, |high, cell| high << 3 | cell >> 8 & 7);
            let shift = cells[0] >> 11 & 1;
            let stored = high | u16::from(half_of_odd(*scale)) << 12 | shift << 15;
            bytes.copy_from_slice(&stored.to_le_bytes());
        }
    }
}
