//! Changes of what a prefix cache and its lower tiers hold, for those outside who want to know it.

use super::block_hash::{BlockContent, BlockHash};
use super::prefix_scope::ScopeAdapter;
use super::tier::Tier;

/// One change of the blocks that a prefix cache holds on the device or in a lower tier.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheChange {
    /// A block was added on the device, with the adapter that its prompts use. The block before it is there already.
    Stored(BlockContent, Option<ScopeAdapter>),
    /// A block was removed from the device, because its memory was needed.
    Removed(BlockHash),
    /// All blocks are gone, also those of tiers. The tiers that still have blocks report them again.
    Cleared,
    /// A tier has a copy of a block.
    Copied(Tier, BlockHash),
    /// A tier has a block no more.
    Dropped(Tier, BlockHash),
}
