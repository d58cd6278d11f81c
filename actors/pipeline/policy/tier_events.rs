//! Handles what happens in the lower tiers: copies of evicted units and of prompts for other servers, reports, and the copies
//! before a shutdown.

use cuelight_engine::engine::{BLOCK_TOKENS, CacheUnit, UnitKind};

use super::events::{Effect, TierEffect, TierReport, UnitCopy};
use super::recurrent_state::RecurrentState;
use super::state::Policy;
use super::tiers::{Flushed, FlushedFrom};
use crate::core::cached_unit::{KeptUnit, UnitContent};
use crate::core::request::RequestId;
use crate::core::tier::{Tier, TierLimits};

/// Adds the effect that copies units, if there are any.
fn store(copies: Vec<UnitCopy>, effects: &mut Vec<Effect>) {
    if !copies.is_empty() {
        effects.push(Effect::Tier(TierEffect::Store(copies)));
    }
}

impl Policy {
    /// Copies the units that were evicted on the device to a tier. Called before a step can write to them.
    pub(super) fn store_evicted(&mut self, effects: &mut Vec<Effect>) {
        let blocks = self.blocks.take_evicted().into_iter();
        let blocks = blocks.map(|(block, content)| (CacheUnit::Block(block), UnitContent::of_block(content)));
        let states = self.slots.take_evicted().into_iter();
        let states = states.map(|(slot, after)| (CacheUnit::State(slot), UnitContent::of_state_after(after)));
        let mut copies = Vec::new();
        for (unit, content) in blocks.chain(states) {
            let to = self.tiers.receive(content.kept(), effects);
            copies.extend(to.map(|to| UnitCopy { unit, content, to }));
        }
        store(copies, effects);
    }

    /// Copies the prompt that another server continues to host memory: the blocks that are computed and were not copied yet, and
    /// the last checkpoint.
    pub(super) fn share_prompt(&mut self, id: RequestId, effects: &mut Vec<Effect>) {
        let Some(sequence) = self.sequences.get_mut(&id).filter(|sequence| sequence.kv_transfer.shared_at.is_some())
        else {
            return;
        };
        let computed = sequence.cached_blocks.min(sequence.prompt_tokens / BLOCK_TOKENS);
        let last_checkpoint = RecurrentState::blocks_until_last(sequence.prompt_tokens);
        let mut copies = Vec::new();
        for index in sequence.shared_blocks..computed {
            let block = sequence.blocks[index].id();
            let content = sequence.portable_content(index);
            let state = self.slots.checkpoint(block).filter(|_| index + 1 == last_checkpoint);
            let state = state.map(|(slot, after)| (CacheUnit::State(slot), UnitContent::of_state_after(after)));
            for (unit, content) in [(CacheUnit::Block(block), UnitContent::of_block(content))].into_iter().chain(state)
            {
                if content.block.is_portable && self.tiers.share(content.kept(), effects) {
                    copies.push(UnitCopy { unit, content, to: Tier::Host });
                }
            }
        }
        sequence.shared_blocks = sequence.shared_blocks.max(computed);
        store(copies, effects);
    }

    /// Handles what a tier reports. Units that arrive before it is ready are in the list that it has then.
    pub(super) fn tier_reported(&mut self, tier: Tier, report: TierReport, effects: &mut Vec<Effect>) {
        let is_ready = matches!(report, TierReport::Ready(..)) || self.tiers.index(tier).is_enabled();
        if !is_ready {
            return;
        }
        match report {
            TierReport::Ready(limits, units) => self.tier_ready(tier, limits, units),
            TierReport::Kept(units) => {
                let (index, counts) = self.tiers.parts(tier);
                units.iter().for_each(|unit| counts[unit.id.kind].stored += 1);
                units.into_iter().for_each(|unit| index.arrived(unit));
            }
            TierReport::Refused(units) => {
                let (index, counts) = self.tiers.parts(tier);
                for id in units {
                    counts[id.kind].dropped += 1;
                    index.remove(&id);
                }
            }
            TierReport::Full => {
                let (index, _) = self.tiers.parts(tier);
                let bytes = (index.bytes() + index.arriving()).max(1);
                index.set_limits(TierLimits { bytes: bytes.min(index.limits().bytes), ..index.limits() });
            }
        }
        self.tiers.trim(tier, effects);
        self.record_evictions();
    }

    fn tier_ready(&mut self, tier: Tier, limits: TierLimits, units: Vec<KeptUnit>) {
        if self.config.prefix_cache {
            let (index, _) = self.tiers.parts(tier);
            index.set_limits(limits);
            units.into_iter().for_each(|unit| index.arrived(unit));
        }
    }

    /// Lets the device's caches record what they evict, if a tier takes it.
    pub(super) fn record_evictions(&mut self) {
        let is_used = self.config.prefix_cache && self.tiers.is_enabled();
        self.blocks.record_evictions(is_used);
        self.slots.record_evictions(is_used);
    }

    /// Whether nothing is left to do before a shutdown.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let is_flushed = self.tiers.flush.as_ref().is_some_and(Vec::is_empty) && self.tiers.disk.arriving() == 0;
        self.is_empty() && (is_flushed || !self.tiers.disk.is_enabled())
    }

    /// Copies units to the disk before a shutdown, as many as may be on their way, the most recently used first.
    pub(super) fn flush(&mut self, effects: &mut Vec<Effect>) {
        if !self.draining || !self.is_empty() || !self.tiers.disk.is_enabled() {
            return;
        }
        if self.tiers.flush.is_none() {
            self.tiers.flush = Some(self.plan_flush());
        }
        let mut copies = Vec::new();
        while let Some(next) = self.tiers.flush.as_ref().and_then(|flush| flush.last())
            && self.tiers.disk.accepts(next.from.unit().id.kind)
            && let Some(Flushed { from, used }) = self.tiers.flush.as_mut().and_then(Vec::pop)
        {
            let unit = from.unit();
            let is_sent = !self.tiers.disk.knows(&unit.id) && self.tiers.send(Tier::Disk, unit, effects);
            if is_sent {
                // Older than the units that were copied before it.
                self.tiers.disk.send(unit, used);
            }
            let copy = self.release_flushed(from, effects, is_sent);
            copies.extend(copy.map(|(unit, content)| UnitCopy { unit, content, to: Tier::Disk }));
        }
        store(copies, effects);
    }

    /// Releases what was held for a copy before a shutdown: no step follows that could write to it. Returns what is to be copied
    /// from the device.
    fn release_flushed(
        &mut self,
        from: FlushedFrom,
        effects: &mut Vec<Effect>,
        is_sent: bool,
    ) -> Option<(CacheUnit, UnitContent)> {
        let copy = match from {
            FlushedFrom::Block(block, content) => {
                let copy = (CacheUnit::Block(block.id()), content);
                self.blocks.release(block);
                copy
            }
            FlushedFrom::State(slot, content) => {
                let copy = (CacheUnit::State(slot.id()), content);
                self.slots.release(slot);
                copy
            }
            FlushedFrom::Host(unit) => {
                effects.extend(is_sent.then_some(Effect::Tier(TierEffect::Demote(unit.id))));
                return None;
            }
        };
        is_sent.then_some(copy)
    }

    /// The units that a shutdown copies to the disk, the next one last: those of the device, then those of the host, as many as
    /// fit.
    fn plan_flush(&mut self) -> Vec<Flushed> {
        let limits = self.tiers.disk.limits();
        let mut left = limits.bytes;
        let mut fits = |kind: UnitKind| {
            let bytes = limits.of(kind);
            let fits = bytes > 0 && bytes <= left.min(limits.arriving);
            left -= if fits { bytes } else { 0 };
            fits
        };
        let on_device = if self.executor_ready { self.blocks.cached_contents() } else { Vec::new() };
        let mut newest_first = Vec::new();
        for (block, content) in on_device.into_iter().rev().filter(|(_, content)| content.is_portable) {
            if fits(UnitKind::Block) {
                let handle = self.blocks.take(&[block]).pop();
                newest_first.extend(handle.map(|handle| FlushedFrom::Block(handle, UnitContent::of_block(content))));
            }
            if self.slots.has(block) && fits(UnitKind::State) {
                let handle = self.slots.take(block);
                let state = UnitContent::of_state_after(content);
                newest_first.extend(handle.map(|handle| FlushedFrom::State(handle, state)));
            }
        }
        let in_host = self.tiers.host.oldest_first().rev().filter(|unit| unit.is_portable);
        newest_first.extend(in_host.filter(|unit| fits(unit.id.kind)).map(FlushedFrom::Host));
        let first = self.tiers.disk.reserve(newest_first.len());
        newest_first.into_iter().rev().zip(first..).map(|(from, used)| Flushed { from, used }).collect()
    }
}
