//! The downloads that run. Each goes on when the clients that asked for it are gone.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::watch;

use super::store::{ModelStore, PullProgress, PullState, StoreError};

/// Most downloads at the same time.
const MOST_PULLS: usize = 4;

/// The downloads that run, by reference.
#[derive(Clone, Default)]
pub(super) struct Pulls(Arc<Mutex<HashMap<String, watch::Receiver<PullState>>>>);

impl Pulls {
    /// Begins a download, or joins the one of the same reference.
    ///
    /// # Errors
    /// [`StoreError::Busy`].
    pub fn begin(&self, store: Arc<dyn ModelStore>, reference: &str) -> Result<watch::Receiver<PullState>, StoreError> {
        // The hub's names are the same in any case.
        let key = reference.to_lowercase();
        let mut running = self.running();
        if let Some(state) = running.get(&key) {
            return Ok(state.clone());
        }
        if running.len() >= MOST_PULLS {
            return Err(StoreError::Busy(MOST_PULLS));
        }
        let (progress, state) = PullProgress::new();
        running.insert(key.clone(), state.clone());
        drop(running);
        let listed = Listed { pulls: self.clone(), key };
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

    fn running(&self) -> MutexGuard<'_, HashMap<String, watch::Receiver<PullState>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Lists a download for as long as it runs, also after a panic.
struct Listed {
    pulls: Pulls,
    key: String,
}

impl Drop for Listed {
    fn drop(&mut self) {
        self.pulls.running().remove(&self.key);
    }
}
