//! The KV block manager: which blocks are free, how many references the others have, and which unreferenced blocks still
//! have useful content.
//!
//! The block manager has one owner, the scheduler's [`Policy`](super::Policy). A [`BlockHandle`] is one reference to a
//! block. It cannot be copied, so the reference count of a block equals the number of its handles.
//!
//! A block without references is free or *cached*. A cached block has content that the [`PrefixCache`] knows. It is kept
//! for a prompt with the same tokens until its memory is needed. The least recently used block is evicted first.

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};

use cuelight_engine::engine::{BLOCK_TOKENS, BlockId, StepId, TokenId};

use super::prefix_cache::{Content, PrefixCache};
use crate::core::block_hash::BlockContent;
use crate::core::cache_change::CacheChange;
use crate::core::prefix_scope::PrefixScope;
use crate::core::prompt_media::PromptMedia;

/// One reference to a block. Released with [`BlockManager::release`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a block is free again only when its handle is released"]
pub struct BlockHandle(BlockId);

impl BlockHandle {
    /// The id of the block, as used by the engine.
    #[must_use]
    pub fn id(&self) -> BlockId {
        self.0
    }
}

/// Manages all blocks of one engine's KV cache.
#[derive(Debug)]
pub struct BlockManager<S = RandomState> {
    /// Reference count of each block. 0 for a free or cached block.
    references: Vec<u32>,
    /// The free blocks. The last one is allocated next.
    free: Vec<BlockId>,
    /// The cached blocks, by the time of their last use.
    cached: BTreeMap<u64, BlockId>,
    /// When each block became cached. Valid only for blocks in `cached`.
    cached_since: Vec<u64>,
    /// References to release once a step is done, because the device may write to the block until then.
    retired: VecDeque<(StepId, BlockHandle)>,
    contents: PrefixCache<S>,
    clock: u64,
    evictions: u64,
    /// The blocks that were evicted since they were taken last, with their contents. `None` when they are not recorded.
    evicted: Option<Vec<(BlockId, BlockContent)>>,
    /// What has changed since it was taken last. `None` when changes are not recorded.
    changes: Option<Vec<CacheChange>>,
}

impl BlockManager {
    /// A block manager with `blocks` free blocks.
    #[must_use]
    pub fn new(blocks: usize) -> Self {
        Self::with_hasher(blocks, RandomState::new())
    }

    /// Number of blocks that hold `tokens` tokens.
    #[must_use]
    pub fn blocks_for(tokens: usize) -> usize {
        tokens.div_ceil(BLOCK_TOKENS)
    }
}

impl<S: BuildHasher> BlockManager<S> {
    /// A block manager that looks contents up with this hasher.
    pub fn with_hasher(blocks: usize, hasher: S) -> Self {
        let count = BlockId::try_from(blocks).unwrap_or(BlockId::MAX);
        BlockManager {
            references: vec![0; count as usize],
            free: (0..count).rev().collect(),
            cached: BTreeMap::new(),
            cached_since: vec![0; count as usize],
            retired: VecDeque::new(),
            contents: PrefixCache::new(count as usize, hasher),
            clock: 0,
            evictions: 0,
            evicted: None,
            changes: None,
        }
    }

    /// Chooses whether [`take_evicted`](Self::take_evicted) returns anything.
    pub fn record_evictions(&mut self, is_recorded: bool) {
        match is_recorded {
            true => drop(self.evicted.get_or_insert_default()),
            false => self.evicted = None,
        }
    }

    /// Records the changes from now on, beginning with an empty cache.
    pub fn record_changes(&mut self) {
        self.changes = Some(vec![CacheChange::Cleared]);
    }

    /// The changes since the last call, in order. None unless they are recorded.
    pub fn take_changes(&mut self) -> Vec<CacheChange> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The blocks that were evicted since the last call, with the contents that they have until something is written to them.
    pub fn take_evicted(&mut self) -> Vec<(BlockId, BlockContent)> {
        self.evicted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// The cached blocks with their contents, the least recently used first.
    #[must_use]
    pub fn cached_contents(&self) -> Vec<(BlockId, BlockContent)> {
        let with_content = |id: &BlockId| Some((*id, self.contents.identity(*id)?));
        self.cached.values().filter_map(with_content).collect()
    }

    /// The identity of a block whose content is known.
    #[must_use]
    pub fn content(&self, id: BlockId) -> Option<BlockContent> {
        self.contents.identity(id)
    }

    /// The identities of all blocks whose content is known.
    pub fn known(&self) -> impl Iterator<Item = BlockContent> {
        self.contents.identities()
    }

    /// Allocates a block, or returns `None` when all are referenced. When no block is free, the least recently used cached
    /// block is evicted.
    pub fn allocate(&mut self) -> Option<BlockHandle> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                let (_, id) = self.cached.pop_first()?;
                self.evict(id);
                id
            }
        };
        self.references[id as usize] = 1;
        Some(BlockHandle(id))
    }

    /// Forgets what a cached block contains.
    fn evict(&mut self, id: BlockId) {
        if let Some(content) = self.contents.identity(id) {
            if let Some(evicted) = &mut self.evicted {
                evicted.push((id, content));
            }
            if let Some(changes) = &mut self.changes {
                changes.push(CacheChange::Removed(content.hash));
            }
        }
        self.contents.remove(id);
        self.evictions += 1;
    }

    /// Adds a reference to a referenced or cached block.
    fn share(&mut self, id: BlockId) -> BlockHandle {
        let references = &mut self.references[id as usize];
        if *references == 0 {
            self.cached.remove(&self.cached_since[id as usize]);
        }
        *references += 1;
        BlockHandle(id)
    }

    /// The blocks that contain the longest known prefix of `tokens` with `media`, in whole blocks.
    pub fn find_prefix(&self, scope: &PrefixScope, tokens: &[TokenId], media: &PromptMedia) -> Vec<BlockId> {
        let mut prefix: Vec<BlockId> = Vec::new();
        for (index, block) in tokens.chunks_exact(BLOCK_TOKENS).enumerate() {
            let content = Content::new(scope, prefix.last().copied(), block).with_media(media.key_of_block(index));
            let Some(id) = self.contents.find(&content) else { break };
            prefix.push(id);
        }
        prefix
    }

    /// References to blocks that [`find_prefix`](Self::find_prefix) has returned.
    pub fn take(&mut self, blocks: &[BlockId]) -> Vec<BlockHandle> {
        blocks.iter().map(|id| self.share(*id)).collect()
    }

    /// How many of these blocks have no other reference.
    pub fn exclusive(&self, blocks: &[BlockHandle]) -> usize {
        blocks.iter().filter(|block| self.references[block.0 as usize] == 1).count()
    }

    /// Records that `block` contains the keys and values of `content`. When another block contains them already, `block` is
    /// replaced by a reference to that one, and the caller's block is released when `step` is done.
    pub fn insert_cached(&mut self, block: &mut BlockHandle, content: Content, step: StepId) {
        match self.contents.find(&content) {
            Some(known) if known == block.0 => {}
            Some(known) => {
                let shared = self.share(known);
                let own = std::mem::replace(block, shared);
                self.retire(own, step);
            }
            None => {
                let content = self.contents.insert(block.0, content);
                if let Some(changes) = &mut self.changes {
                    changes.push(CacheChange::Stored(content, self.contents.adapter(block.0)));
                }
            }
        }
    }

    /// Releases a reference. After the last one the block is cached when its content is known, and free otherwise.
    pub fn release(&mut self, block: BlockHandle) {
        let id = block.0;
        let references = &mut self.references[id as usize];
        debug_assert!(*references > 0, "block {id} was released more often than referenced");
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

    /// Releases a reference when `step` is done. Until then the device may write to the block.
    pub fn retire(&mut self, block: BlockHandle, step: StepId) {
        self.retired.push_back((step, block));
    }

    /// Releases the references that were retired until `step` or an earlier step.
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

    /// Number of blocks that can be allocated: free or cached.
    #[must_use]
    pub fn available(&self) -> usize {
        self.free.len() + self.cached.len()
    }

    /// Number of blocks without references whose content is known.
    #[must_use]
    pub fn cached(&self) -> usize {
        self.cached.len()
    }

    /// Number of referenced blocks.
    #[must_use]
    pub fn used(&self) -> usize {
        self.total() - self.available()
    }

    /// Number of all blocks.
    #[must_use]
    pub fn total(&self) -> usize {
        self.references.len()
    }

    /// Number of evicted blocks so far.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Panics unless `handles` and the retired handles match the reference counts, every other block is either free or
    /// cached, and no known block has outlived the block before it in its prefix.
    pub fn check<'a>(&'a self, handles: impl Iterator<Item = &'a BlockHandle>) {
        let mut seen = vec![0u32; self.total()];
        for handle in handles.chain(self.retired.iter().map(|(_, block)| block)) {
            seen[handle.0 as usize] += 1;
        }
        assert_eq!(seen, self.references, "references are lost or duplicated");
        let mut listed = vec![0u32; self.total()];
        for &id in self.free.iter().chain(self.cached.values()) {
            listed[id as usize] += 1;
        }
        for (id, (&references, &listed)) in self.references.iter().zip(&listed).enumerate() {
            assert_eq!(references == 0, listed == 1, "block {id}: {references} references, listed {listed} times");
        }
        assert!(self.free.iter().all(|&id| !self.contents.contains(id)), "a free block has content");
        assert!(self.cached.values().all(|&id| self.contents.contains(id)), "a cached block has none");
        self.contents.check();
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::hash::{BuildHasherDefault, Hasher};
    use std::sync::Arc;

    use super::*;

    const DONE: StepId = StepId(0);

    /// Gives all contents the same hash.
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

    fn scope(salt: Option<&Arc<str>>) -> PrefixScope {
        PrefixScope { salt: salt.cloned(), adapter: None }
    }

    /// Computes a prompt and returns its blocks, all of them in the prefix cache.
    fn compute<S: BuildHasher>(
        manager: &mut BlockManager<S>,
        salt: Option<&Arc<str>>,
        tokens: &[TokenId],
    ) -> Vec<BlockHandle> {
        let mut blocks: Vec<BlockHandle> = Vec::new();
        for block in tokens.chunks_exact(BLOCK_TOKENS) {
            let content = Content::new(&scope(salt), blocks.last().map(BlockHandle::id), block);
            let mut handle = manager.allocate().unwrap();
            manager.insert_cached(&mut handle, content, DONE);
            blocks.push(handle);
        }
        manager.step_is_done(DONE);
        blocks
    }

    fn take_prefix<S: BuildHasher>(
        manager: &mut BlockManager<S>,
        salt: Option<&Arc<str>>,
        tokens: &[TokenId],
    ) -> Vec<BlockHandle> {
        let found = manager.find_prefix(&scope(salt), tokens, &PromptMedia::default());
        manager.take(&found)
    }

    fn release_all<S: BuildHasher>(manager: &mut BlockManager<S>, blocks: Vec<BlockHandle>) {
        for block in blocks.into_iter().rev() {
            manager.release(block);
        }
        manager.check([].iter());
    }

    fn ids(blocks: &[BlockHandle]) -> Vec<BlockId> {
        blocks.iter().map(BlockHandle::id).collect()
    }

    #[test]
    fn a_partial_block_counts_as_a_block() {
        assert_eq!([0, 1, 16, 17].map(BlockManager::blocks_for), [0, 1, 1, 2]);
    }

    #[test]
    fn a_prefix_is_found_in_whole_blocks_and_shared() {
        let mut manager = BlockManager::new(8);
        let prompt = tokens(1, 3);
        let first = compute(&mut manager, None, &prompt);
        let second = take_prefix(&mut manager, None, &prompt[..40]);
        assert_eq!(ids(&second), ids(&first)[..2]);
        assert_eq!(manager.find_prefix(&scope(None), &prompt[..40], &PromptMedia::default()).len(), 2);
        assert_eq!((manager.used(), manager.cached()), (3, 0));
        release_all(&mut manager, first.into_iter().chain(second).collect());
        assert_eq!((manager.used(), manager.cached()), (0, 3));
        assert!(take_prefix(&mut manager, None, &tokens(2, 3)).is_empty());
    }

    #[test]
    fn a_prefix_is_not_found_with_another_salt() {
        let mut manager = BlockManager::new(8);
        let prompt = tokens(1, 2);
        let (mine, yours) = ("mine".into(), "yours".into());
        let blocks = compute(&mut manager, Some(&mine), &prompt);
        release_all(&mut manager, blocks);
        assert!(take_prefix(&mut manager, Some(&yours), &prompt).is_empty());
        assert!(take_prefix(&mut manager, None, &prompt).is_empty());
        assert_eq!(take_prefix(&mut manager, Some(&mine), &prompt).len(), 2);
    }

    #[test]
    fn with_colliding_hashes_only_the_same_tokens_after_the_same_prefix_match() {
        let mut manager = BlockManager::with_hasher(16, BuildHasherDefault::<Same>::default());
        let (one, two) = (tokens(1, 2), tokens(2, 2));
        let salt = "salt".into();
        let prompts = [(None, &one), (Some(&salt), &one), (None, &two)];
        let blocks = prompts.map(|(salt, tokens)| compute(&mut manager, salt, tokens));
        let found = prompts.map(|(salt, tokens)| take_prefix(&mut manager, salt, tokens));
        for (blocks, found) in blocks.iter().zip(&found) {
            assert_eq!(ids(blocks), ids(found));
        }
        let crossed: Vec<_> = one[..16].iter().chain(&two[16..]).copied().collect();
        assert_eq!(take_prefix(&mut manager, None, &crossed).len(), 1, "the second block follows another first block");
    }

    #[test]
    fn the_least_recently_used_prefix_is_evicted_first_from_its_end() {
        let mut manager = BlockManager::new(4);
        let (old, new) = (tokens(1, 2), tokens(2, 2));
        for prompt in [&old, &new, &old] {
            let mut blocks = take_prefix(&mut manager, None, prompt);
            if blocks.is_empty() {
                blocks = compute(&mut manager, None, prompt);
            }
            release_all(&mut manager, blocks);
        }
        let taken: Vec<_> = (0..3).map(|_| manager.allocate().unwrap()).collect();
        assert_eq!(manager.evictions(), 3);
        assert!(take_prefix(&mut manager, None, &new).is_empty());
        assert_eq!(take_prefix(&mut manager, None, &old).len(), 1, "its first block is still cached");
        assert_eq!(manager.allocate(), None);
        drop(taken);
    }

    #[test]
    fn a_block_with_known_content_is_replaced_by_the_known_block() {
        let mut manager = BlockManager::new(4);
        let prompt = tokens(1, 1);
        let first = compute(&mut manager, None, &prompt);
        let mut own = manager.allocate().unwrap();
        manager.insert_cached(&mut own, Content::new(&scope(None), None, &prompt), StepId(5));
        assert_eq!(own.id(), first[0].id());
        assert_eq!(manager.used(), 2, "the device may still write to the other block");
        manager.step_is_done(StepId(5));
        assert_eq!(manager.used(), 1);
        manager.check([&own, &first[0]].into_iter());
    }
}
