//! Handles what happens in the lower tiers: copies of evicted blocks and of blocks for other servers, reports, loads, and the copies
//! before a shutdown.

use std::collections::VecDeque;
use std::time::Duration;

use cuelight_engine::engine::{BLOCK_TOKENS, BlockId};

use super::events::{BlockCopy, Effect, Found, TierEffect, TierReport};
use super::kv_blocks::BlockHandle;
use super::state::Policy;
use super::step_time::Work;
use super::tiers::loading::Loading;
use super::tiers::{Amount, Fetch, Flushed, Lane, Present, present};
use crate::core::block_hash::{BlockContent, BlockHash};
use crate::core::request::RequestId;
use crate::core::tier::{FetchId, Tier, TierLimits};

/// How long a read may take: this many times as long as computing its blocks is expected to take.
const PATIENCE: u32 = 2;

/// The shortest and the longest time that a read may take.
const TIME_LIMITS: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(60)];

/// How long a read may take while the time of computing is unknown.
const FIRST_TIME_LIMIT: Duration = Duration::from_secs(10);

impl Policy {
    /// Copies the blocks that were evicted on the device to a tier. Called before a step can write to them.
    pub(super) fn store_evicted(&mut self, effects: &mut Vec<Effect>) {
        let evicted = self.blocks.take_evicted();
        let mut copies = Vec::new();
        for (block, content) in evicted {
            let to = self.tiers.receive(&content, effects);
            copies.extend(to.map(|to| BlockCopy { block, content, to }));
        }
        if !copies.is_empty() {
            effects.push(Effect::Tier(TierEffect::Store(copies)));
        }
    }

    /// Copies the blocks of a prompt that another server continues to host memory, those that are computed and were not copied yet.
    pub(super) fn share_blocks(&mut self, id: RequestId, effects: &mut Vec<Effect>) {
        let Some(sequence) = self.sequences.get_mut(&id).filter(|sequence| sequence.kv_transfer.shared_at.is_some())
        else {
            return;
        };
        let computed = sequence.cached_blocks.min(sequence.prompt_tokens / BLOCK_TOKENS);
        let mut copies = Vec::new();
        for index in sequence.shared_blocks..computed {
            let content = sequence.portable_content(index);
            if content.is_portable && self.tiers.share(&content, effects) {
                copies.push(BlockCopy { block: sequence.blocks[index].id(), content, to: Tier::Host });
            }
        }
        sequence.shared_blocks = sequence.shared_blocks.max(computed);
        if !copies.is_empty() {
            effects.push(Effect::Tier(TierEffect::Store(copies)));
        }
    }

    /// Handles what a tier reports. Blocks that arrive before it is ready are in the list that it has then.
    pub(super) fn tier_reported(&mut self, tier: Tier, report: TierReport, effects: &mut Vec<Effect>) {
        let is_ready = matches!(report, TierReport::Ready(..)) || self.tiers.index(tier).is_enabled();
        if !is_ready {
            return;
        }
        match report {
            TierReport::Ready(limits, blocks) => self.tier_ready(tier, limits, blocks, effects),
            TierReport::Kept(blocks) => {
                let (index, counts) = self.tiers.parts(tier);
                counts.stored += blocks.len() as u64;
                blocks.into_iter().for_each(|(hash, is_portable)| index.arrived(hash, is_portable));
            }
            TierReport::Refused(blocks) => {
                let (index, counts) = self.tiers.parts(tier);
                counts.dropped += blocks.len() as u64;
                blocks.iter().for_each(|hash| index.remove(hash));
            }
            TierReport::Full => {
                let (index, _) = self.tiers.parts(tier);
                let blocks = (index.present() + index.arriving()).max(1);
                index.set_limits(TierLimits { blocks: blocks.min(index.limits().blocks), ..index.limits() });
            }
        }
        self.tiers.trim(tier, effects);
        let is_used = self.config.prefix_cache && self.tiers.is_enabled();
        self.blocks.record_evictions(is_used);
    }

    fn tier_ready(
        &mut self,
        tier: Tier,
        limits: TierLimits,
        blocks: Vec<(BlockHash, bool)>,
        effects: &mut Vec<Effect>,
    ) {
        let is_of_use = self.config.prefix_cache && !self.slots.is_used();
        let (index, _) = self.tiers.parts(tier);
        index.set_limits(if is_of_use { limits } else { TierLimits::default() });
        blocks.into_iter().for_each(|(hash, is_portable)| index.arrived(hash, is_portable));
        self.tiers.trim(tier, effects);
    }

    /// Starts to load the blocks of an admitted sequence that follow its cached ones, if they are in a tier and that is expected
    /// to be faster than computing them. Returns whether the sequence waits for them.
    pub(super) fn start_load(&mut self, id: RequestId, effects: &mut Vec<Effect>) -> bool {
        let Some(sequence) = self.sequences.get_mut(&id).filter(|sequence| !sequence.is_suspect()) else {
            return false;
        };
        let has_peer = sequence.kv_transfer.from.is_some() && self.tiers.loads_from_peers();
        if !self.tiers.is_enabled() && !has_peer {
            return false;
        }
        let (first, last) = (sequence.cached_blocks, sequence.cacheable().len() / BLOCK_TOKENS);
        let at_peer = if has_peer { sequence.prompt_tokens / BLOCK_TOKENS } else { 0 };
        let mut blocks = VecDeque::new();
        for index in first..last {
            let content = sequence.portable_content(index);
            let is_at_peer = index < at_peer && content.is_portable && !content.has_image;
            let Some(tier) = self.tiers.find(&content.hash).or(is_at_peer.then_some(Tier::Peer)) else { break };
            blocks.push_back((content, tier));
        }
        let count = self.worth_loading(first, &blocks);
        blocks.truncate(count);
        if blocks.is_empty() {
            return false;
        }
        let computing = self.step_time.predict(Work::of(first * BLOCK_TOKENS, count * BLOCK_TOKENS));
        let [least, most] = TIME_LIMITS;
        let time_limit = computing.map_or(FIRST_TIME_LIMIT, |time| (time * PATIENCE).clamp(least, most));
        self.sequence_mut(id).loading = Some(Loading { blocks, fetch: None, time_limit });
        self.fetch_next(id, effects);
        true
    }

    /// How many of these blocks, which follow the first `first` ones of a sequence, to load: as many as save the most time.
    fn worth_loading(&mut self, first: usize, blocks: &VecDeque<(BlockContent, Tier)>) -> usize {
        let rows = (blocks.len() * BLOCK_TOKENS).min(self.limits.max_batched_tokens);
        if !self.step_time.knows_prefill_of(rows) {
            return blocks.len();
        }
        let (mut best, mut saved) = (0, 0.0);
        let mut amount = Amount::default();
        for (index, (_, tier)) in blocks.iter().enumerate() {
            amount.add(*tier);
            let count = index + 1;
            let Some(computing) = self.step_time.predict(Work::of(first * BLOCK_TOKENS, count * BLOCK_TOKENS)) else {
                return blocks.len();
            };
            let saves = computing.as_secs_f64() - self.tiers.times.predict(amount).as_secs_f64();
            if saves > saved {
                (best, saved) = (count, saves);
            }
        }
        let Some((_, tier)) = blocks.get(best) else { return best };
        if best == 0 && self.tiers.times.decline() {
            return blocks.len();
        }
        self.tiers.parts(*tier).1.declined += (blocks.len() - best) as u64;
        best
    }

    /// Reads the next blocks that a sequence waits for, or lets it wait for other reads.
    fn fetch_next(&mut self, id: RequestId, effects: &mut Vec<Effect>) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let Some(loading) = sequence.loading.as_mut().filter(|loading| loading.fetch.is_none()) else { return };
        let Some(&(_, tier)) = loading.blocks.front() else { return };
        let peer = sequence.kv_transfer.from.clone().filter(|_| tier == Tier::Peer);
        let lane = (tier, peer.clone());
        if !self.tiers.fetches.accept(&lane) {
            return self.tiers.fetches.queue(lane, id);
        }
        let blocks = loading.next_piece(self.tiers.index(tier).limits().piece);
        let time_limit = loading.time_limit;
        let fetch = self.tiers.fetches.start(Fetch { id, lane, time_limit });
        loading.fetch = Some((fetch, blocks.len()));
        effects.push(Effect::Tier(TierEffect::Fetch { fetch, tier, peer, blocks, time_limit }));
    }

    /// Starts the reads that waited for others.
    fn fetch_queued(&mut self, lane: &Lane, effects: &mut Vec<Effect>) {
        while let Some(id) = self.tiers.fetches.next_queued(lane) {
            self.fetch_next(id, effects);
        }
    }

    /// Blocks were read.
    pub(super) fn fetched(&mut self, fetch: FetchId, found: Found, elapsed: Duration, effects: &mut Vec<Effect>) {
        let Some(Fetch { id, lane, .. }) = self.tiers.fetches.end(fetch) else { return };
        if found.blocks > 0 {
            self.tiers.times.read(lane.0, found.blocks, elapsed);
        }
        self.write_fetched(id, (fetch, lane.0), found, effects);
        self.fetch_queued(&lane, effects);
    }

    /// Writes the blocks of a read to the device, unless their sequence does not wait for them any more.
    fn write_fetched(
        &mut self,
        id: RequestId,
        (fetch, tier): (FetchId, Tier),
        Found { blocks: found, next_is_lost }: Found,
        effects: &mut Vec<Effect>,
    ) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let Some(loading) = sequence.loading.as_mut() else { return };
        let Some((_, count)) = loading.fetch.take_if(|(expected, _)| *expected == fetch) else { return };
        let piece: Vec<(BlockContent, Tier)> = loading.blocks.drain(..count).collect();
        let (index, counts) = self.tiers.parts(tier);
        // From the end, so that the blocks of a prefix are kept longer than those after them.
        piece[..found].iter().rev().for_each(|(content, _)| index.touch(&content.hash));
        counts.loaded += found as u64;
        if let Some((next, _)) = piece.get(found) {
            loading.blocks.clear();
            if next_is_lost {
                index.remove(&next.hash);
                counts.lost += 1;
            }
            // It is not asked again.
            sequence.kv_transfer.from.take_if(|_| tier == Tier::Peer);
        }
        let is_last = loading.blocks.is_empty();
        let first = sequence.cached_blocks;
        let blocks: Vec<BlockId> = sequence.blocks[first..first + found].iter().map(BlockHandle::id).collect();
        if !blocks.is_empty() {
            effects.push(Effect::Tier(TierEffect::Write { fetch, blocks }));
        }
        sequence.computed = (first + found) * BLOCK_TOKENS;
        sequence.planned = sequence.computed;
        if is_last {
            sequence.loading = None;
        }
        self.cache_blocks(id);
        if !is_last {
            self.fetch_next(id, effects);
        }
    }

    /// A read has taken too long. Its sequence computes the blocks instead, if it waits for it.
    pub(super) fn fetch_timed_out(&mut self, fetch: FetchId, effects: &mut Vec<Effect>) {
        let Some(Fetch { id, lane, time_limit }) = self.tiers.fetches.end(fetch) else { return };
        let tier = lane.0;
        if let Some(sequence) = self.sequences.get_mut(&id)
            && let Some(loading) = &mut sequence.loading
            && let Some((_, count)) = loading.fetch.take_if(|(expected, _)| *expected == fetch)
        {
            self.tiers.times.read(tier, count, time_limit);
            self.tiers.parts(tier).1.lost += count as u64;
            sequence.loading = None;
            sequence.kv_transfer.from.take_if(|_| tier == Tier::Peer);
        }
        self.fetch_queued(&lane, effects);
    }

    /// Blocks were written to the device.
    pub(super) fn blocks_written(&mut self, blocks: usize, elapsed: Duration) {
        self.tiers.times.written(blocks, elapsed);
    }

    /// Whether nothing is left to do before a shutdown.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let is_flushed = self.tiers.flush.as_ref().is_some_and(Vec::is_empty) && self.tiers.disk.arriving() == 0;
        self.is_empty() && (is_flushed || !self.tiers.disk.is_enabled())
    }

    /// Copies blocks to the disk before a shutdown, as many as may be on their way, the most recently used first.
    pub(super) fn flush(&mut self, effects: &mut Vec<Effect>) {
        if !self.draining || !self.is_empty() || !self.tiers.disk.is_enabled() {
            return;
        }
        if self.tiers.flush.is_none() {
            self.tiers.flush = Some(self.plan_flush());
        }
        let mut copies = Vec::new();
        while self.tiers.disk.accepts()
            && let Some(Flushed { device, host, used }) = self.tiers.flush.as_mut().and_then(Vec::pop)
        {
            let block = host.or(device.as_ref().map(|(_, content)| present(content)));
            let Some(block) = block.filter(|block| !self.tiers.disk.knows(&block.hash)) else {
                device.into_iter().for_each(|(handle, _)| self.blocks.release(handle));
                continue;
            };
            if !self.tiers.send(Tier::Disk, block, effects) {
                device.into_iter().for_each(|(handle, _)| self.blocks.release(handle));
                continue;
            }
            // Older than the blocks that were copied before it.
            self.tiers.disk.send(block.hash, block.is_portable, used);
            match device {
                Some((handle, content)) => {
                    copies.push(BlockCopy { block: handle.id(), content, to: Tier::Disk });
                    // No step follows that could write to it.
                    self.blocks.release(handle);
                }
                None => effects.push(Effect::Tier(TierEffect::Demote(block.hash))),
            }
        }
        if !copies.is_empty() {
            effects.push(Effect::Tier(TierEffect::Store(copies)));
        }
    }

    /// The blocks that a shutdown copies to the disk, the next one last: those of the device, then those of the host.
    fn plan_flush(&mut self) -> Vec<Flushed> {
        let on_device = if self.executor_ready { self.blocks.cached_contents() } else { Vec::new() };
        let on_device: Vec<_> = on_device.into_iter().filter(|(_, content)| content.is_portable).collect();
        let in_host: Vec<Present> = self.tiers.host.oldest_first().filter(|block| block.is_portable).collect();
        let most = self.tiers.disk.limits().blocks;
        let count = (on_device.len() + in_host.len()).min(most);
        let first = self.tiers.disk.reserve(count);
        let device = on_device.into_iter().rev().map(|(block, content)| (Some((block, content)), None));
        let host = in_host.into_iter().rev().map(|block| (None, Some(block)));
        let newest_first: Vec<_> = device.chain(host).take(count).collect();
        let uses = (first..first + count as i64).rev();
        let mut flushed = Vec::with_capacity(count);
        for ((device, host), used) in newest_first.into_iter().zip(uses) {
            let device = device.and_then(|(block, content)| Some((self.blocks.take(&[block]).pop()?, content)));
            flushed.push(Flushed { device, host, used });
        }
        flushed.reverse();
        flushed
    }
}
