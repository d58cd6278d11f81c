//! What a cache holds in pieces that can be copied: KV blocks, and the recurrent states of sequences.
//!
//! Both are *units*: their content follows from the tokens before their end, they have a fixed number of bytes, and copies outside
//! of the engine are made, kept and written back in the same way.

/// A block of the KV cache.
pub type BlockId = u32;

/// A slot for the recurrent state of a sequence.
pub type SlotId = u32;

/// The kind of a unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum UnitKind {
    /// The keys and values of one block of tokens, over all layers.
    Block,
    /// The recurrent state after the last token of a block, over all layers.
    State,
}

impl UnitKind {
    /// Number of kinds.
    pub const COUNT: usize = 2;

    /// All.
    pub const ALL: [UnitKind; UnitKind::COUNT] = [UnitKind::Block, UnitKind::State];

    /// Its name in metrics and names of files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            UnitKind::Block => "block",
            UnitKind::State => "state",
        }
    }
}

/// A unit of an engine's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CacheUnit {
    /// A KV block.
    Block(BlockId),
    /// A slot of recurrent state.
    State(SlotId),
}

impl CacheUnit {
    /// Its kind.
    #[must_use]
    pub fn kind(self) -> UnitKind {
        match self {
            CacheUnit::Block(_) => UnitKind::Block,
            CacheUnit::State(_) => UnitKind::State,
        }
    }
}

/// Bytes of a unit of each kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnitBytes {
    /// Of a KV block; 0 for a model without keys and values.
    pub block: usize,
    /// Of a recurrent state; 0 for a model without one.
    pub state: usize,
}

impl UnitBytes {
    /// Bytes of a unit of a kind.
    #[must_use]
    pub fn of(&self, kind: UnitKind) -> usize {
        match kind {
            UnitKind::Block => self.block,
            UnitKind::State => self.state,
        }
    }
}

impl std::ops::Add for UnitBytes {
    type Output = UnitBytes;

    fn add(self, other: UnitBytes) -> UnitBytes {
        UnitBytes { block: self.block + other.block, state: self.state + other.state }
    }
}

impl std::iter::Sum for UnitBytes {
    fn sum<I: Iterator<Item = UnitBytes>>(parts: I) -> UnitBytes {
        parts.fold(UnitBytes::default(), std::ops::Add::add)
    }
}

/// How an engine stores the content of units, for copies outside of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CacheLayout {
    /// Bytes of the content of a unit.
    pub bytes: UnitBytes,
    /// What the bytes mean, next to the model's weights: the device, its arithmetic, the types and the ops. An engine of the same
    /// weights and description computes the same bytes for the same tokens and can read those of another.
    pub description: String,
}
