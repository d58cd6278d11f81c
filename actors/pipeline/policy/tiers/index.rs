//! Which blocks a tier holds, and the order of their last use.

use std::collections::{BTreeMap, HashMap};

use crate::core::block_hash::BlockHash;
use crate::core::tier::TierLimits;

/// A block in a tier or on its way to it.
#[derive(Debug, Clone, Copy)]
struct Entry {
    used: i64,
    is_portable: bool,
    is_present: bool,
}

/// The blocks of a tier. The least recently used one is given up first.
#[derive(Debug, Default)]
pub(in crate::pipeline::policy) struct TierIndex {
    limits: TierLimits,
    entries: HashMap<BlockHash, Entry>,
    /// The present blocks, by the time of their last use.
    by_use: BTreeMap<i64, BlockHash>,
    clock: i64,
    /// The blocks that became present or ceased to be since they were taken last. `None` when they are not recorded.
    changes: Option<Vec<(BlockHash, bool)>>,
}

/// A present block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pipeline::policy) struct Present {
    pub hash: BlockHash,
    pub is_portable: bool,
}

impl TierIndex {
    /// Changes the limits. Blocks over the new limit are given up as others arrive.
    pub fn set_limits(&mut self, limits: TierLimits) {
        self.limits = limits;
    }

    pub fn limits(&self) -> TierLimits {
        self.limits
    }

    pub fn is_enabled(&self) -> bool {
        self.limits.blocks > 0
    }

    /// Number of present blocks.
    pub fn present(&self) -> usize {
        self.by_use.len()
    }

    /// Number of blocks on their way.
    pub fn arriving(&self) -> usize {
        self.entries.len() - self.by_use.len()
    }

    /// Whether another block may be sent without giving up one.
    pub fn has_space(&self) -> bool {
        self.entries.len() < self.limits.blocks
    }

    /// Whether another block may be on its way.
    pub fn accepts(&self) -> bool {
        self.is_enabled() && self.arriving() < self.limits.arriving
    }

    /// Whether the block is present.
    pub fn has(&self, hash: &BlockHash) -> bool {
        self.entries.get(hash).is_some_and(|entry| entry.is_present)
    }

    /// Whether the block is present or on its way.
    pub fn knows(&self, hash: &BlockHash) -> bool {
        self.entries.contains_key(hash)
    }

    /// Makes the block the most recently used one.
    pub fn touch(&mut self, hash: &BlockHash) {
        let Some(entry) = self.entries.get_mut(hash) else { return };
        self.clock += 1;
        if entry.is_present {
            self.by_use.remove(&entry.used);
            self.by_use.insert(self.clock, *hash);
        }
        entry.used = self.clock;
    }

    /// The time of the next use. Reserves `count` of them.
    pub fn reserve(&mut self, count: usize) -> i64 {
        self.clock += count as i64;
        self.clock - count as i64 + 1
    }

    /// Records the changes from now on.
    pub fn record_changes(&mut self) {
        self.changes = Some(Vec::new());
    }

    /// The changes since the last call, in order: whether each block is present now. None unless they are recorded.
    pub fn take_changes(&mut self) -> Vec<(BlockHash, bool)> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn record(&mut self, hash: BlockHash, is_present: bool) {
        if let Some(changes) = &mut self.changes {
            changes.push((hash, is_present));
        }
    }

    /// The block is sent.
    pub fn send(&mut self, hash: BlockHash, is_portable: bool, used: i64) {
        self.entries.insert(hash, Entry { used, is_portable, is_present: false });
    }

    /// The block is there. It may have been sent before this index was made.
    pub fn arrived(&mut self, hash: BlockHash, is_portable: bool) {
        let used = match self.entries.get(&hash) {
            Some(entry) if entry.is_present => return,
            Some(entry) => entry.used,
            None => self.reserve(1),
        };
        self.entries.insert(hash, Entry { used, is_portable, is_present: true });
        self.by_use.insert(used, hash);
        self.record(hash, true);
    }

    /// Forgets a block.
    pub fn remove(&mut self, hash: &BlockHash) {
        if let Some(entry) = self.entries.remove(hash)
            && entry.is_present
        {
            self.by_use.remove(&entry.used);
            self.record(*hash, false);
        }
    }

    /// Gives up the least recently used block.
    pub fn pop_oldest(&mut self) -> Option<Present> {
        let (_, hash) = self.by_use.pop_first()?;
        let entry = self.entries.remove(&hash)?;
        self.record(hash, false);
        Some(Present { hash, is_portable: entry.is_portable })
    }

    /// The present blocks, the least recently used first.
    pub fn oldest_first(&self) -> impl DoubleEndedIterator<Item = Present> {
        self.by_use.values().map(|hash| Present { hash: *hash, is_portable: self.entries[hash].is_portable })
    }

    /// Forgets the blocks that are on their way.
    pub fn forget_arriving(&mut self) {
        self.entries.retain(|_, entry| entry.is_present);
    }

    /// Panics unless both maps agree and no more blocks are here than allowed.
    pub fn check(&self) {
        let present = self.entries.iter().filter(|(_, entry)| entry.is_present);
        assert_eq!(present.clone().count(), self.by_use.len());
        for (hash, entry) in present {
            assert_eq!(self.by_use.get(&entry.used), Some(hash));
        }
        assert!(self.entries.len() <= self.limits.blocks, "a tier holds more blocks than it can");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hash(number: u8) -> BlockHash {
        BlockHash([number; 32])
    }

    fn index(blocks: usize) -> TierIndex {
        let mut index = TierIndex::default();
        index.set_limits(TierLimits { blocks, arriving: 2, piece: 1 });
        index
    }

    fn add(index: &mut TierIndex, number: u8) {
        let used = index.reserve(1);
        index.send(hash(number), true, used);
        index.arrived(hash(number), true);
    }

    #[test]
    fn the_least_recently_used_present_block_is_given_up() {
        let mut index = index(4);
        (1..=3).for_each(|number| add(&mut index, number));
        let used = index.reserve(1);
        index.send(hash(4), true, used);
        assert!(index.knows(&hash(4)) && !index.has(&hash(4)) && index.accepts() && !index.has_space());
        index.touch(&hash(1));
        assert_eq!(index.pop_oldest().map(|present| present.hash), Some(hash(2)));
        index.arrived(hash(4), true);
        let order: Vec<_> = index.oldest_first().map(|present| present.hash).collect();
        assert_eq!(order, [hash(3), hash(4), hash(1)], "a block counts as used when it is sent");
        index.check();
    }

    #[test]
    fn changes_of_present_blocks_are_recorded() {
        let mut index = index(4);
        add(&mut index, 1);
        index.record_changes();
        (2..=3).for_each(|number| add(&mut index, number));
        index.arrived(hash(3), true);
        index.pop_oldest();
        index.remove(&hash(3));
        let used = index.reserve(1);
        index.send(hash(4), true, used);
        index.remove(&hash(4));
        let expected = [(hash(2), true), (hash(3), true), (hash(1), false), (hash(3), false)];
        assert_eq!(index.take_changes(), expected);
        assert!(index.take_changes().is_empty());
    }

    #[test]
    fn only_some_blocks_may_be_on_their_way() {
        let mut index = index(9);
        for number in 1..=2 {
            let used = index.reserve(1);
            index.send(hash(number), true, used);
        }
        assert!(!index.accepts());
        index.forget_arriving();
        assert!(index.accepts() && !index.knows(&hash(1)));
        index.arrived(hash(1), false);
        assert!(index.has(&hash(1)), "it arrived although it was forgotten");
        index.remove(&hash(1));
        assert_eq!((index.present(), index.arriving()), (0, 0));
        index.check();
    }
}
