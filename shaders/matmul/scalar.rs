//! The portable kernel: plain Rust that the compiler vectorises for the target.

use super::Task;
use crate::lanes::{LANES, horizontal_sum};
use crate::quant::BlockFormat;

/// Columns decoded at a time; a multiple of every block length.
const SPAN: usize = 256;
/// Rows that are multiplied with a decoded span.
const PANEL_ROWS: usize = 32;

/// Computes the task.
pub(super) fn run<F: BlockFormat>(task: &Task<'_>) {
    const { assert!(SPAN.is_multiple_of(F::BLOCK_LEN)) };
    let columns = task.weight.columns;
    let mut decoded = [0.0; SPAN];
    for first_row in (0..task.rows).step_by(PANEL_ROWS) {
        let panel_rows = PANEL_ROWS.min(task.rows - first_row);
        for output in task.outputs.clone() {
            let weights = task.weight.row(output);
            let mut sums = [[0.0; LANES]; PANEL_ROWS];
            for start in (0..columns).step_by(SPAN) {
                let span = start..columns.min(start + SPAN);
                let decoded = &mut decoded[..span.len()];
                F::decode_blocks(&weights[start / F::BLOCK_LEN * F::BLOCK_BYTES..], decoded);
                for (row, sums) in sums[..panel_rows].iter_mut().enumerate() {
                    accumulate(sums, decoded, task.input(first_row + row, span.clone()));
                }
            }
            for (row, sums) in sums[..panel_rows].iter().enumerate() {
                task.finish(first_row + row, output, &[horizontal_sum(*sums)]);
            }
        }
    }
}

/// Adds the products of a span to the running sums.
#[inline(always)]
fn accumulate(sums: &mut [f32; LANES], weights: &[f32], input: &[f32]) {
    let (weights, last_weights) = weights.as_chunks::<LANES>();
    let (input, last_input) = input.as_chunks::<LANES>();
    for (weights, input) in weights.iter().zip(input) {
        for lane in 0..LANES {
            sums[lane] += weights[lane] * input[lane];
        }
    }
    for ((sum, weight), input) in sums.iter_mut().zip(last_weights).zip(last_input) {
        *sum += weight * input;
    }
}
