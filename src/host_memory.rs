//! Host memory for copies of units of a cache: reserved at once, handed out unit by unit.

use std::ops::{Deref, DerefMut};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuelight_shaders::pages::Pages;

use crate::cache_unit::{UnitBytes, UnitKind};

/// Memory for copies of units. Cheap to clone; clones share the memory.
#[derive(Clone)]
pub struct HostMemory(Arc<Shared>);

struct Shared {
    /// The addresses of each kind, enough for all of the memory. Both kinds share the physical memory.
    pools: [Pool; UnitKind::COUNT],
    limit: u64,
    usage: Mutex<Usage>,
}

struct Pool {
    pages: Pages<u8>,
    unit_bytes: usize,
}

/// Which places are in use, and how much physical memory there is.
struct Usage {
    free: [Free; UnitKind::COUNT],
    /// Bytes of the places in use and of the free ones that were written.
    resident: u64,
}

/// The places that are not handed out. The last of each list is handed out next.
struct Free {
    /// Those with physical memory.
    written: Vec<usize>,
    /// Those without.
    blank: Vec<usize>,
}

impl Shared {
    fn usage(&self) -> MutexGuard<'_, Usage> {
        self.usage.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn unit_bytes(&self, kind: UnitKind) -> u64 {
        self.pools[kind as usize].unit_bytes as u64
    }

    /// A place that is free, within the limit.
    fn take(&self, kind: UnitKind) -> Option<usize> {
        let mut usage = self.usage();
        if let Some(index) = usage.free[kind as usize].written.pop() {
            return Some(index);
        }
        let index = usage.free[kind as usize].blank.pop()?;
        if !self.make_space(&mut usage, kind) {
            usage.free[kind as usize].blank.push(index);
            return None;
        }
        usage.resident += self.unit_bytes(kind);
        Some(index)
    }

    /// Gives physical memory of the other kind's free places back until a place of this kind fits into the limit.
    fn make_space(&self, usage: &mut Usage, kind: UnitKind) -> bool {
        let other = UnitKind::ALL[1 - kind as usize];
        while usage.resident + self.unit_bytes(kind) > self.limit {
            let Some(index) = usage.free[other as usize].written.pop() else { return false };
            let pool = &self.pools[other as usize];
            // SAFETY: the place is free, so no reference into it exists, and none is made while the usage is locked.
            unsafe { pool.pages.release(index * pool.unit_bytes..(index + 1) * pool.unit_bytes) };
            usage.resident -= self.unit_bytes(other);
            usage.free[other as usize].blank.push(index);
        }
        true
    }
}

impl Pool {
    /// Addresses for as many units as fit into `limit` bytes.
    fn new(limit: u64, unit_bytes: usize) -> (Pool, Free) {
        let count = usize::try_from(limit).unwrap_or(usize::MAX).checked_div(unit_bytes).unwrap_or(0);
        let pool = Pool { pages: Pages::zeroed_large(count * unit_bytes), unit_bytes };
        (pool, Free { written: Vec::new(), blank: (0..count).rev().collect() })
    }
}

impl HostMemory {
    /// Reserves memory for copies that have `limit` bytes together. The system provides it when it is written.
    #[must_use]
    pub fn new(limit: u64, bytes: UnitBytes) -> Self {
        let [(blocks, free_blocks), (states, free_states)] = UnitKind::ALL.map(|kind| Pool::new(limit, bytes.of(kind)));
        let usage = Mutex::new(Usage { free: [free_blocks, free_states], resident: 0 });
        HostMemory(Arc::new(Shared { pools: [blocks, states], limit, usage }))
    }

    /// Takes memory for a unit. Its bytes are arbitrary. `None` when there is not enough.
    #[must_use]
    pub fn take(&self, kind: UnitKind) -> Option<HostCopy> {
        let index = self.0.take(kind)?;
        Some(HostCopy { shared: Arc::clone(&self.0), kind, index })
    }
}

/// Host memory for the copy of one unit. It is free again when it is dropped.
pub struct HostCopy {
    shared: Arc<Shared>,
    kind: UnitKind,
    index: usize,
}

impl HostCopy {
    fn pool(&self) -> &Pool {
        &self.shared.pools[self.kind as usize]
    }

    fn start(&self) -> *mut u8 {
        let Pool { pages, unit_bytes } = self.pool();
        // SAFETY: the index is below the count, so the place is inside the pages.
        unsafe { pages.as_ptr().add(self.index * unit_bytes) }
    }
}

impl Deref for HostCopy {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the place is inside the pages, and only this value has its index, so it is written only through this value.
        unsafe { std::slice::from_raw_parts(self.start(), self.pool().unit_bytes) }
    }
}

impl DerefMut for HostCopy {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and this value is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start(), self.pool().unit_bytes) }
    }
}

impl Drop for HostCopy {
    fn drop(&mut self) {
        self.shared.usage().free[self.kind as usize].written.push(self.index);
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(memory: &HostMemory, kind: UnitKind) -> Vec<HostCopy> {
        std::iter::from_fn(|| memory.take(kind)).collect()
    }

    #[test]
    fn copies_keep_their_bytes_and_are_free_again_when_dropped() {
        let memory = HostMemory::new(300, UnitBytes { block: 100, state: 0 });
        let mut taken = take_all(&memory, UnitKind::Block);
        assert_eq!(taken.len(), 3);
        for (value, block) in (1..).zip(&mut taken) {
            block.fill(value);
        }
        assert!((1..).zip(&taken).all(|(value, block)| block.len() == 100 && block.iter().all(|&byte| byte == value)));
        taken.remove(1);
        let again = memory.take(UnitKind::Block).unwrap();
        assert!(again.iter().all(|&byte| byte == 2), "the memory of the dropped block");
        assert!(taken[1].iter().all(|&byte| byte == 3));
        assert!(memory.take(UnitKind::Block).is_none() && memory.take(UnitKind::State).is_none());
    }

    #[test]
    fn both_kinds_share_the_memory() {
        let memory = HostMemory::new(10 << 20, UnitBytes { block: 1 << 20, state: 4 << 20 });
        let mut blocks = take_all(&memory, UnitKind::Block);
        assert_eq!(blocks.len(), 10);
        blocks.iter_mut().for_each(|block| block.fill(1));
        assert!(memory.take(UnitKind::State).is_none());
        blocks.truncate(3);
        let mut state = memory.take(UnitKind::State).unwrap();
        state.fill(2);
        assert!(memory.take(UnitKind::State).is_none(), "three blocks and two states are too much");
        assert_eq!(take_all(&memory, UnitKind::Block).len(), 3);
        assert!(blocks.iter().all(|block| block.iter().all(|&byte| byte == 1)));
        drop(state);
        assert_eq!(take_all(&memory, UnitKind::Block).len(), 7, "the memory of the state is that of blocks again");
    }
}
