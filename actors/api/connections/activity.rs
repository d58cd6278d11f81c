//! What a connection is doing: waiting for a request, or serving one.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;

use futures_util::task::AtomicWaker;
use tokio::sync::Notify;

/// The state of a connection, shared by its stream and its service.
#[derive(Debug)]
pub(super) struct Activity {
    phase: Mutex<Phase>,
    /// The task that waits for bytes while a request is served, without a time limit.
    reader: AtomicWaker,
    close: Notify,
}

/// What a connection is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    /// No byte of the next request has arrived.
    Idle {
        /// When it was opened, or the last response ended.
        since: Instant,
    },
    /// The headers of a request are arriving.
    Head {
        /// When the first byte arrived, or the connection was opened.
        since: Instant,
    },
    /// A request is served.
    Serving,
}

impl Default for Activity {
    /// A new connection is expected to send headers at once.
    fn default() -> Self {
        Activity {
            phase: Mutex::new(Phase::Head { since: Instant::now() }),
            reader: AtomicWaker::new(),
            close: Notify::new(),
        }
    }
}

impl Activity {
    pub fn phase(&self) -> Phase {
        *self.lock()
    }

    /// Records that bytes of a request have arrived.
    pub fn received(&self) {
        let mut phase = self.lock();
        if matches!(*phase, Phase::Idle { .. }) {
            *phase = Phase::Head { since: Instant::now() };
        }
    }

    /// Records that a request is served, until the result is dropped.
    pub fn serve(activity: &Arc<Self>) -> Serving {
        *activity.lock() = Phase::Serving;
        Serving(activity.clone())
    }

    /// Wakes a task when the request that is served has ended.
    pub fn wake_when_idle(&self, waker: &Waker) {
        self.reader.register(waker);
    }

    /// Since when no request is served. `None` while one is.
    pub fn idle_since(&self) -> Option<Instant> {
        match self.phase() {
            Phase::Idle { since } | Phase::Head { since } => Some(since),
            Phase::Serving => None,
        }
    }

    /// Ends the connection.
    pub fn close(&self) {
        self.close.notify_one();
    }

    /// Resolves when the connection should end.
    pub async fn closed(&self) {
        self.close.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, Phase> {
        self.phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that is served. The connection is idle when this is dropped.
#[derive(Debug)]
pub(super) struct Serving(Arc<Activity>);

impl Drop for Serving {
    fn drop(&mut self) {
        *self.0.lock() = Phase::Idle { since: Instant::now() };
        self.0.reader.wake();
    }
}
