//! The two products of the changes of a step, divided into tasks.

use super::division::{Division, Panel};
use super::kernel::{Expand, Shrink, TILE, expand, shrink};
use crate::cpu::{Kernel, SharedMut, Team};

/// Strips of B of a task.
const TASK_STRIPS: usize = 32;

/// The values of one projection in the second product.
pub(crate) struct Outputs<'a> {
    /// [rows, outputs], or `None` where `z` holds y.
    pub y: Option<&'a [f32]>,
    /// A x, [rows, max_rank].
    pub h: &'a [f32],
    /// [rows, outputs]
    pub z: SharedMut<'a, f32>,
    /// Values of a row.
    pub outputs: usize,
}

/// Computes `h = A x` of all rows with a change, [rows, max_rank] for each projection.
pub(crate) fn shrink_all(
    (kernel, team): (Kernel, &dyn Team),
    division: &Division<'_>,
    x: &[f32],
    h: &[SharedMut<'_, f32>],
    max_rank: usize,
) {
    let tasks = division.tasks(|panel| panel.change.rank().div_ceil(TILE));
    team.for_each(tasks.len(), &|task| {
        let (panel, tile) = tasks[task];
        let h = &h[panel.part];
        shrink(kernel, &Shrink { change: panel.change, first: tile * TILE, rows: &panel.rows, x, h, max_rank });
    });
}

/// Adds the changes, and copies y of the rows in `unchanged`.
pub(crate) fn expand_all(
    (kernel, team): (Kernel, &dyn Team),
    division: &Division<'_>,
    unchanged: &[(usize, usize)],
    parts: &[Outputs<'_>],
    max_rank: usize,
) {
    let tasks = division.tasks(|panel| panel.change.strips().div_ceil(TASK_STRIPS));
    team.for_each(unchanged.len() + tasks.len(), &|task| {
        let Some((panel, number)) = task.checked_sub(unchanged.len()).map(|task| tasks[task]) else {
            let (part, row) = unchanged[task];
            let Outputs { y, z, outputs, .. } = &parts[part];
            if let Some(y) = y {
                let start = row * outputs;
                // SAFETY: each task writes its own rows, or its own columns of them.
                unsafe { z.slice(start, *outputs) }.copy_from_slice(&y[start..start + outputs]);
            }
            return;
        };
        let Panel { part, change, scaled: rows, .. } = panel;
        let Outputs { y, h, z, outputs } = &parts[*part];
        let first = number * TASK_STRIPS;
        let strips = first..change.strips().min(first + TASK_STRIPS);
        expand(kernel, &Expand { change, strips, rows, y: *y, h, max_rank, outputs: *outputs, z });
    });
}
