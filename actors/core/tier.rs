//! Where copies of KV blocks and recurrent states are outside of the engine.

use std::fmt;
use std::ops::{Add, Index, IndexMut};

use super::cached_unit::{UnitBytes, UnitKind};

/// A place from which units of the cache are loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Tier {
    /// Host memory. Lost with the process.
    Host,
    /// Files in a directory.
    Disk,
    /// Another server. Nothing is sent there: it has the units of prompts that it has computed for this server.
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

/// Identifies the read of some units from a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct FetchId(pub u64);

/// How much a tier takes, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierLimits {
    /// What it holds; 0 for a tier that is not used.
    pub bytes: u64,
    /// What may be on its way to it.
    pub arriving: u64,
    /// What is read from it at once, but at least one unit.
    pub piece: u64,
    /// What a unit of each kind takes there.
    pub of_unit: UnitBytes,
}

impl TierLimits {
    /// Bytes that a unit takes.
    #[must_use]
    pub fn of(&self, kind: UnitKind) -> u64 {
        self.of_unit.of(kind) as u64
    }
}

/// What has happened to the units of one kind in a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnitCounts {
    /// Units that it holds.
    pub present: usize,
    /// Units stored so far.
    pub stored: u64,
    /// Units that were not stored, because the tier could not take them in time or the write failed.
    pub dropped: u64,
    /// Units loaded to the device so far.
    pub loaded: u64,
    /// Units that could not be read.
    pub lost: u64,
    /// Units that were not loaded although the tier has them, because computing was faster.
    pub declined: u64,
}

impl Add for UnitCounts {
    type Output = UnitCounts;

    fn add(self, other: UnitCounts) -> UnitCounts {
        UnitCounts {
            present: self.present + other.present,
            stored: self.stored + other.stored,
            dropped: self.dropped + other.dropped,
            loaded: self.loaded + other.loaded,
            lost: self.lost + other.lost,
            declined: self.declined + other.declined,
        }
    }
}

/// The state of a tier in numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TierCounts {
    /// Bytes of the units that it holds.
    pub bytes: u64,
    /// Bytes that it can hold.
    pub capacity_bytes: u64,
    /// Its KV blocks.
    pub blocks: UnitCounts,
    /// Its recurrent states.
    pub states: UnitCounts,
}

impl Index<UnitKind> for TierCounts {
    type Output = UnitCounts;

    fn index(&self, kind: UnitKind) -> &UnitCounts {
        match kind {
            UnitKind::Block => &self.blocks,
            UnitKind::State => &self.states,
        }
    }
}

impl IndexMut<UnitKind> for TierCounts {
    fn index_mut(&mut self, kind: UnitKind) -> &mut UnitCounts {
        match kind {
            UnitKind::Block => &mut self.blocks,
            UnitKind::State => &mut self.states,
        }
    }
}

impl Add for TierCounts {
    type Output = TierCounts;

    fn add(self, other: TierCounts) -> TierCounts {
        TierCounts {
            bytes: self.bytes + other.bytes,
            capacity_bytes: self.capacity_bytes + other.capacity_bytes,
            blocks: self.blocks + other.blocks,
            states: self.states + other.states,
        }
    }
}
