//! A thread that reads weights from their file while others compute.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use crate::weight::Weight;

/// Reads weights on a thread of its own, so that they are in memory when they are used. It waits for each, with only
/// the next one asked for meanwhile: the disk always has something to do, and little that has to be finished when
/// others are wished.
#[derive(Debug)]
pub struct Reader {
    wish: Arc<Wish>,
    thread: Option<JoinHandle<()>>,
}

/// What is to be read, and how often that was said.
#[derive(Debug, Default)]
struct Wish {
    weights: Mutex<Vec<Weight>>,
    is_there: Condvar,
    number: AtomicU64,
    ends: AtomicBool,
}

impl Reader {
    /// A reader with nothing to do.
    ///
    /// # Errors
    /// When the system starts no thread.
    pub fn start() -> io::Result<Self> {
        let wish = Arc::new(Wish::default());
        let of_thread = Arc::clone(&wish);
        let thread = std::thread::Builder::new().name("read-ahead".to_owned()).spawn(move || of_thread.work())?;
        Ok(Reader { wish, thread: Some(thread) })
    }

    /// Reads these from now on, in this order, and nothing else that was wished before; returns at once.
    pub fn read(&self, weights: Vec<Weight>) {
        let mut wished = self.wish.weights();
        self.wish.number.fetch_add(1, Ordering::Relaxed);
        *wished = weights;
        self.wish.is_there.notify_one();
    }
}

impl Wish {
    fn weights(&self) -> MutexGuard<'_, Vec<Weight>> {
        self.weights.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn work(&self) {
        while let Some((weights, number)) = self.wait() {
            let is_stale = || self.number.load(Ordering::Relaxed) != number;
            // The disk has the next one to do when one has come.
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

    /// The next that is wished, and its number; `None` when the reader ends.
    fn wait(&self) -> Option<(Vec<Weight>, u64)> {
        let is_idle = |wished: &mut Vec<Weight>| wished.is_empty() && !self.ends.load(Ordering::Relaxed);
        let wished = self.is_there.wait_while(self.weights(), is_idle);
        let weights = std::mem::take(&mut *wished.unwrap_or_else(PoisonError::into_inner));
        (!weights.is_empty()).then(|| (weights, self.number.load(Ordering::Relaxed)))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.wish.ends.store(true, Ordering::Relaxed);
        self.read(Vec::new());
        if let Some(thread) = self.thread.take() {
            // It reads, and has nothing to say.
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

    /// Bytes that tell where they are asked for, and wait until that was heard.
    struct Telling(Vec<u8>, SyncSender<usize>);

    impl AsRef<[u8]> for Telling {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }

    impl Bytes for Telling {
        fn prefetch(&self, range: Range<usize>) {
            let _ = self.1.send(range.start);
        }
    }

    /// So many weights of four bytes, and what is asked for.
    fn weights(count: usize) -> (Vec<Weight>, Receiver<usize>) {
        let (tell, told) = sync_channel(0);
        let owner: Arc<dyn Bytes> = Arc::new(Telling(vec![0; 4 * count], tell));
        let bytes = |index: usize| SharedBytes::new(Arc::clone(&owner), 4 * index..4 * index + 4).unwrap();
        ((0..count).map(|index| Weight::new("w", Format::F32, 1, 1, bytes(index)).unwrap()).collect(), told)
    }

    #[test]
    fn weights_are_read_in_order_until_others_are_wished() {
        const SOON: Duration = Duration::from_secs(20);
        let (first, told) = weights(100);
        let (second, told_then) = weights(3);
        let reader = Reader::start().unwrap();
        reader.read(first);
        for index in 0..10 {
            assert_eq!(told.recv_timeout(SOON).unwrap(), 4 * index);
        }
        reader.read(second);
        // What it was at, and the one that it may have gone on to meanwhile.
        let late = told.iter().take(2).count();
        assert!(late <= 2);
        for index in 0..3 {
            assert_eq!(told_then.recv_timeout(SOON).unwrap(), 4 * index);
        }
        drop(reader);
        assert!(told.try_recv().is_err() && told_then.try_recv().is_err());
    }

    #[test]
    fn a_reader_ends_when_it_is_dropped() {
        drop(Reader::start().unwrap());
    }
}
