//! Lower tiers of the KV cache: which units, KV blocks and recurrent states, are copied to host memory and to disk, and when a
//! prompt loads them from there.
//!
//! - A unit that is evicted on the device is copied to the first tier. What the host gives up goes to the disk.
//! - An admitted prompt whose next blocks are in a tier waits until they are loaded, if that is expected to be faster than
//!   computing them. A model with recurrent state can continue only where the state is in a tier as well. Both times are measured
//!   ([`copy_time`]). Other sequences go on meanwhile.
//! - A unit that is read is written to the device by an effect, in order with the steps. So a unit of the device is written
//!   only while the sequence that loads it holds it.
//! - Before a shutdown, all units are copied to the disk.
//! - The units of a prompt that another server continues are copied to host memory as soon as they are computed, and that server
//!   loads them from there. There, a prompt that another server has computed is loaded in the same way as from a tier.
//!
//! The policy knows what the tiers hold from their reports alone. A unit counts as present once it is reported.
//!
//! This module has the state. [`tier_events`](super::tier_events) and [`tier_loads`](super::tier_loads) change it.
//!
//! - [`index`]: the units of one tier
//! - [`loading`]: the load of one sequence
//! - [`fetches`]: the reads under way

mod copy_time;
mod fetches;
mod index;
pub(super) mod loading;

pub(super) use self::copy_time::{Amount, CopyTimes};
use self::fetches::Fetches;
pub(super) use self::fetches::{Fetch, Lane};
pub(super) use self::index::TierIndex;
use super::events::{Effect, TierEffect};
use super::kv_blocks::BlockHandle;
use super::state_slots::SlotHandle;
use crate::core::cache_change::CacheChange;
use crate::core::cached_unit::{KeptUnit, UnitContent, UnitId, UnitKind};
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
    /// The units to copy to the disk before a shutdown, the next one last. `None` before a shutdown.
    pub flush: Option<Vec<Flushed>>,
}

/// A unit that is copied to the disk before a shutdown.
#[derive(Debug)]
pub(super) struct Flushed {
    pub from: FlushedFrom,
    pub used: i64,
}

/// Where such a unit is.
#[derive(Debug)]
pub(super) enum FlushedFrom {
    /// On the device.
    Block(BlockHandle, UnitContent),
    /// On the device.
    State(SlotHandle, UnitContent),
    /// In host memory.
    Host(KeptUnit),
}

impl FlushedFrom {
    /// Which unit it is.
    pub fn unit(&self) -> KeptUnit {
        match self {
            FlushedFrom::Block(_, content) | FlushedFrom::State(_, content) => content.kept(),
            FlushedFrom::Host(unit) => *unit,
        }
    }
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

    /// Whether any tier takes units.
    pub fn is_enabled(&self) -> bool {
        self.host.is_enabled() || self.disk.is_enabled()
    }

    /// Whether units can be loaded from other servers.
    pub fn loads_from_peers(&self) -> bool {
        self.peer.limits().piece > 0
    }

    pub fn counts(&self, tier: Tier) -> TierCounts {
        let (index, counts) = match tier {
            Tier::Host => (&self.host, self.host_counts),
            Tier::Disk => (&self.disk, self.disk_counts),
            Tier::Peer => (&self.peer, self.peer_counts),
        };
        let mut counts = TierCounts { bytes: index.bytes(), capacity_bytes: index.limits().bytes, ..counts };
        UnitKind::ALL.into_iter().for_each(|kind| counts[kind].present = index.present(kind));
        counts
    }

    /// Blocks of the device that are held until they are copied.
    pub fn block_handles(&self) -> impl Iterator<Item = &BlockHandle> {
        self.flush.iter().flatten().filter_map(|flushed| match &flushed.from {
            FlushedFrom::Block(handle, _) => Some(handle),
            FlushedFrom::State(..) | FlushedFrom::Host(_) => None,
        })
    }

    /// Slots of the device that are held until they are copied.
    pub fn slot_handles(&self) -> impl Iterator<Item = &SlotHandle> {
        self.flush.iter().flatten().filter_map(|flushed| match &flushed.from {
            FlushedFrom::State(handle, _) => Some(handle),
            FlushedFrom::Block(..) | FlushedFrom::Host(_) => None,
        })
    }

    /// The fastest tier that has a unit.
    pub fn find(&self, id: &UnitId) -> Option<Tier> {
        Tier::ALL.into_iter().find(|tier| self.index(*tier).has(id))
    }

    /// Bytes of a unit in the fastest tier that is used; 0 if units of this kind are empty.
    pub fn unit_bytes(&self, kind: UnitKind) -> u64 {
        let limits = Tier::ALL.into_iter().map(|tier| self.index(tier).limits());
        limits.map(|limits| limits.of(kind)).max().unwrap_or(0)
    }

    /// The tier to which a unit that the device gives up is sent: the first one that takes it. `None` when it is there already, or
    /// no tier takes it.
    pub fn receive(&mut self, unit: KeptUnit, effects: &mut Vec<Effect>) -> Option<Tier> {
        let (id, kind) = (unit.id, unit.id.kind);
        let mut refused = None;
        for tier in Tier::ALL {
            let (index, _) = self.parts(tier);
            if index.limits().of(kind) == 0 || !index.is_enabled() || (tier == Tier::Disk && !unit.is_portable) {
                continue;
            }
            if index.knows(&id) {
                index.touch(&id);
                return None;
            }
            if index.accepts(kind) && self.send(tier, unit, effects) {
                return Some(tier);
            }
            refused = refused.or(Some(tier));
        }
        if let Some(tier) = refused {
            self.parts(tier).1[kind].dropped += 1;
        }
        None
    }

    /// Offers a unit to other servers, through host memory. Returns whether it has to be copied there.
    pub fn share(&mut self, unit: KeptUnit, effects: &mut Vec<Effect>) -> bool {
        let (id, kind) = (unit.id, unit.id.kind);
        if !self.host.is_enabled() || self.host.limits().of(kind) == 0 {
            return false;
        }
        if self.host.knows(&id) {
            self.host.touch(&id);
            return false;
        }
        let is_sent = self.host.accepts(kind) && self.send(Tier::Host, unit, effects);
        self.host_counts[kind].dropped += u64::from(!is_sent);
        is_sent
    }

    /// Frees space for a unit in a tier, which keeps units of its kind, and marks it as sent. Returns whether there is space.
    pub fn send(&mut self, tier: Tier, unit: KeptUnit, effects: &mut Vec<Effect>) -> bool {
        while !self.index(tier).has_space(unit.id.kind) {
            if !self.give_up_oldest(tier, effects) {
                return false;
            }
        }
        let (index, _) = self.parts(tier);
        let used = index.reserve(1);
        index.send(unit, used);
        true
    }

    /// Gives up the least recently used unit of a tier. A unit of the host goes to the disk.
    fn give_up_oldest(&mut self, tier: Tier, effects: &mut Vec<Effect>) -> bool {
        let Some(unit) = self.parts(tier).0.pop_oldest() else { return false };
        let is_moved = tier == Tier::Host && unit.is_portable && self.moves_to_disk(unit, effects);
        let effect = if is_moved { TierEffect::Demote(unit.id) } else { TierEffect::Discard(tier, unit.id) };
        effects.push(Effect::Tier(effect));
        true
    }

    /// Whether the disk takes a unit of the host.
    fn moves_to_disk(&mut self, unit: KeptUnit, effects: &mut Vec<Effect>) -> bool {
        if self.disk.knows(&unit.id) {
            self.disk.touch(&unit.id);
            return false;
        }
        let kind = unit.id.kind;
        let is_sent = self.disk.accepts(kind) && self.send(Tier::Disk, unit, effects);
        if self.disk.is_enabled() && !is_sent {
            self.disk_counts[kind].dropped += 1;
        }
        is_sent
    }

    /// Gives up units until a tier is within its limit.
    pub fn trim(&mut self, tier: Tier, effects: &mut Vec<Effect>) {
        while self.index(tier).is_over_limit() {
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
        let of_tier = |tier| self.index(tier).oldest_first().map(move |unit| (tier, unit.id));
        let all = Tier::ALL.into_iter().flat_map(of_tier).filter(|(_, id)| id.kind == UnitKind::Block);
        all.map(|(tier, id)| CacheChange::Copied(tier, id.block))
    }

    /// Panics when an invariant does not hold.
    pub fn check(&self) {
        Tier::ALL.into_iter().for_each(|tier| self.index(tier).check());
        self.fetches.check();
    }
}
