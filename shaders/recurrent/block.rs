//! The values of a run's state that one task computes.

use super::cache::StateCache;
use super::part::{NO_SLOT, StatePart};
use super::run::StateRun;

/// Values of an op's state before and after the rows of a run.
///
/// A task computes them in the slot after the last row of the run, and copies them from there to other slots.
#[derive(Clone, Copy)]
pub struct StateBlock<'a> {
    /// All slots.
    pub states: &'a StateCache,
    /// The values of the op in a slot.
    pub part: StatePart,
    /// The first value of the block in the part.
    pub start: usize,
    /// The number of values.
    pub len: usize,
    /// The rows.
    pub run: &'a StateRun<'a>,
}

impl<'a> StateBlock<'a> {
    /// The state before the run, in the slot after its last row. `None` if there is no such slot.
    ///
    /// # Safety
    /// Until the task ends, nothing else uses these values of the slots of the run, and the task calls this once.
    #[must_use]
    pub unsafe fn begin(&self) -> Option<&'a mut [f32]> {
        let last = self.last_slot()?;
        // SAFETY: only this task uses the block, and the other slot is not the last one.
        let state = unsafe { self.states.get_mut(self.part, last, self.start, self.len) };
        match self.run.from {
            NO_SLOT => state.fill(0.0),
            from if from == last => {}
            // SAFETY: as above.
            from => state.copy_from_slice(unsafe { self.states.get(self.part, from, self.start, self.len) }),
        }
        Some(state)
    }

    /// Copies the state after a row of the run to the slot of that row, if it has one.
    ///
    /// # Safety
    /// As [`StateBlock::begin`], which was called before.
    pub unsafe fn keep(&self, row: usize, state: &[f32]) {
        let slot = self.run.to.get(row).copied().unwrap_or(NO_SLOT);
        if slot != NO_SLOT && Some(slot) != self.last_slot() {
            // SAFETY: only this task uses the block, and `state` is in another slot.
            unsafe { self.states.get_mut(self.part, slot, self.start, self.len) }.copy_from_slice(state);
        }
    }

    fn last_slot(&self) -> Option<u32> {
        self.run.to.last().copied().filter(|slot| *slot != NO_SLOT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // SAFETY (of every block below): one thread.
    #[test]
    #[allow(clippy::undocumented_unsafe_blocks)]
    fn the_start_stays_unless_it_is_written() {
        let states = StateCache::new([3], 3);
        let part = StatePart { layer: 0, start: 1, len: 2 };
        let slot = |slot: u32| unsafe { states.get(part, slot, 0, 2) }.to_vec();
        let run = StateRun { first: 0, rows: 2, from: NO_SLOT, to: &[0, 1] };
        let block = StateBlock { states: &states, part, start: 0, len: 2, run: &run };
        let state = unsafe { block.begin() }.expect("the last row has a slot");
        assert_eq!(state, [0.0; 2]);
        state.fill(1.0);
        unsafe { block.keep(0, state) };
        state.fill(2.0);
        unsafe { block.keep(1, state) };
        assert_eq!([slot(0), slot(1)], [[1.0; 2], [2.0; 2]]);
        let run = StateRun { from: 0, to: &[NO_SLOT, 2], ..run };
        let block = StateBlock { run: &run, ..block };
        assert_eq!(unsafe { block.begin() }.expect("the last row has a slot"), [1.0; 2]);
        assert_eq!([slot(0), slot(2)], [[1.0; 2]; 2]);
    }
}
