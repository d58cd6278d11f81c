//! Quantization: finds the blocks of a format that represent given values with the smallest error.
//!
//! Every format stores integers with scales (see [`IntegerLayout`]), so one search serves all of them: [`group`] finds the
//! scale of a group of values, [`block`](mod@block) rounds scales to what the format can store. The error of a value counts in
//! proportion to the value's *importance*, the mean square of the activation that it is multiplied with.

pub mod block;
pub mod cell_table;
pub mod cells;
pub mod group;

use cell_table::CellTable;
use cells::CellSearch;

use crate::quant::integer::{IntegerBlock, IntegerLayout};
use crate::quant::pack::{CellRules, Packing};
use crate::quant::{BlockFormat, Format, MAX_BLOCK_LEN, dispatch};

/// Why values cannot be quantized.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum QuantizeError {
    /// The format has no packer.
    #[error("no weights can be quantized to {format}; formats to quantize to: {}", names_of_targets())]
    NotATarget {
        /// The format.
        format: Format,
    },
    /// A value is infinite or not a number.
    #[error("value {index} is {value}, which no quantized format can represent")]
    NotFinite {
        /// Its index.
        index: usize,
        /// The value.
        value: f32,
    },
}

/// Whether weights can be quantized to a format.
#[must_use]
pub fn is_target(format: Format) -> bool {
    format.packing() != Packing::Never
}

fn names_of_targets() -> String {
    let targets = Format::ALL.iter().copied().filter(|format| is_target(*format));
    targets.map(Format::name).collect::<Vec<_>>().join(", ")
}

/// Quantizes whole rows. `values` has whole rows of `importance.len()` columns, if importance is given; else whole blocks. `out`
/// has the bytes of as many values.
///
/// # Errors
/// [`QuantizeError`] when the format cannot be packed, or a value is not finite.
///
/// # Panics
/// When the lengths do not fit one another.
pub fn quantize(
    format: Format,
    values: &[f32],
    importance: Option<&[f32]>,
    out: &mut [u8],
) -> Result<(), QuantizeError> {
    assert_eq!(Some(out.len()), format.row_bytes(values.len()), "bytes of {} values in {format}", values.len());
    match format.packing() {
        Packing::Never => Err(QuantizeError::NotATarget { format }),
        Packing::Values => {
            dispatch!(format, F => pack_values::<F>(values, out));
            Ok(())
        }
        Packing::Integers(_) => {
            check_finite(values)?;
            dispatch!(format, F => pack_blocks::<F>(values, importance, out));
            Ok(())
        }
        Packing::Cells(rules) => {
            check_finite(values)?;
            let pack = dispatch!(format, F => F::pack as Pack);
            if let Some(layout) = format.integers() {
                pack_cells(&CellBlocks { layout, rules, pack, bytes: format.block_bytes() }, values, importance, out);
            }
            Ok(())
        }
    }
}

fn check_finite(values: &[f32]) -> Result<(), QuantizeError> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(QuantizeError::NotFinite { index, value: values[index] }),
        None => Ok(()),
    }
}

fn pack_values<F: BlockFormat>(values: &[f32], out: &mut [u8]) {
    for (value, block) in values.iter().zip(out.chunks_exact_mut(F::BLOCK_BYTES)) {
        F::pack_value(*value, block);
    }
}

fn pack_blocks<F: BlockFormat>(values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let (Some(layout), Packing::Integers(ranges)) = (F::INTEGERS, F::PACKING) else { return };
    let columns = importance.map_or(F::BLOCK_LEN, <[f32]>::len);
    let mut integers = IntegerBlock::ZERO;
    let blocks = values.chunks_exact(F::BLOCK_LEN).zip(out.chunks_exact_mut(F::BLOCK_BYTES));
    for (index, (values, out)) in blocks.enumerate() {
        let importance = importance.map(|all| &all[index * F::BLOCK_LEN % columns..][..F::BLOCK_LEN]);
        block::find(&layout, &ranges, values, importance, &mut integers);
        F::pack(&integers, out);
    }
}

/// Stores the integers of a block.
type Pack = fn(&IntegerBlock, &mut [u8]);

/// Blocks of a format whose codes are cells of a grid.
struct CellBlocks {
    layout: IntegerLayout,
    rules: CellRules,
    pack: Pack,
    /// Bytes of a block.
    bytes: usize,
}

/// Packs blocks of cells, with the widest vectors of the machine. The bytes are the same with all.
fn pack_cells(blocks: &CellBlocks, values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2")]
        fn with_avx2(blocks: &CellBlocks, values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
            search_cells(blocks, values, importance, out);
        }
        if is_x86_feature_detected!("avx2") {
            // SAFETY: the machine has the feature.
            return unsafe { with_avx2(blocks, values, importance, out) };
        }
    }
    search_cells(blocks, values, importance, out);
}

#[inline(always)]
fn search_cells(blocks: &CellBlocks, values: &[f32], importance: Option<&[f32]>, out: &mut [u8]) {
    let CellBlocks { layout, rules, pack, bytes } = blocks;
    let (Some(grid), Some(codebook)) = (&layout.grid, &layout.codebook) else { return };
    let table = CellTable::new(grid, codebook);
    let search = CellSearch { layout, rules: *rules, table: &table };
    let columns = importance.map_or(MAX_BLOCK_LEN, <[f32]>::len);
    let mut integers = IntegerBlock::ZERO;
    let all = values.chunks_exact(MAX_BLOCK_LEN).zip(out.chunks_exact_mut(*bytes));
    for (index, (values, out)) in all.enumerate() {
        let importance = importance.map(|all| &all[index * MAX_BLOCK_LEN % columns..][..MAX_BLOCK_LEN]);
        search.find(values, importance, &mut integers);
        pack(&integers, out);
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests;
