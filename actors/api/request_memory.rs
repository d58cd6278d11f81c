//! The memory that the bodies of requests may use together, shared out between clients.
//!
//! A body is small, but what is made of it is not: four bytes of JSON become a list of several hundred bytes. So each
//! request reserves memory for its body as it arrives, then for the values parsed from it, and gives all of it back before
//! its answer is generated.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuelight_engine::heap::release_freed;
use metrics::gauge;

use crate::core::shared_limit::{Client, SharedLimit};
use crate::metrics::catalogue::{REQUEST_MEMORY, REQUEST_MEMORY_LIMIT};
use crate::serving::error::ApiError;
use crate::serving::memory::RequestBudget;

/// Reservations of at least this size fragment the heap so much that freed memory is given back to the system at once.
const LARGE: usize = 16 << 20;

/// The budget of all requests.
#[derive(Debug)]
pub(super) struct RequestMemory {
    limit: usize,
    used: Mutex<SharedLimit>,
}

impl RequestMemory {
    pub fn new(limit: usize) -> Arc<Self> {
        gauge!(REQUEST_MEMORY_LIMIT).set(limit as f64);
        gauge!(REQUEST_MEMORY).set(0.0);
        Arc::new(RequestMemory { limit, used: Mutex::new(SharedLimit::new(limit)) })
    }

    /// An empty reservation of a client.
    pub fn reserve(memory: &Arc<Self>, client: Client) -> Reservation {
        Reservation { memory: memory.clone(), client, bytes: 0, most: 0 }
    }

    fn used(&self) -> MutexGuard<'_, SharedLimit> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Memory of one request, given back when this is dropped.
#[derive(Debug)]
pub(super) struct Reservation {
    memory: Arc<RequestMemory>,
    client: Client,
    bytes: usize,
    /// The largest value of `bytes`.
    most: usize,
}

impl Reservation {
    /// Reserves `bytes` more.
    ///
    /// # Errors
    /// [`ApiError::RequestTooComplex`] when the request alone needs more than there is, [`ApiError::OutOfRequestMemory`]
    /// when other requests use it.
    pub fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        let wanted = self.bytes.saturating_add(bytes);
        let limit = self.memory.limit;
        if wanted > limit {
            return Err(ApiError::RequestTooComplex { needed: wanted, limit });
        }
        let mut used = self.memory.used();
        if !used.admits(&self.client, bytes) {
            return Err(ApiError::OutOfRequestMemory);
        }
        used.take(&self.client, bytes);
        gauge!(REQUEST_MEMORY).set(used.used() as f64);
        self.bytes = wanted;
        self.most = self.most.max(wanted);
        Ok(())
    }

    /// Gives back all but `bytes`.
    pub fn shrink_to(&mut self, bytes: usize) {
        let excess = self.bytes.saturating_sub(bytes);
        let mut used = self.memory.used();
        used.give_back(&self.client, excess);
        gauge!(REQUEST_MEMORY).set(used.used() as f64);
        self.bytes -= excess;
    }
}

impl RequestBudget for Reservation {
    fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        Reservation::grow(self, bytes)
    }

    fn shrink_to(&mut self, bytes: usize) {
        Reservation::shrink_to(self, bytes);
    }

    fn held(&self) -> usize {
        self.bytes
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut used = self.memory.used();
        used.give_back(&self.client, self.bytes);
        gauge!(REQUEST_MEMORY).set(used.used() as f64);
        drop(used);
        if self.most >= LARGE {
            // Takes milliseconds, so it must not delay the connection. Without tokio there is no connection.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn_blocking(release_freed);
            }
        }
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_limited_and_given_back() {
        let memory = RequestMemory::new(1000);
        let mut first = RequestMemory::reserve(&memory, None);
        first.grow(600).unwrap();
        let mut second = RequestMemory::reserve(&memory, None);
        assert!(matches!(second.grow(600), Err(ApiError::OutOfRequestMemory)));
        assert!(matches!(second.grow(1001), Err(ApiError::RequestTooComplex { needed: 1001, limit: 1000 })));
        drop(first);
        second.grow(600).unwrap();
        assert_eq!(memory.used().used(), 600);
        second.shrink_to(50);
        second.shrink_to(70);
        assert_eq!(memory.used().used(), 50);
        drop(second);
        assert_eq!(memory.used().used(), 0);
    }
}
