//! Lower tiers of the KV cache: which blocks are copied to host memory and to disk, and when a prompt loads them from there.
//!
//! - A block that is evicted on the device is copied to the first tier. What the host gives up goes to the disk.
//! - An admitted prompt whose next blocks are in a tier waits until they are loaded, if that is expected to be faster than
//!   computing them. Both times are measured ([`copy_time`]). Other sequences go on meanwhile.
//! - A block that is read is written to the device by an effect, in order with the steps. So a block of the device is written
//!   only while the sequence that loads it holds it.
//! - Before a shutdown, all blocks are copied to the disk.
//! - The blocks of a prompt that another server continues are copied to host memory as soon as they are computed, and that server
//!   loads them from there. There, a prompt that another server has computed is loaded in the same way as from a tier.
//!
//! The policy knows what the tiers hold from their reports alone. A block counts as present once it is reported.
//!
//! This module has the state. [`tier_events`](super::tier_events) changes it.
//!
//! - [`index`]: the blocks of one tier
//! - [`loading`]: the load of one sequence
//! - [`fetches`]: the reads under way

mod copy_time;
mod fetches;
mod index;
pub(super) mod loading;

pub(super) use self::copy_time::{Amount, CopyTimes};
use self::fetches::Fetches;
pub(super) use self::fetches::{Fetch, Lane};
pub(super) use self::index::{Present, TierIndex};
use super::events::{Effect, TierEffect};
use super::kv_blocks::BlockHandle;
use crate::core::block_hash::{BlockContent, BlockHash};
use crate::core::cache_change::CacheChange;
use crate::core::tier::{Tier, TierCounts};

/// The lower tiers.
#[derive(Debug, Default)]
pub(super) struct Tiers {
    pub host: TierIndex,
    pub disk: TierIndex,
    /// What other servers hold is not known. Only its limits are used.
    pub peer: TierIndex,
    pub fetches: Fetches,
    pub times: CopyTimes,
    pub host_counts: TierCounts,
    pub disk_counts: TierCounts,
    pub peer_counts: TierCounts,
    /// The blocks to copy to the disk before a shutdown, the next one last. `None` before a shutdown.
    pub flush: Option<Vec<Flushed>>,
}

/// A block that is copied to the disk before a shutdown.
#[derive(Debug)]
pub(super) struct Flushed {
    /// The block of the device; `None` for one in host memory.
    pub device: Option<(BlockHandle, BlockContent)>,
    pub host: Option<Present>,
    pub used: i64,
}

impl Tiers {
    pub fn index(&self, tier: Tier) -> &TierIndex {
        match tier {
            Tier::Host => &self.host,
            Tier::Disk => &self.disk,
            Tier::Peer => &self.peer,
        }
    }

    pub fn parts(&mut self, tier: Tier) -> (&mut TierIndex, &mut TierCounts) {
        match tier {
            Tier::Host => (&mut self.host, &mut self.host_counts),
            Tier::Disk => (&mut self.disk, &mut self.disk_counts),
            Tier::Peer => (&mut self.peer, &mut self.peer_counts),
        }
    }

    /// Whether any tier takes blocks.
    pub fn is_enabled(&self) -> bool {
        self.host.is_enabled() || self.disk.is_enabled()
    }

    /// Whether blocks can be loaded from other servers.
    pub fn loads_from_peers(&self) -> bool {
        self.peer.limits().piece > 0
    }

    pub fn counts(&self, tier: Tier) -> TierCounts {
        let (index, counts) = match tier {
            Tier::Host => (&self.host, self.host_counts),
            Tier::Disk => (&self.disk, self.disk_counts),
            Tier::Peer => (&self.peer, self.peer_counts),
        };
        TierCounts { blocks: index.present(), capacity: index.limits().blocks, ..counts }
    }

    /// Blocks of the device that are held until they are copied.
    pub fn handles(&self) -> impl Iterator<Item = &BlockHandle> {
        let flushed = self.flush.iter().flatten();
        flushed.filter_map(|flushed| flushed.device.as_ref().map(|(handle, _)| handle))
    }

    /// The fastest tier that has a block.
    pub fn find(&self, hash: &BlockHash) -> Option<Tier> {
        Tier::ALL.into_iter().find(|tier| self.index(*tier).has(hash))
    }

    /// The tier to which a block that the device gives up is sent: the first one that takes it. `None` when it is there already, or
    /// no tier takes it.
    pub fn receive(&mut self, content: &BlockContent, effects: &mut Vec<Effect>) -> Option<Tier> {
        let mut refused = None;
        for tier in Tier::ALL {
            let (index, _) = self.parts(tier);
            if !index.is_enabled() || (tier == Tier::Disk && !content.is_portable) {
                continue;
            }
            if index.knows(&content.hash) {
                index.touch(&content.hash);
                return None;
            }
            if index.accepts() && self.send(tier, present(content), effects) {
                return Some(tier);
            }
            refused = refused.or(Some(tier));
        }
        if let Some(tier) = refused {
            self.parts(tier).1.dropped += 1;
        }
        None
    }

    /// Offers a block to other servers, through host memory. Returns whether it has to be copied there.
    pub fn share(&mut self, content: &BlockContent, effects: &mut Vec<Effect>) -> bool {
        if self.host.knows(&content.hash) {
            self.host.touch(&content.hash);
            return false;
        }
        let is_sent = self.host.is_enabled() && self.host.accepts() && self.send(Tier::Host, present(content), effects);
        self.host_counts.dropped += u64::from(self.host.is_enabled() && !is_sent);
        is_sent
    }

    /// Frees space for a block in a tier and marks it as sent. Returns whether there is space.
    pub fn send(&mut self, tier: Tier, block: Present, effects: &mut Vec<Effect>) -> bool {
        while !self.index(tier).has_space() {
            if !self.give_up_oldest(tier, effects) {
                return false;
            }
        }
        let (index, _) = self.parts(tier);
        let used = index.reserve(1);
        index.send(block.hash, block.is_portable, used);
        true
    }

    /// Gives up the least recently used block of a tier. A block of the host goes to the disk.
    fn give_up_oldest(&mut self, tier: Tier, effects: &mut Vec<Effect>) -> bool {
        let Some(block) = self.parts(tier).0.pop_oldest() else { return false };
        let is_moved = tier == Tier::Host && block.is_portable && self.moves_to_disk(block, effects);
        let effect = if is_moved { TierEffect::Demote(block.hash) } else { TierEffect::Discard(tier, block.hash) };
        effects.push(Effect::Tier(effect));
        true
    }

    /// Whether the disk takes a block of the host.
    fn moves_to_disk(&mut self, block: Present, effects: &mut Vec<Effect>) -> bool {
        if self.disk.knows(&block.hash) {
            self.disk.touch(&block.hash);
            return false;
        }
        let is_sent = self.disk.accepts() && self.send(Tier::Disk, block, effects);
        if self.disk.is_enabled() && !is_sent {
            self.disk_counts.dropped += 1;
        }
        is_sent
    }

    /// Gives up blocks until a tier is within its limit.
    pub fn trim(&mut self, tier: Tier, effects: &mut Vec<Effect>) {
        while self.index(tier).present() + self.index(tier).arriving() > self.index(tier).limits().blocks {
            if !self.give_up_oldest(tier, effects) {
                return;
            }
        }
    }

    /// The copies that were on their way from the device are lost with it, and so are the reads of its sequences.
    pub fn executor_lost(&mut self) {
        Tier::ALL.into_iter().for_each(|tier| self.parts(tier).0.forget_arriving());
        self.fetches.clear();
        if let Some(flush) = &mut self.flush {
            flush.clear();
        }
    }

    /// Records what changes in the tiers from now on.
    pub fn record_changes(&mut self) {
        Tier::ALL.into_iter().for_each(|tier| self.parts(tier).0.record_changes());
    }

    /// The changes since the last call, in the order of each tier. None unless they are recorded.
    pub fn take_changes(&mut self) -> Vec<CacheChange> {
        let change = |tier, (hash, is_present)| match is_present {
            true => CacheChange::Copied(tier, hash),
            false => CacheChange::Dropped(tier, hash),
        };
        let of_tier = |tier| self.parts(tier).0.take_changes().into_iter().map(move |one| change(tier, one));
        Tier::ALL.into_iter().flat_map(of_tier).collect()
    }

    /// All blocks of the tiers, as changes of empty ones.
    pub fn all_as_changes(&self) -> impl Iterator<Item = CacheChange> {
        let of_tier = |tier| self.index(tier).oldest_first().map(move |block| CacheChange::Copied(tier, block.hash));
        Tier::ALL.into_iter().flat_map(of_tier)
    }

    /// Panics when an invariant does not hold.
    pub fn check(&self) {
        Tier::ALL.into_iter().for_each(|tier| self.index(tier).check());
        self.fetches.check();
    }
}

/// The block of a content.
pub(super) fn present(content: &BlockContent) -> Present {
    Present { hash: content.hash, is_portable: content.is_portable }
}
