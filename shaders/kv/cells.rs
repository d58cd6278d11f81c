//! Memory that threads write through shared references.

use std::ops::Range;

use super::shape::BLOCK_TOKENS;
use crate::pages::{Pages, Plain};
use crate::prefetch;

/// Values that are written through shared references.
pub(super) struct SharedCells<T>(Pages<T>);

// SAFETY: every access goes through methods whose callers promise that no other thread uses the same range.
unsafe impl<T: Send + Sync> Sync for SharedCells<T> {}

impl<T: Plain> SharedCells<T> {
    pub(super) fn new(len: usize) -> Self {
        SharedCells(Pages::zeroed(len))
    }

    /// The bytes of a range of values.
    ///
    /// # Panics
    /// When the range is not inside.
    pub(super) fn bytes(&mut self, range: Range<usize>) -> &mut [u8] {
        self.0.bytes(range)
    }

    /// A pointer to a range; checks that the range is inside.
    pub(super) fn range(&self, offset: usize, len: usize) -> *mut T {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.0.len()), "the range is inside the cache");
        // SAFETY: the range is inside the pages, by the line above.
        unsafe { self.0.as_ptr().add(offset) }
    }

    /// # Safety
    /// No other thread may use this range while the slice lives.
    #[allow(clippy::mut_from_ref)]
    pub(super) unsafe fn get_mut(&self, offset: usize, len: usize) -> &mut [T] {
        // SAFETY: in bounds, and not aliased by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.range(offset, len), len) }
    }

    /// Writes every [`BLOCK_TOKENS`]th value from `offset` on.
    ///
    /// # Safety
    /// No other thread may use these values at the same time.
    pub(super) unsafe fn write_column(&self, offset: usize, values: &[T]) {
        for (index, value) in (offset..).step_by(BLOCK_TOKENS).zip(values) {
            // SAFETY: in bounds, and the caller promises that no other thread uses it.
            unsafe { *self.range(index, 1) = *value };
        }
    }
}

/// Prefetches a range of bytes.
#[inline(always)]
pub(super) fn prefetch(start: *const u8, bytes: usize) {
    const CACHE_LINE: usize = 64;
    for line in (0..bytes).step_by(CACHE_LINE) {
        prefetch::prefetch(start.wrapping_add(line));
    }
}
