//! Changes of what a prefix cache holds, for those outside who want to know it.

use super::block_hash::{BlockContent, BlockHash};

/// One change of the blocks that a prefix cache holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheChange {
    /// A block was added. The block before it is in the cache already.
    Stored(BlockContent),
    /// A block was removed, because its memory was needed.
    Removed(BlockHash),
    /// All blocks are gone.
    Cleared,
}
