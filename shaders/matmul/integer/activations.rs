//! The input of a product, rounded to 8 bits.

use std::ops::Range;

use crate::cpu::{Kernel, SharedMut, Team};
use crate::per_kernel;

/// Columns of a block.
pub const BLOCK_LEN: usize = 32;
/// Rows of a panel.
pub const PANEL_ROWS: usize = 16;

/// 32 columns of one row: `x = scale * values`, to within half a `scale`.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Block {
    /// -127..=127.
    pub values: [i8; BLOCK_LEN],
    /// The largest magnitude of the block, over 127; 0 for a block of zeros.
    pub scale: f32,
    /// The sum of the values: an integer.
    pub sum: f32,
    /// The sums of the first and the last 16 values.
    pub half_sums: [f32; 2],
}

/// What a [`Block`] takes of scratch memory, which is counted in float32.
const FLOATS_PER_BLOCK: usize = size_of::<Block>() / size_of::<f32>();

/// Scratch memory for the rounded rows, in float32 values.
#[must_use]
pub fn scratch_len(rows: usize, columns: usize) -> usize {
    rows * columns.div_ceil(BLOCK_LEN) * FLOATS_PER_BLOCK
}

/// Rounded rows, in panels of up to [`PANEL_ROWS`]: a panel is [blocks of a row][its rows], so that a kernel which takes
/// all rows of a panel through the columns reads memory in order.
#[derive(Clone, Copy)]
pub struct Panels<'a> {
    blocks: &'a [Block],
    rows: usize,
    blocks_per_row: usize,
}

/// One panel.
#[derive(Clone, Copy)]
pub struct Panel<'a> {
    /// [blocks of a row][rows]
    pub blocks: &'a [Block],
    /// The rows it has.
    pub rows: usize,
}

impl<'a> Panels<'a> {
    /// Rounds `rows` rows of `columns` values each into `scratch`.
    ///
    /// A block depends on its own 32 values alone.
    ///
    /// # Panics
    /// When `columns` is not a multiple of [`BLOCK_LEN`], or `input` or `scratch` are too short.
    pub fn round(
        kernel: Kernel,
        team: &dyn Team,
        input: &[f32],
        rows: usize,
        columns: usize,
        scratch: &'a mut [f32],
    ) -> Self {
        assert!(columns.is_multiple_of(BLOCK_LEN) && input.len() == rows * columns);
        let blocks = blocks_in(&mut scratch[..scratch_len(rows, columns)]);
        let blocks_per_row = columns / BLOCK_LEN;
        // A task takes rows of one panel; a single row is not worth a hand-over.
        const ROWS_PER_TASK: usize = 4;
        let shared = SharedMut::new(&mut *blocks);
        team.for_each(rows.div_ceil(ROWS_PER_TASK), &|task| {
            for row in task * ROWS_PER_TASK..rows.min((task + 1) * ROWS_PER_TASK) {
                let first_row = row - row % PANEL_ROWS;
                let panel_rows = PANEL_ROWS.min(rows - first_row);
                let input = &input[row * columns..(row + 1) * columns];
                for (index, values) in input.chunks_exact(BLOCK_LEN).enumerate() {
                    let at = first_row * blocks_per_row + index * panel_rows + row - first_row;
                    // SAFETY: a block belongs to one row, and a row to one task, which holds one block at a time.
                    round_block(kernel, values, &mut unsafe { shared.slice(at, 1) }[0]);
                }
            }
        });
        Panels { blocks, rows, blocks_per_row }
    }

    /// How many rows there are.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Bytes of one row.
    #[must_use]
    pub fn row_bytes(&self) -> usize {
        self.blocks_per_row * size_of::<Block>()
    }

    /// The panel that starts at row `first_row`, a multiple of [`PANEL_ROWS`].
    #[must_use]
    pub fn panel(&self, first_row: usize) -> Panel<'a> {
        assert!(first_row.is_multiple_of(PANEL_ROWS) && first_row < self.rows);
        let rows = PANEL_ROWS.min(self.rows - first_row);
        let blocks: Range<usize> = first_row * self.blocks_per_row..(first_row + rows) * self.blocks_per_row;
        Panel { blocks: &self.blocks[blocks], rows }
    }
}

/// Scratch memory as blocks.
fn blocks_in(scratch: &mut [f32]) -> &mut [Block] {
    const { assert!(align_of::<Block>() == align_of::<f32>()) }
    let blocks = scratch.len() / FLOATS_PER_BLOCK;
    // SAFETY: the memory is as large and as aligned as that many blocks, whose every bit pattern is valid; it is borrowed
    // as long as they are.
    unsafe { std::slice::from_raw_parts_mut(scratch.as_mut_ptr().cast(), blocks) }
}

per_kernel! {
    /// Rounds 32 values.
    fn round_block = round_block_lanes(input: &[f32], block: &mut Block)
}

#[inline(always)]
fn round_block_lanes<const FMA: bool>(input: &[f32], block: &mut Block) {
    /// Blocks below this are zeros: the inverse of their scale would not be finite.
    const SMALLEST: f32 = 1e-30;
    /// Adding 1.5 * 2^23 rounds to the nearest integer, even in a tie, and leaves it in the low bits.
    const ROUND: f32 = 12_582_912.0;
    let input: &[f32; BLOCK_LEN] = input.try_into().expect("a block has BLOCK_LEN values");
    // As integers the bits of magnitudes are in the order of their values, and those of NaN above all others: a block
    // that is not finite gets a scale that is not, and so do the results.
    let largest = input.iter().fold(0, |largest: u32, value| largest.max(value.to_bits() & 0x7fff_ffff));
    let largest = f32::from_bits(largest);
    let (scale, inverse) = if largest < SMALLEST { (0.0, 0.0) } else { (largest / 127.0, 127.0 / largest) };
    block.scale = scale;
    for (half, input) in input.chunks_exact(BLOCK_LEN / 2).enumerate() {
        let mut sum = 0;
        for (value, input) in block.values[half * BLOCK_LEN / 2..].iter_mut().zip(input) {
            *value = (input * inverse + ROUND).to_bits() as i8;
            sum += i32::from(*value);
        }
        block.half_sums[half] = sum as f32;
    }
    block.sum = block.half_sums[0] + block.half_sums[1];
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::cpu::Solo;
    use crate::testing::supported_kernels;

    fn rounded(kernel: Kernel, input: &[f32], rows: usize) -> Vec<Vec<Block>> {
        let columns = input.len() / rows;
        let mut scratch = vec![f32::NAN; scratch_len(rows, columns)];
        let panels = Panels::round(kernel, &Solo, input, rows, columns, &mut scratch);
        let block = |row: usize, index: usize| {
            let panel = panels.panel(row - row % PANEL_ROWS);
            panel.blocks[index * panel.rows + row % PANEL_ROWS]
        };
        (0..rows).map(|row| (0..columns / BLOCK_LEN).map(|index| block(row, index)).collect()).collect()
    }

    proptest! {
        #[test]
        fn values_are_within_half_a_step_and_the_same_in_every_kernel(
            rows in 1..40_usize,
            blocks in 1..5_usize,
            exponent in -45..38_i32,
            seed in any::<u64>(),
        ) {
            let columns = blocks * BLOCK_LEN;
            let scale = 10.0_f64.powi(exponent) as f32;
            let input: Vec<f32> =
                crate::quant::random::activations(rows * columns, seed).iter().map(|x| x * scale).collect();
            let expected = rounded(Kernel::Scalar, &input, rows);
            for (row, blocks) in input.chunks_exact(columns).zip(&expected) {
                for (values, block) in row.chunks_exact(BLOCK_LEN).zip(blocks) {
                    for (&x, &q) in values.iter().zip(&block.values) {
                        let error = (f64::from(x) - f64::from(block.scale) * f64::from(q)).abs();
                        prop_assert!(error <= 0.5001 * f64::from(block.scale) + 1e-30, "{x} became {q} of {}", block.scale);
                        prop_assert!(q >= -127);
                    }
                    let sum = |values: &[i8]| values.iter().map(|q| f32::from(*q)).sum::<f32>();
                    prop_assert_eq!(block.sum, sum(&block.values));
                    prop_assert_eq!(block.half_sums, [sum(&block.values[..16]), sum(&block.values[16..])]);
                }
            }
            for kernel in supported_kernels() {
                prop_assert_eq!(&rounded(kernel, &input, rows), &expected, "{}", kernel);
            }
        }
    }

    #[test]
    fn what_is_not_finite_stays_so() {
        for alien in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut input = [1.0; BLOCK_LEN];
            input[20] = alien;
            for kernel in supported_kernels() {
                assert!(!rounded(kernel, &input, 1)[0][0].scale.is_finite(), "{kernel}: {alien}");
            }
        }
    }
}
