//! The downloads that run. Each ends when no client that asked for it is left.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::store::{ModelStore, PullProgress, PullState, StoreError};

/// Most downloads at the same time.
const MOST_PULLS: usize = 4;

/// The downloads that run.
#[derive(Clone, Default)]
pub(super) struct Pulls(Arc<Mutex<Vec<Running>>>);

/// A download that runs.
struct Running {
    number: u64,
    /// What it downloads, in lower case: the hub's names are the same in any case.
    key: String,
    progress: PullProgress,
}

impl Pulls {
    /// Begins a download, or joins the one of the same reference. It is cancelled when all of its receivers are dropped.
    ///
    /// # Errors
    /// [`StoreError::Busy`].
    pub fn begin(&self, store: Arc<dyn ModelStore>, reference: &str) -> Result<watch::Receiver<PullState>, StoreError> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let key = reference.to_lowercase();
        let mut running = self.running();
        // One without receivers is being cancelled.
        let joined = running.iter().filter(|other| other.key == key).find_map(|other| other.progress.join());
        if let Some(state) = joined {
            return Ok(state);
        }
        if running.len() >= MOST_PULLS {
            return Err(StoreError::Busy(MOST_PULLS));
        }
        let (progress, state) = PullProgress::new();
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        running.push(Running { number, key, progress: progress.clone() });
        drop(running);
        let listed = Listed { pulls: self.clone(), number };
        let reference = reference.to_owned();
        tokio::task::spawn_blocking(move || {
            let result = store.download(&reference, progress.clone());
            tracing::info!(model = reference, ?result, "a download has ended");
            // Who sees the end may begin another download.
            drop(listed);
            progress.end(result);
        });
        Ok(state)
    }

    /// Whether no download runs.
    pub fn are_over(&self) -> bool {
        self.running().is_empty()
    }

    fn running(&self) -> MutexGuard<'_, Vec<Running>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lists a download for as long as it runs, also after a panic.
struct Listed {
    pulls: Pulls,
    number: u64,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.pulls.running().retain(|running| running.number != self.number);
    }
}
