//! The rows of each sequence of a step, with the slots of their state.

use super::part::{NO_SLOT, StatePart};
use crate::op::Batch;

/// Consecutive rows of one sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateRun<'a> {
    /// The first row.
    pub first: usize,
    /// The number of rows.
    pub rows: usize,
    /// The slot with the state before the first row, or [`NO_SLOT`].
    pub from: u32,
    /// The slot that gets the state after each row, or [`NO_SLOT`].
    pub to: &'a [u32],
}

impl<'a> StateRun<'a> {
    /// The runs of a step. Without slots nothing is read or stored.
    #[must_use]
    pub fn all(batch: &Batch<'a>) -> Vec<StateRun<'a>> {
        let starts: Vec<usize> = batch.run_starts().collect();
        let ends = starts.iter().skip(1).copied().chain([batch.sequences.len()]);
        let run = |(&first, end): (&usize, usize)| StateRun {
            first,
            rows: end - first,
            from: batch.state_from.get(batch.sequences[first] as usize).copied().unwrap_or(NO_SLOT),
            to: batch.state_to.get(first..end).unwrap_or_default(),
        };
        starts.iter().zip(ends).map(run).collect()
    }

    /// The bytes of an op's state that a step reads and writes, for its cost.
    #[must_use]
    pub fn bytes(batch: &Batch<'_>, part: StatePart) -> u64 {
        (batch.run_starts().count() * 2 * part.len * size_of::<f32>()) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_has_the_slots_of_its_sequence_and_rows() {
        let batch = Batch {
            sequences: &[0, 0, 0, 1, 2, 2],
            state_from: &[7, NO_SLOT, 5],
            state_to: &[NO_SLOT, 1, 2, 3, NO_SLOT, 4],
            ..Batch::default()
        };
        let run = |first, from, to: &'static [u32]| StateRun { first, rows: to.len(), from, to };
        let expected = [run(0, 7, &[NO_SLOT, 1, 2]), run(3, NO_SLOT, &[3]), run(4, 5, &[NO_SLOT, 4])];
        assert_eq!(StateRun::all(&batch), expected);
    }
}
