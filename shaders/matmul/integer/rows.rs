//! How the rows of a task are multiplied, for every instruction set but AMX: a few rows while weights are unpacked, many rows
//! with weights that are unpacked once for all of them.

use std::ops::Range;

use super::activations::PANEL_ROWS;
use super::packed::{Packing, STRIP_ROWS};
use super::registers::Registers;
use super::{span, tile};
use crate::cpu::ActivationBits;
use crate::matmul::Task;
use crate::quant::BlockFormat;

/// Computes the task.
///
/// # Safety
/// The CPU must support the instruction set of `R`.
#[inline(always)]
pub(super) unsafe fn run<R: Registers, F: BlockFormat>(task: &Task<'_>) {
    let (_, panels) = task.packed();
    // SAFETY: the caller guarantees the same.
    unsafe { run_rows::<R, F>(task, 0..panels.rows()) }
}

/// Computes some rows of the task. The first row must start a panel.
///
/// # Safety
/// As [`run`].
#[inline(always)]
pub(super) unsafe fn run_rows<R: Registers, F: BlockFormat>(task: &Task<'_>, rows: Range<usize>) {
    // With `const` nothing is compiled for formats without integers.
    if const { F::INTEGERS.is_none() } {
        return;
    }
    let panels = task.packed().1;
    let spans_from = rows_for_spans::<R, F>(panels.bits());
    let in_cache = task.tuning.rows_in_cache / panels.row_bytes().max(1);
    let rows_together = if has_grid::<F>() { span::MOST_ROWS } else { in_cache.clamp(1, span::MOST_ROWS) };
    let rows_together = rows_together.next_multiple_of(PANEL_ROWS);
    for first_row in rows.clone().step_by(rows_together) {
        let rows = first_row..rows.end.min(first_row + rows_together);
        // SAFETY: the caller guarantees the CPU features.
        unsafe {
            if rows.len() >= spans_from {
                span::run_rows::<R, F>(task, rows);
            } else {
                run_few::<R, F>(task, rows);
            }
        }
    }
}

/// Whether the format has a grid. Then unpacking takes so long that as many rows as possible share it, even if their activations
/// do not stay in the L2 cache.
const fn has_grid<F: BlockFormat>() -> bool {
    Packing::<F>::LAYOUT.grid.is_some()
}

/// The fewest rows for which it is faster to unpack weights once than for each tile again.
///
/// Without spans the next weights are read from memory while these are multiplied, which is faster as long as memory is the limit.
/// Codes of one plane are unpacked in fewer instructions than their products with 15 bits take.
const fn rows_for_spans<R: Registers, F: BlockFormat>(bits: ActivationBits) -> usize {
    let layout = Packing::<F>::LAYOUT;
    match (has_grid::<F>(), layout.words_of_run().1, layout.bits, bits) {
        (true, ..) => R::TILE_ROWS + 1,
        (false, 0, 8, _) | (false, 0, _, ActivationBits::Fifteen) => usize::MAX,
        _ => 2 * PANEL_ROWS + 1,
    }
}

/// Computes a few rows.
#[inline(always)]
unsafe fn run_few<R: Registers, F: BlockFormat>(task: &Task<'_>, rows: Range<usize>) {
    let (packed, panels) = task.packed();
    for first in task.outputs.clone().step_by(STRIP_ROWS) {
        let outputs = STRIP_ROWS.min(task.outputs.end - first);
        for panel_row in rows.clone().step_by(PANEL_ROWS) {
            let panel = panels.panel(panel_row);
            task.prefetch_output(panel_row..panel_row + panel.rows, first);
            let mut results = [[0.0; STRIP_ROWS]; PANEL_ROWS];
            for lane in (0..outputs).step_by(R::LANES) {
                // SAFETY: the caller guarantees the CPU features.
                unsafe {
                    tile::multiply::<R, F>(packed.strip(first), lane, panel, task.tuning.prefetch_ahead, &mut results);
                }
            }
            task.finish_rows(panel_row..panel_row + panel.rows, first, &results);
        }
    }
}
