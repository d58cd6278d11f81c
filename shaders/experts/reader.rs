//! A thread that reads weights from their file while other threads compute.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::weight::Weight;

/// Reads weights on a thread of its own, so that they are in memory when they are used.
///
/// It reads one weight at a time and prefetches only the next one. This keeps the disk busy, and little outstanding
/// work delays a new request.
pub struct Reader {
    queue: Arc<ReadQueue>,
    thread: Option<JoinHandle<()>>,
}

impl fmt::Debug for Reader {
    /// Without its state, which is no part of what an op computes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Reader").finish_non_exhaustive()
    }
}

/// The weights to read, and the number of the request.
#[derive(Default)]
struct ReadQueue {
    weights: Mutex<Vec<Weight>>,
    changed: Condvar,
    request: AtomicU64,
    stops: AtomicBool,
}

impl Reader {
    /// Starts an idle reader.
    ///
    /// # Errors
    /// When the operating system cannot start a thread.
    pub fn start() -> io::Result<Self> {
        let queue = Arc::new(ReadQueue::default());
        let of_thread = Arc::clone(&queue);
        let thread = std::thread::Builder::new().name("read-ahead".to_owned()).spawn(move || of_thread.run())?;
        Ok(Reader { queue, thread: Some(thread) })
    }

    /// Requests that `weights` be read in this order, and drops what is left of earlier requests. Returns immediately.
    pub fn read(&self, weights: Vec<Weight>) {
        let mut queued = self.queue.weights();
        self.queue.request.fetch_add(1, Ordering::Relaxed);
        *queued = weights;
        self.queue.changed.notify_one();
    }
}

impl ReadQueue {
    fn weights(&self) -> MutexGuard<'_, Vec<Weight>> {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        while let Some((weights, request)) = self.wait() {
            let is_stale = || self.request.load(Ordering::Relaxed) != request;
            // The read of the next weight is always started before the current one is complete.
            weights.iter().take(1).for_each(Weight::prefetch);
            for (index, weight) in weights.iter().enumerate() {
                weights.iter().skip(index + 1).take(1).for_each(Weight::prefetch);
                weight.page_in();
                if is_stale() {
                    break;
                }
            }
        }
    }

    /// Waits for a request; returns its weights and its number, or `None` when the reader stops.
    fn wait(&self) -> Option<(Vec<Weight>, u64)> {
        let is_idle = |queued: &mut Vec<Weight>| queued.is_empty() && !self.stops.load(Ordering::Relaxed);
        let queued = self.changed.wait_while(self.weights(), is_idle);
        let weights = std::mem::take(&mut *queued.unwrap_or_else(PoisonError::into_inner));
        (!weights.is_empty()).then(|| (weights, self.request.load(Ordering::Relaxed)))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.queue.stops.store(true, Ordering::Relaxed);
        self.read(Vec::new());
        if let Some(thread) = self.thread.take() {
            // A panic of the reader only loses prefetching.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::quant::Format;
    use crate::weight::{Bytes, SharedBytes};
    use std::ops::Range;
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
    use std::time::Duration;

    /// Bytes that send the start of each prefetched range on a rendezvous channel.
    struct Reporting(Vec<u8>, SyncSender<usize>);

    impl AsRef<[u8]> for Reporting {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Bytes for Reporting {
        fn prefetch(&self, range: Range<usize>) {
            let _ = self.1.send(range.start);
        }
    }

    /// `count` weights of four bytes, and the prefetches of them.
    fn weights(count: usize) -> (Vec<Weight>, Receiver<usize>) {
        let (sender, prefetched) = sync_channel(0);
        let owner: Arc<dyn Bytes> = Arc::new(Reporting(vec![0; 4 * count], sender));
        let bytes = |index: usize| SharedBytes::new(Arc::clone(&owner), 4 * index..4 * index + 4).unwrap();
        ((0..count).map(|index| Weight::new("w", Format::F32, 1, 1, bytes(index)).unwrap()).collect(), prefetched)
    }

    #[test]
    fn weights_are_read_in_order_until_others_are_requested() {
        const TIMEOUT: Duration = Duration::from_secs(20);
        let (first, of_first) = weights(100);
        let (second, of_second) = weights(3);
        let reader = Reader::start().unwrap();
        reader.read(first);
        for index in 0..10 {
            assert_eq!(of_first.recv_timeout(TIMEOUT).unwrap(), 4 * index);
        }
        reader.read(second);
        // The prefetch in progress, and one that may have started since.
        let late = of_first.iter().take(2).count();
        assert!(late <= 2);
        for index in 0..3 {
            assert_eq!(of_second.recv_timeout(TIMEOUT).unwrap(), 4 * index);
        }
        drop(reader);
        assert!(of_first.try_recv().is_err() && of_second.try_recv().is_err());
    }

    #[test]
    fn a_reader_stops_when_it_is_dropped() {
        drop(Reader::start().unwrap());
    }
}
