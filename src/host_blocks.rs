//! Host memory for copies of KV blocks: reserved at once, handed out block by block.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuelight_shaders::pages::Pages;

/// Memory for a number of blocks. Cheap to clone; clones share the memory.
#[derive(Clone)]
pub struct HostBlocks(Arc<Shared>);

struct Shared {
    pages: Pages<u8>,
    block_bytes: usize,
    count: usize,
    /// The blocks that are not handed out. The last one is handed out next.
    free: Mutex<Vec<usize>>,
}

impl Shared {
    fn free(&self) -> MutexGuard<'_, Vec<usize>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HostBlocks {
    /// Reserves memory for `count` blocks of `block_bytes` bytes. The system provides it when it is written.
    #[must_use]
    pub fn new(count: usize, block_bytes: usize) -> Self {
        let pages = Pages::zeroed_large(count * block_bytes);
        HostBlocks(Arc::new(Shared { pages, block_bytes, count, free: Mutex::new((0..count).rev().collect()) }))
    }

    /// Takes a block. Its bytes are arbitrary. `None` when all are in use.
    #[must_use]
    pub fn take(&self) -> Option<HostBlock> {
        let index = self.0.free().pop()?;
        Some(HostBlock { shared: Arc::clone(&self.0), index })
    }

    /// Number of all blocks.
    #[must_use]
    pub fn count(&self) -> usize {
        self.0.count
    }

    /// Number of blocks that can be taken.
    #[must_use]
    pub fn available(&self) -> usize {
        self.0.free().len()
    }
}

/// A block of host memory. It is free again when it is dropped.
pub struct HostBlock {
    shared: Arc<Shared>,
    index: usize,
}

impl HostBlock {
    fn start(&self) -> *mut u8 {
        // SAFETY: the index is below the count, so the block is inside the pages.
        unsafe { self.shared.pages.as_ptr().add(self.index * self.shared.block_bytes) }
    }
}

impl Deref for HostBlock {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the block is inside the pages, and only this value has its index, so it is written only through this value.
        unsafe { std::slice::from_raw_parts(self.start(), self.shared.block_bytes) }
    }
}

impl DerefMut for HostBlock {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this value is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.shared.block_bytes) }
    }
}

impl Drop for HostBlock {
    fn drop(&mut self) {
        self.shared.free().push(self.index);
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_keep_their_bytes_and_are_free_again_when_dropped() {
        let blocks = HostBlocks::new(3, 100);
        let mut taken: Vec<HostBlock> = (0..3).map(|_| blocks.take().unwrap()).collect();
        assert!(blocks.take().is_none());
        for (value, block) in (1..).zip(&mut taken) {
            block.fill(value);
        }
        assert!((1..).zip(&taken).all(|(value, block)| block.len() == 100 && block.iter().all(|&byte| byte == value)));
        taken.remove(1);
        assert_eq!((blocks.available(), blocks.count()), (1, 3));
        let again = blocks.take().unwrap();
        assert!(again.iter().all(|&byte| byte == 2), "the memory of the dropped block");
        assert!(taken[1].iter().all(|&byte| byte == 3));
    }
}
