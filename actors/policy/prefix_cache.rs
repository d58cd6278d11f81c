//! What the blocks of the KV cache contain, so that a prompt finds the blocks of its prefix.
//!
//! A block's keys and values follow from its tokens and everything before them. Its [`Content`] says just that: its
//! tokens and the block before it, or for a first block the salt of its tenant. The index compares contents whole, so a
//! collision of hashes costs time but never gives somebody the blocks of another prompt.

use std::collections::HashMap;
use std::hash::BuildHasher;
use std::sync::Arc;

use cuelight_engine::engine::{BLOCK_TOKENS, BlockId, TokenId};

/// What comes before a block.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Before {
    /// Nothing: a prompt begins here. Tenants with different salts never share a block.
    Start(Option<Arc<str>>),
    /// This block, whose content cannot change while a block after it is known.
    Block(BlockId),
}

/// What a full block holds: these tokens, after everything in the blocks before.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Content {
    before: Before,
    tokens: [TokenId; BLOCK_TOKENS],
}

impl Content {
    /// The content of `tokens`, one whole block, after the block `before`; a first block has none but a salt.
    ///
    /// # Panics
    /// When the tokens are not one block.
    #[must_use]
    pub fn new(salt: Option<&Arc<str>>, before: Option<BlockId>, tokens: &[TokenId]) -> Self {
        let tokens = tokens.try_into().expect("the tokens of one block");
        Content { before: before.map_or_else(|| Before::Start(salt.cloned()), Before::Block), tokens }
    }
}

/// Content to block and back.
#[derive(Debug)]
pub(super) struct PrefixCache<S> {
    blocks: HashMap<Content, BlockId, S>,
    /// Each block's content, when it is known.
    contents: Vec<Option<Content>>,
}

impl<S: BuildHasher> PrefixCache<S> {
    pub fn new(blocks: usize, hasher: S) -> Self {
        PrefixCache { blocks: HashMap::with_hasher(hasher), contents: vec![None; blocks] }
    }

    pub fn find(&self, content: &Content) -> Option<BlockId> {
        self.blocks.get(content).copied()
    }

    pub fn contains(&self, block: BlockId) -> bool {
        self.contents[block as usize].is_some()
    }

    /// Notes what a block holds; nobody else may hold the same.
    pub fn insert(&mut self, block: BlockId, content: Content) {
        let before = self.blocks.insert(content.clone(), block);
        debug_assert_eq!(before, None, "two blocks hold the same");
        self.contents[block as usize] = Some(content);
    }

    pub fn remove(&mut self, block: BlockId) {
        if let Some(content) = self.contents[block as usize].take() {
            self.blocks.remove(&content);
        }
    }

    /// Panics unless both directions agree and every known block's predecessor is known.
    pub fn check(&self) {
        assert_eq!(self.blocks.len(), self.contents.iter().flatten().count());
        for (content, &block) in &self.blocks {
            assert_eq!(self.contents[block as usize].as_ref(), Some(content));
            if let Before::Block(before) = content.before {
                assert!(self.contains(before), "block {block} has outlived block {before} before it");
            }
        }
    }
}
