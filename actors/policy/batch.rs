//! Forming the next step: who takes part, with how many rows, in which blocks.

use cuelight_engine::engine::{BLOCK_TOKENS, LogitsWanted, SequenceRows, Step, StepId};

use super::kv_blocks::BlockTable;
use super::sequence::{Place, Rank, Sequence};
use super::{Effect, Member, Policy, SampleTask, StepRecord};
use crate::request::RequestId;

/// A step being filled, and the room left in it.
struct Batch {
    id: StepId,
    rows_left: usize,
    sequences_left: usize,
    logits_rows_left: usize,
    sequences: Vec<SequenceRows>,
    members: Vec<Member>,
    tasks: Vec<SampleTask>,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.rows_left == 0 || self.sequences_left == 0
    }

    /// Adds the next `rows` tokens of a sequence that has the blocks for them.
    fn push(&mut self, sequence: &mut Sequence, rows: usize, logits: LogitsWanted) {
        let (first, end) = (sequence.computed, sequence.computed + rows);
        let logits_rows = logits.rows(rows);
        self.rows_left -= rows;
        self.sequences_left -= 1;
        self.logits_rows_left -= logits_rows;
        self.sequences.push(SequenceRows {
            tokens: sequence.tokens[first..end].to_vec(),
            first_position: u32::try_from(first).expect("a context is shorter than 2^32 tokens"),
            block_table: sequence.blocks[..end.div_ceil(BLOCK_TOKENS)].iter().map(|block| block.id()).collect(),
            logits,
        });
        let id = sequence.rank.id;
        self.members.push(Member { id, computed_after: end, task: logits_rows > 0 });
        if logits_rows > 0 {
            self.tasks.push(SampleTask {
                id,
                rows: logits_rows,
                first_position: end - logits_rows,
                scores_prompt: logits == LogitsWanted::All,
                samples: end == sequence.tokens.len(),
            });
        }
        sequence.in_flight = Some(self.id);
        sequence.last_step = self.id;
    }
}

/// From whom blocks may be taken.
#[derive(Clone, Copy)]
enum Victims {
    /// From those behind this one in rank: it runs already and must grow.
    Behind(Rank),
    /// From those of lower priority: it only waits.
    LowerPriority(Rank),
    /// From anybody else: it must run alone.
    AllBut(Rank),
}

impl Victims {
    /// A paused sequence uses its blocks for nothing, whatever its rank.
    fn include(self, sequence: &Sequence) -> bool {
        let by_rank = match self {
            Victims::Behind(rank) => sequence.rank > rank,
            Victims::LowerPriority(rank) => sequence.rank.priority > rank.priority,
            Victims::AllBut(rank) => sequence.rank != rank,
        };
        sequence.in_flight.is_none() && (by_rank || sequence.paused)
    }
}

impl Policy {
    /// Forms one step, or none when nobody can use it.
    pub(super) fn form_step(&mut self, effects: &mut Vec<Effect>) -> bool {
        let mut batch = self.empty_batch();
        match self.first_suspect() {
            Some(suspect) => self.add_alone(suspect, &mut batch, effects),
            None => {
                self.add_running(&mut batch, effects);
                self.admit_waiting(&mut batch, effects);
            }
        }
        if batch.members.is_empty() {
            return false;
        }
        for member in &batch.members {
            let sequence = self.sequences.get_mut(&member.id).expect("a member of a new step exists");
            if !std::mem::replace(&mut sequence.started, true) {
                effects.push(Effect::Started(member.id));
            }
        }
        self.next_step = StepId(batch.id.0 + 1);
        self.steps.insert(batch.id, StepRecord { members: batch.members, computing: true });
        effects.push(Effect::Run { step: Step { id: batch.id, sequences: batch.sequences }, tasks: batch.tasks });
        true
    }

    fn empty_batch(&self) -> Batch {
        Batch {
            id: self.next_step,
            rows_left: self.limits.max_batched_tokens,
            sequences_left: self.limits.max_sequences,
            logits_rows_left: self.limits.max_logits_rows,
            sequences: Vec::new(),
            members: Vec::new(),
            tasks: Vec::new(),
        }
    }

    fn first_suspect(&self) -> Option<Rank> {
        self.sequences.values().filter(|sequence| sequence.is_suspect() && sequence.is_ready()).map(|s| s.rank).min()
    }

    /// Puts a suspect into the step, and nobody else, so that a failure has one cause.
    fn add_alone(&mut self, rank: Rank, batch: &mut Batch, effects: &mut Vec<Effect>) {
        let victims = Victims::AllBut(rank);
        if self.running.contains(&rank) || self.admit(rank, victims, effects) {
            self.add(rank.id, victims, batch, effects);
        }
    }

    /// Decode rows first, then chunks of prompts; within each by priority, and least recently served first.
    fn add_running(&mut self, batch: &mut Batch, effects: &mut Vec<Effect>) {
        let mut order: Vec<_> = self
            .running
            .iter()
            .map(|rank| &self.sequences[&rank.id])
            .filter(|sequence| sequence.is_ready() && !sequence.is_suspect())
            .map(|sequence| (sequence.remaining() > 1, sequence.rank.priority, sequence.last_step, sequence.rank))
            .collect();
        order.sort_unstable();
        for (.., rank) in order {
            if batch.is_full() {
                return;
            }
            // An earlier one may have taken its blocks meanwhile.
            if self.running.contains(&rank) {
                self.add(rank.id, Victims::Behind(rank), batch, effects);
            }
        }
    }

    /// Admits from the head of the queue until somebody does not fit; nobody behind overtakes.
    fn admit_waiting(&mut self, batch: &mut Batch, effects: &mut Vec<Effect>) {
        let queue: Vec<_> = self.waiting.iter().copied().collect();
        for rank in queue {
            let sequence = &self.sequences[&rank.id];
            if !sequence.is_ready() || sequence.is_suspect() {
                continue;
            }
            if batch.is_full()
                || self.active() >= self.max_running()
                || !self.admit(rank, Victims::LowerPriority(rank), effects)
            {
                return;
            }
            self.add(rank.id, Victims::LowerPriority(rank), batch, effects);
        }
    }

    /// Running sequences that want a place in a step.
    fn active(&self) -> usize {
        self.running.iter().filter(|rank| !self.sequences[&rank.id].paused).count()
    }

    /// So many that each can have a row in every step.
    fn max_running(&self) -> usize {
        self.limits.max_sequences.min(self.limits.max_batched_tokens)
    }

    /// Gives a waiting sequence the blocks of all its tokens.
    ///
    /// Unless it is alone, a block must be left for each one that runs: admitting it into the last blocks would only
    /// have it preempted again, at the price of computing it twice.
    fn admit(&mut self, rank: Rank, victims: Victims, effects: &mut Vec<Effect>) -> bool {
        let blocks = BlockTable::blocks_for(self.sequences[&rank.id].tokens.len());
        let reserve = if matches!(victims, Victims::AllBut(_)) { 0 } else { self.active() };
        if !self.make_room(blocks + reserve, victims, effects) {
            return false;
        }
        self.grow(rank.id, blocks);
        self.waiting.remove(&rank);
        self.running.insert(rank);
        if let Some(sequence) = self.sequences.get_mut(&rank.id) {
            sequence.place = Place::Running;
        }
        true
    }

    /// Puts a running sequence's next rows into the step, with the blocks they need.
    fn add(&mut self, id: RequestId, victims: Victims, batch: &mut Batch, effects: &mut Vec<Effect>) -> bool {
        let sequence = &self.sequences[&id];
        let rows = batch.rows_left.min(self.config.prefill_chunk_tokens.max(1));
        let Some((rows, logits)) = sequence.share(rows, batch.logits_rows_left) else { return false };
        let blocks = BlockTable::blocks_for(sequence.computed + rows);
        let missing = blocks.saturating_sub(sequence.blocks.len());
        if !self.make_room(missing, victims, effects) {
            return false;
        }
        self.grow(id, blocks);
        let sequence = self.sequences.get_mut(&id).expect("the sequence was there above");
        batch.push(sequence, rows, logits);
        true
    }

    /// Allocates until the sequence has `blocks` blocks; there must be room.
    fn grow(&mut self, id: RequestId, blocks: usize) {
        let sequence = self.sequences.get_mut(&id).expect("only known sequences grow");
        while sequence.blocks.len() < blocks {
            sequence.blocks.push(self.blocks.allocate().expect("room was made for the blocks"));
        }
    }

    /// Sees to it that `blocks` blocks are free, preempting the youngest of the lowest priority first.
    /// Preempts nobody when that would not be enough.
    fn make_room(&mut self, blocks: usize, victims: Victims, effects: &mut Vec<Effect>) -> bool {
        if self.blocks.free() >= blocks {
            return true;
        }
        let mut candidates: Vec<_> = self
            .running
            .iter()
            .map(|rank| &self.sequences[&rank.id])
            .filter(|sequence| victims.include(sequence))
            .collect();
        let held: usize = candidates.iter().map(|sequence| sequence.blocks.len()).sum();
        if self.blocks.free() + held < blocks {
            return false;
        }
        candidates.sort_unstable_by_key(|sequence| std::cmp::Reverse((sequence.paused, sequence.rank)));
        let order: Vec<_> = candidates.into_iter().map(|sequence| sequence.rank).collect();
        for rank in order {
            if self.blocks.free() >= blocks {
                break;
            }
            self.release_blocks(rank.id);
            self.running.remove(&rank);
            self.waiting.insert(rank);
            effects.push(Effect::Preempted(rank.id));
        }
        true
    }
}
