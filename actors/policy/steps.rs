//! What becomes of steps that were formed: done, sampled, or failed.
//!
//! The executor reports a step when it is computed, the sampler when its tokens are chosen. The executor may be a step
//! ahead, so a report is kept until all earlier steps are sampled: sequences go forward in order.

use std::time::Duration;

use cuelight_engine::engine::{BLOCK_TOKENS, StepId};

use super::prompt_time::Charge;
use super::sequence::Place;
use super::step_time::Work;
use super::{Effect, Outcome, Policy, Verdict};
use crate::request::{GenerationError, RequestId};

/// A sequence's part in a step.
#[derive(Debug)]
pub(super) struct Member {
    pub id: RequestId,
    /// Tokens of the sequence that were computed before.
    pub from: usize,
    /// The same once the step is done.
    pub to: usize,
    /// Whether the sampler answers for it.
    pub task: bool,
    /// Whether that answer is a new token.
    pub samples: bool,
}

/// How far a step is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// With the executor, which may write to its members' blocks.
    Computing,
    /// Computed, in so much time; not taken note of, because an earlier step is still sampled.
    Computed(Duration),
    /// With the sampler.
    Sampling,
}

/// A step that is not sampled yet.
#[derive(Debug)]
pub(super) struct StepRecord {
    members: Vec<Member>,
    stage: Stage,
    work: Work,
    prompt_rows: PromptRows,
}

/// What a step has of prompts.
#[derive(Debug)]
pub(super) enum PromptRows {
    None,
    /// As many as its time allowed, and what they are to take from streams, where there are some.
    InTime(Option<Charge>),
    /// As many as it could have, because more take hardly longer.
    InBulk,
}

impl PromptRows {
    pub fn of(rows: usize, in_bulk: bool, charge: Option<Charge>) -> Self {
        match (rows, in_bulk) {
            (0, _) => PromptRows::None,
            (_, false) => PromptRows::InTime(charge),
            (_, true) => PromptRows::InBulk,
        }
    }
}

impl StepRecord {
    /// A step that goes to the executor now.
    pub fn new(members: Vec<Member>, work: Work, prompt_rows: PromptRows) -> Self {
        StepRecord { members, stage: Stage::Computing, work, prompt_rows }
    }

    /// Whether the executor still has it.
    pub fn is_computing(&self) -> bool {
        self.stage == Stage::Computing
    }

    /// Members about whom the step has not said everything.
    pub fn open_members(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| self.stage != Stage::Sampling || member.task)
    }
}

impl Policy {
    /// The requests that share a step that is not sampled yet, in the step's order.
    pub fn members(&self, step: StepId) -> impl Iterator<Item = RequestId> {
        self.steps.get(&step).into_iter().flat_map(|record| record.members.iter().map(|member| member.id))
    }

    pub(super) fn step_done(&mut self, step: StepId, elapsed: Duration, bulk_rows: Option<usize>) {
        let Some(record) = self.steps.get_mut(&step).filter(|record| record.is_computing()) else { return };
        record.stage = Stage::Computed(elapsed);
        // In bulk rows take another time than in small numbers, which is what is asked for.
        if !matches!(record.prompt_rows, PromptRows::InBulk) {
            self.step_time.observe(record.work, !matches!(record.prompt_rows, PromptRows::None), elapsed);
        }
        if let PromptRows::InTime(Some(charge)) = record.prompt_rows {
            self.prompt_time.correct(charge, elapsed);
        }
        self.bulk_rows = bulk_rows;
        self.take_note();
    }

    pub(super) fn sampled(&mut self, step: StepId, outcomes: Vec<Outcome>) {
        let Some(record) = self.steps.remove(&step) else { return };
        debug_assert_eq!(record.stage, Stage::Sampling, "sampled before it was computed");
        for member in record.members.iter().filter(|member| member.task) {
            if let Some(sequence) = self.sequences.get_mut(&member.id) {
                sequence.in_flight -= 1;
                sequence.pending.retain(|&pending| pending != step);
                sequence.scored = sequence.scored.max(member.to.min(sequence.prompt_tokens));
            }
        }
        for Outcome { id, verdict, pause } in outcomes {
            let Some(sequence) = self.sequences.get_mut(&id) else { continue };
            match verdict {
                Verdict::Token(token) => sequence.tokens.push(token),
                Verdict::Scored => {}
                Verdict::Ended => self.forget(id),
            }
            self.set_paused(id, pause);
        }
        self.take_note();
    }

    /// Takes note of computed steps, in order, up to the first that is not the oldest.
    fn take_note(&mut self) {
        while let Some((&step, record)) = self.steps.first_key_value() {
            let Stage::Computed(_) = record.stage else { return };
            self.note_computed(step);
        }
    }

    fn note_computed(&mut self, step: StepId) {
        let Some(mut record) = self.steps.remove(&step) else { return };
        record.stage = Stage::Sampling;
        for member in &record.members {
            let Some(sequence) = self.sequences.get_mut(&member.id) else { continue };
            sequence.in_flight -= usize::from(!member.task);
            // It may have lost its blocks meanwhile, and with them what was computed.
            if sequence.place == Place::Waiting {
                continue;
            }
            sequence.computed = member.to;
            if sequence.computed >= sequence.suspect_until {
                sequence.suspect_until = 0;
            }
            self.remember_blocks(member.id);
        }
        self.blocks.step_is_done(step);
        if record.members.iter().any(|member| member.task) {
            self.steps.insert(step, record);
        }
    }

    /// Tells the prefix cache of the blocks that a sequence has filled since.
    fn remember_blocks(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.get_mut(&id).filter(|_| self.config.prefix_cache) else { return };
        // A device that is a step ahead has computed a token that is not known here yet.
        let known = sequence.computed.min(sequence.tokens.len());
        while (sequence.remembered + 1) * BLOCK_TOKENS <= known {
            let index = sequence.remembered;
            let content = sequence.content(index);
            self.blocks.remember(&mut sequence.blocks[index], content, sequence.last_step);
            sequence.remembered += 1;
        }
    }

    /// The executor refused a step and forgot those behind it.
    pub(super) fn step_refused(&mut self, step: StepId, reason: &str, effects: &mut Vec<Effect>) {
        if self.steps.get(&step).is_some_and(StepRecord::is_computing) {
            self.steps_lost(Some(step), reason, effects);
            // Nothing is at the executor any more that could write to a block.
            self.blocks.step_is_done(self.next_step);
        }
        effects.push(Effect::Resync);
    }

    /// No step at the executor will be done. Who took part in the one that failed is a suspect; when it is not known
    /// which one that was, all are.
    pub(super) fn steps_lost(&mut self, failed: Option<StepId>, reason: &str, effects: &mut Vec<Effect>) {
        let lost: Vec<_> = self.steps.iter().rev().filter(|(_, step)| step.is_computing()).map(|(&id, _)| id).collect();
        for step in lost {
            let Some(record) = self.steps.remove(&step) else { continue };
            self.take_back(step, &record);
            if failed.is_none_or(|failed| failed == step) {
                self.suspect(record, reason, effects);
            }
        }
    }

    /// Nothing of the step counts as planned any more.
    fn take_back(&mut self, step: StepId, record: &StepRecord) {
        for member in &record.members {
            let Some(sequence) = self.sequences.get_mut(&member.id) else { continue };
            sequence.in_flight -= 1;
            sequence.pending.retain(|&pending| pending != step);
            sequence.planned = sequence.planned.min(member.from);
        }
    }

    /// Whoever was alone and a suspect already has failed; the others become suspects.
    fn suspect(&mut self, record: StepRecord, reason: &str, effects: &mut Vec<Effect>) {
        let alone = record.members.len() == 1;
        for member in record.members {
            let Some(sequence) = self.sequences.get_mut(&member.id) else { continue };
            if alone && sequence.is_suspect() {
                let error = GenerationError::Engine(reason.to_owned());
                self.end(member.id, Effect::Failed(member.id, error), effects);
            } else {
                sequence.suspect_until = sequence.suspect_until.max(member.to);
            }
        }
    }
}
