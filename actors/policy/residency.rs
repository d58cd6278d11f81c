//! Who holds KV blocks: admission, growth, and giving way to others.

use cuelight_engine::engine::BLOCK_TOKENS;

use super::kv_blocks::BlockTable;
use super::sequence::{Leader, Place, Rank, Sequence};
use super::steps::StepRecord;
use super::{Effect, Policy};
use crate::request::RequestId;

/// From whom blocks may be taken.
#[derive(Clone, Copy)]
pub(super) enum Victims {
    /// From those whose turn is later: it runs already and must grow.
    Behind(Rank),
    /// From those of lower priority: it only waits.
    LowerPriority(i32),
    /// From anybody else: it must run alone.
    AllBut(RequestId),
}

impl Victims {
    /// A paused sequence uses its blocks for nothing, whatever its turn.
    fn include(self, sequence: &Sequence) -> bool {
        let is_behind = match self {
            Victims::Behind(rank) => sequence.rank > rank,
            Victims::LowerPriority(priority) => sequence.priority > priority,
            Victims::AllBut(id) => sequence.rank.id != id,
        };
        let is_itself = matches!(self, Victims::Behind(rank) if rank == sequence.rank);
        !is_itself && (is_behind || sequence.paused)
    }
}

/// What came of the wish to admit a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Admission {
    /// It runs.
    Admitted,
    /// It waits for a prefix that another computes; somebody behind it may go first.
    Follows,
    /// There are no blocks for it.
    NoRoom,
}

impl Sequence {
    /// Its blocks are gone; what was computed must be computed again.
    pub fn lose_blocks(&mut self) {
        self.blocks.clear();
        self.computed = 0;
        self.planned = 0;
        self.remembered = 0;
        self.place = Place::Waiting;
    }
}

impl Policy {
    /// Running sequences that want a place in a step.
    pub(super) fn active(&self) -> usize {
        self.running.iter().filter(|rank| !self.sequences[&rank.id].paused).count()
    }

    /// So many that each can have a row in every step.
    pub(super) fn max_running(&self) -> usize {
        self.limits.max_sequences.min(self.limits.max_batched_tokens)
    }

    /// Gives a waiting sequence the blocks of all its tokens, those of its prefix from the cache.
    ///
    /// Unless it is alone, a block must be left for each one that runs: admitting it into the last blocks would only
    /// have it preempted again, at the price of computing it twice.
    pub(super) fn admit(&mut self, rank: Rank, victims: Victims, effects: &mut Vec<Effect>) -> Admission {
        // Who must run alone waits for nobody: nobody else would run.
        let alone = matches!(victims, Victims::AllBut(_));
        if !alone && self.follows(rank.id) {
            return Admission::Follows;
        }
        let sequence = &self.sequences[&rank.id];
        let blocks = BlockTable::blocks_for(sequence.tokens.len());
        let reserve = if alone { 0 } else { self.active() };
        let prefix = match self.config.prefix_cache {
            true => self.blocks.take_prefix(sequence.salt.as_ref(), sequence.cacheable()),
            false => Vec::new(),
        };
        if !alone && self.begins_to_follow(rank, prefix.len()) {
            prefix.into_iter().rev().for_each(|block| self.blocks.release(block));
            return Admission::Follows;
        }
        if !self.make_room(blocks - prefix.len() + reserve, victims, effects) {
            prefix.into_iter().rev().for_each(|block| self.blocks.release(block));
            return Admission::NoRoom;
        }
        self.waiting.remove(&rank);
        self.running.insert(rank);
        let sequence = self.sequence_mut(rank.id);
        sequence.place = Place::Running;
        sequence.remembered = prefix.len();
        sequence.computed = prefix.len() * BLOCK_TOKENS;
        sequence.planned = sequence.computed;
        sequence.blocks = prefix;
        let priority = sequence.priority;
        self.grow(rank.id, blocks);
        self.queue.admitted(rank.turn, priority);
        Admission::Admitted
    }

    /// Blocks of a waiting sequence's prefix that are in the cache.
    pub(super) fn cached_blocks(&self, sequence: &Sequence) -> usize {
        match self.config.prefix_cache {
            true => self.blocks.count_prefix(sequence.salt.as_ref(), sequence.cacheable()),
            false => 0,
        }
    }

    /// Whether a sequence still waits for a prefix that another computes.
    pub(super) fn follows(&self, id: RequestId) -> bool {
        let Some(Leader { id: leader, blocks }) = self.sequences[&id].leader else { return false };
        self.sequences.get(&leader).is_some_and(|leader| is_leading(leader, blocks))
    }

    /// Has a sequence wait for the one, if any, that computes what it needs after its first `cached` blocks.
    pub(super) fn begins_to_follow(&mut self, rank: Rank, cached: usize) -> bool {
        if cached * BLOCK_TOKENS >= self.sequences[&rank.id].cacheable().len() {
            return false;
        }
        let leader = self.find_leader(rank, cached);
        let follows = leader.is_some();
        if follows {
            self.sequence_mut(rank.id).leader = leader;
        }
        follows
    }

    /// A running sequence that is about to compute what this one needs after its first `cached` blocks.
    fn find_leader(&self, rank: Rank, cached: usize) -> Option<Leader> {
        if !self.config.prefix_cache {
            return None;
        }
        let follower = &self.sequences[&rank.id];
        self.running.iter().map(|rank| &self.sequences[&rank.id]).find_map(|leader| {
            let blocks = if leader.computed < leader.prompt_tokens { follower.blocks_in_common(leader) } else { 0 };
            let leads = blocks > cached && is_leading(leader, blocks);
            leads.then_some(Leader { id: leader.rank.id, blocks })
        })
    }

    /// Allocates until the sequence has `blocks` blocks; there must be room.
    pub(super) fn grow(&mut self, id: RequestId, blocks: usize) {
        let sequence = self.sequences.get_mut(&id).expect("only known sequences grow");
        while sequence.blocks.len() < blocks {
            sequence.blocks.push(self.blocks.allocate().expect("room was made for the blocks"));
        }
    }

    /// Sees to it that `blocks` blocks can be had, preempting those whose turn is last first. Preempts nobody when that
    /// would not be enough.
    pub(super) fn make_room(&mut self, blocks: usize, victims: Victims, effects: &mut Vec<Effect>) -> bool {
        if self.blocks.available() >= blocks {
            return true;
        }
        let eligible = self.running.iter().map(|rank| &self.sequences[&rank.id]).filter(|s| victims.include(s));
        let (busy, mut idle): (Vec<_>, Vec<_>) = eligible.partition(|sequence| self.is_at_executor(sequence));
        // Blocks that are shared come free only with their last holder; counting them here is only too hopeful.
        let held: usize = idle.iter().map(|sequence| sequence.blocks.len()).sum();
        if self.blocks.available() + held < blocks {
            self.wants_quiet |= !busy.is_empty();
            return false;
        }
        idle.sort_unstable_by_key(|sequence| std::cmp::Reverse((sequence.paused, sequence.rank)));
        let order: Vec<_> = idle.into_iter().map(|sequence| sequence.rank).collect();
        for rank in order {
            if self.blocks.available() >= blocks {
                break;
            }
            self.release_blocks(rank.id);
            self.running.remove(&rank);
            self.waiting.insert(rank);
            effects.push(Effect::Preempted(rank.id));
        }
        self.blocks.available() >= blocks
    }

    /// Whether the executor may still write to its blocks, or is about to: the step that is being formed is its.
    fn is_at_executor(&self, sequence: &Sequence) -> bool {
        let last_step = self.steps.get(&sequence.last_step);
        sequence.in_flight > 0 && last_step.map_or(sequence.last_step == self.next_step, StepRecord::is_computing)
    }

    /// Takes a sequence's blocks; what it had computed must be computed again, unless the cache still has it then. They
    /// are free at once, or as soon as the device is done with them.
    pub(super) fn release_blocks(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.get(&id) else { return };
        let (is_at_executor, last_step) = (self.is_at_executor(sequence), sequence.last_step);
        let sequence = self.sequence_mut(id);
        let blocks = std::mem::take(&mut sequence.blocks);
        sequence.lose_blocks();
        // From the end, so that a prefix is cached longer than what follows on it.
        for block in blocks.into_iter().rev() {
            if is_at_executor {
                self.blocks.retire(block, last_step);
            } else {
                self.blocks.release(block);
            }
        }
    }

    pub(super) fn sequence_mut(&mut self, id: RequestId) -> &mut Sequence {
        self.sequences.get_mut(&id).expect("the sequence is known")
    }
}

/// Whether a sequence is on its way to have computed its first `blocks` blocks.
fn is_leading(sequence: &Sequence, blocks: usize) -> bool {
    let goes_on = sequence.place == Place::Running && !sequence.paused && !sequence.is_suspect();
    goes_on && sequence.remembered < blocks
}
