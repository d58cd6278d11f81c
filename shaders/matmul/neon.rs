//! The float32 kernel for NEON.
//!
//! Up to [`TILE_OUTPUTS`] weight rows are decoded, a span of columns at a time, into a buffer that fits the L1 cache. Then
//! every row of the panel is multiplied with the buffer in register tiles. The compiler vectorises the decoders, because
//! every aarch64 CPU has NEON.
//!
//! The running sums of a result are the lanes of two registers, so the results have the bits of the AVX2 kernel.

use std::arch::aarch64::{float32x4_t, vdupq_n_f32, vfmaq_f32, vld1q_f32, vst1q_f32};
use std::ops::Range;

use super::{TILE_OUTPUTS, Task};
use crate::lanes::{LANES, horizontal_sum};
use crate::prefetch::prefetch;
use crate::quant::BlockFormat;

/// Columns decoded at a time; a multiple of every block length.
const SPAN: usize = 256;
/// Rows that are multiplied with a decoded span. Their inputs stay in the L2 cache between groups of outputs.
const PANEL_ROWS: usize = 64;
/// The size of a register tile, so that its sums, its inputs and one weight fit into the 32 registers.
const TILE: (usize, usize) = (4, 3);

/// Decoded weights: a span of columns for each output of the group.
#[repr(align(64))]
struct Decoded([[f32; SPAN]; TILE_OUTPUTS]);

/// The running sums of a result.
#[derive(Clone, Copy)]
struct Sums([float32x4_t; 2]);

impl Sums {
    #[inline]
    #[target_feature(enable = "neon")]
    fn zero() -> Self {
        Sums([vdupq_n_f32(0.0); 2])
    }

    /// Eight values.
    #[inline]
    #[target_feature(enable = "neon")]
    fn load(values: &[f32; LANES]) -> Self {
        // SAFETY: each half is four values.
        Sums([0, 4].map(|first| unsafe { vld1q_f32(values.as_ptr().add(first)) }))
    }

    #[inline]
    #[target_feature(enable = "neon")]
    fn add_products(&mut self, weights: Self, input: Self) {
        for (sum, (weight, input)) in self.0.iter_mut().zip(weights.0.into_iter().zip(input.0)) {
            *sum = vfmaq_f32(*sum, weight, input);
        }
    }

    /// Adds the lanes in the order of [`horizontal_sum`].
    #[inline]
    #[target_feature(enable = "neon")]
    fn total(self) -> f32 {
        let mut lanes = [0.0; LANES];
        for (lanes, register) in lanes.as_chunks_mut::<4>().0.iter_mut().zip(self.0) {
            // SAFETY: a register has four lanes.
            unsafe { vst1q_f32(lanes.as_mut_ptr(), register) };
        }
        horizontal_sum(lanes)
    }
}

/// The running sums of a panel: [row][output of the group].
type PanelSums = [[Sums; TILE_OUTPUTS]; PANEL_ROWS];

/// Computes the task.
///
/// # Safety
/// The CPU must support NEON, as every aarch64 CPU does.
#[target_feature(enable = "neon")]
pub(super) unsafe fn run<F: BlockFormat>(task: &Task<'_>) {
    const { assert!(SPAN.is_multiple_of(F::BLOCK_LEN) && SPAN.is_multiple_of(LANES)) };
    let mut decoded = Decoded([[0.0; SPAN]; TILE_OUTPUTS]);
    let mut sums: PanelSums = [[Sums::zero(); TILE_OUTPUTS]; PANEL_ROWS];
    for first_row in (0..task.rows).step_by(PANEL_ROWS) {
        let rows = first_row..task.rows.min(first_row + PANEL_ROWS);
        for first in task.outputs.clone().step_by(TILE_OUTPUTS) {
            let outputs = first..task.outputs.end.min(first + TILE_OUTPUTS);
            sums[..rows.len()].fill([Sums::zero(); TILE_OUTPUTS]);
            for start in (0..task.weight.columns).step_by(SPAN) {
                let columns = start..task.weight.columns.min(start + SPAN);
                decode::<F>(task, outputs.clone(), columns.clone(), &mut decoded);
                multiply(task, rows.clone(), columns, &decoded, &mut sums);
            }
            for (row, sums) in rows.clone().zip(&sums) {
                task.finish(row, first, &sums.map(|sums| sums.total())[..outputs.len()]);
            }
        }
    }
}

/// Decodes the columns of a group of outputs, and pads them with zeros to whole registers.
fn decode<F: BlockFormat>(task: &Task<'_>, outputs: Range<usize>, columns: Range<usize>, decoded: &mut Decoded) {
    const CACHE_LINE: usize = 64;
    let bytes = columns.start / F::BLOCK_LEN * F::BLOCK_BYTES..columns.end / F::BLOCK_LEN * F::BLOCK_BYTES;
    for (output, decoded) in outputs.zip(&mut decoded.0) {
        let (decoded, rest) = decoded.split_at_mut(columns.len());
        let bytes = &task.weight.row(output)[bytes.clone()];
        let ahead = task.tuning.prefetch_ahead;
        for line in (0..bytes.len()).step_by(CACHE_LINE).filter(|_| ahead > 0) {
            prefetch(bytes.as_ptr().wrapping_add(ahead.wrapping_add(line)));
        }
        F::decode_blocks(bytes, decoded);
        if !columns.len().is_multiple_of(LANES) {
            rest[..LANES - columns.len() % LANES].fill(0.0);
        }
    }
}

/// Multiplies every row of the panel with all weights of the buffer. The results of those that are not of the group are not
/// used.
#[target_feature(enable = "neon")]
fn multiply(task: &Task<'_>, rows: Range<usize>, columns: Range<usize>, decoded: &Decoded, sums: &mut PanelSums) {
    let input = |row: usize| task.input(rows.start + row, columns.clone());
    let (whole, rest) = sums[..rows.len()].as_chunks_mut::<{ TILE.1 }>();
    for (index, sums) in whole.iter_mut().enumerate() {
        tiles(decoded, std::array::from_fn(|row| input(TILE.1 * index + row)), sums);
    }
    let done = TILE.1 * whole.len();
    for (row, sums) in rest.iter_mut().enumerate() {
        tiles(decoded, [input(done + row)], std::array::from_mut(sums));
    }
}

/// Multiplies the weights with `ROWS` rows of input.
#[inline]
#[target_feature(enable = "neon")]
fn tiles<const ROWS: usize>(decoded: &Decoded, inputs: [&[f32]; ROWS], sums: &mut [[Sums; TILE_OUTPUTS]; ROWS]) {
    for first in (0..TILE_OUTPUTS).step_by(TILE.0) {
        tile(decoded, first, inputs, sums);
    }
}

/// Multiplies the decoded weight rows from `first` on with `ROWS` rows of input and adds the products to the running sums.
#[inline]
#[target_feature(enable = "neon")]
fn tile<const ROWS: usize>(
    decoded: &Decoded,
    first: usize,
    inputs: [&[f32]; ROWS],
    sums: &mut [[Sums; TILE_OUTPUTS]; ROWS],
) {
    let weights: [&[f32; SPAN]; TILE.0] = std::array::from_fn(|output| &decoded.0[first + output]);
    let mut tile: [[Sums; TILE.0]; ROWS] =
        std::array::from_fn(|row| std::array::from_fn(|output| sums[row][first + output]));
    let whole = inputs[0].len() / LANES;
    for index in 0..whole {
        let eights = inputs.map(|input| &input.as_chunks().0[index]);
        add_products(&mut tile, weights.map(|weights| &weights.as_chunks().0[index]), eights);
    }
    if !inputs[0].len().is_multiple_of(LANES) {
        let eights = inputs.map(|input| padded(&input[whole * LANES..]));
        add_products(&mut tile, weights.map(|weights| &weights.as_chunks().0[whole]), eights.each_ref());
    }
    for (sums, tile) in sums.iter_mut().zip(tile) {
        sums[first..first + TILE.0].copy_from_slice(&tile);
    }
}

/// Adds the products of eight columns.
#[inline]
#[target_feature(enable = "neon")]
fn add_products<const ROWS: usize>(
    tile: &mut [[Sums; TILE.0]; ROWS],
    weights: [&[f32; LANES]; TILE.0],
    inputs: [&[f32; LANES]; ROWS],
) {
    let inputs = inputs.map(|input| Sums::load(input));
    for (output, weights) in weights.into_iter().enumerate() {
        let weights = Sums::load(weights);
        for (sums, input) in tile.iter_mut().zip(inputs) {
            sums[output].add_products(weights, input);
        }
    }
}

/// Fewer than eight values, and zeros.
fn padded(values: &[f32]) -> [f32; LANES] {
    let mut padded = [0.0; LANES];
    padded[..values.len()].copy_from_slice(values);
    padded
}
