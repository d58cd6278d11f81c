//! Tells a rendering on another thread that its result is no longer wanted.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A flag that a caller and a rendering share.
#[derive(Debug, Clone, Default)]
pub struct Cancellation(Arc<AtomicBool>);

/// Cancels when it is dropped.
#[derive(Debug)]
pub struct CancelOnDrop(Cancellation);

impl Cancellation {
    /// Cancels when the result is dropped. After the rendering has ended, that has no effect.
    #[must_use]
    pub fn on_drop(&self) -> CancelOnDrop {
        CancelOnDrop(self.clone())
    }

    /// Whether the result is no longer wanted.
    #[must_use]
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Relaxed);
    }
}
