//! Where copies of KV blocks are outside of the engine.

use std::fmt;

/// A place from which KV blocks are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Host memory. Lost with the process.
    Host,
    /// Files in a directory.
    Disk,
    /// Another server. Nothing is sent there: it has the blocks of prompts that it has computed for this server.
    Peer,
}

impl Tier {
    /// Number of tiers.
    pub const COUNT: usize = 3;

    /// All, the faster ones first.
    pub const ALL: [Tier; Tier::COUNT] = [Tier::Host, Tier::Disk, Tier::Peer];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Tier::Host => "host",
            Tier::Disk => "disk",
            Tier::Peer => "peer",
        }
    }
}

impl fmt::Display for Tier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Identifies the read of some blocks from a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FetchId(pub u64);

/// How much a tier takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierLimits {
    /// Blocks that it holds; 0 for a tier that is not used.
    pub blocks: usize,
    /// Blocks that may be on their way to it.
    pub arriving: usize,
    /// Blocks that are read from it at once.
    pub piece: usize,
}

/// The state of a tier in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierCounts {
    /// Blocks that it holds.
    pub blocks: usize,
    /// Blocks that it can hold.
    pub capacity: usize,
    /// Blocks stored so far.
    pub stored: u64,
    /// Blocks that were not stored, because the tier could not take them in time or the write failed.
    pub dropped: u64,
    /// Blocks loaded to the device so far.
    pub loaded: u64,
    /// Blocks that could not be read.
    pub lost: u64,
    /// Blocks that were computed again although the tier has them, because that was faster.
    pub declined: u64,
}

impl TierCounts {
    /// The sum of two counts.
    #[must_use]
    pub fn plus(self, other: TierCounts) -> TierCounts {
        TierCounts {
            blocks: self.blocks + other.blocks,
            capacity: self.capacity + other.capacity,
            stored: self.stored + other.stored,
            dropped: self.dropped + other.dropped,
            loaded: self.loaded + other.loaded,
            lost: self.lost + other.lost,
            declined: self.declined + other.declined,
        }
    }
}
