//! The space on the disk that all files of batches may use together.

use std::sync::atomic::{AtomicU64, Ordering};

use super::error::BatchStoreError;

/// What a file or a batch counts besides its content: its record, and its entry in memory.
pub(super) const RECORD_BYTES: u64 = 64 << 10;

/// The space that is used.
#[derive(Debug)]
pub(super) struct DiskUse {
    limit: u64,
    used: AtomicU64,
}

impl DiskUse {
    pub fn new(limit: u64, used: u64) -> Self {
        DiskUse { limit, used: AtomicU64::new(used) }
    }

    /// Takes space, if there is as much.
    ///
    /// # Errors
    /// [`BatchStoreError::DiskFull`] when there is not.
    pub fn take(&self, bytes: u64) -> Result<(), BatchStoreError> {
        let grown = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.limit);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, grown);
        taken.map(drop).map_err(|_| BatchStoreError::DiskFull(self.limit))
    }

    /// Takes space for what must be kept in any case.
    pub fn add(&self, bytes: u64) {
        self.used.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn give_back(&self, bytes: u64) {
        let less = |used: u64| Some(used.saturating_sub(bytes));
        // The function never returns `None`.
        let _ = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Whether more may be written.
    pub fn has_room(&self) -> bool {
        self.used.load(Ordering::Relaxed) < self.limit
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn space_is_limited_and_given_back() {
        let disk = DiskUse::new(100, 40);
        disk.take(60).unwrap();
        assert_eq!(disk.take(1), Err(BatchStoreError::DiskFull(100)));
        disk.add(5);
        assert!(!disk.has_room());
        disk.give_back(6);
        assert!(disk.has_room());
        disk.give_back(1000);
        disk.take(100).unwrap();
    }
}
