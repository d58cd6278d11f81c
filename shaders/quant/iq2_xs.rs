//! IQ2_XS: 256 values in 74 bytes (2.3125 bits a value): 16 groups of 16, each with a 4-bit scale. Eight values are the
//! index of a cell. Codes use the codebook of [`iq2_xxs`](super::iq2_xxs).
//!
//! | bytes  | content                                                                                   |
//! |--------|-------------------------------------------------------------------------------------------|
//! | 0..2   | `d`, f16, unit of the scales                                                              |
//! | 2..66  | a 16-bit number for each cell: 9 bits of its index, then seven signs                      |
//! | 66..74 | scales: group `2 i` in the low nibble of byte `i`, group `2 i + 1` in the high            |
//!
//! `value = d (2 scale + 1) / 8 * (+-CODEBOOK[code])`
//!
//! Signs are stored as in [`iq2_xxs`](super::iq2_xxs).

use super::block::BlockFormat;
use super::cells::{self, half_word_at, scales_of_nibbles, with_eighth_sign};
use super::grid::{self, Grid, Signs};
use super::integer::{IntegerBlock, IntegerLayout};
use super::iq2_xxs::CODEBOOK;
use super::pack::{CellRules, Packing, SignBits, put_half, put_odd_scales};
use super::unpack::half_at;

/// 256 values in 74 bytes.
pub struct Iq2Xs;

static CELLS: [u16; 512] = grid::read(include_bytes!("grids/iq2_xs.bin"));
static QUADS: [u32; 1024] = grid::quads(&CELLS, &CODEBOOK, 0);
const GRID: Grid = Grid { cells: &CELLS, quads: &QUADS, cell_len: 8, high_bits: 1, signs: Signs::Negate };

impl BlockFormat for Iq2Xs {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 74;
    const GGML_ID: u32 = 17;
    const NAME: &'static str = "IQ2_XS";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::with_grid(GRID, CODEBOOK, 64, 16, 3));
    const PACKING: Packing = Packing::Cells(CellRules::new(31, SignBits::Even));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        cells::decode::<Self>(block, out);
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        out.unit = half_at(block, 0);
        for run in 0..8 {
            let mut signs = 0;
            for position in 0..4 {
                let stored = half_word_at(block, 2 + 2 * (4 * run + position));
                out.cells[4 * run + position] = stored & 511;
                signs |= with_eighth_sign(u32::from(stored >> 9)) << (8 * position);
            }
            out.signs[run] = signs;
        }
        scales_of_nibbles(&block[66..74], &mut out.scales);
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_half(block, 0, integers.unit);
        for (index, bytes) in block[2..66].chunks_exact_mut(2).enumerate() {
            let signs = (integers.signs[index / 4] >> (index % 4 * 8) & 127) as u16;
            bytes.copy_from_slice(&(integers.cells[index] & 511 | signs << 9).to_le_bytes());
        }
        put_odd_scales(&integers.scales, &mut block[66..74]);
    }
}
