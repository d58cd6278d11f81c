//! Conversion of strips to the planes that a GPU reads ([`gpu::weight`](crate::gpu::weight)).
//!
//! Both layouts consist of the same words: codes are split into planes of the same bits, and quads have the same
//! position in a word. Only the order differs: a strip interleaves the words of sixteen rows, a plane has all words of
//! a row together. So weights that are packed for the CPU can be uploaded to a device without a second copy in memory,
//! and without reading their file again.

use super::packed::{PackedWeight, Packing, QUAD_BYTES, STRIP_ROWS};
use crate::quant::{BlockFormat, dispatch};
use crate::weight::Weight;

/// Bytes of a word.
const WORD: usize = 4;

impl PackedWeight {
    /// Writes the planes of `weight`: low bits, high bits, scales and units of all of its rows. These must be the
    /// strips of `weight`.
    ///
    /// # Panics
    /// When the shape of `weight` is another one, or a slice does not have the length of its plane.
    pub fn write_planes(&self, weight: &Weight, planes: [&mut [u8]; 4]) {
        let mut rest = planes;
        for first in (0..weight.rows).step_by(STRIP_ROWS) {
            let (rows, remaining) = (STRIP_ROWS.min(weight.rows - first), weight.rows - first);
            let strip_planes = rest.each_mut().map(|plane| {
                let bytes = plane.len() / remaining * rows;
                plane.split_off_mut(..bytes).unwrap_or_default()
            });
            dispatch!(weight.format, F => write_strip::<F>(self.strip(first), rows, strip_planes));
        }
    }
}

fn write_strip<F: BlockFormat>(strip: &[u8], rows: usize, [low, high, scales, units]: [&mut [u8]; 4]) {
    let layout = Packing::<F>::LAYOUT;
    let ((low_words, high_words), runs) = (Packing::<F>::RUN_WORDS, Packing::<F>::RUNS);
    let high_of_block = runs * high_words + Packing::<F>::REST_WORDS;
    let scales_of_run = scales_of_run::<F>();
    let blocks = strip.len() / Packing::<F>::BYTES;
    for (number, block) in strip.chunks_exact(Packing::<F>::BYTES).enumerate() {
        let (block_units, block_scales) = block[..Packing::<F>::CODES].split_at(Packing::<F>::SCALES);
        let (block_units, zero_points) = block_units.split_at(Packing::<F>::ZERO_POINTS);
        let (codes, rest) = block[Packing::<F>::CODES..].split_at(Packing::<F>::REST - Packing::<F>::CODES);
        for row in 0..rows {
            let index = row * blocks + number;
            for (run, codes) in codes.chunks_exact(Packing::<F>::RUN_BYTES).enumerate() {
                let (low_codes, high_codes) = codes.split_at(low_words * QUAD_BYTES);
                gather_words(low_codes, row, &mut low[(index * runs + run) * low_words * WORD..]);
                gather_words(high_codes, row, &mut high[(index * high_of_block + run * high_words) * WORD..]);
            }
            gather_words(rest, row, &mut high[(index * high_of_block + runs * high_words) * WORD..]);
            if layout.group_scales {
                let scales = &mut scales[index * runs * scales_of_run..][..runs * scales_of_run];
                gather_scales::<F>(block_scales, row, scales);
            }
            if layout.zero_points {
                scales[index] = zero_points[row];
            }
            let unit_bytes = layout.unit_bytes();
            for (kind, units_of_rows) in block_units.chunks_exact(Packing::<F>::UNIT_BYTES).enumerate() {
                let kinds = block_units.len() / Packing::<F>::UNIT_BYTES;
                let unit = &units_of_rows[row * unit_bytes..][..unit_bytes];
                units[(index * kinds + kind) * unit_bytes..][..unit_bytes].copy_from_slice(unit);
            }
        }
    }
}

/// Bytes of the scales and minima of 32 columns of a row.
const fn scales_of_run<F: BlockFormat>() -> usize {
    let layout = Packing::<F>::LAYOUT;
    let groups = F::BLOCK_LEN / Packing::<F>::RUNS / layout.group;
    if layout.group_scales { groups * Packing::<F>::SCALE_BYTES / STRIP_ROWS } else { 0 }
}

/// Copies the words of a row from registers that have one word for each row.
#[inline(always)]
fn gather_words(registers: &[u8], row: usize, out: &mut [u8]) {
    for (word, register) in out.as_chunks_mut::<WORD>().0.iter_mut().zip(registers.as_chunks::<QUAD_BYTES>().0) {
        word.copy_from_slice(&register[row * WORD..][..WORD]);
    }
}

/// Copies the scales of a row: for each run the scales of its groups, then their minima.
#[inline(always)]
fn gather_scales<F: BlockFormat>(scales: &[u8], row: usize, out: &mut [u8]) {
    let kinds = Packing::<F>::SCALE_BYTES / STRIP_ROWS;
    let groups = scales_of_run::<F>() / kinds.max(1);
    for (run, out) in out.chunks_exact_mut(groups * kinds).enumerate() {
        for kind in 0..kinds {
            for group in 0..groups {
                let group_start = (run * groups + group) * Packing::<F>::SCALE_BYTES;
                out[kind * groups + group] = scales[group_start + kind * STRIP_ROWS + row];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::Solo;
    use crate::gpu::weight::WeightLayout;
    use crate::quant::{Format, random};

    #[test]
    fn strips_give_the_same_planes_as_the_file() {
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
