//! The last batches, for subscribers that missed some.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Number of batches that can be repeated.
const KEPT: usize = 10_000;

/// Bytes of batches that can be repeated.
const KEPT_BYTES: usize = 64 << 20;

/// The last batches with their sequence numbers.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<Batches>);

#[derive(Debug, Default)]
struct Batches {
    next: u64,
    bytes: usize,
    last: VecDeque<(u64, Bytes)>,
}

impl History {
    /// Adds a batch and returns its sequence number, counted from 0.
    pub fn add(&self, batch: Bytes) -> u64 {
        let mut batches = self.lock();
        let number = batches.next;
        batches.next += 1;
        batches.bytes += batch.len();
        batches.last.push_back((number, batch));
        while batches.last.len() > KEPT || batches.bytes > KEPT_BYTES {
            let Some((_, oldest)) = batches.last.pop_front() else { break };
            batches.bytes -= oldest.len();
        }
        number
    }

    /// The batches from a number on, as far as they are kept.
    pub fn from(&self, number: u64) -> Vec<(u64, Bytes)> {
        self.lock().last.iter().filter(|(kept, _)| *kept >= number).cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, Batches> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn old_batches_are_dropped_and_numbers_go_on() {
        let history = History::default();
        for _ in 0..KEPT + 5 {
            history.add(Bytes::from_static(b"batch"));
        }
        assert_eq!(history.from(0).first().map(|(number, _)| *number), Some(5));
        assert_eq!(history.from(KEPT as u64 + 3).len(), 2);
        history.add(Bytes::from(vec![0; KEPT_BYTES]));
        assert_eq!(history.from(0).len(), 1, "the bytes are limited too");
        assert_eq!(history.add(Bytes::new()), KEPT as u64 + 6);
    }
}
