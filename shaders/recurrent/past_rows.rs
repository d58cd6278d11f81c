//! The rows of a run and those before it, of which the state has the last ones.

use std::ops::Range;

use super::cache::StateCache;
use super::part::{NO_SLOT, StatePart};
use super::run::StateRun;

/// Most channels of a task: a few rows of them stay in the L1 cache.
pub(crate) const TASK_CHANNELS: usize = 128;

/// Some channels of the rows of a run and of the rows before it. The state has the last rows, oldest first: [stored, channels].
pub(crate) struct PastRows<'a> {
    /// The rows.
    pub run: &'a StateRun<'a>,
    /// The values of all rows of the step: [rows, channels].
    pub x: &'a [f32],
    /// The slots.
    pub states: &'a StateCache,
    /// The place of the values in a slot.
    pub part: StatePart,
    /// The channels, at most [`TASK_CHANNELS`].
    pub columns: Range<usize>,
    /// The number of rows before the run that the state has.
    pub stored: usize,
    /// All channels of a row.
    pub channels: usize,
}

impl PastRows<'_> {
    /// The values of a row; the stored ones come before those of the run, and the oldest one is at index 0. Rows before the start
    /// of a sequence are 0.
    pub(crate) fn get(&self, index: usize) -> &[f32] {
        const ZEROS: [f32; TASK_CHANNELS] = [0.0; TASK_CHANNELS];
        let channels = self.channels;
        if index >= self.stored {
            return &self.x[(self.run.first + index - self.stored) * channels..][self.columns.clone()];
        }
        if self.run.from == NO_SLOT {
            return &ZEROS[..self.columns.len()];
        }
        let start = index * channels + self.columns.start;
        // SAFETY: only this task writes these channels of the slots of its run, and not while the slice lives.
        unsafe { self.states.get(self.part, self.run.from, start, self.columns.len()) }
    }

    /// Stores the last rows after each row that has a slot.
    pub(crate) fn store(&self) {
        // The slot that the run starts from comes last, because the others may still need its values.
        for in_place in [false, true] {
            for (row, &slot) in self.run.to.iter().enumerate() {
                if slot != NO_SLOT && (slot == self.run.from) == in_place {
                    self.store_after(row, slot);
                }
            }
        }
    }

    fn store_after(&self, row: usize, slot: u32) {
        for kept in 0..self.stored {
            let start = kept * self.channels + self.columns.start;
            // SAFETY: only this task uses these channels of the slots of its run. The input of a later row is not
            // among the values that are written.
            let to = unsafe { self.states.get_mut(self.part, slot, start, self.columns.len()) };
            to.copy_from_slice(self.get(row + 1 + kept));
        }
    }
}
