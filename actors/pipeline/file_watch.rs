//! Watches the files of a loaded model.
//!
//! An engine checks its files after every step. This task checks them once per second, so that a change is noticed also while no
//! request runs. File systems may block, so each check runs on a thread for blocking work.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::load::{FileChange, ModelFiles};
use tokio::task::{JoinHandle, spawn_blocking};

/// Time between two checks.
const INTERVAL: Duration = Duration::from_secs(1);

/// A running watch, which ends when this is dropped.
pub(super) struct FileWatch(JoinHandle<()>);

impl FileWatch {
    /// Watches these files and calls `changed` once when one of them has changed. `None` when there are no files.
    pub fn start(
        files: &ModelFiles,
        model_id: Arc<str>,
        changed: impl FnOnce(FileChange) + Send + 'static,
    ) -> Option<Self> {
        let files = files.clone();
        (!files.is_empty())
            .then(|| FileWatch(tokio::spawn(async move { changed(first_change(files, &model_id).await) })))
    }
}

impl Drop for FileWatch {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// Waits for a change. Logs once if another file is put in the place of the model's.
async fn first_change(files: ModelFiles, model_id: &str) -> FileChange {
    let mut is_replaced = false;
    loop {
        tokio::time::sleep(INTERVAL).await;
        let (checked, watches_path) = (files.clone(), !is_replaced);
        let check = move || {
            checked.check()?;
            Ok(checked.replaced().filter(|_| watches_path).map(|path| path.display().to_string()))
        };
        match spawn_blocking(check).await {
            Ok(Err(change)) => return change,
            Ok(Ok(Some(file))) => {
                is_replaced = true;
                tracing::warn!(
                    model = model_id,
                    file,
                    "a newer model file is at this path; the loaded one is served until the model is reloaded"
                );
            }
            // A check that panicked is repeated.
            Ok(Ok(None)) | Err(_) => {}
        }
    }
}
