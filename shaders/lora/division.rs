//! The rows of a step by adapter, for the two products of a change.

use super::adapter::{AdapterUse, LowRank};

/// The most rows of a task.
const PANEL_ROWS: usize = 16;

/// A row that a change applies to.
#[derive(Clone, Copy)]
pub(crate) struct ChangedRow<'a> {
    /// The adapter of the row.
    pub used: &'a AdapterUse,
    /// What it changes.
    pub change: &'a LowRank,
    /// The row of x that the change multiplies.
    pub x_row: usize,
}

/// Rows of one change.
pub(crate) struct Panel<'a> {
    /// The number of the projection among those of the op.
    pub part: usize,
    pub change: &'a LowRank,
    /// Rows of x, each with the row of y that its product is added to.
    pub rows: Vec<(usize, usize)>,
    /// The rows of y, each with the factor on its change.
    pub scaled: Vec<(usize, f32)>,
}

/// The rows of a step: those that a change applies to, and the others.
#[derive(Default)]
pub(crate) struct Division<'a> {
    pub panels: Vec<Panel<'a>>,
    /// The number of the projection, and a row that it leaves as it is.
    pub unchanged: Vec<(usize, usize)>,
}

impl<'a> Division<'a> {
    /// Adds the rows of projection `part`; `None` for a row without a change.
    pub fn add(&mut self, part: usize, rows: impl Iterator<Item = Option<ChangedRow<'a>>>) {
        let mut changed: Vec<(usize, ChangedRow<'a>)> = Vec::new();
        for (row, found) in rows.enumerate() {
            match found {
                Some(found) => changed.push((row, found)),
                None => self.unchanged.push((part, row)),
            }
        }
        // The rows of a change together, of changes in any order, which no result depends on.
        let of_change = |(_, found): &(usize, ChangedRow<'a>)| std::ptr::from_ref(found.change) as usize;
        changed.sort_by_key(of_change);
        let same = |a: &(usize, ChangedRow<'a>), b: &(usize, ChangedRow<'a>)| of_change(a) == of_change(b);
        for rows in changed.chunk_by(same).flat_map(|rows| rows.chunks(PANEL_ROWS)) {
            self.panels.push(Panel {
                part,
                change: rows[0].1.change,
                rows: rows.iter().map(|(row, found)| (found.x_row, *row)).collect(),
                scaled: rows.iter().map(|(row, found)| (*row, found.used.scale)).collect(),
            });
        }
    }

    /// The tasks of all panels: the panel, and the number of the task in it.
    pub fn tasks(&self, count: impl Fn(&Panel<'_>) -> usize) -> Vec<(&Panel<'a>, usize)> {
        self.panels.iter().flat_map(|panel| (0..count(panel)).map(move |task| (panel, task))).collect()
    }
}
