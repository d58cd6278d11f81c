//! What copies of a cache contain: KV blocks, and recurrent states after them.

use std::fmt;

pub use cuelight_engine::cache_unit::{UnitBytes, UnitKind};

use super::block_hash::{BlockContent, BlockHash};

/// Identifies the content of a unit. The state after the last token of a block follows from the same tokens as the block, so both
/// are known by the hash of the block.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct UnitId {
    /// The block, or the block after which the state is.
    pub block: BlockHash,
    /// Which of the two it is.
    pub kind: UnitKind,
}

impl fmt::Debug for UnitId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kind.name(), self.block)
    }
}

/// A unit and what it contains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnitContent {
    /// The content of the block, or of the block after which the state is.
    pub block: BlockContent,
    /// Which of the two it is.
    pub kind: UnitKind,
}

impl UnitContent {
    /// The keys and values of a block.
    #[must_use]
    pub fn of_block(block: BlockContent) -> Self {
        UnitContent { block, kind: UnitKind::Block }
    }

    /// The recurrent state after a block.
    #[must_use]
    pub fn of_state_after(block: BlockContent) -> Self {
        UnitContent { block, kind: UnitKind::State }
    }

    /// Its identity.
    #[must_use]
    pub fn id(&self) -> UnitId {
        UnitId { block: self.block.hash, kind: self.kind }
    }

    /// Its identity, for those who keep it.
    #[must_use]
    pub fn kept(&self) -> KeptUnit {
        KeptUnit { id: self.id(), is_portable: self.block.is_portable }
    }
}

/// A unit that a tier keeps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeptUnit {
    /// Which one.
    pub id: UnitId,
    /// Whether it means the same in another process ([`BlockContent::is_portable`]).
    pub is_portable: bool,
}
