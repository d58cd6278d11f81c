//! Ends a load early.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A request to end a load, shared by the load and its starter. The load checks it before each tensor, and regularly
/// while it builds the tokenizer.
#[derive(Debug, Clone, Default)]
pub struct LoadCancel(Arc<AtomicBool>);

/// The load was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the load was cancelled")]
pub struct LoadCancelled;

impl LoadCancel {
    /// Ends the load at its next check.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether the load is to end.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Checks that the load may continue.
    ///
    /// # Errors
    /// [`LoadCancelled`] when it is to end.
    pub fn check(&self) -> Result<(), LoadCancelled> {
        if self.is_cancelled() { Err(LoadCancelled) } else { Ok(()) }
    }
}
