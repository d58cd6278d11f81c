//! Handles the results of formed steps: computed, sampled, or failed.
//!
//! The executor reports a step when it is computed, the sampler when its tokens are sampled. The executor may be one step
//! ahead, so its report is kept until all earlier steps are sampled. Sequences advance in order.

use std::time::Duration;

use cuelight_engine::engine::{BLOCK_TOKENS, StepId, TokenId};

use super::sequence::Residency;
use super::step_record::{PromptRows, StepPhase, StepRecord};
use super::{Effect, Outcome, Policy, Verdict};
use crate::core::request::{GenerationError, RequestId};

impl Policy {
    /// The requests in a step that is not sampled yet, in the order of the step.
    pub fn members(&self, step: StepId) -> impl Iterator<Item = RequestId> {
        self.steps.get(&step).into_iter().flat_map(|record| record.members.iter().map(|member| member.id))
    }

    pub(super) fn step_done(
        &mut self,
        step: StepId,
        elapsed: Duration,
        prefill_saturation_rows: Option<usize>,
        effects: &mut Vec<Effect>,
    ) {
        let Some(record) = self.steps.get_mut(&step).filter(|record| record.is_computing()) else { return };
        record.phase = StepPhase::Computed(elapsed);
        // The time per row of a saturated step differs from that of smaller steps, which is what is predicted.
        if !matches!(record.prompt_rows, PromptRows::Saturated) {
            self.step_time.observe(record.work, !matches!(record.prompt_rows, PromptRows::None), elapsed);
        }
        if let PromptRows::InTime(Some(charge)) = record.prompt_rows {
            self.prompt_time.correct(charge, elapsed);
        }
        self.prefill_saturation_rows = prefill_saturation_rows;
        self.apply_computed(effects);
    }

    pub(super) fn sampled(&mut self, step: StepId, outcomes: Vec<Outcome>, effects: &mut Vec<Effect>) {
        let Some(record) = self.steps.remove(&step) else { return };
        debug_assert_eq!(record.phase, StepPhase::Sampling, "sampled before it was computed");
        for member in record.members.iter().filter(|member| member.task) {
            if let Some(sequence) = self.sequences.get_mut(&member.id) {
                sequence.in_flight -= 1;
                sequence.pending.retain(|pending| pending.step != step);
                sequence.unverified = 0;
                sequence.scored = sequence.scored.max(member.to.min(sequence.prompt_tokens));
            }
        }
        for Outcome { id, verdict, forced, pause } in outcomes {
            match verdict {
                Verdict::Tokens(tokens) => self.continue_with(id, &tokens, forced, &record),
                Verdict::Denoised(canvas) => self.denoised(id, canvas),
                Verdict::Unchanged => {}
                Verdict::Ended => self.forget(id),
            }
            self.set_paused(id, pause);
        }
        self.apply_computed(effects);
    }

    /// Adds the tokens of a step to a sequence: sampled ones, and `forced` ones after them.
    fn continue_with(&mut self, id: RequestId, tokens: &[TokenId], forced: usize, record: &StepRecord) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        sequence.add_tokens(tokens);
        let member = record.members.iter().find(|member| member.id == id);
        if let Some(draft) = member.and_then(|member| member.draft) {
            self.verified(id, draft, tokens.len() - forced - 1);
        }
    }

    /// Applies computed steps in order, as long as the oldest step is computed.
    fn apply_computed(&mut self, effects: &mut Vec<Effect>) {
        while let Some((&step, record)) = self.steps.first_key_value() {
            let StepPhase::Computed(_) = record.phase else { return };
            self.step_computed(step, effects);
        }
    }

    fn step_computed(&mut self, step: StepId, effects: &mut Vec<Effect>) {
        let Some(mut record) = self.steps.remove(&step) else { return };
        record.phase = StepPhase::Sampling;
        for member in &record.members {
            let Some(sequence) = self.sequences.get_mut(&member.id) else { continue };
            sequence.in_flight -= usize::from(!member.task);
            // A preempted sequence has lost its blocks and with them what this step computed.
            if sequence.residency == Residency::Waiting {
                continue;
            }
            sequence.computed = member.to;
            if sequence.reports_progress && sequence.tokens.len() == sequence.prompt_tokens {
                let tokens = sequence.computed.min(sequence.prompt_tokens);
                effects.push(Effect::PromptComputed { id: member.id, tokens });
            }
            if sequence.computed >= sequence.suspect_until {
                sequence.suspect_until = 0;
            }
            self.cache_blocks(member.id);
            self.advance_window(member.id);
            self.share_prompt(member.id, effects);
        }
        self.blocks.step_is_done(step);
        self.slots.step_is_done(step);
        self.windows.step_is_done(step);
        if record.members.iter().any(|member| member.task) {
            self.steps.insert(step, record);
        }
    }

    /// Adds the blocks that a sequence has filled to the prefix cache.
    pub(super) fn cache_blocks(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.get_mut(&id).filter(|_| self.config.prefix_cache) else { return };
        if !sequence.is_kept() {
            return;
        }
        // A device that is one step ahead has computed a token that is not known here yet.
        let known = sequence.computed.min(sequence.tokens.len());
        while (sequence.cached_blocks + 1) * BLOCK_TOKENS <= known {
            let index = sequence.cached_blocks;
            let content = sequence.content(index);
            let own = sequence.blocks[index].id();
            self.blocks.insert_cached(&mut sequence.blocks[index], content, sequence.last_step);
            let known = sequence.blocks[index].id();
            if known != own && sequence.window.used.contains(&index) {
                self.windows.replace(own, known, sequence.last_step);
            }
            sequence.cached_blocks += 1;
        }
        self.keep_checkpoints(id);
    }

    /// The executor refused a step and dropped the steps behind it.
    pub(super) fn step_refused(&mut self, step: StepId, reason: &str, effects: &mut Vec<Effect>) {
        if self.steps.get(&step).is_some_and(StepRecord::is_computing) {
            self.steps_lost(Some(step), reason, effects);
            // No step is left at the executor that could write to a block.
            self.blocks.step_is_done(self.next_step);
            self.slots.step_is_done(self.next_step);
            self.windows.step_is_done(self.next_step);
        }
        effects.push(Effect::Resync);
    }

    /// Takes back all steps at the executor. The members of the failed step become suspects. When the failed step is not
    /// known, the members of all these steps do.
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

    /// Resets the members of a step to their state before it.
    fn take_back(&mut self, step: StepId, record: &StepRecord) {
        for member in &record.members {
            let Some(sequence) = self.sequences.get_mut(&member.id) else { continue };
            sequence.in_flight -= 1;
            sequence.pending.retain(|pending| pending.step != step);
            sequence.unverified = 0;
            sequence.planned = sequence.planned.min(member.from);
            if self.slots.is_used() {
                self.start_again(member.id);
            }
        }
    }

    /// Makes a sequence wait again: its newest slot has not the state that belongs to its blocks, after a step that was not
    /// computed or a load that has failed.
    pub(super) fn start_again(&mut self, id: RequestId) {
        self.release_blocks(id);
        let rank = self.sequence_mut(id).rank;
        self.running.remove(&rank);
        self.waiting.insert(rank);
    }

    /// Fails a suspect that was alone in the step. Other members become suspects.
    fn suspect(&mut self, record: StepRecord, reason: &str, effects: &mut Vec<Effect>) {
        let alone = record.members.len() == 1;
        for member in record.members {
            let Some(sequence) = self.sequences.get_mut(&member.id) else { continue };
            if alone && sequence.is_suspect() {
                let error = GenerationError::Engine(reason.to_owned());
                self.end(member.id, Effect::Failed(member.id, error), effects);
            } else {
                sequence.suspect_until = sequence.suspect_until.max(member.to + usize::from(member.is_canvas));
            }
        }
    }
}
