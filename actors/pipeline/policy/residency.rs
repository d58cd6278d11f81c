//! Which sequences hold KV blocks: admission, growth and preemption.

use cuelight_engine::engine::BLOCK_TOKENS;

use super::kv_blocks::BlockManager;
use super::recurrent::CachedPrefix;
use super::recurrent_state::RecurrentState;
use super::sequence::{Leader, Rank, Residency, Sequence};
use super::sequence_window::SequenceWindow;
use super::step_record::StepRecord;
use super::tier_loads::PrefixInTiers;
use super::{Effect, Policy};
use crate::core::request::RequestId;

/// Which sequences may be preempted.
#[derive(Clone, Copy)]
pub(super) enum Victims {
    /// Sequences behind this rank, because a running sequence must grow.
    Behind(Rank),
    /// Sequences of lower priority, because a sequence only waits.
    LowerPriority(i32),
    /// All sequences except this one, because it must run alone.
    AllExcept(RequestId),
}

impl Victims {
    /// Whether a sequence may be preempted. A paused sequence always may, because it does not use its blocks.
    fn include(self, sequence: &Sequence) -> bool {
        let is_behind = match self {
            Victims::Behind(rank) => sequence.rank > rank,
            Victims::LowerPriority(priority) => sequence.priority > priority,
            Victims::AllExcept(id) => sequence.rank.id != id,
        };
        let is_itself = matches!(self, Victims::Behind(rank) if rank == sequence.rank);
        !is_itself && (is_behind || sequence.paused)
    }
}

/// The result of an attempt to admit a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AdmissionOutcome {
    /// The sequence runs.
    Admitted,
    /// The sequence waits for a prefix that another sequence computes. Sequences behind it may go first.
    Follows,
    /// The sequence runs as soon as its prefix is loaded. Sequences behind it may go first.
    Loads,
    /// Not enough blocks are available.
    NoBlocks,
}

impl Sequence {
    /// Number of leading blocks, at most `blocks`, after which it will have a checkpoint: all of them if it has not passed them.
    fn blocks_with_state(&self, blocks: usize) -> usize {
        let end = blocks * BLOCK_TOKENS;
        let loaded = self.state_being_loaded().filter(|until| *until <= blocks).unwrap_or(0);
        match end > self.planned {
            true => blocks,
            false => loaded.max(self.state.checkpoint_until(end).unwrap_or(0) / BLOCK_TOKENS),
        }
    }

    /// The number of leading blocks after which the recurrent state is that it waits for, if it does.
    fn state_being_loaded(&self) -> Option<usize> {
        self.state.newest.as_ref().and(self.loading.as_ref()).map(|loading| loading.until)
    }

    /// Resets the sequence after it lost its blocks. Everything has to be computed again.
    pub fn lose_blocks(&mut self) {
        self.blocks.clear();
        self.state = RecurrentState::default();
        self.window = SequenceWindow::default();
        self.computed = 0;
        self.planned = 0;
        self.loading = None;
        self.cached_blocks = 0;
        self.residency = Residency::Waiting;
    }
}

impl Policy {
    /// Number of running sequences that are not paused.
    pub(super) fn active(&self) -> usize {
        self.running.iter().filter(|rank| !self.sequences[&rank.id].paused).count()
    }

    /// Maximum number of running sequences, so that each can have a row in every step.
    pub(super) fn max_running(&self) -> usize {
        let most = self.limits.max_sequences.min(self.limits.max_batched_tokens).min(self.most_windows());
        if self.slots.is_used() { most.min(self.slots.total()) } else { most }
    }

    /// Gives a waiting sequence the blocks for all of its tokens. Blocks of its prefix come from the cache.
    ///
    /// Unless it runs alone, one block must stay available for each running sequence. A sequence admitted into the last
    /// blocks would soon be preempted and computed twice.
    pub(super) fn admit(&mut self, rank: Rank, victims: Victims, effects: &mut Vec<Effect>) -> AdmissionOutcome {
        // A sequence that must run alone cannot wait for another one, because no other runs.
        let alone = matches!(victims, Victims::AllExcept(_));
        if !alone && self.follows(rank.id) {
            return AdmissionOutcome::Follows;
        }
        let sequence = &self.sequences[&rank.id];
        let blocks = BlockManager::blocks_for(sequence.tokens.len() + sequence.block_tokens());
        let reserve = if alone { 0 } else { self.active() };
        let CachedPrefix { blocks: known, usable } = self.find_prefix(sequence);
        // Those after the last checkpoint are of use if the state after them is loaded.
        let held = if self.loads_states() { known.len() } else { usable };
        let prefix = self.blocks.take(&known[..held]);
        if !alone && self.start_following(rank, usable) {
            prefix.into_iter().rev().for_each(|block| self.blocks.release(block));
            return AdmissionOutcome::Follows;
        }
        // Without a load those after the usable ones are released, and as many others are needed.
        let missing = |policy: &Policy| blocks - usable - policy.blocks.exclusive(&prefix[usable..]) + reserve;
        let fits = self.make_slot_available(victims, effects) && {
            self.make_available(missing(self), victims, effects);
            // Fewer are missing if those that it preempted held a part of the prefix.
            self.blocks.available() >= missing(self)
        };
        if !fits {
            prefix.into_iter().rev().for_each(|block| self.blocks.release(block));
            return AdmissionOutcome::NoBlocks;
        }
        self.waiting.remove(&rank);
        self.running.insert(rank);
        let sequence = self.sequence_mut(rank.id);
        sequence.residency = Residency::Running;
        sequence.blocks = prefix;
        let span = sequence.span;
        self.fair_queue.admitted(span);
        let PrefixInTiers { known, load } = match alone {
            true => PrefixInTiers { known: known.len(), load: None },
            false => self.find_in_tiers(rank.id, usable, known.len()),
        };
        self.keep_leading(rank.id, load.as_ref().map_or(usable, |load| load.until.min(held)));
        self.start_window(rank.id, known);
        let loads = load.is_some();
        match load {
            Some(load) => self.start_load(rank.id, usable, load),
            None => self.start_state(rank.id),
        }
        self.want_checkpoints(rank.id, known);
        self.grow(rank.id, blocks);
        self.fetch_next(rank.id, effects);
        if loads { AdmissionOutcome::Loads } else { AdmissionOutcome::Admitted }
    }

    /// Lets an admitted sequence begin with its first `count` blocks, which are those of the cache, and releases those after them.
    fn keep_leading(&mut self, id: RequestId, count: usize) {
        let sequence = self.sequence_mut(id);
        let others = sequence.blocks.split_off(count);
        sequence.cached_blocks = count;
        sequence.computed = count * BLOCK_TOKENS;
        sequence.planned = sequence.computed;
        others.into_iter().rev().for_each(|block| self.blocks.release(block));
    }

    /// Number of blocks of a waiting sequence's prefix that are in the cache.
    pub(super) fn cached_blocks(&self, sequence: &Sequence) -> usize {
        self.find_prefix(sequence).usable
    }

    /// Makes sure that one more sequence can have a slot for recurrent state and a window, by preempting the last sequence in rank order if
    /// none is left. Returns whether there is one.
    fn make_slot_available(&mut self, victims: Victims, effects: &mut Vec<Effect>) -> bool {
        if self.has_slot_for_another() {
            return true;
        }
        let eligible = self.running.iter().map(|rank| &self.sequences[&rank.id]).filter(|s| victims.include(s));
        let (busy, idle): (Vec<_>, Vec<_>) = eligible.partition(|sequence| self.is_at_executor(sequence));
        self.awaits_executor |= idle.is_empty() && !busy.is_empty();
        let victim = idle.into_iter().map(|sequence| (sequence.paused, sequence.rank)).max();
        victim.into_iter().for_each(|(_, victim)| self.preempt(victim, effects));
        victim.is_some()
    }

    /// Whether a sequence still waits for a prefix that another sequence computes.
    pub(super) fn follows(&self, id: RequestId) -> bool {
        let follower = &self.sequences[&id];
        let Some(Leader { id: leader, blocks }) = follower.leader else { return false };
        self.sequences.get(&leader).is_some_and(|leader| is_leading(leader, follower, blocks))
    }

    /// Makes a sequence wait for the running sequence before it, if any, that computes what it needs after its first `cached`
    /// blocks.
    pub(super) fn start_following(&mut self, rank: Rank, cached: usize) -> bool {
        if cached * BLOCK_TOKENS >= self.sequences[&rank.id].cacheable().len() {
            return false;
        }
        let Some(leader) = self.find_leader(rank, cached) else { return false };
        self.sequence_mut(rank.id).leader = Some(leader);
        let planned = self.sequences[&leader.id].planned;
        self.sequence_mut(leader.id).state.want(leader.blocks * BLOCK_TOKENS, planned);
        self.keep_window_before(leader.id, leader.blocks);
        true
    }

    /// Finds a running sequence before this one that will compute what it needs after its first `cached` blocks.
    fn find_leader(&self, rank: Rank, cached: usize) -> Option<Leader> {
        if !self.config.prefix_cache {
            return None;
        }
        let follower = &self.sequences[&rank.id];
        self.running.iter().map(|rank| &self.sequences[&rank.id]).find_map(|leader| {
            let common = if leader.computed < leader.prompt_tokens { follower.blocks_in_common(leader) } else { 0 };
            let blocks = if self.slots.is_used() { leader.blocks_with_state(common) } else { common };
            let leads = blocks > cached && is_leading(leader, follower, blocks);
            leads.then_some(Leader { id: leader.rank.id, blocks })
        })
    }

    /// Allocates blocks until the sequence has `blocks`. They must be available.
    pub(super) fn grow(&mut self, id: RequestId, blocks: usize) {
        let sequence = self.sequences.get_mut(&id).expect("the sequence exists");
        while sequence.blocks.len() < blocks {
            let block = self.blocks.allocate().expect("the blocks are available");
            // The block may have been evicted from the prefix cache for this.
            self.slots.evict(block.id());
            self.windows.detach(block.id());
            sequence.blocks.push(block);
        }
    }

    /// Makes `blocks` blocks available by preempting sequences, the last in rank order first. Preempts none when that would
    /// not be enough. Returns whether the blocks are available.
    pub(super) fn make_available(&mut self, blocks: usize, victims: Victims, effects: &mut Vec<Effect>) -> bool {
        if self.blocks.available() >= blocks {
            return true;
        }
        let eligible = self.running.iter().map(|rank| &self.sequences[&rank.id]).filter(|s| victims.include(s));
        let (busy, mut idle): (Vec<_>, Vec<_>) = eligible.partition(|sequence| self.is_at_executor(sequence));
        // An upper bound: a shared block becomes free only when its last holder releases it.
        let held: usize = idle.iter().map(|sequence| sequence.blocks.len()).sum();
        if self.blocks.available() + held < blocks {
            self.awaits_executor |= !busy.is_empty();
            return false;
        }
        idle.sort_unstable_by_key(|sequence| std::cmp::Reverse((sequence.paused, sequence.rank)));
        let order: Vec<_> = idle.into_iter().map(|sequence| sequence.rank).collect();
        for rank in order {
            if self.blocks.available() >= blocks {
                break;
            }
            self.preempt(rank, effects);
        }
        self.blocks.available() >= blocks
    }

    /// Makes a running sequence wait again, without its blocks.
    pub(super) fn preempt(&mut self, rank: Rank, effects: &mut Vec<Effect>) {
        self.release_blocks(rank.id);
        self.running.remove(&rank);
        self.waiting.insert(rank);
        effects.push(Effect::Preempted(rank.id));
    }

    /// Whether the executor may write to its blocks now, or in the step that is being formed.
    pub(super) fn is_at_executor(&self, sequence: &Sequence) -> bool {
        let last_step = self.steps.get(&sequence.last_step);
        sequence.in_flight > 0 && last_step.map_or(sequence.last_step == self.next_step, StepRecord::is_computing)
    }

    /// Takes the blocks of a sequence. What it had computed must be computed again unless the cache still contains it then.
    /// The blocks are released at once, or when the device has finished the sequence's last step.
    pub(super) fn release_blocks(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.get(&id) else { return };
        let (is_at_executor, last_step) = (self.is_at_executor(sequence), sequence.last_step);
        self.release_state(id, is_at_executor);
        self.release_window(id, is_at_executor);
        let sequence = self.sequence_mut(id);
        let blocks = std::mem::take(&mut sequence.blocks);
        sequence.lose_blocks();
        // From the end, so that the blocks of a prefix stay in the cache longer than those after them.
        for block in blocks.into_iter().rev() {
            if is_at_executor {
                self.blocks.retire(block, last_step);
            } else {
                self.blocks.release(block);
            }
        }
    }

    pub(super) fn sequence_mut(&mut self, id: RequestId) -> &mut Sequence {
        self.sequences.get_mut(&id).expect("the sequence exists")
    }
}

/// Whether a sequence will compute or load the first `blocks` blocks that it has in common with a sequence behind it, but has not
/// done so yet. A sequence waits for none behind it: that one gets only rows that others leave, so both would wait for all others.
fn is_leading(sequence: &Sequence, follower: &Sequence, blocks: usize) -> bool {
    let continues = sequence.residency == Residency::Running && !sequence.paused && !sequence.is_suspect();
    let lacks = sequence.cached_blocks < blocks || sequence.state_being_loaded() == Some(blocks);
    continues && sequence.rank < follower.rank && lacks
}
