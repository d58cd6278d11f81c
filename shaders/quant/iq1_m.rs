//! IQ1_M: 256 values in 56 bytes (1.75 bits a value): 16 groups of 16, each with a 3-bit scale. Eight values are the index of
//! a cell. Grid and codebook are those of [`iq1_s`](super::iq1_s).
//!
//! | bytes  | content                                                                                                     |
//! |--------|-------------------------------------------------------------------------------------------------------------|
//! | 0..32  | low 8 bits of the indices of the cells                                                                      |
//! | 32..48 | a nibble for each cell: 3 upper bits of its index, and the bit of its shift                                 |
//! | 48..56 | four 16-bit numbers: the scales of four groups each; their top nibbles are `d`, f16, the lowest nibble first |
//!
//! `value = d (2 scale + 1) / 8 * (CODEBOOK[code] - 2 bit)`

use half::f16;

use super::block::BlockFormat;
use super::cells::{self, half_word_at, odd};
use super::integer::{IntegerBlock, IntegerLayout};
use super::iq1_s::{CODEBOOK, GRID, OFFSET};
use super::pack::{CellRules, Packing, SignBits, half_of_odd, put_low_bytes};

/// 256 values in 56 bytes.
pub struct Iq1M;

impl BlockFormat for Iq1M {
    const BLOCK_LEN: usize = 256;
    const BLOCK_BYTES: usize = 56;
    const GGML_ID: u32 = 29;
    const NAME: &'static str = "IQ1_M";
    const INTEGERS: Option<IntegerLayout> = Some(IntegerLayout::with_grid(GRID, CODEBOOK, OFFSET, 16, 3));
    const PACKING: Packing = Packing::Cells(CellRules::new(15, SignBits::ShiftOfCell));

    #[inline(always)]
    fn decode(block: &[u8], out: &mut [f32]) {
        cells::decode::<Self>(block, out);
    }

    #[inline(always)]
    fn integers(block: &[u8], out: &mut IntegerBlock) {
        let mut unit = 0;
        for part in 0..4 {
            let stored = half_word_at(block, 48 + 2 * part);
            unit |= (stored >> 12) << (4 * part);
            for position in 0..4 {
                out.scales[4 * part + position] = odd(u32::from(stored >> (3 * position) & 7));
            }
        }
        out.unit = f16::from_bits(unit);
        for (position, (cell, low)) in out.cells.iter_mut().zip(&block[..32]).enumerate() {
            let high = block[32 + position / 2] >> (position % 2 * 4) & 15;
            *cell = u16::from_le_bytes([*low, high]);
        }
    }

    fn pack(integers: &IntegerBlock, block: &mut [u8]) {
        put_low_bytes(&integers.cells, &mut block[..32]);
        for (byte, cells) in block[32..48].iter_mut().zip(integers.cells.as_chunks::<2>().0) {
            *byte = (cells[0] >> 8) as u8 & 15 | ((cells[1] >> 8) as u8 & 15) << 4;
        }
        for (part, bytes) in block[48..56].chunks_exact_mut(2).enumerate() {
            let scales = integers.scales[4 * part..][..4].iter().rev();
            let scales = scales.fold(0, |scales, scale| scales << 3 | u16::from(half_of_odd(*scale)));
            let unit = integers.unit.to_bits() >> (4 * part) & 15;
            bytes.copy_from_slice(&(scales | unit << 12).to_le_bytes());
        }
    }
}
