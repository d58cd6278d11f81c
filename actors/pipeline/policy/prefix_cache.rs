//! An index of what the blocks of the KV cache contain, so that a prompt finds the blocks of its prefix.
//!
//! The keys and values of a block follow from its tokens and media and everything before them. Its [`Content`] is its tokens, the
//! key of its media and the block before it, or for a first block the scope of its prompt: tenant and adapter. The index compares
//! whole contents, so a hash collision costs time but never returns the blocks of another prompt.

use std::collections::HashMap;
use std::hash::BuildHasher;

use cuelight_engine::engine::{BLOCK_TOKENS, BlockId, TokenId};

use crate::core::block_hash::{BlockContent, BlockHash};
use crate::core::prefix_scope::{PrefixScope, ScopeAdapter};
use crate::core::prompt_media::MediaKey;

/// What precedes a block.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Before {
    /// Nothing: it is the first block of a prompt. Prompts of different scopes never share a block.
    Start(PrefixScope),
    /// Another block. Its content cannot change while a block after it is known.
    Block(BlockId),
}

/// The content of a full block: its tokens and media and everything before them.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Content {
    before: Before,
    tokens: [TokenId; BLOCK_TOKENS],
    media: Option<MediaKey>,
}

impl Content {
    /// The content of a block with `tokens` after the block `before`. The scope counts only for a first block.
    ///
    /// # Panics
    /// When `tokens` is not exactly one block.
    #[must_use]
    pub fn new(scope: &PrefixScope, before: Option<BlockId>, tokens: &[TokenId]) -> Self {
        let tokens = tokens.try_into().expect("the tokens of one block");
        let before = before.map_or_else(|| Before::Start(scope.clone()), Before::Block);
        Content { before, tokens, media: None }
    }

    /// The content with rows of media in the place of some tokens.
    #[must_use]
    pub fn with_media(self, media: Option<MediaKey>) -> Self {
        Content { media, ..self }
    }
}

/// Maps contents to blocks and blocks to contents.
#[derive(Debug)]
pub(super) struct PrefixCache<S> {
    blocks: HashMap<Content, BlockId, S>,
    /// The content of each block, when it is known.
    contents: Vec<Option<Known>>,
}

/// A block whose content is known.
#[derive(Debug, Clone)]
struct Known {
    content: Content,
    /// Its identity beyond this cache.
    identity: BlockContent,
    /// The adapter of its prompts.
    adapter: Option<ScopeAdapter>,
}

impl<S: BuildHasher> PrefixCache<S> {
    pub fn new(blocks: usize, hasher: S) -> Self {
        PrefixCache { blocks: HashMap::with_hasher(hasher), contents: vec![None; blocks] }
    }

    pub fn find(&self, content: &Content) -> Option<BlockId> {
        self.blocks.get(content).copied()
    }

    /// What a known block contains, for copies of it.
    pub fn identity(&self, block: BlockId) -> Option<BlockContent> {
        self.contents[block as usize].as_ref().map(|known| known.identity)
    }

    /// What all known blocks contain.
    pub fn identities(&self) -> impl Iterator<Item = BlockContent> {
        self.contents.iter().flatten().map(|known| known.identity)
    }

    /// The adapter of the prompts that have a block.
    pub fn adapter(&self, block: BlockId) -> Option<ScopeAdapter> {
        self.contents[block as usize].as_ref()?.adapter.clone()
    }

    /// A content whose predecessor is known.
    fn identify(&self, content: Content) -> Known {
        let (before, is_portable, adapter) = match &content.before {
            Before::Start(scope) => (BlockHash::of_scope(scope), scope.is_portable(), scope.adapter.clone()),
            Before::Block(before) => {
                let before = self.contents[*before as usize].as_ref();
                let Known { identity, adapter, .. } = before.expect("the block before a known one is known");
                (identity.hash, identity.is_portable, adapter.clone())
            }
        };
        let (hash, has_media) = (before.then(&content.tokens, content.media.as_ref()), content.media.is_some());
        let identity = BlockContent { hash, before, tokens: content.tokens, has_media, is_portable };
        Known { content, identity, adapter }
    }

    pub fn contains(&self, block: BlockId) -> bool {
        self.contents[block as usize].is_some()
    }

    /// Adds a block and returns its identity. No other block may have the same content.
    pub fn insert(&mut self, block: BlockId, content: Content) -> BlockContent {
        let known = self.identify(content);
        let (before, identity) = (self.blocks.insert(known.content.clone(), block), known.identity);
        debug_assert_eq!(before, None, "two blocks have the same content");
        self.contents[block as usize] = Some(known);
        identity
    }

    pub fn remove(&mut self, block: BlockId) {
        if let Some(known) = self.contents[block as usize].take() {
            self.blocks.remove(&known.content);
        }
    }

    /// Panics unless both maps agree and the predecessor of every known block is known.
    pub fn check(&self) {
        assert_eq!(self.blocks.len(), self.contents.iter().flatten().count());
        for (content, &block) in &self.blocks {
            assert_eq!(self.contents[block as usize].as_ref().map(|known| &known.content), Some(content));
            if let Before::Block(before) = content.before {
                assert!(self.contains(before), "block {block} has outlived block {before} before it");
            }
        }
    }
}
