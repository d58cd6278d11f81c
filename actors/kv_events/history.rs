//! The last batches of each topic, for subscribers that missed some.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

/// Number of batches of a topic that can be repeated.
pub(super) const KEPT: usize = 10_000;

/// Bytes of the batches of all topics that can be repeated.
const KEPT_BYTES: usize = 64 << 20;

/// A batch of events. Cheap to clone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Batch {
    pub topic: Arc<str>,
    /// Counts the batches of the topic, from 0.
    pub number: u64,
    /// The events, encoded.
    pub batch: Bytes,
}

/// The last batches with their numbers.
#[derive(Debug, Default)]
pub(super) struct History(Mutex<Topics>);

#[derive(Debug, Default)]
struct Topics {
    bytes: usize,
    by_name: HashMap<Arc<str>, Last>,
}

/// The last batches of a topic.
#[derive(Debug, Default)]
struct Last {
    next: u64,
    bytes: usize,
    batches: VecDeque<Batch>,
}

impl Last {
    /// Forgets the oldest batch. Returns its bytes.
    fn drop_oldest(&mut self) -> usize {
        let bytes = self.batches.pop_front().map_or(0, |oldest| oldest.batch.len());
        self.bytes -= bytes;
        bytes
    }
}

impl History {
    /// Adds a batch to a topic, and gives it the topic's next number.
    pub fn add(&self, topic: &str, batch: Bytes) -> Batch {
        let mut topics = self.lock();
        topics.bytes += batch.len();
        let name = topics.by_name.get_key_value(topic).map_or_else(|| topic.into(), |(name, _)| Arc::clone(name));
        let last = topics.by_name.entry(Arc::clone(&name)).or_default();
        let added = Batch { topic: name, number: last.next, batch };
        last.next += 1;
        last.bytes += added.batch.len();
        last.batches.push_back(added.clone());
        let dropped = if last.batches.len() > KEPT { last.drop_oldest() } else { 0 };
        topics.bytes -= dropped;
        topics.trim();
        added
    }

    /// The first kept batch of a topic from a number on. Without a topic, of the only one there is. `None` when there is no such
    /// batch, and when the topic is not known.
    pub fn next(&self, topic: Option<&[u8]>, number: u64) -> Option<Batch> {
        let topics = self.lock();
        let mut named = topics.by_name.iter().filter(|(name, _)| topic.is_none_or(|topic| topic == name.as_bytes()));
        let (Some((_, last)), None) = (named.next(), named.next()) else { return None };
        let first = last.batches.front()?.number;
        last.batches.get(usize::try_from(number.saturating_sub(first)).ok()?).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, Topics> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Topics {
    /// Forgets batches of the topics that have the most bytes, until all together are within the limit.
    fn trim(&mut self) {
        while self.bytes > KEPT_BYTES {
            let Some(largest) = self.by_name.values_mut().max_by_key(|last| last.bytes) else { return };
            self.bytes -= largest.drop_oldest();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbers(history: &History, topic: Option<&str>, from: u64) -> Vec<u64> {
        let next = |number: &u64| Some(history.next(topic.map(str::as_bytes), number + 1)?.number);
        std::iter::successors(history.next(topic.map(str::as_bytes), from).map(|batch| batch.number), next).collect()
    }

    #[test]
    fn old_batches_are_dropped_and_numbers_go_on() {
        let history = History::default();
        for _ in 0..KEPT + 5 {
            history.add("topic", Bytes::from_static(b"batch"));
        }
        assert_eq!(numbers(&history, None, 0), (5..KEPT as u64 + 5).collect::<Vec<_>>());
        assert_eq!(numbers(&history, None, KEPT as u64 + 3).len(), 2);
        assert!(numbers(&history, None, u64::MAX).is_empty());
        history.add("topic", Bytes::from(vec![0; KEPT_BYTES]));
        assert_eq!(numbers(&history, None, 0).len(), 1, "the bytes are limited too");
        assert_eq!(history.add("topic", Bytes::new()).number, KEPT as u64 + 6);
    }

    #[test]
    fn topics_have_numbers_of_their_own() {
        let history = History::default();
        assert!(numbers(&history, None, 0).is_empty(), "there is no topic yet");
        for topic in ["one", "one", "two"] {
            history.add(topic, Bytes::from_static(b"batch"));
        }
        assert_eq!(numbers(&history, Some("one"), 0), [0, 1]);
        assert_eq!(numbers(&history, Some("two"), 0), [0]);
        assert!(numbers(&history, None, 0).is_empty() && numbers(&history, Some("three"), 0).is_empty());
        history.add("two", Bytes::from(vec![0; KEPT_BYTES - 10]));
        assert_eq!(numbers(&history, Some("one"), 0), [0, 1], "the larger topic gives way");
        assert_eq!(numbers(&history, Some("two"), 0), [1]);
    }
}
