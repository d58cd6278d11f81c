//! The KV block table: which block is free, and how many sequences hold each of the others.
//!
//! The table has one owner, the scheduler's [`Policy`](super::Policy). A [`BlockHandle`] stands for one reference to a
//! block; it cannot be copied, so a block counts exactly as many references as there are handles on it.

use cuelight_engine::engine::{BLOCK_TOKENS, BlockId};

/// One reference to a block. Give it back with [`BlockTable::release`]; take another with [`BlockTable::share`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a block is free again only when its handle is released"]
pub struct BlockHandle(BlockId);

impl BlockHandle {
    /// The block's number, as the engine knows it.
    #[must_use]
    pub fn id(&self) -> BlockId {
        self.0
    }
}

/// All blocks of one engine's KV cache.
#[derive(Debug)]
pub struct BlockTable {
    /// References to each block; 0 for a free one.
    references: Vec<u32>,
    /// The blocks without a reference; the last is handed out next.
    free: Vec<BlockId>,
}

impl BlockTable {
    /// A table of `blocks` free blocks.
    #[must_use]
    pub fn new(blocks: usize) -> Self {
        let count = BlockId::try_from(blocks).unwrap_or(BlockId::MAX);
        BlockTable { references: vec![0; count as usize], free: (0..count).rev().collect() }
    }

    /// Blocks that `tokens` tokens fill.
    #[must_use]
    pub fn blocks_for(tokens: usize) -> usize {
        tokens.div_ceil(BLOCK_TOKENS)
    }

    /// A free block, or `None` when all are held.
    pub fn allocate(&mut self) -> Option<BlockHandle> {
        let id = self.free.pop()?;
        self.references[id as usize] = 1;
        Some(BlockHandle(id))
    }

    /// A second reference to a block that somebody already holds.
    pub fn share(&mut self, block: &BlockHandle) -> BlockHandle {
        self.references[block.0 as usize] += 1;
        BlockHandle(block.0)
    }

    /// Gives one reference back; the block is free when it was the last.
    pub fn release(&mut self, block: BlockHandle) {
        let references = &mut self.references[block.0 as usize];
        debug_assert!(*references > 0, "block {} released more often than it was taken", block.0);
        *references -= 1;
        if *references == 0 {
            self.free.push(block.0);
        }
    }

    /// Blocks nobody holds.
    #[must_use]
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// Blocks somebody holds.
    #[must_use]
    pub fn used(&self) -> usize {
        self.total() - self.free()
    }

    /// All blocks.
    #[must_use]
    pub fn total(&self) -> usize {
        self.references.len()
    }

    /// Whether `handles` are exactly the references the table has counted, and all other blocks are free.
    #[must_use]
    pub fn accounts_for<'a>(&self, handles: impl Iterator<Item = &'a BlockHandle>) -> bool {
        let mut seen = vec![0u32; self.total()];
        for handle in handles {
            seen[handle.0 as usize] += 1;
        }
        let mut is_free = vec![false; self.total()];
        for &id in &self.free {
            if std::mem::replace(&mut is_free[id as usize], true) {
                return false;
            }
        }
        seen == self.references && seen.iter().zip(is_free).all(|(&references, free)| (references == 0) == free)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_shared_block_is_free_only_after_its_last_release() {
        let mut table = BlockTable::new(1);
        let first = table.allocate().unwrap();
        let second = table.share(&first);
        assert_eq!(first.id(), second.id());
        table.release(first);
        assert_eq!(table.allocate(), None);
        assert!(table.accounts_for([&second].into_iter()));
        table.release(second);
        assert_eq!((table.free(), table.used()), (1, 0));
        assert!(table.accounts_for([].into_iter()));
    }

    #[test]
    fn blocks_are_counted_by_started_sixteens() {
        assert_eq!([0, 1, 16, 17].map(BlockTable::blocks_for), [0, 1, 1, 2]);
    }
}
