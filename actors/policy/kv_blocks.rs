//! The KV block table: which block is free, who holds each of the others, and what the unheld ones still contain.
//!
//! The table has one owner, the scheduler's [`Policy`](super::Policy). A [`BlockHandle`] stands for one reference to a
//! block; it cannot be copied, so a block counts exactly as many references as there are handles on it.
//!
//! A block without references is either free or, when the [`PrefixCache`] knows what it contains, *cached*: kept for
//! whoever asks for the same tokens next, until its place is needed. The least recently used goes first.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;

use cuelight_engine::engine::{BLOCK_TOKENS, BlockId, StepId, TokenId};

use super::prefix_cache::{Content, PrefixCache};

/// One reference to a block. Give it back with [`BlockTable::release`].
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
pub struct BlockTable<S = RandomState> {
    /// References to each block; 0 for one that is free or cached.
    references: Vec<u32>,
    /// The free blocks; the last is handed out next.
    free: Vec<BlockId>,
    /// The cached blocks by when they were last used.
    cached: BTreeMap<u64, BlockId>,
    /// For each block when it became cached; meaningful only for those in `cached`.
    cached_since: Vec<u64>,
    /// References given back while the device may still write to the block, and the step until which it may.
    retired: VecDeque<(StepId, BlockHandle)>,
    contents: PrefixCache<S>,
    clock: u64,
    evictions: u64,
}

impl BlockTable {
    /// A table of `blocks` free blocks.
    #[must_use]
    pub fn new(blocks: usize) -> Self {
        Self::with_hasher(blocks, RandomState::new())
    }

    /// Blocks that `tokens` tokens fill.
    #[must_use]
    pub fn blocks_for(tokens: usize) -> usize {
        tokens.div_ceil(BLOCK_TOKENS)
    }
}

impl<S: BuildHasher> BlockTable<S> {
    /// A table whose contents are found by this hasher.
    pub fn with_hasher(blocks: usize, hasher: S) -> Self {
        let count = BlockId::try_from(blocks).unwrap_or(BlockId::MAX);
        BlockTable {
            references: vec![0; count as usize],
            free: (0..count).rev().collect(),
            cached: BTreeMap::new(),
            cached_since: vec![0; count as usize],
            retired: VecDeque::new(),
            contents: PrefixCache::new(count as usize, hasher),
            clock: 0,
            evictions: 0,
        }
    }

    /// A block for new content, or `None` when all are held. Forgets the least recently used cached block when no
    /// other is free.
    pub fn allocate(&mut self) -> Option<BlockHandle> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                let (_, id) = self.cached.pop_first()?;
                self.contents.remove(id);
                self.evictions += 1;
                id
            }
        };
        self.references[id as usize] = 1;
        Some(BlockHandle(id))
    }

    /// A further reference to a block that somebody holds or that is cached.
    fn share(&mut self, id: BlockId) -> BlockHandle {
        let references = &mut self.references[id as usize];
        if *references == 0 {
            self.cached.remove(&self.cached_since[id as usize]);
        }
        *references += 1;
        BlockHandle(id)
    }

    /// The known blocks that hold the longest prefix of `tokens` in whole blocks.
    fn find_prefix(&self, salt: Option<&Arc<str>>, tokens: &[TokenId]) -> Vec<BlockId> {
        let mut prefix: Vec<BlockId> = Vec::new();
        for block in tokens.chunks_exact(BLOCK_TOKENS) {
            let content = Content::new(salt, prefix.last().copied(), block);
            let Some(id) = self.contents.find(&content) else { break };
            prefix.push(id);
        }
        prefix
    }

    /// Blocks that [`take_prefix`](Self::take_prefix) would take.
    pub fn count_prefix(&self, salt: Option<&Arc<str>>, tokens: &[TokenId]) -> usize {
        self.find_prefix(salt, tokens).len()
    }

    /// The known blocks that hold the longest prefix of `tokens` in whole blocks, taken for the caller.
    pub fn take_prefix(&mut self, salt: Option<&Arc<str>>, tokens: &[TokenId]) -> Vec<BlockHandle> {
        self.find_prefix(salt, tokens).into_iter().map(|id| self.share(id)).collect()
    }

    /// Notes that `block` holds the keys and values of `content`. When another block does already, the caller gets that
    /// one in exchange and its own is retired until `step` is done: two copies would be of no use to anybody.
    pub fn remember(&mut self, block: &mut BlockHandle, content: Content, step: StepId) {
        match self.contents.find(&content) {
            Some(known) if known == block.0 => {}
            Some(known) => {
                let twin = self.share(known);
                let own = std::mem::replace(block, twin);
                self.retire(own, step);
            }
            None => self.contents.insert(block.0, content),
        }
    }

    /// Gives one reference back; with the last one the block is free, or cached when its content is known.
    pub fn release(&mut self, block: BlockHandle) {
        let id = block.0;
        let references = &mut self.references[id as usize];
        debug_assert!(*references > 0, "block {id} released more often than it was taken");
        *references -= 1;
        if *references > 0 {
            return;
        }
        if self.contents.contains(id) {
            self.clock += 1;
            self.cached_since[id as usize] = self.clock;
            self.cached.insert(self.clock, id);
        } else {
            self.free.push(id);
        }
    }

    /// Gives one reference back as soon as `step` is done: until then the device may write to the block.
    pub fn retire(&mut self, block: BlockHandle, step: StepId) {
        self.retired.push_back((step, block));
    }

    /// Releases what was retired until `step` or an earlier one.
    pub fn step_is_done(&mut self, step: StepId) {
        for _ in 0..self.retired.len() {
            let Some((until, block)) = self.retired.pop_front() else { return };
            if until <= step {
                self.release(block);
            } else {
                self.retired.push_back((until, block));
            }
        }
    }

    /// Blocks that can be had: free or cached.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len() + self.cached.len()
    }

    /// Blocks that nobody holds and whose content is still known.
    #[must_use]
    pub fn cached(&self) -> usize {
        self.cached.len()
    }

    /// Blocks somebody holds.
    #[must_use]
    pub fn used(&self) -> usize {
        self.total() - self.available()
    }

    /// All blocks.
    #[must_use]
    pub fn total(&self) -> usize {
        self.references.len()
    }

    /// Cached blocks that were forgotten to make room.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Panics unless `handles` and the retired ones are exactly the references the table has counted, every other block
    /// is free or cached but not both, and no cached block has outlived the one before it in its prefix.
    pub fn check<'a>(&'a self, handles: impl Iterator<Item = &'a BlockHandle>) {
        let mut seen = vec![0u32; self.total()];
        for handle in handles.chain(self.retired.iter().map(|(_, block)| block)) {
            seen[handle.0 as usize] += 1;
        }
        assert_eq!(seen, self.references, "blocks are lost or doubled");
        let mut places = vec![0u32; self.total()];
        for &id in self.free.iter().chain(self.cached.values()) {
            places[id as usize] += 1;
        }
        for (id, (&references, &places)) in self.references.iter().zip(&places).enumerate() {
            assert_eq!(references == 0, places == 1, "block {id} has {references} references and {places} places");
        }
        assert!(self.free.iter().all(|&id| !self.contents.contains(id)), "a free block has content");
        assert!(self.cached.values().all(|&id| self.contents.contains(id)), "a cached block has none");
        self.contents.check();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::hash::{BuildHasherDefault, Hasher};

    use super::*;

    const DONE: StepId = StepId(0);

    /// Makes every content collide with every other.
    #[derive(Default)]
    struct Same;

    impl Hasher for Same {
        fn finish(&self) -> u64 {
            0
        }
        fn write(&mut self, _: &[u8]) {}
    }

    fn tokens(seed: TokenId, blocks: usize) -> Vec<TokenId> {
        (0..(blocks * BLOCK_TOKENS) as TokenId).map(|i| seed * 1000 + i).collect()
    }

    /// Computes a prompt: its blocks, all remembered.
    fn compute<S: BuildHasher>(
        table: &mut BlockTable<S>,
        salt: Option<&Arc<str>>,
        tokens: &[TokenId],
    ) -> Vec<BlockHandle> {
        let mut blocks: Vec<BlockHandle> = Vec::new();
        for block in tokens.chunks_exact(BLOCK_TOKENS) {
            let content = Content::new(salt, blocks.last().map(BlockHandle::id), block);
            let mut handle = table.allocate().unwrap();
            table.remember(&mut handle, content, DONE);
            blocks.push(handle);
        }
        table.step_is_done(DONE);
        blocks
    }

    fn release_all<S: BuildHasher>(table: &mut BlockTable<S>, blocks: Vec<BlockHandle>) {
        for block in blocks.into_iter().rev() {
            table.release(block);
        }
        table.check([].iter());
    }

    fn ids(blocks: &[BlockHandle]) -> Vec<BlockId> {
        blocks.iter().map(BlockHandle::id).collect()
    }

    #[test]
    fn blocks_are_counted_by_started_sixteens() {
        assert_eq!([0, 1, 16, 17].map(BlockTable::blocks_for), [0, 1, 1, 2]);
    }

    #[test]
    fn a_prefix_is_found_again_in_whole_blocks_and_shared() {
        let mut table = BlockTable::new(8);
        let prompt = tokens(1, 3);
        let first = compute(&mut table, None, &prompt);
        let second = table.take_prefix(None, &prompt[..40]);
        assert_eq!(ids(&second), ids(&first)[..2]);
        assert_eq!(table.count_prefix(None, &prompt[..40]), 2);
        assert_eq!((table.used(), table.cached()), (3, 0));
        release_all(&mut table, first.into_iter().chain(second).collect());
        assert_eq!((table.used(), table.cached()), (0, 3));
        assert!(table.take_prefix(None, &tokens(2, 3)).is_empty());
    }

    #[test]
    fn another_salt_finds_nothing() {
        let mut table = BlockTable::new(8);
        let prompt = tokens(1, 2);
        let (mine, yours) = ("mine".into(), "yours".into());
        let blocks = compute(&mut table, Some(&mine), &prompt);
        release_all(&mut table, blocks);
        assert!(table.take_prefix(Some(&yours), &prompt).is_empty());
        assert!(table.take_prefix(None, &prompt).is_empty());
        assert_eq!(table.take_prefix(Some(&mine), &prompt).len(), 2);
    }

    #[test]
    fn though_every_hash_is_the_same_only_the_same_tokens_after_the_same_prefix_are_found() {
        let mut table = BlockTable::with_hasher(16, BuildHasherDefault::<Same>::default());
        let (one, two) = (tokens(1, 2), tokens(2, 2));
        let salt = "salt".into();
        let prompts = [(None, &one), (Some(&salt), &one), (None, &two)];
        let blocks = prompts.map(|(salt, tokens)| compute(&mut table, salt, tokens));
        let found = prompts.map(|(salt, tokens)| table.take_prefix(salt, tokens));
        for (blocks, found) in blocks.iter().zip(&found) {
            assert_eq!(ids(blocks), ids(found));
        }
        let crossed: Vec<_> = one[..16].iter().chain(&two[16..]).copied().collect();
        assert_eq!(table.take_prefix(None, &crossed).len(), 1, "the second block follows on another first one");
    }

    #[test]
    fn the_least_recently_used_prefix_goes_first_and_its_end_before_its_begin() {
        let mut table = BlockTable::new(4);
        let (old, new) = (tokens(1, 2), tokens(2, 2));
        for prompt in [&old, &new, &old] {
            let mut blocks = table.take_prefix(None, prompt);
            if blocks.is_empty() {
                blocks = compute(&mut table, None, prompt);
            }
            release_all(&mut table, blocks);
        }
        let taken: Vec<_> = (0..3).map(|_| table.allocate().unwrap()).collect();
        assert_eq!(table.evictions(), 3);
        assert!(table.take_prefix(None, &new).is_empty());
        assert_eq!(table.take_prefix(None, &old).len(), 1, "its first block is still there");
        assert_eq!(table.allocate(), None);
        drop(taken);
    }

    #[test]
    fn who_computes_what_is_known_already_gets_the_known_block() {
        let mut table = BlockTable::new(4);
        let prompt = tokens(1, 1);
        let first = compute(&mut table, None, &prompt);
        let mut own = table.allocate().unwrap();
        table.remember(&mut own, Content::new(None, None, &prompt), StepId(5));
        assert_eq!(own.id(), first[0].id());
        assert_eq!(table.used(), 2, "the device may still write to the other");
        table.step_is_done(StepId(5));
        assert_eq!(table.used(), 1);
        table.check([&own, &first[0]].into_iter());
    }
}
