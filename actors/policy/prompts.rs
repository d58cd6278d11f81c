//! Which prompts have rows in a step, and how many.
//!
//! Beside streams it is [`prompt_time`](super::prompt_time) that says whether a step has any. They go to the prompts in the
//! order of turns, one after the other: of two equal prompts the first is done sooner than if they shared, and the
//! second no later. Only those that are short beside what a step can take do not wait for long ones.

use std::ops::Bound;
use std::time::Duration;

use cuelight_engine::engine::BLOCK_TOKENS;

use super::batch::Batch;
use super::kv_blocks::BlockTable;
use super::prompt_time::{PROMPTS_FOR_HALF, STRETCH};
use super::residency::{Admission, Victims};
use super::sequence::Rank;
use super::{Effect, Policy};
use crate::request::RequestId;

/// Rows of prompts that a step takes at least, if any and whatever the time, so that prompts go on beside any number of
/// streams.
const LEAST_PROMPT_ROWS: usize = 4;

/// Rows of prompts in a step before it is known how long they take.
const FIRST_PROMPT_ROWS: usize = 64;

/// Of a step that is worth its time however long it takes.
const NO_LIMIT: Duration = Duration::MAX;

/// Prompts that are looked at, at most, to find short ones among them.
const MOST_CONTENDERS: usize = 32;

/// A prompt that could have rows in a step.
struct Contender {
    rank: Rank,
    priority: i32,
    /// Rows of it that an even share of the step pays for.
    share: usize,
    /// Whether that is all of it.
    is_short: bool,
}

impl Policy {
    /// Chunks of prompts as the time allows: first those that are short, then those that run, then those that wait.
    pub(super) fn add_prompts(&mut self, batch: &mut Batch, effects: &mut Vec<Effect>) {
        let streams = batch.members.len();
        let alone = self.step_time.predict(batch.work).filter(|_| streams > 0);
        let mut running: Vec<_> = self.ready().filter(|sequence| !sequence.decodes()).map(|s| s.rank).collect();
        let prompts = running.len() + self.waiting_prompts();
        batch.in_bulk = streams == 0 && self.pays_in_bulk(&running, batch);
        let Some(limit) = self.time_for_prompts(alone, streams, prompts) else { return };
        let limit = if batch.in_bulk { NO_LIMIT } else { limit };
        batch.least_prompt_rows = if streams > 0 { LEAST_PROMPT_ROWS } else { BLOCK_TOKENS };
        if prompts > 1 {
            let whole = self.add_short(&running, limit, batch, effects);
            running.retain(|rank| !whole.contains(rank));
        }
        self.add_by_turn(running, limit, batch, effects);
        if let Some((alone, together)) = alone.zip(self.step_time.predict(batch.work)) {
            // What the target allows is taken from nobody.
            let free = self.config.inter_token_target.map_or(alone, |target| target.max(alone));
            batch.charge = (batch.prompt_rows > 0).then(|| self.prompt_time.spend(together, free));
        }
    }

    /// Prompts that wait to be computed, as far as their number counts. Those without room count as well, for they wait the
    /// shorter the sooner others are done; those that wait for the prefix that another computes do not, for it is
    /// computed once.
    fn waiting_prompts(&self) -> usize {
        let waiting = self.waiting.iter().map(|rank| &self.sequences[&rank.id]);
        let wanting = waiting.filter(|sequence| sequence.is_admissible() && !self.follows(sequence.rank.id));
        wanting.take(PROMPTS_FOR_HALF).count()
    }

    /// How long the step may take with rows of prompts, when its streams take so long alone; `None` when it should have none.
    fn time_for_prompts(&mut self, alone: Option<Duration>, streams: usize, prompts: usize) -> Option<Duration> {
        let Some(alone) = alone else {
            self.prompt_time.forget();
            return Some(self.config.prefill_step_limit);
        };
        self.prompt_time.earn(alone, streams, prompts);
        let limit = self.config.inter_token_target.unwrap_or(alone * STRETCH);
        (!self.prompt_time.is_owed()).then_some(limit)
    }

    /// Whether there are so many rows of prompts that a step takes hardly longer for as many as it can have.
    fn pays_in_bulk(&self, running: &[Rank], batch: &Batch) -> bool {
        let left: usize = running.iter().map(|rank| self.sequences[&rank.id].remaining()).sum();
        self.bulk_rows.is_some_and(|rows| rows <= (left + self.queued_tokens).min(batch.rows_left))
    }

    /// How many rows of a prompt, from `position` on, the step can still take in its time.
    fn prompt_rows_within(&self, limit: Duration, batch: &Batch, position: usize) -> usize {
        let in_time = match self.step_time.knows_prefill() {
            _ if limit == NO_LIMIT => usize::MAX,
            true => self.step_time.rows_within(limit, batch.work, position).unwrap_or(usize::MAX),
            false => FIRST_PROMPT_ROWS.saturating_sub(batch.prompt_rows),
        };
        in_time.max(batch.least_prompt_rows.saturating_sub(batch.prompt_rows))
    }

    /// Adds the prompts, whole, that an even share of the step pays for, before a long one takes all of it; returns
    /// which. The long ones have at least such a share left, so nobody waits for ever.
    fn add_short(
        &mut self,
        running: &[Rank],
        limit: Duration,
        batch: &mut Batch,
        effects: &mut Vec<Effect>,
    ) -> Vec<Rank> {
        let contenders = self.contenders(running, limit, batch);
        let mut whole = Vec::new();
        // When all are short, the order of turns serves them all.
        let long = contenders.iter().filter(|contender| !contender.is_short);
        let Some(best_priority) = long.map(|contender| contender.priority).min() else { return whole };
        // Blocks for those that wait for them and are passed.
        let mut kept_blocks = 0;
        for Contender { rank, priority, share, is_short } in contenders {
            let waits = self.waiting.contains(&rank);
            let victims = if waits { Victims::LowerPriority(priority) } else { Victims::Behind(rank) };
            let passes = is_short && priority <= best_priority;
            if !passes || (waits && !self.admit_past(kept_blocks, rank, victims, effects)) {
                kept_blocks += if waits { self.blocks_of_all(rank.id) } else { 0 };
                continue;
            }
            // Blocks for others may have been taken from it, or from the prefix that it was to have.
            if self.running.contains(&rank) && self.sequences[&rank.id].remaining() <= share {
                let before = batch.rows_left;
                self.add(rank.id, share, victims, batch, effects);
                // They are beside what a step takes at least of the others.
                batch.prompt_rows += before - batch.rows_left;
                batch.least_prompt_rows += before - batch.rows_left;
                whole.push(rank);
            }
        }
        whole
    }

    /// Admits a prompt if so many blocks are then left for those before it, and the one more that each needs beside it.
    fn admit_past(&mut self, kept_blocks: usize, rank: Rank, victims: Victims, effects: &mut Vec<Effect>) -> bool {
        let wanted = kept_blocks + self.blocks_of_all(rank.id) + self.active() + 1;
        let has_room = kept_blocks == 0 || self.blocks.available() >= wanted;
        has_room && self.admit(rank, victims, effects) == Admission::Admitted
    }

    /// The first prompts in the order of turns, those that run before those that wait: so many that the step can take some
    /// rows of each.
    fn contenders(&mut self, running: &[Rank], limit: Duration, batch: &Batch) -> Vec<Contender> {
        let first_position = running.first().map_or(0, |rank| self.sequences[&rank.id].planned);
        let rows = self.prompt_rows_within(limit, batch, first_position).min(batch.rows_left);
        let most = (rows / LEAST_PROMPT_ROWS).min(batch.sequences_left).min(MOST_CONTENDERS);
        let mut begins: Vec<_> =
            running.iter().take(most).map(|&rank| (rank, self.sequences[&rank.id].planned)).collect();
        let places = self.max_running().saturating_sub(self.active());
        self.first_waiting(places.min(most - begins.len()), &mut begins);
        let count = begins.len();
        let contender = |(rank, begin): (Rank, usize)| {
            let sequence = &self.sequences[&rank.id];
            let rows = self.prompt_rows_within(limit, batch, begin).min(batch.rows_left);
            let share = (rows / count).min(self.config.prefill_chunk_tokens);
            // Whose rows all bring logits back takes more than time.
            let is_short = sequence.length() - begin <= share && sequence.scored >= sequence.prompt_tokens;
            Contender { rank, priority: sequence.priority, share, is_short }
        };
        begins.into_iter().map(contender).collect()
    }

    /// Adds the first `most` prompts that wait for nothing but a place, and where each begins after its cached prefix.
    fn first_waiting(&mut self, most: usize, begins: &mut Vec<(Rank, usize)>) {
        let (most, mut last) = (begins.len() + most, None);
        while let Some(rank) = self.next_waiting(last).filter(|_| begins.len() < most) {
            last = Some(rank);
            let sequence = &self.sequences[&rank.id];
            if !sequence.is_admissible() || sequence.is_suspect() || self.follows(rank.id) {
                continue;
            }
            let cached = self.cached_blocks(sequence);
            if !self.begins_to_follow(rank, cached) {
                begins.push((rank, cached * BLOCK_TOKENS));
            }
        }
    }

    /// Chunks of those that run, then of those that wait, until the time is used up.
    fn add_by_turn(&mut self, running: Vec<Rank>, limit: Duration, batch: &mut Batch, effects: &mut Vec<Effect>) {
        for rank in running {
            if batch.is_full() {
                return;
            }
            if self.running.contains(&rank) && !self.add_chunk(rank.id, Victims::Behind(rank), limit, batch, effects) {
                return;
            }
        }
        self.admit_waiting(limit, batch, effects);
    }

    /// Admits in the order of turns until the time is used up or somebody does not fit; only who waits for a prefix is
    /// overtaken.
    fn admit_waiting(&mut self, limit: Duration, batch: &mut Batch, effects: &mut Vec<Effect>) {
        let mut last = None;
        while let Some(rank) = self.next_waiting(last) {
            last = Some(rank);
            let sequence = &self.sequences[&rank.id];
            if !sequence.is_admissible() || sequence.is_suspect() {
                continue;
            }
            if batch.is_full() || self.prompt_rows_within(limit, batch, 0) == 0 || self.active() >= self.max_running() {
                return;
            }
            let victims = Victims::LowerPriority(sequence.priority);
            match self.admit(rank, victims, effects) {
                Admission::Admitted if self.add_chunk(rank.id, victims, limit, batch, effects) => {}
                Admission::Follows => {}
                Admission::Admitted | Admission::NoRoom => return,
            }
        }
    }

    fn next_waiting(&self, last: Option<Rank>) -> Option<Rank> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.waiting.range((from, Bound::Unbounded)).next().copied()
    }

    /// Blocks of all tokens of a sequence.
    fn blocks_of_all(&self, id: RequestId) -> usize {
        BlockTable::blocks_for(self.sequences[&id].tokens.len())
    }

    /// Adds a chunk of a prompt. `false` when the step has no time left for another.
    fn add_chunk(
        &mut self,
        id: RequestId,
        victims: Victims,
        limit: Duration,
        batch: &mut Batch,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let rows = self.prompt_rows_within(limit, batch, self.sequences[&id].planned);
        let before = batch.rows_left;
        let wanted = self.sequences[&id].remaining();
        self.add(id, rows, victims, batch, effects);
        batch.prompt_rows += before - batch.rows_left;
        rows > wanted
    }
}
