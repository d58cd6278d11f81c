//! Strips turned into the planes that a GPU reads ([`gpu::weight`](crate::gpu::weight)).
//!
//! Both have the same words: codes cut into planes of the same bits, and quads in the same place of a word. What differs is
//! their order: a strip has a word of sixteen rows side by side, a plane has all words of a row. So weights that were
//! arranged for the processor can go to a device without a second copy of them in memory, or another look into their file.

use super::packed::{PackedWeight, Packing, QUAD_BYTES, STRIP_ROWS, planes};
use crate::quant::{BlockFormat, dispatch};
use crate::weight::Weight;

/// Bytes of a word.
const WORD: usize = 4;

impl PackedWeight {
    /// Writes the planes of `weight`, whose strips these are: low, high, scales and units of all of its rows.
    ///
    /// # Panics
    /// When it is another weight, or a slice has another length than its plane.
    pub fn write_planes(&self, weight: &Weight, planes: [&mut [u8]; 4]) {
        let mut rest = planes;
        for first in (0..weight.rows).step_by(STRIP_ROWS) {
            let (rows, left) = (STRIP_ROWS.min(weight.rows - first), weight.rows - first);
            let of_strip = rest.each_mut().map(|plane| {
                let bytes = plane.len() / left * rows;
                plane.split_off_mut(..bytes).unwrap_or_default()
            });
            dispatch!(weight.format, F => write_strip::<F>(self.strip(first), rows, of_strip));
        }
    }
}

fn write_strip<F: BlockFormat>(strip: &[u8], rows: usize, [low, high, scales, units]: [&mut [u8]; 4]) {
    let layout = Packing::<F>::LAYOUT;
    let ([(low_bits, _), (high_bits, _)], runs) = (planes(layout.bits), Packing::<F>::RUNS);
    let scales_of_run = scales_of_run::<F>();
    let blocks = strip.len() / Packing::<F>::BYTES;
    for (number, block) in strip.chunks_exact(Packing::<F>::BYTES).enumerate() {
        let (block_units, block_scales) = block[..Packing::<F>::CODES].split_at(Packing::<F>::SCALES);
        let codes = &block[Packing::<F>::CODES..];
        for row in 0..rows {
            let place = row * blocks + number;
            for (run, codes) in codes.chunks_exact(Packing::<F>::RUN_BYTES).enumerate() {
                let (low_codes, high_codes) = codes.split_at(low_bits * QUAD_BYTES);
                gather_words(low_codes, row, &mut low[(place * runs + run) * low_bits * WORD..]);
                gather_words(high_codes, row, &mut high[(place * runs + run) * high_bits * WORD..]);
            }
            if layout.group_scales {
                let scales = &mut scales[place * runs * scales_of_run..][..runs * scales_of_run];
                gather_scales::<F>(block_scales, row, scales);
            }
            let unit_bytes = layout.unit_bytes();
            for (part, units_of_rows) in block_units.chunks_exact(Packing::<F>::UNIT_BYTES).enumerate() {
                let parts = block_units.len() / Packing::<F>::UNIT_BYTES;
                let unit = &units_of_rows[row * unit_bytes..][..unit_bytes];
                units[(place * parts + part) * unit_bytes..][..unit_bytes].copy_from_slice(unit);
            }
        }
    }
}

/// Bytes of the scales, and minima where there are some, of 32 columns of a row.
const fn scales_of_run<F: BlockFormat>() -> usize {
    let layout = Packing::<F>::LAYOUT;
    let groups = F::BLOCK_LEN / Packing::<F>::RUNS / layout.group;
    if layout.group_scales { groups * Packing::<F>::SCALE_BYTES / STRIP_ROWS } else { 0 }
}

/// The words of a row, out of registers that have a word of each row.
#[inline(always)]
fn gather_words(registers: &[u8], row: usize, out: &mut [u8]) {
    for (word, register) in out.as_chunks_mut::<WORD>().0.iter_mut().zip(registers.as_chunks::<QUAD_BYTES>().0) {
        word.copy_from_slice(&register[row * WORD..][..WORD]);
    }
}

/// The scales of a row's block: of each run those of its groups, then their minima.
#[inline(always)]
fn gather_scales<F: BlockFormat>(scales: &[u8], row: usize, out: &mut [u8]) {
    let parts = Packing::<F>::SCALE_BYTES / STRIP_ROWS;
    let groups = scales_of_run::<F>() / parts.max(1);
    for (run, out) in out.chunks_exact_mut(groups * parts).enumerate() {
        for part in 0..parts {
            for group in 0..groups {
                let of_group = (run * groups + group) * Packing::<F>::SCALE_BYTES;
                out[part * groups + group] = scales[of_group + part * STRIP_ROWS + row];
            }
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cpu::Solo;
    use crate::gpu::weight::WeightLayout;
    use crate::quant::{Format, random};

    #[test]
    fn strips_give_the_planes_that_the_file_gives() {
        for format in Format::ALL.iter().copied().filter(|format| format.integers().is_some()) {
            for (rows, columns) in [(48, 512), (5, 256), (35, 768)] {
                let weight = random::weight("w", format, rows, columns, 3);
                let packed = PackedWeight::new(&weight, &Solo).unwrap();
                let expected = WeightLayout::new(format, rows, columns).planes(&weight, 0..rows);
                let mut planes = expected.each_ref().map(|plane| vec![0xaa; plane.len()]);
                packed.write_planes(&weight, planes.each_mut().map(Vec::as_mut_slice));
                assert!(planes == expected, "{format} [{rows}, {columns}]");
            }
        }
    }
}
