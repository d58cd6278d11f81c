//! Loads the prefixes of admitted sequences from lower tiers and other servers.
//!
//! Without recurrent state any number of blocks after those on the device is of use. A sequence of a model with recurrent state can
//! continue only where a checkpoint is: it loads the state, and the blocks before it that the device has not. If anything of that
//! is missing in the end, the sequence is admitted once more, and what has arrived stays in the prefix cache.

use std::collections::VecDeque;
use std::time::Duration;

use cuelight_engine::engine::{BLOCK_TOKENS, CacheUnit, UnitKind};

use super::events::{Effect, Found, TierEffect};
use super::recurrent_state::RecurrentState;
use super::sequence::Sequence;
use super::state::Policy;
use super::state_slots::SlotHandle;
use super::step_time::Work;
use super::tiers::loading::Loading;
use super::tiers::{Amount, Fetch, Lane};
use crate::core::cached_unit::UnitContent;
use crate::core::request::RequestId;
use crate::core::tier::{FetchId, Tier};

/// How long a read may take: this many times as long as computing its blocks is expected to take.
const PATIENCE: u32 = 2;

/// The shortest and the longest time that a read may take.
const TIME_LIMITS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// How long a read may take while the time of computing is unknown.
const FIRST_TIME_LIMIT: Duration = Duration::from_secs(10);

/// What lower tiers have of a sequence's prefix.
pub(super) struct PrefixInTiers {
    /// Number of leading blocks that are on the device or in a tier of this server.
    pub known: usize,
    /// What of it is worth loading.
    pub load: Option<PlannedLoad>,
}

/// A load that is expected to be faster than computing.
pub(super) struct PlannedLoad {
    /// Number of leading blocks that need not be computed then.
    pub until: usize,
    units: VecDeque<(UnitContent, Tier)>,
}

/// A number of leading blocks after which a sequence can continue once some units are loaded.
struct Candidate {
    until: usize,
    amount: Amount,
    /// The recurrent state, if the model has one.
    state: Option<(UnitContent, Tier)>,
}

impl Policy {
    /// Whether recurrent states may be loaded.
    pub(super) fn loads_states(&self) -> bool {
        self.slots.is_used() && (self.tiers.is_enabled() || self.tiers.loads_from_peers())
    }

    /// Looks for the prefix of an admitted sequence in the tiers. `on_device` blocks of it are on the device, of which `usable` can
    /// be used without a load.
    pub(super) fn find_in_tiers(&mut self, id: RequestId, usable: usize, on_device: usize) -> PrefixInTiers {
        let nothing = PrefixInTiers { known: on_device, load: None };
        let Some(sequence) = self.sequences.get(&id) else { return nothing };
        let has_peer = self.has_peer(sequence);
        if sequence.is_suspect() || sequence.computes || (!self.tiers.is_enabled() && !has_peer) {
            return nothing;
        }
        let blocks = self.find_blocks(id, on_device);
        let known = on_device + blocks.iter().take_while(|(_, tier)| *tier != Tier::Peer).count();
        let candidates = match self.slots.is_used() {
            true => self.states_to_load(id, usable, on_device, &blocks),
            false => self.blocks_to_load(usable, &blocks),
        };
        let load = self.most_worthwhile(usable, &candidates).map(|best| {
            let Candidate { until, state, .. } = candidates[best];
            let blocks = blocks.into_iter().take(until.saturating_sub(on_device));
            PlannedLoad { until, units: state.into_iter().chain(blocks).collect() }
        });
        PrefixInTiers { known, load }
    }

    /// Whether another server may have the prompt of a sequence.
    fn has_peer(&self, sequence: &Sequence) -> bool {
        sequence.kv_transfer.from.is_some() && self.tiers.loads_from_peers()
    }

    /// The blocks after the first `on_device` ones that are in a tier, one after the other.
    fn find_blocks(&mut self, id: RequestId, on_device: usize) -> Vec<(UnitContent, Tier)> {
        let Some(sequence) = self.sequences.get(&id) else { return Vec::new() };
        let at_peer = if self.has_peer(sequence) { sequence.prompt_tokens / BLOCK_TOKENS } else { 0 };
        let last = sequence.cacheable().len() / BLOCK_TOKENS;
        let mut blocks = Vec::new();
        if self.tiers.unit_bytes(UnitKind::Block) == 0 {
            return blocks;
        }
        for index in on_device..last {
            let Some(unit) = self.find_unit(id, index, UnitKind::Block, index < at_peer) else { break };
            blocks.push(unit);
        }
        blocks
    }

    /// A block of a sequence, or the state after it, and where it is.
    fn find_unit(
        &mut self,
        id: RequestId,
        index: usize,
        kind: UnitKind,
        may_be_at_peer: bool,
    ) -> Option<(UnitContent, Tier)> {
        let block = self.sequences.get_mut(&id)?.portable_content(index);
        let unit = UnitContent { block, kind };
        let is_at_peer = may_be_at_peer && block.is_portable && !block.has_media;
        let tier = self.tiers.find(&unit.id()).or(is_at_peer.then_some(Tier::Peer))?;
        Some((unit, tier))
    }

    /// Without recurrent state: any number of the blocks.
    fn blocks_to_load(&self, usable: usize, blocks: &[(UnitContent, Tier)]) -> Vec<Candidate> {
        let mut amount = Amount::default();
        let candidate = |(index, (unit, tier)): (usize, &(UnitContent, Tier))| {
            amount.add(*tier, self.tiers.index(*tier).limits().of(unit.kind));
            Candidate { until: usable + index + 1, amount, state: None }
        };
        blocks.iter().enumerate().map(candidate).collect()
    }

    /// With recurrent state: as many leading blocks as have a state after them in a tier. Nothing while no slot can be had for it.
    fn states_to_load(
        &mut self,
        id: RequestId,
        usable: usize,
        on_device: usize,
        blocks: &[(UnitContent, Tier)],
    ) -> Vec<Candidate> {
        let Some(sequence) = self.sequences.get(&id).filter(|_| self.slots.can_allocate()) else { return Vec::new() };
        let last = sequence.cacheable().len() / BLOCK_TOKENS;
        let at_peer = RecurrentState::blocks_until_last(sequence.prompt_tokens);
        let has_peer = self.has_peer(sequence);
        let is_empty = self.tiers.unit_bytes(UnitKind::Block) == 0;
        let reachable = if is_empty { last } else { on_device + blocks.len() };
        let mut amount = Amount::default();
        let mut candidates = Vec::new();
        for until in usable + 1..=reachable.min(last) {
            if let Some((block, tier)) = until.checked_sub(on_device + 1).and_then(|index| blocks.get(index)) {
                amount.add(*tier, self.tiers.index(*tier).limits().of(block.kind));
            }
            let may_be_at_peer = has_peer && until == at_peer;
            if let Some((state, tier)) = self.find_unit(id, until - 1, UnitKind::State, may_be_at_peer) {
                let mut amount = amount;
                amount.add(tier, self.tiers.index(tier).limits().of(state.kind));
                candidates.push(Candidate { until, amount, state: Some((state, tier)) });
            }
        }
        candidates
    }

    /// Which load saves the most time, if any does. The sequence has `usable` blocks without a load.
    fn most_worthwhile(&mut self, usable: usize, candidates: &[Candidate]) -> Option<usize> {
        let last = candidates.len().checked_sub(1)?;
        let work = |until: usize| Work::of(usable * BLOCK_TOKENS, (until - usable) * BLOCK_TOKENS);
        let rows = work(candidates[last].until).rows.min(self.limits.max_batched_tokens);
        if !self.step_time.knows_prefill_of(rows) {
            return Some(last);
        }
        let (mut best, mut saved) = (None, 0.0);
        for (index, candidate) in candidates.iter().enumerate() {
            let Some(computing) = self.step_time.predict(work(candidate.until)) else { return Some(last) };
            let saves = computing.as_secs_f64() - self.tiers.times.predict(candidate.amount).as_secs_f64();
            if saves > saved {
                (best, saved) = (Some(index), saves);
            }
        }
        if best.is_none() && self.tiers.times.decline() {
            return Some(last);
        }
        self.count_declined(&candidates[best.map_or(0, |best| best + 1)..]);
        best
    }

    /// Counts the units that end these loads, which are not made.
    fn count_declined(&mut self, candidates: &[Candidate]) {
        for candidate in candidates {
            let (kind, tier) = match candidate.state {
                Some((state, tier)) => (state.kind, tier),
                None => (UnitKind::Block, candidate.amount.slowest()),
            };
            self.tiers.parts(tier).1[kind].declined += 1;
        }
    }

    /// Lets an admitted sequence, which has `usable` blocks without it, wait for a load.
    pub(super) fn start_load(&mut self, id: RequestId, usable: usize, PlannedLoad { until, units }: PlannedLoad) {
        let computing = self.step_time.predict(Work::of(usable * BLOCK_TOKENS, (until - usable) * BLOCK_TOKENS));
        let [least, most] = TIME_LIMITS;
        let time_limit = computing.map_or(FIRST_TIME_LIMIT, |time| (time * PATIENCE).clamp(least, most));
        // What arrives in the tiers meanwhile takes the place of other units. From the end, as in `write_fetched`.
        units.iter().rev().for_each(|(unit, tier)| self.tiers.parts(*tier).0.touch(&unit.id()));
        // There is one ([`StateSlots::can_allocate`]).
        let slot = if self.slots.is_used() { self.slots.allocate() } else { None };
        let sequence = self.sequence_mut(id);
        if slot.is_some() {
            sequence.planned = until * BLOCK_TOKENS;
            sequence.state.newest = slot;
        }
        sequence.loading = Some(Loading { units, until, fetch: None, time_limit });
    }

    /// Reads the next units that a sequence waits for, if it does, or lets it wait for other reads.
    pub(super) fn fetch_next(&mut self, id: RequestId, effects: &mut Vec<Effect>) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let Some(loading) = sequence.loading.as_mut().filter(|loading| loading.fetch.is_none()) else { return };
        let Some(&(UnitContent { kind, .. }, tier)) = loading.units.front() else { return };
        let peer = sequence.kv_transfer.from.clone().filter(|_| tier == Tier::Peer);
        let lane = (tier, peer.clone());
        if !self.tiers.fetches.accept(&lane) {
            return self.tiers.fetches.queue(lane, id);
        }
        let limits = self.tiers.index(tier).limits();
        let units = loading.next_piece(&limits);
        let (time_limit, bytes) = (loading.time_limit, units.len() as u64 * limits.of(kind));
        let fetch = self.tiers.fetches.start(Fetch { id, lane, kind, bytes, time_limit });
        loading.fetch = Some((fetch, units.len()));
        effects.push(Effect::Tier(TierEffect::Fetch { fetch, tier, peer, units, time_limit }));
    }

    /// Starts the reads that waited for others.
    fn fetch_queued(&mut self, lane: &Lane, effects: &mut Vec<Effect>) {
        while let Some(id) = self.tiers.fetches.next_queued(lane) {
            self.fetch_next(id, effects);
        }
    }

    /// Units were read.
    pub(super) fn fetched(&mut self, fetch: FetchId, found: Found, elapsed: Duration, effects: &mut Vec<Effect>) {
        let Some(Fetch { id, lane, kind, .. }) = self.tiers.fetches.end(fetch) else { return };
        if found.units > 0 {
            let bytes = found.units as u64 * self.tiers.index(lane.0).limits().of(kind);
            self.tiers.times.read(lane.0, bytes, elapsed);
        }
        self.write_fetched(id, (fetch, lane.0), found, effects);
        self.fetch_queued(&lane, effects);
    }

    /// Writes the units of a read to the device, unless their sequence does not wait for them any more.
    fn write_fetched(
        &mut self,
        id: RequestId,
        (fetch, tier): (FetchId, Tier),
        Found { units: found, next_is_lost }: Found,
        effects: &mut Vec<Effect>,
    ) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let Some(loading) = sequence.loading.as_mut() else { return };
        let Some((_, count)) = loading.fetch.take_if(|(expected, _)| *expected == fetch) else { return };
        let piece: Vec<UnitContent> = loading.units.drain(..count).map(|(unit, _)| unit).collect();
        let (index, counts) = self.tiers.parts(tier);
        // From the end, so that the blocks of a prefix are kept longer than those after them.
        piece[..found].iter().rev().for_each(|unit| index.touch(&unit.id()));
        piece[..found].iter().for_each(|unit| counts[unit.kind].loaded += 1);
        let missing = piece.get(found);
        if let Some(missing) = missing.filter(|_| next_is_lost) {
            index.remove(&missing.id());
            counts[missing.kind].lost += 1;
        }
        let written = sequence.place_loaded(&piece[..found]);
        if !written.is_empty() {
            effects.push(Effect::Tier(TierEffect::Write { fetch, units: written }));
        }
        if missing.is_some() {
            return self.end_load(id, tier, next_is_lost);
        }
        self.cache_blocks(id);
        self.finish_load(id);
        self.fetch_next(id, effects);
    }

    /// Continues with a sequence if all that it waited for is there.
    fn finish_load(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let Some(Loading { until, .. }) = sequence.loading.take_if(|loading| loading.units.is_empty()) else { return };
        sequence.computed = until * BLOCK_TOKENS;
        sequence.planned = sequence.computed;
        if let Some(newest) = &sequence.state.newest {
            // Other prompts can continue from it, too.
            sequence.state.pending.push((until * BLOCK_TOKENS, self.slots.share(newest)));
        }
        self.cache_blocks(id);
    }

    /// Ends a load of which something is missing. Unless it `is_lost`, nothing is loaded once more.
    fn end_load(&mut self, id: RequestId, tier: Tier, is_lost: bool) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        sequence.loading = None;
        // It is not asked again.
        sequence.kv_transfer.from.take_if(|_| tier == Tier::Peer);
        sequence.computes |= self.slots.is_used() && !is_lost && tier != Tier::Peer;
        sequence.planned = sequence.computed;
        self.cache_blocks(id);
        if self.slots.is_used() {
            self.start_again(id);
        }
    }

    /// A read has taken too long. Its sequence computes the blocks instead, if it waits for it.
    pub(super) fn fetch_timed_out(&mut self, fetch: FetchId, effects: &mut Vec<Effect>) {
        let Some(Fetch { id, lane, kind, bytes, time_limit }) = self.tiers.fetches.end(fetch) else { return };
        let tier = lane.0;
        if let Some(sequence) = self.sequences.get_mut(&id)
            && let Some(loading) = &mut sequence.loading
            && let Some((_, count)) = loading.fetch.take_if(|(expected, _)| *expected == fetch)
        {
            self.tiers.times.read(tier, bytes, time_limit);
            self.tiers.parts(tier).1[kind].lost += count as u64;
            self.end_load(id, tier, false);
        }
        self.fetch_queued(&lane, effects);
    }
}

impl Sequence {
    /// Where the next units that it waits for are written to. Blocks count as computed with that.
    fn place_loaded(&mut self, units: &[UnitContent]) -> Vec<CacheUnit> {
        let blocks = units.iter().filter(|unit| unit.kind == UnitKind::Block).count();
        let state = self.state.newest.as_ref().filter(|_| blocks < units.len()).map(SlotHandle::id);
        let first = self.cached_blocks;
        let places = self.blocks[first..first + blocks].iter().map(|block| CacheUnit::Block(block.id()));
        let places = places.chain(state.map(CacheUnit::State)).collect();
        self.computed = self.computed.max((first + blocks) * BLOCK_TOKENS);
        self.planned = self.planned.max(self.computed);
        places
    }
}
