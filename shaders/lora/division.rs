//! The rows of a step by adapter, for the two products of a change.

use super::adapter::{AdapterUse, LowRank};

/// The most rows of a task.
const PANEL_ROWS: usize = 16;

/// Rows of one adapter that changes a projection.
pub(super) struct Panel<'a> {
    /// The number of the projection among those of the op.
    pub part: usize,
    pub change: &'a LowRank,
    pub rows: Vec<usize>,
    /// Each row with the factor on its change.
    pub scaled: Vec<(usize, f32)>,
}

/// The rows of a step: those that a change applies to, and the others.
#[derive(Default)]
pub(super) struct Division<'a> {
    pub panels: Vec<Panel<'a>>,
    /// The number of the projection, and a row that it leaves as it is.
    pub unchanged: Vec<(usize, usize)>,
}

impl<'a> Division<'a> {
    /// Adds the rows of projection `part`, each with its adapter and what that changes; `None` for a row without a change.
    pub fn add(&mut self, part: usize, rows: impl Iterator<Item = Option<(&'a AdapterUse, &'a LowRank)>>) {
        let mut changed: Vec<(u64, usize, f32, &LowRank)> = Vec::new();
        for (row, used) in rows.enumerate() {
            match used {
                Some((used, change)) => changed.push((used.adapter.id(), row, used.scale, change)),
                None => self.unchanged.push((part, row)),
            }
        }
        changed.sort_unstable_by_key(|(id, row, ..)| (*id, *row));
        for rows in changed.chunk_by(|a, b| a.0 == b.0).flat_map(|rows| rows.chunks(PANEL_ROWS)) {
            let scaled: Vec<(usize, f32)> = rows.iter().map(|(_, row, scale, _)| (*row, *scale)).collect();
            let rows_alone = scaled.iter().map(|(row, _)| *row).collect();
            self.panels.push(Panel { part, change: rows[0].3, rows: rows_alone, scaled });
        }
    }

    /// The tasks of all panels: the panel, and the number of the task in it.
    pub fn tasks(&self, count: impl Fn(&Panel<'_>) -> usize) -> Vec<(&Panel<'a>, usize)> {
        self.panels.iter().flat_map(|panel| (0..count(panel)).map(move |task| (panel, task))).collect()
    }
}
