//! Forming the next step: who takes part, with how many rows, in which blocks.

use std::ops::Bound;
use std::time::Duration;

use cuelight_engine::engine::{BLOCK_TOKENS, LogitsWanted, SequenceRows, Step, StepId};

use super::kv_blocks::BlockTable;
use super::residency::{Admission, Victims};
use super::sequence::{Rank, Sequence, Share};
use super::step_time::Work;
use super::steps::{Member, StepRecord};
use super::{AwaitedToken, Effect, PlannedStep, Policy, SampleTask};
use crate::request::RequestId;

/// Rows of prompts that a step takes at least, whatever the time, so that prompts go on beside any number of streams.
const LEAST_PROMPT_ROWS: usize = 4;

/// Rows of prompts in a step before it is known how long they take.
const FIRST_PROMPT_ROWS: usize = 64;

/// By default a step may take so many times the time that its decode rows take alone.
const STRETCH: u32 = 2;

/// A step being filled, and the room left in it.
struct Batch {
    id: StepId,
    rows_left: usize,
    sequences_left: usize,
    logits_rows_left: usize,
    /// Rows of prompts that it must take, if there are any, and those that it has.
    least_prompt_rows: usize,
    prompt_rows: usize,
    work: Work,
    members: Vec<Member>,
    planned: PlannedStep,
}

impl Batch {
    fn is_full(&self) -> bool {
        self.rows_left == 0 || self.sequences_left == 0
    }

    /// Adds the next rows of a sequence that has the blocks for them.
    fn push(&mut self, sequence: &mut Sequence, share: Share) {
        let Share { rows, logits } = share;
        let (id, from, to) = (sequence.rank.id, sequence.planned, sequence.planned + rows);
        let logits_rows = logits.rows(rows);
        let samples = logits_rows > 0 && to == sequence.length();
        self.rows_left -= rows;
        self.sequences_left -= 1;
        self.logits_rows_left -= logits_rows;
        self.work.add(Work::of(from, rows));
        let PlannedStep { step, tasks, awaits } = &mut self.planned;
        let tokens = match sequence.awaits_token_of() {
            None => sequence.tokens[from..to].to_vec(),
            Some(source) => {
                awaits.push(AwaitedToken { sequence: step.sequences.len(), id, from: source });
                vec![0]
            }
        };
        step.sequences.push(SequenceRows {
            tokens,
            first_position: u32::try_from(from).expect("a context is shorter than 2^32 tokens"),
            block_table: sequence.blocks[..to.div_ceil(BLOCK_TOKENS)].iter().map(|block| block.id()).collect(),
            logits: if samples && logits == LogitsWanted::Last { sequence.next_token() } else { logits },
        });
        self.members.push(Member { id, from, to, task: logits_rows > 0, samples });
        if logits_rows > 0 {
            let scores_prompt = logits == LogitsWanted::All;
            tasks.push(SampleTask { id, rows: logits_rows, first_position: to - logits_rows, scores_prompt, samples });
        }
        sequence.planned = to;
        sequence.in_flight += 1;
        if samples {
            sequence.pending.push(self.id);
        }
        sequence.last_step = self.id;
    }
}

impl Policy {
    /// Forms one step, or none when nobody can use it.
    pub(super) fn form_step(&mut self, effects: &mut Vec<Effect>) -> bool {
        if self.is_suspect_in_flight() {
            // Until it is cleared or has failed it stays alone: another would take its blocks, and it the other's, for ever.
            return false;
        }
        let mut batch = self.empty_batch();
        match self.first_suspect() {
            Some(suspect) => self.add_alone(suspect, &mut batch, effects),
            None => {
                self.add_decodes(&mut batch, effects);
                self.add_prompts(&mut batch, effects);
            }
        }
        if batch.members.is_empty() {
            return false;
        }
        let Batch { id, work, members, prompt_rows, mut planned, .. } = batch;
        for member in &members {
            let sequence = self.sequences.get_mut(&member.id).expect("a member of a new step exists");
            if !std::mem::replace(&mut sequence.started, true) {
                self.queued_tokens -= sequence.prompt_tokens;
                effects.push(Effect::Started { id: member.id, cached_tokens: member.from });
            }
        }
        self.next_step = StepId(id.0 + 1);
        self.steps.insert(id, StepRecord::new(members, work, prompt_rows > 0));
        planned.step.id = id;
        effects.push(Effect::Run(planned));
        true
    }

    fn empty_batch(&self) -> Batch {
        Batch {
            id: self.next_step,
            rows_left: self.limits.max_batched_tokens,
            sequences_left: self.limits.max_sequences,
            logits_rows_left: self.limits.max_logits_rows,
            least_prompt_rows: 0,
            prompt_rows: 0,
            work: Work::default(),
            members: Vec::new(),
            planned: PlannedStep { step: Step::default(), ..PlannedStep::default() },
        }
    }

    fn first_suspect(&self) -> Option<Rank> {
        let is_free = |sequence: &Sequence| sequence.is_suspect() && sequence.is_admissible();
        self.sequences.values().filter(|sequence| is_free(sequence)).map(|sequence| sequence.rank).min()
    }

    fn is_suspect_in_flight(&self) -> bool {
        self.sequences.values().any(|sequence| sequence.is_suspect() && sequence.in_flight > 0)
    }

    /// Puts a suspect into the step, and nobody else, so that a failure has one cause.
    fn add_alone(&mut self, rank: Rank, batch: &mut Batch, effects: &mut Vec<Effect>) {
        let victims = Victims::AllBut(rank.id);
        if self.running.contains(&rank) || self.admit(rank, victims, effects) == Admission::Admitted {
            self.add(rank.id, usize::MAX, victims, batch, effects);
        }
    }

    /// A row for each stream; when not all find a place, those that were served least recently.
    fn add_decodes(&mut self, batch: &mut Batch, effects: &mut Vec<Effect>) {
        let streams = self.ready().filter(|sequence| sequence.decodes());
        let mut order: Vec<_> = streams.map(|sequence| (sequence.last_step, sequence.rank)).collect();
        order.sort_unstable();
        for (_, rank) in order {
            if batch.is_full() {
                return;
            }
            // An earlier one may have taken its blocks meanwhile.
            if self.running.contains(&rank) {
                self.add(rank.id, 1, Victims::Behind(rank), batch, effects);
            }
        }
    }

    /// Chunks of prompts as the time allows: first of those that run, then of those that wait, in the order of turns.
    fn add_prompts(&mut self, batch: &mut Batch, effects: &mut Vec<Effect>) {
        let limit = self.time_limit(batch);
        let has_streams = !batch.members.is_empty();
        batch.least_prompt_rows = if has_streams { LEAST_PROMPT_ROWS } else { BLOCK_TOKENS };
        let running: Vec<_> = self.ready().filter(|sequence| !sequence.decodes()).map(|s| s.rank).collect();
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

    /// Admits in the order of turns until somebody does not fit; only who waits for a prefix is overtaken.
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
                Admission::Admitted => drop(self.add_chunk(rank.id, victims, limit, batch, effects)),
                Admission::Follows => {}
                Admission::NoRoom => return,
            }
        }
    }

    fn next_waiting(&self, last: Option<Rank>) -> Option<Rank> {
        let from = last.map_or(Bound::Unbounded, Bound::Excluded);
        self.waiting.range((from, Bound::Unbounded)).next().copied()
    }

    /// Running sequences that may take part, in the order of turns.
    fn ready(&self) -> impl Iterator<Item = &Sequence> {
        let running = self.running.iter().map(|rank| &self.sequences[&rank.id]);
        running.filter(|sequence| sequence.is_ready() && !sequence.is_suspect())
    }

    /// How long the step may take, with what it has so far.
    fn time_limit(&self, batch: &Batch) -> Duration {
        if batch.members.is_empty() {
            return self.config.prefill_step_limit;
        }
        let stretched = || self.step_time.predict(batch.work).map(|alone| alone * STRETCH);
        self.config.inter_token_target.or_else(stretched).unwrap_or(self.config.prefill_step_limit)
    }

    /// How many rows of a prompt, from `position` on, the step can still take in its time.
    fn prompt_rows_within(&self, limit: Duration, batch: &Batch, position: usize) -> usize {
        let in_time = match self.step_time.knows_prefill() {
            true => self.step_time.rows_within(limit, batch.work, position).unwrap_or(usize::MAX),
            false => FIRST_PROMPT_ROWS.saturating_sub(batch.prompt_rows),
        };
        in_time.max(batch.least_prompt_rows.saturating_sub(batch.prompt_rows))
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

    /// Puts at most `rows` of a running sequence's next rows into the step, with the blocks they need.
    fn add(&mut self, id: RequestId, rows: usize, victims: Victims, batch: &mut Batch, effects: &mut Vec<Effect>) {
        let sequence = &self.sequences[&id];
        let rows = rows.min(batch.rows_left).min(self.config.prefill_chunk_tokens.max(1));
        let Some(share) = sequence.share(rows, batch.logits_rows_left) else { return };
        let blocks = BlockTable::blocks_for(sequence.planned + share.rows);
        let missing = blocks.saturating_sub(sequence.blocks.len());
        if self.make_room(missing, victims, effects) {
            self.grow(id, blocks);
            let sequence = self.sequences.get_mut(&id).expect("the sequence was there above");
            batch.push(sequence, share);
        }
    }
}
