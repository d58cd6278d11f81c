//! Weights on a device: every format in the same layout.
//!
//! Rows are divided into *runs* of 32 columns. A quantised format is stored as its [`IntegerLayout`] describes, in
//! planes that follow one another; each plane covers all rows:
//!
//! | plane  | contents, for a run or a block                                                         | bytes of a run        |
//! |--------|----------------------------------------------------------------------------------------|-----------------------|
//! | low    | 8, 4 or 2 bits of each code                                                            | 32, 16 or 8           |
//! | high   | 1 or 2 more bits of each code (5, 6 or 3 bits)                                          | 4 or 8, or none       |
//! | scales | i8 of each group; then the minimum of each group, if the format has minima; or the zero point | 1 to 4, or none |
//! | units  | f16 of a block; then the unit of the minima, if there are any; or a power of two       | 2, 4 or 1 for each block |
//!
//! A plane of `p` bits has `p` words for a run: columns `4 q ..` are in word `q mod p`, starting at bit `q / p * p` of
//! each byte. So a lane loads 8 or 16 aligned bytes at once, and formats differ only in constants (`quant/matrix.glsl`
//! decodes all of them).
//!
//! A format with a [grid](crate::quant::grid) has the words of its runs instead: low bits of indices in the low plane, signs
//! in the high plane. There the signs of a block are followed by its high bits. The table of cells precedes the planes.
//!
//! Formats in floating point are one plane of values, and one of f32 units if blocks have scales. Rows whose columns are not
//! whole runs are padded with zeros.

use std::ops::Range;

use super::push::Push;
use super::region::Region;
use crate::quant::grid::Signs;
use crate::quant::integer::{IntegerBlock, IntegerLayout, Scale, Unit};
use crate::quant::{BlockFormat, Format, dispatch};
use crate::weight::Weight;

/// Columns of a run.
pub const RUN_COLUMNS: usize = 32;
/// The alignment of planes.
const PLANE_ALIGNMENT: usize = 16;
/// Bits of a word.
const WORD_BITS: usize = 32;
/// Bytes after each plane: a shader reads whole words, also where entries are smaller.
const PLANE_PADDING: usize = 4;

/// The specialization constants of `quant/matrix.glsl`.
pub type WeightConstants = [(u32, u32); 21];

/// A weight on a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceWeight {
    /// The address of each plane: low, high, scales, units.
    pub planes: [u64; 4],
    /// The memory of all planes.
    pub region: Region,
}

impl DeviceWeight {
    /// Push constants that start with the weight: `Matrix` in `quant/matrix.glsl`.
    #[must_use]
    pub fn push(&self) -> Push {
        self.planes.iter().fold(Push::new(), |push, plane| push.address(*plane))
    }
}

/// How a format is packed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Packing {
    /// As the layout describes.
    Integers(IntegerLayout),
    /// Values of `bits` bits, and a scale of `scale_bytes` bytes for each block.
    Floats { bits: usize, scale_bytes: usize },
}

/// The layout of one weight: the starts and the sizes of its planes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightLayout {
    format: Format,
    packing: Packing,
    rows: usize,
    columns: usize,
    starts: [usize; 4],
    bytes: usize,
}

impl WeightLayout {
    /// The layout of a weight of this shape.
    #[must_use]
    pub fn new(format: Format, rows: usize, columns: usize) -> Self {
        let packing = match format.integers() {
            Some(layout) => Packing::Integers(layout),
            None => {
                let scale_bytes = format.scale_bytes();
                Packing::Floats { bits: 8 * (format.block_bytes() - scale_bytes) / format.block_len(), scale_bytes }
            }
        };
        let mut layout = WeightLayout { format, packing, rows, columns, starts: [0; 4], bytes: 0 };
        layout.bytes = layout.table().len().next_multiple_of(PLANE_ALIGNMENT);
        for plane in 0..4 {
            layout.starts[plane] = layout.bytes;
            let entries = rows * layout.runs() / layout.runs_of_entry(plane);
            let bytes = (entries * layout.entry_bits(plane)).div_ceil(8);
            if bytes > 0 {
                layout.bytes += (bytes + PLANE_PADDING).next_multiple_of(PLANE_ALIGNMENT);
            }
        }
        layout
    }

    /// Bytes of all planes.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.bytes as u64
    }

    /// Runs of a row.
    fn runs(&self) -> usize {
        self.columns.div_ceil(RUN_COLUMNS)
    }

    /// Runs that share an entry of a plane.
    fn runs_of_entry(&self, plane: usize) -> usize {
        match self.packing {
            _ if plane == 3 => self.runs_of_block(),
            Packing::Integers(IntegerLayout { grid: Some(_), .. }) if plane == 1 => self.runs_of_block(),
            _ => 1,
        }
    }

    /// Runs of a block.
    fn runs_of_block(&self) -> usize {
        (self.format.block_len() / RUN_COLUMNS).max(1)
    }

    /// The table at the start of the weight: the cells of the format's grid. Empty for formats without one.
    #[must_use]
    pub fn table(&self) -> Vec<u8> {
        let Packing::Integers(IntegerLayout { grid: Some(grid), .. }) = self.packing else { return Vec::new() };
        grid.cells.iter().flat_map(|cell| cell.to_le_bytes()).collect()
    }

    /// Bits of a plane's entry.
    fn entry_bits(&self, plane: usize) -> usize {
        match (self.packing, plane) {
            (Packing::Floats { bits, .. }, 0) => bits * RUN_COLUMNS,
            (Packing::Floats { scale_bytes, .. }, 3) => 8 * scale_bytes,
            (Packing::Floats { .. }, _) => 0,
            (Packing::Integers(layout), 0) => layout.words_of_run().0 * WORD_BITS,
            (Packing::Integers(layout), 1) => {
                let runs = self.runs_of_entry(plane);
                (runs * layout.words_of_run().1 + layout.words_of_runs(runs)) * WORD_BITS
            }
            (Packing::Integers(layout), 2) if layout.zero_points => 8,
            (Packing::Integers(layout), 2) if !layout.group_scales => 0,
            (Packing::Integers(layout), 2) => RUN_COLUMNS / layout.group * if layout.minimum { 16 } else { 8 },
            (Packing::Integers(layout), _) => 8 * layout.unit_bytes() * if layout.minimum { 2 } else { 1 },
        }
    }

    /// The weight at `address`.
    #[must_use]
    pub fn at(&self, address: u64) -> DeviceWeight {
        DeviceWeight {
            planes: self.starts.map(|start| address + start as u64),
            region: Region { address, bytes: self.bytes() },
        }
    }

    /// The specialization constants of `quant/matrix.glsl`.
    #[must_use]
    pub fn constants(&self) -> WeightConstants {
        let layout = match self.packing {
            Packing::Floats { bits, .. } => IntegerLayout::new(bits, 0, RUN_COLUMNS),
            Packing::Integers(layout) => layout,
        };
        let float_codes = match self.packing {
            Packing::Floats { bits: 8, .. } => 1,
            Packing::Floats { bits: 4, .. } => 2,
            _ => 0,
        };
        let codebook = layout.codebook.unwrap_or_default();
        let word = |first: usize| {
            let bytes: [u8; 4] = std::array::from_fn(|index| codebook[first + index] as u8);
            u32::from_le_bytes(bytes)
        };
        [
            (10, layout.bits as u32),
            (11, if layout.codebook.is_some() { 0 } else { u32::from(layout.offset) }),
            (12, if layout.group_scales { (RUN_COLUMNS / layout.group) as u32 } else { 1 }),
            (13, u32::from(layout.group_scales)),
            (14, u32::from(layout.minimum)),
            (15, u32::from(self.format == Format::BF16)),
            (40, u32::from(layout.unit == Unit::PowerOfTwo)),
            (41, u32::from(layout.codebook.is_some())),
            (42, word(0)),
            (43, word(4)),
            (44, word(8)),
            (45, word(12)),
            (46, self.runs_of_block() as u32),
            (47, layout.unit_shift),
            (48, layout.grid.map_or(0, |grid| grid.cell_len as u32)),
            (49, layout.grid.map_or(0, |grid| grid.high_bits as u32)),
            (50, u32::from(layout.grid.is_some_and(|grid| grid.signs == Signs::Negate))),
            (51, layout.grid.map_or(1, |grid| grid.cells.len() as u32)),
            (52, u32::from(layout.scale == Scale::Float8)),
            (53, float_codes),
            (54, u32::from(layout.zero_points)),
        ]
    }

    /// Whether every row is whole runs.
    #[must_use]
    pub fn whole_runs(&self) -> bool {
        self.columns.is_multiple_of(RUN_COLUMNS)
    }

    /// Packs the rows `first..first + count`: returns the bytes of each plane and their offset in the weight.
    ///
    /// # Panics
    /// When the layout has another number of rows than the weight.
    #[must_use]
    pub fn pack(&self, weight: &Weight, first: usize, count: usize) -> Vec<(u64, Vec<u8>)> {
        assert_eq!(weight.rows, self.rows);
        let planes = self.planes(weight, first..first + count);
        let filled = planes.into_iter().enumerate().filter(|(_, bytes)| !bytes.is_empty());
        filled.map(|(plane, bytes)| (self.plane_start(plane, first), bytes)).collect()
    }

    /// The planes of some rows of a weight. The weight has the format and the columns of this layout; its number of
    /// rows may differ.
    ///
    /// # Panics
    /// When the weight has another format or width, or does not have the rows.
    #[must_use]
    pub fn planes(&self, weight: &Weight, rows: Range<usize>) -> [Vec<u8>; 4] {
        assert_eq!((weight.format, weight.columns), (self.format, self.columns));
        let mut planes: [Vec<u8>; 4] =
            std::array::from_fn(|plane| Vec::with_capacity(self.plane_bytes(plane, rows.len())));
        for (number, row) in rows.enumerate() {
            match self.packing {
                Packing::Floats { bits, scale_bytes } => {
                    let block_bytes = if scale_bytes > 0 { self.format.block_bytes() } else { weight.row_bytes() };
                    for block in weight.row(row).chunks_exact(block_bytes.max(1)) {
                        let (scale, values) = block.split_at(scale_bytes);
                        planes[3].extend_from_slice(scale);
                        planes[0].extend_from_slice(values);
                    }
                    planes[0].resize((number + 1) * self.runs() * RUN_COLUMNS * bits / 8, 0);
                }
                Packing::Integers(layout) => {
                    dispatch!(self.format, F => pack_row::<F>(layout, weight.row(row), &mut planes));
                }
            }
        }
        planes
    }

    /// The offset of a row of a plane.
    #[must_use]
    pub fn plane_start(&self, plane: usize, row: usize) -> u64 {
        (self.starts[plane] + self.plane_bytes(plane, row)) as u64
    }

    /// Bytes of `rows` rows of a plane.
    #[must_use]
    pub fn plane_bytes(&self, plane: usize, rows: usize) -> usize {
        (rows * self.runs() / self.runs_of_entry(plane) * self.entry_bits(plane)).div_ceil(8)
    }
}

fn pack_row<F: BlockFormat>(layout: IntegerLayout, row: &[u8], planes: &mut [Vec<u8>; 4]) {
    let mut block = IntegerBlock::ZERO;
    let (low_bits, high_bits) = layout.words_of_run();
    for bytes in row.chunks_exact(F::BLOCK_BYTES) {
        F::integers(bytes, &mut block);
        for (run, codes) in block.codes[..F::BLOCK_LEN].chunks_exact(RUN_COLUMNS).enumerate() {
            if let Some(grid) = &layout.grid {
                let words = grid.run_words(&block.cells, &block.signs, run);
                pack_words(&words[..low_bits], &mut planes[0]);
                pack_words(&words[low_bits..low_bits + high_bits], &mut planes[1]);
            } else {
                pack_codes(codes, 0, low_bits, &mut planes[0]);
                pack_codes(codes, low_bits, high_bits, &mut planes[1]);
            }
        }
        if let Some(grid) = &layout.grid {
            let runs = F::BLOCK_LEN / RUN_COLUMNS;
            pack_words(&grid.block_words(&block.cells, runs)[..grid.words_of_runs(runs)], &mut planes[1]);
        }
        if layout.group_scales {
            let groups = RUN_COLUMNS / layout.group;
            for run in 0..F::BLOCK_LEN / RUN_COLUMNS {
                let of_run = run * groups..(run + 1) * groups;
                planes[2].extend(block.scales[of_run.clone()].iter().map(|scale| *scale as u8));
                if layout.minimum {
                    planes[2].extend(block.minima[of_run].iter().map(|minimum| *minimum as u8));
                }
            }
        }
        if layout.zero_points {
            planes[2].push(block.zero_point as u8);
        }
        match layout.unit {
            Unit::Half => planes[3].extend(block.unit.to_le_bytes()),
            Unit::PowerOfTwo => planes[3].push(block.unit_exponent),
        }
        if layout.minimum {
            planes[3].extend(block.minimum_unit.to_le_bytes());
        }
    }
}

/// Packs `bits` bits of each of 32 codes, from bit `start` of a code on.
fn pack_codes(codes: &[u8], start: usize, bits: usize, plane: &mut Vec<u8>) {
    let mut words = [0_u32; 8];
    for (quad, codes) in codes.as_chunks::<4>().0.iter().enumerate().take(if bits == 0 { 0 } else { 8 }) {
        let mask = (0xff >> (8 - bits)) * 0x0101_0101_u32;
        let taken = (u32::from_le_bytes(*codes) >> start) & mask;
        words[quad % bits] |= taken << (quad / bits * bits);
    }
    pack_words(&words[..bits], plane);
}

fn pack_words(words: &[u32], plane: &mut Vec<u8>) {
    plane.extend(words.iter().flat_map(|word| word.to_le_bytes()));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::random;

    #[test]
    fn a_packed_weight_grows_only_by_scales_of_whole_bytes() {
        let bytes = |format| WeightLayout::new(format, 64, 256).bytes() as usize;
        let per_row = [
            (Format::Q4_K, 148),
            (Format::Q6_K, 210),
            (Format::Q8_0, 272),
            (Format::Q4_1, 160),
            (Format::Q2_K, 100),
            (Format::Q3_K, 114),
            (Format::Q5_0, 176),
            (Format::IQ4_NL, 144),
            (Format::IQ4_XS, 138),
            (Format::MXFP4, 136),
            (Format::F16, 512),
            (Format::IQ2_XXS, 74),
            (Format::IQ3_XXS, 106),
            (Format::IQ3_S, 114),
            (Format::IQ2_S, 90),
            (Format::IQ2_XS, 86),
            (Format::IQ1_S, 58),
            (Format::IQ1_M, 66),
            (Format::TQ1_0, 66),
            (Format::TQ2_0, 66),
            (Format::NVFP4, 152),
            (Format::Q1_0, 36),
            (Format::Q2_0, 72),
            (Format::F8_E4M3, 288),
            (Format::Q4_Z, 152),
            (Format::Q8_Z, 280),
            (Format::NF4, 144),
        ];
        for (format, row) in per_row {
            let planes = 4 * (PLANE_PADDING + PLANE_ALIGNMENT);
            let found = bytes(format) - WeightLayout::new(format, 64, 256).table().len();
            assert!((64 * row..64 * row + planes).contains(&found), "{format}: {found}");
        }
    }

    #[test]
    fn rows_packed_separately_give_the_same_bytes() {
        for &format in Format::ALL {
            let (rows, columns) = (35, 512);
            let weight = random::weight("w", format, rows, columns, 3);
            let layout = WeightLayout::new(format, rows, columns);
            let pack = |parts: &[(usize, usize)]| {
                let mut all = vec![0; layout.bytes() as usize];
                for (first, count) in parts {
                    for (start, bytes) in layout.pack(&weight, *first, *count) {
                        all[start as usize..][..bytes.len()].copy_from_slice(&bytes);
                    }
                }
                all
            };
            assert_eq!(pack(&[(0, rows)]), pack(&[(0, 7), (7, 25), (32, 3)]), "{format}");
        }
    }
}
