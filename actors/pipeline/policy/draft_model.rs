//! Drafts of the draft model: when to ask for one, and for how many tokens.
//!
//! The draft model is asked when the newest tokens of the decoding sequences are known, about all of them at once. The next
//! step is formed when it has replied, so that all sequences stay in one step. A text that it has not computed yet, such
//! as a new prompt, is computed next to the steps, which do not wait for it.
//!
//! A draft costs the time of the draft model in addition to the rows that verify it. It is asked for only as many tokens as
//! give more tokens per time with both.

use super::drafts::{Candidate, Texts, select};
use super::step_time::Work;
use super::{Effect, Policy, SpeculationMode};
use crate::core::draft::{DraftReply, DraftRequest};
use crate::core::request::{MAX_STEP_TOKENS, RequestId};

/// Number of tokens of a draft when every step is to have one.
const ALWAYS_TOKENS: usize = 8;

/// Most tokens of a draft before the time of the draft model was measured.
const FIRST_TOKENS: usize = 4;

impl Policy {
    pub(super) fn drafter_ready(&mut self) {
        self.drafter_lost();
        self.drafter_ready = true;
    }

    pub(super) fn drafter_lost(&mut self) {
        self.drafter_ready = false;
        self.sequences.values_mut().for_each(|sequence| sequence.drafter.model.reset());
    }

    pub(super) fn drafted(&mut self, reply: DraftReply) {
        let DraftReply { id, length, tokens, token_time } = reply;
        if let Some(time) = token_time {
            self.draft_time.observe(time);
        }
        let Some(sequence) = self.sequences.get_mut(&id).filter(|_| self.drafter_ready) else { return };
        sequence.drafter.model.replied(length, tokens.is_none());
        sequence.drafter.set_model_draft(length, tokens.unwrap_or_default());
    }

    /// Whether the next step has to wait for a draft of the draft model.
    pub(super) fn awaits_draft_model(&self) -> bool {
        self.sequences.values().any(|sequence| sequence.drafter.model.is_awaited())
    }

    /// Whether the draft model will be asked about a decoding sequence when its newest token is sampled.
    pub(super) fn will_ask_draft_model(&self, decoding: &[RequestId]) -> bool {
        self.drafter_ready && self.model_draft_lengths(decoding).iter().any(|&(_, most)| most > 0)
    }

    /// Asks the draft model about the decoding sequences whose newest token is known.
    pub(super) fn ask_draft_model(&mut self, effects: &mut Vec<Effect>) {
        if !self.drafter_ready || !self.executor_ready || self.awaits_draft_model() {
            return;
        }
        let is_known = |id: &RequestId| self.sequences[id].planned + 1 == self.sequences[id].tokens.len();
        let decoding: Vec<_> = self.ready().filter(|sequence| sequence.decodes()).map(|s| s.rank.id).collect();
        if decoding.is_empty() || !decoding.iter().all(is_known) {
            return;
        }
        self.decline_where_others_are_likelier(&decoding);
        for (id, most) in self.model_draft_lengths(&decoding) {
            let Some(sequence) = self.sequences.get_mut(&id) else { continue };
            let length = sequence.tokens.len();
            if most == 0 {
                sequence.drafter.decline(length, &mut self.acceptance);
                self.draft_time.decline();
                continue;
            }
            let most = if sequence.drafter.model.ask(length) { most } else { 0 };
            let (tokens, scope, draws) = (sequence.tokens.clone(), sequence.scope.clone(), sequence.draws(most));
            effects.push(Effect::Draft(DraftRequest { id, tokens, scope, draws }));
        }
    }

    /// Does not ask about sequences that have a draft of another source which is at least as likely to be accepted.
    fn decline_where_others_are_likelier(&mut self, decoding: &[RequestId]) {
        if self.config.speculation == SpeculationMode::Draft {
            return;
        }
        for id in decoding {
            let Some(sequence) = self.sequences.get_mut(id) else { continue };
            let texts = Texts { tokens: &sequence.tokens, recent: self.recent_answers.of(&sequence.scope) };
            let other = sequence.drafter.propose(texts, &self.acceptance);
            let rate = sequence.drafter.model_rate(&self.acceptance);
            if other.is_some_and(|other| other.probability >= rate) {
                sequence.drafter.model.decline(sequence.tokens.len());
            }
        }
    }

    /// The decoding sequences about which the draft model may be asked, and how many tokens a draft of each should have.
    fn model_draft_lengths(&self, decoding: &[RequestId]) -> Vec<(RequestId, usize)> {
        let may_ask = |id: &&RequestId| {
            let sequence = &self.sequences[*id];
            // The draft model does not see media.
            sequence.speculates && sequence.media.is_empty() && sequence.drafter.model.may_ask(sequence.length())
        };
        let asked: Vec<_> = decoding.iter().filter(may_ask).copied().collect();
        let lengths = match self.config.speculation {
            SpeculationMode::Off | SpeculationMode::Ngram => return Vec::new(),
            SpeculationMode::Draft => asked.iter().map(|&id| self.most_drafted(id).min(ALWAYS_TOKENS)).collect(),
            SpeculationMode::Auto => self.lengths_that_pay(&asked, decoding.len()),
        };
        asked.into_iter().zip(lengths).collect()
    }

    /// Number of drafted tokens of each sequence that give most tokens per time in a step with `decode_rows` rows.
    fn lengths_that_pay(&self, asked: &[RequestId], decode_rows: usize) -> Vec<usize> {
        let attended = asked.iter().map(|id| self.sequences[id].length()).sum();
        let none = || vec![0; asked.len()];
        let Some(time) = self.step_time.predict(Work { rows: decode_rows, attended }) else { return none() };
        let draft_seconds = self.draft_time.seconds_per_token();
        let most = if draft_seconds.is_none() { FIRST_TOKENS } else { MAX_STEP_TOKENS };
        let candidate = |&id: &RequestId| {
            let sequence = &self.sequences[&id];
            Candidate {
                probability: sequence.drafter.model_rate(&self.acceptance),
                most: self.most_drafted(id).min(most),
                row_seconds: self.step_time.of_row_at(sequence.length()) + draft_seconds.unwrap_or(0.0),
            }
        };
        let rows = self.limits.max_batched_tokens.min(self.limits.max_logits_rows).saturating_sub(decode_rows);
        select(time.as_secs_f64(), decode_rows, rows, &asked.iter().map(candidate).collect::<Vec<_>>())
    }
}
