//! Chooses the prompt rows of a step.
//!
//! In a step with decode rows, [`prompt_time`](super::prompt_time) decides whether there are any prompt rows. They go to one
//! prompt after the other in rank order: of two equal prompts the first finishes earlier than if they shared the rows, and
//! the second finishes no later. Prompts that are short compared with the capacity of a step do not wait for long ones, nor until
//! others have paid their deficit back.

use std::ops::Bound;
use std::time::Duration;

use cuelight_engine::engine::BLOCK_TOKENS;

use super::batch::Batch;
use super::kv_blocks::BlockManager;
use super::prompt_time::{MAX_SHARES, step_factor};
use super::residency::{AdmissionOutcome, Victims};
use super::sequence::{Rank, Sequence};
use super::{Effect, Policy};
use crate::core::request::RequestId;

/// Minimum number of prompt rows in a step that has any, so that prompts advance next to any number of decode rows.
const LEAST_PROMPT_ROWS: usize = 4;

/// Prompt rows of a step while the time per row is unknown.
const FIRST_PROMPT_ROWS: usize = 64;

/// Time limit of a saturated step.
const NO_LIMIT: Duration = Duration::MAX;

/// Maximum number of prompts that are searched for short ones.
const MAX_CANDIDATES: usize = 32;

/// A prompt that can have rows in a step.
struct Candidate {
    rank: Rank,
    priority: i32,
    /// Its rows when the candidates divide the step evenly.
    even_rows: usize,
    /// Whether these are all of its remaining rows.
    is_short: bool,
}

impl Policy {
    /// Adds prompt rows as the time allows: first of short prompts, then of running prompts, then of waiting ones.
    pub(super) fn add_prompts(&mut self, batch: &mut Batch, effects: &mut Vec<Effect>) {
        let decode_rows = batch.members.len();
        let decode_time = self.step_time.predict(batch.work).filter(|_| decode_rows > 0);
        let mut running: Vec<_> = self.ready().filter(|sequence| !sequence.is_answering()).map(|s| s.rank).collect();
        let prompts = running.len() + self.waiting_prompts();
        batch.is_saturated = decode_rows == 0 && self.saturates(&running, batch);
        let limit = self.step_limit(decode_time, decode_rows, prompts);
        let limit = if batch.is_saturated { NO_LIMIT } else { limit };
        let in_deficit = self.prompt_time.is_in_deficit();
        batch.least_prompt_rows = match decode_rows {
            0 => BLOCK_TOKENS,
            _ if in_deficit => 0,
            _ => LEAST_PROMPT_ROWS,
        };
        if in_deficit {
            running.retain(|rank| self.ends_within(&self.sequences[&rank.id], limit, batch));
        } else if prompts > 1 {
            let whole = self.add_short(&running, limit, batch, effects);
            running.retain(|rank| !whole.contains(rank));
        }
        self.add_in_order(running, limit, batch, effects);
        if in_deficit {
            // Not charged: otherwise a short prompt in every step would keep long ones in deficit forever.
            return;
        }
        if let Some((decode_time, total)) = decode_time.zip(self.step_time.predict(batch.work)) {
            // Time within the target is not charged.
            let free = self.config.inter_token_target.map_or(decode_time, |target| target.max(decode_time));
            batch.charge = (batch.prompt_rows > 0).then(|| self.prompt_time.charge(total, free));
        }
    }

    /// Number of prompts that wait to be computed, at most [`MAX_SHARES`]. Prompts without blocks count, because they
    /// start earlier when others finish earlier. Prompts that wait for a prefix of another sequence do not count, because
    /// that prefix is computed once.
    fn waiting_prompts(&self) -> usize {
        let waiting = self.waiting.iter().map(|rank| &self.sequences[&rank.id]);
        let counted = waiting.filter(|sequence| sequence.is_admissible() && !self.follows(sequence.rank.id));
        counted.take(MAX_SHARES).count()
    }

    /// Time limit of a step with prompt rows, given the predicted time of its decode rows.
    fn step_limit(&mut self, decode_time: Option<Duration>, decode_rows: usize, prompts: usize) -> Duration {
        let Some(decode_time) = decode_time else {
            self.prompt_time.reset();
            return self.config.prefill_step_limit;
        };
        self.prompt_time.credit(decode_time, decode_rows, prompts);
        self.config.inter_token_target.unwrap_or(decode_time * step_factor(decode_rows, prompts))
    }

    /// Whether enough prompt rows wait that a step takes hardly longer for as many as it can hold.
    fn saturates(&self, running: &[Rank], batch: &Batch) -> bool {
        let left: usize = running.iter().map(|rank| self.sequences[&rank.id].remaining()).sum();
        self.prefill_saturation_rows.is_some_and(|rows| rows <= (left + self.queued.used()).min(batch.rows_left))
    }

    /// Number of rows of a prompt, from `position` on, that the step can still take within `limit`.
    fn prompt_rows_within(&self, limit: Duration, batch: &Batch, position: usize) -> usize {
        let in_time = match self.step_time.knows_prefill() {
            _ if limit == NO_LIMIT => usize::MAX,
            true => self.step_time.rows_within(limit, batch.work, position).unwrap_or(usize::MAX),
            false => FIRST_PROMPT_ROWS.saturating_sub(batch.prompt_rows),
        };
        in_time.max(batch.least_prompt_rows.saturating_sub(batch.prompt_rows))
    }

    /// Adds short prompts completely, before a long one uses the whole step, and returns them. A prompt is short if all of
    /// its rows fit when the candidates divide the step evenly. At least as much is left for each long one, so no prompt
    /// waits forever.
    fn add_short(
        &mut self,
        running: &[Rank],
        limit: Duration,
        batch: &mut Batch,
        effects: &mut Vec<Effect>,
    ) -> Vec<Rank> {
        let candidates = self.candidates(running, limit, batch);
        let mut whole = Vec::new();
        // When all are short, the rank order serves all of them.
        let long = candidates.iter().filter(|candidate| !candidate.is_short);
        let Some(best_priority) = long.map(|candidate| candidate.priority).min() else { return whole };
        // Blocks reserved for waiting prompts that are overtaken.
        let mut reserved_blocks = 0;
        for Candidate { rank, priority, even_rows, is_short } in candidates {
            let waits = self.waiting.contains(&rank);
            let victims = if waits { Victims::LowerPriority(priority) } else { Victims::Behind(rank) };
            let may_overtake = is_short && priority <= best_priority;
            if !may_overtake || (waits && !self.admit_ahead(reserved_blocks, rank, victims, effects)) {
                reserved_blocks += if waits { self.blocks_needed(rank.id) } else { 0 };
                continue;
            }
            // Admitting other prompts may have preempted it or evicted its cached prefix.
            let leaves_media = even_rows <= batch.rows_left.saturating_sub(batch.media_rows);
            if leaves_media && self.running.contains(&rank) && self.sequences[&rank.id].remaining() <= even_rows {
                let before = batch.rows_left;
                self.add(rank.id, even_rows, victims, batch, effects);
                // These rows do not count towards the minimum for the other prompts.
                batch.prompt_rows += before - batch.rows_left;
                batch.least_prompt_rows += before - batch.rows_left;
                whole.push(rank);
            }
        }
        whole
    }

    /// Admits a prompt ahead of others if `reserved_blocks` stay available for them, and one block for each running
    /// sequence.
    fn admit_ahead(&mut self, reserved_blocks: usize, rank: Rank, victims: Victims, effects: &mut Vec<Effect>) -> bool {
        let wanted = reserved_blocks + self.blocks_needed(rank.id) + self.active() + 1;
        let fits = reserved_blocks == 0 || self.blocks.available() >= wanted;
        fits && self.admit(rank, victims, effects) == AdmissionOutcome::Admitted
    }

    /// The first prompts in rank order, running ones before waiting ones, as many as the step can take some rows of
    /// each.
    fn candidates(&mut self, running: &[Rank], limit: Duration, batch: &Batch) -> Vec<Candidate> {
        let first_position = running.first().map_or(0, |rank| self.sequences[&rank.id].planned);
        let rows = self.prompt_rows_within(limit, batch, first_position).min(batch.rows_left);
        let most = (rows / LEAST_PROMPT_ROWS).min(batch.sequences_left).min(MAX_CANDIDATES);
        let mut starts: Vec<_> =
            running.iter().take(most).map(|&rank| (rank, self.sequences[&rank.id].planned)).collect();
        let slots = self.max_running().saturating_sub(self.active());
        self.first_waiting(slots.min(most - starts.len()), &mut starts);
        let count = starts.len();
        let candidate = |(rank, start): (Rank, usize)| {
            let sequence = &self.sequences[&rank.id];
            let rows = self.prompt_rows_within(limit, batch, start).min(batch.rows_left);
            let even_rows = (rows / count).min(self.config.prefill_chunk_tokens);
            let is_short = sequence.length() - start <= even_rows && is_fast(sequence);
            Candidate { rank, priority: sequence.priority, even_rows, is_short }
        };
        starts.into_iter().map(candidate).collect()
    }

    /// Adds the first `most` prompts that wait only for a slot, with the position after their cached prefix.
    fn first_waiting(&mut self, most: usize, starts: &mut Vec<(Rank, usize)>) {
        let (most, mut last) = (starts.len() + most, None);
        while let Some(rank) = self.next_waiting(last).filter(|_| starts.len() < most) {
            last = Some(rank);
            let sequence = &self.sequences[&rank.id];
            if !sequence.is_admissible() || sequence.is_suspect() || self.follows(rank.id) {
                continue;
            }
            let cached = self.cached_blocks(sequence);
            if !self.start_following(rank, cached) {
                starts.push((rank, cached * BLOCK_TOKENS));
            }
        }
    }

    /// Adds chunks of running prompts, then of waiting ones, until the time is used up.
    fn add_in_order(&mut self, running: Vec<Rank>, limit: Duration, batch: &mut Batch, effects: &mut Vec<Effect>) {
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

    /// Admits waiting prompts in rank order until the time is used up or a prompt does not fit. Only prompts that wait for
    /// a prefix are overtaken. While prompts are in deficit, a prompt has to end within the step.
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
            if self.prompt_time.is_in_deficit() && !self.ends_within(sequence, limit, batch) {
                return;
            }
            let victims = Victims::LowerPriority(sequence.priority);
            match self.admit(rank, victims, effects) {
                AdmissionOutcome::Admitted if self.add_chunk(rank.id, victims, limit, batch, effects) => {}
                AdmissionOutcome::Follows | AdmissionOutcome::Loads => {}
                AdmissionOutcome::Admitted | AdmissionOutcome::NoBlocks => return,
            }
        }
    }

    /// Whether a step can take all rows that are left of a prompt within `limit`.
    fn ends_within(&self, sequence: &Sequence, limit: Duration, batch: &Batch) -> bool {
        let is_running = self.running.contains(&sequence.rank);
        let start = if is_running { sequence.planned } else { self.cached_blocks(sequence) * BLOCK_TOKENS };
        let rows = self.prompt_rows_within(limit, batch, start).min(batch.rows_left);
        sequence.length() - start <= rows && is_fast(sequence)
    }

    fn next_waiting(&self, last: Option<Rank>) -> Option<Rank> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.waiting.range((from, Bound::Unbounded)).next().copied()
    }

    /// Number of blocks for all tokens of a sequence.
    fn blocks_needed(&self, id: RequestId) -> usize {
        let sequence = &self.sequences[&id];
        BlockManager::blocks_for(sequence.tokens.len() + sequence.block_tokens())
    }

    /// Adds a chunk of a prompt. Returns `false` when the step has no time left for another prompt.
    fn add_chunk(
        &mut self,
        id: RequestId,
        victims: Victims,
        limit: Duration,
        batch: &mut Batch,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let mut rows = self.prompt_rows_within(limit, batch, self.sequences[&id].planned);
        let before = batch.rows_left;
        let sequence = &self.sequences[&id];
        let wanted = sequence.most_next_rows();
        // It cannot be divided: it joins the step if there is time for all of it, or none would run.
        let is_whole = self.limits.hidden.whole_sequences;
        let (is_media, others) = (sequence.next_media_rows().is_some(), batch.members.len());
        if (is_whole && rows < wanted && others > 0) || (is_media && rows < wanted && batch.prompt_rows > 0) {
            return false;
        }
        if is_whole || is_media {
            rows = rows.max(wanted);
        }
        self.add(id, rows, victims, batch, effects);
        batch.prompt_rows += before - batch.rows_left;
        rows > wanted
    }
}

/// Whether rows of a prompt need nothing but time. Those that all return logits also need memory for these.
fn is_fast(sequence: &Sequence) -> bool {
    sequence.scored >= sequence.prompt_tokens
}
