//! The hidden values of the model that a layer of the model drafts with, until the layer has computed with them.
//!
//! The store has a limit. Beyond it, the sequence that was extended longest ago loses its values, and the layer then sees
//! only the later positions of that sequence: its drafts may be worse, and no token changes.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use crate::core::draft::HiddenShare;
use crate::core::request::RequestId;

/// The hidden values of consecutive positions of each sequence.
#[derive(Debug)]
pub(super) struct TrunkStore {
    width: usize,
    max_rows: usize,
    /// Rows of all sequences.
    rows: usize,
    sequences: HashMap<RequestId, Rows>,
    clock: u64,
}

/// The rows of one sequence.
#[derive(Debug, Default)]
struct Rows {
    /// Position of the first row.
    first: usize,
    /// [rows, width].
    values: VecDeque<f32>,
    /// When it was last extended.
    last_use: u64,
}

impl TrunkStore {
    /// A store of at most `max_rows` rows of `width` values.
    pub fn new(width: usize, max_rows: usize) -> Self {
        TrunkStore { width: width.max(1), max_rows, rows: 0, sequences: HashMap::new(), clock: 0 }
    }

    /// Adds rows to a sequence. Rows at the same and later positions are replaced: they belonged to a draft that was wrong, or are
    /// computed again. Earlier rows that do not lead up to them are dropped.
    pub fn add(&mut self, share: HiddenShare) {
        self.clock += 1;
        let HiddenShare { id, first_position, values } = share;
        let rows = self.sequences.entry(id).or_default();
        let before = rows.values.len() / self.width;
        let leads_up = (rows.first..=rows.first + before).contains(&first_position);
        if leads_up {
            rows.values.truncate((first_position - rows.first) * self.width);
        } else {
            (rows.first, rows.values) = (first_position, VecDeque::new());
        }
        rows.values.extend(values);
        rows.last_use = self.clock;
        self.rows = self.rows + rows.values.len() / self.width - before;
        self.enforce_limit(id);
    }

    /// The positions of a sequence whose rows are known.
    pub fn known(&self, id: RequestId) -> Range<usize> {
        let of = |rows: &Rows| rows.first..rows.first + rows.values.len() / self.width;
        self.sequences.get(&id).map_or(0..0, of)
    }

    /// The rows at these positions, [positions, width]; `None` unless all are known.
    pub fn read(&self, id: RequestId, positions: Range<usize>) -> Option<Vec<f32>> {
        let known = self.known(id);
        if positions.start < known.start || positions.end > known.end {
            return None;
        }
        let at = |position: usize| (position - known.start) * self.width;
        Some(self.sequences.get(&id)?.values.range(at(positions.start)..at(positions.end)).copied().collect())
    }

    /// Drops the rows of a sequence before a position.
    pub fn forget_before(&mut self, id: RequestId, position: usize) {
        let Some(rows) = self.sequences.get_mut(&id) else { return };
        let count = position.saturating_sub(rows.first).min(rows.values.len() / self.width);
        rows.values.drain(..count * self.width);
        rows.first += count;
        self.rows -= count;
    }

    /// Drops sequences, then the first rows of sequence `id`, until the limit is kept.
    fn enforce_limit(&mut self, id: RequestId) {
        while self.rows > self.max_rows {
            let others = self.sequences.iter().filter(|(other, _)| **other != id);
            let Some(oldest) = others.min_by_key(|(_, rows)| rows.last_use).map(|(&oldest, _)| oldest) else {
                let first = self.known(id).start;
                return self.forget_before(id, first + self.rows - self.max_rows);
            };
            let dropped = self.sequences.remove(&oldest).map_or(0, |rows| rows.values.len() / self.width);
            self.rows -= dropped;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: RequestId = RequestId(1);
    const B: RequestId = RequestId(2);

    /// Rows of two values: the position, and `salt`.
    fn share(id: RequestId, positions: Range<usize>, salt: u8) -> HiddenShare {
        let values = positions.clone().flat_map(|position| [position as f32, f32::from(salt)]).collect();
        HiddenShare { id, first_position: positions.start, values }
    }

    fn read(store: &TrunkStore, id: RequestId, positions: Range<usize>) -> Option<Vec<(usize, u8)>> {
        let values = store.read(id, positions)?;
        Some(values.chunks_exact(2).map(|row| (row[0] as usize, row[1] as u8)).collect())
    }

    #[test]
    fn later_rows_replace_those_at_the_same_positions() {
        let mut store = TrunkStore::new(2, 100);
        store.add(share(A, 0..4, 0));
        store.add(share(B, 7..9, 5));
        store.add(share(A, 2..5, 1));
        assert_eq!(read(&store, A, 0..5).unwrap(), [(0, 0), (1, 0), (2, 1), (3, 1), (4, 1)]);
        assert_eq!((store.known(A), store.known(B), store.rows), (0..5, 7..9, 7));
        assert_eq!(read(&store, A, 3..6), None);
        assert_eq!(read(&store, B, 6..8), None);
    }

    #[test]
    fn rows_after_a_gap_begin_a_new_range() {
        let mut store = TrunkStore::new(2, 100);
        store.add(share(A, 0..4, 0));
        store.add(share(A, 5..7, 0));
        assert_eq!((store.known(A), store.rows), (5..7, 2));
        store.add(share(A, 0..3, 0));
        assert_eq!((store.known(A), store.rows), (0..3, 3));
    }

    #[test]
    fn rows_that_were_used_are_forgotten() {
        let mut store = TrunkStore::new(2, 100);
        store.add(share(A, 0..4, 0));
        store.forget_before(A, 3);
        assert_eq!((store.known(A), store.rows), (3..4, 1));
        store.add(share(A, 4..6, 0));
        assert_eq!(read(&store, A, 3..6).unwrap().len(), 3);
        store.forget_before(A, 9);
        assert_eq!((store.known(A), store.rows), (6..6, 0));
    }

    #[test]
    fn beyond_the_limit_the_oldest_sequence_and_then_the_first_rows_are_dropped() {
        let mut store = TrunkStore::new(2, 6);
        store.add(share(A, 0..3, 0));
        store.add(share(B, 0..3, 0));
        store.add(share(A, 3..4, 0));
        assert_eq!((store.known(A), store.known(B), store.rows), (0..4, 0..0, 4));
        store.add(share(A, 4..9, 0));
        assert_eq!((store.known(A), store.rows), (3..9, 6));
    }
}
