//! Speculation: rows of tokens that are likely to follow take part in a step, and are kept as far as they are what is
//! sampled.
//!
//! A decoding sequence gets rows for its newest token and for the tokens of a draft. The sampler samples the token after
//! each row in turn and stops at the first that differs from the draft. Each sampled token depends only on the tokens before
//! it, so the text is the same as without drafts. What the rejected rows wrote to the KV cache is overwritten by
//! the next rows.
//!
//! [`drafts`](super::drafts) proposes drafts and measures how often they are accepted. A [draft model](super::draft_model)
//! may propose others. A row is verified only if the step
//! then gives more tokens per time.
//!
//! The tokens after a step with drafts are not known before it is sampled, so the next step is formed then. The same holds
//! if a sequence is about to have a draft. Such steps do not overlap with sampling.

use cuelight_engine::engine::BLOCK_TOKENS;

use super::batch::Batch;
use super::drafts::{Candidate, MemberDraft, Proposal, Texts, select};
use super::kv_blocks::BlockManager;
use super::step_record::Member;
use super::step_time::Work;
use super::{Draft, Policy, SpeculationMode};
use crate::core::request::{MAX_STEP_TOKENS, RequestId};

/// No drafts are searched for if tokens that are all accepted would give less than this gain in tokens per time.
const LEAST_PROSPECT: f64 = 1.1;

/// A draft for a sequence of a step.
struct ChosenDraft {
    id: RequestId,
    draft: Draft,
    member: MemberDraft,
}

impl Policy {
    /// Whether the next step has to wait until the steps in flight are sampled, because of drafts in them or in itself.
    pub(super) fn awaits_drafts(&mut self) -> bool {
        if self.awaits_draft_model() {
            return true;
        }
        if self.steps.is_empty() || self.config.speculation == SpeculationMode::Off {
            return false;
        }
        if self.steps.values().any(|step| step.members.iter().any(|member| member.draft.is_some())) {
            return true;
        }
        let decoding: Vec<_> = self.ready().filter(|sequence| sequence.decodes()).map(|s| s.rank.id).collect();
        if self.will_ask_draft_model(&decoding) {
            return true;
        }
        // A draft begins with the token that is being sampled. One that is worth the wait has a second token.
        self.drafts(&decoding, decoding.len(), usize::MAX).iter().any(|chosen| chosen.draft.tokens.len() > 1)
    }

    /// Adds drafts to the decode rows of a step, which are all the rows that it has.
    pub(super) fn add_drafts(&mut self, batch: &mut Batch) {
        let is_known = |member: &&Member| {
            let sequence = &self.sequences[&member.id];
            member.to == member.from + 1 && sequence.planned == sequence.tokens.len()
        };
        let known: Vec<_> = batch.members.iter().filter(is_known).map(|member| member.id).collect();
        for ChosenDraft { id, mut draft, member } in self.drafts(&known, batch.members.len(), batch.draft_rows_left()) {
            let sequence = &self.sequences[&id];
            let in_blocks = sequence.blocks.len() * BLOCK_TOKENS - sequence.planned;
            let blocks = BlockManager::blocks_for(sequence.planned + draft.tokens.len());
            if blocks.saturating_sub(sequence.blocks.len()) > self.blocks.available() {
                // No sequence loses its blocks for a guess.
                draft.tokens.truncate(in_blocks);
            }
            draft.tokens.truncate(self.rows_with_windows(sequence));
            self.reserve_draft_slots(id, &mut draft);
            if !draft.tokens.is_empty() {
                self.grow(id, BlockManager::blocks_for(self.sequences[&id].planned + draft.tokens.len()));
                let drafted = draft.tokens.len();
                self.extend_window(id, drafted);
                let sequence = &self.sequences[&id];
                let window_table = self.window_table(sequence, sequence.planned + drafted);
                batch.extend(self.sequence_mut(id), draft, MemberDraft { drafted, ..member }, window_table);
            }
        }
    }

    /// Chooses drafts for sequences of a step with `decode_rows` rows. All drafts together have at most `rows` tokens.
    fn drafts(&mut self, sequences: &[RequestId], decode_rows: usize, rows: usize) -> Vec<ChosenDraft> {
        if !self.may_draft(decode_rows) {
            return Vec::new();
        }
        let proposals: Vec<_> = sequences.iter().filter_map(|&id| Some((id, self.proposal(id)?))).collect();
        let lengths = self.lengths(&proposals, decode_rows, rows);
        let mut drafts = Vec::new();
        for ((id, proposal), drafted) in proposals.into_iter().zip(lengths) {
            let sequence = self.sequences.get_mut(&id).expect("the sequence exists");
            let Proposal { kind, position, .. } = proposal;
            if drafted == 0 {
                sequence.drafter.skip(kind, &mut self.acceptance);
                continue;
            }
            let texts = Texts { tokens: &sequence.tokens, recent: self.recent_answers.of(&sequence.scope) };
            let tokens = sequence.drafter.draft(&proposal, texts, drafted);
            let member = MemberDraft { kind, position, length: sequence.tokens.len(), drafted };
            drafts.push(ChosenDraft { id, draft: Draft { source: kind.source, tokens }, member });
        }
        drafts
    }

    /// Whether drafts may pay in a step with `decode_rows` rows. In a large batch the rows take nearly all of the time.
    fn may_draft(&self, decode_rows: usize) -> bool {
        match self.config.speculation {
            SpeculationMode::Off => false,
            SpeculationMode::Ngram | SpeculationMode::Draft => true,
            SpeculationMode::Auto => {
                let step = self.step_time.predict(Work { rows: decode_rows, attended: 0 });
                let rows = decode_rows as f64 * self.step_time.of_row_at(0);
                step.is_some_and(|step| step.as_secs_f64() > LEAST_PROSPECT * rows)
            }
        }
    }

    /// How a sequence may continue after its known tokens, as far as it may grow.
    fn proposal(&mut self, id: RequestId) -> Option<Proposal> {
        let most = self.most_drafted(id);
        let sequence = self.sequences.get_mut(&id).filter(|sequence| sequence.speculates)?;
        let texts = Texts { tokens: &sequence.tokens, recent: self.recent_answers.of(&sequence.scope) };
        let proposal = sequence.drafter.propose(texts, &self.acceptance)?;
        (most > 0).then_some(Proposal { length: proposal.length.min(most), ..proposal })
    }

    /// Maximum number of drafted tokens of a sequence in a step, which gives one token more than are accepted.
    pub(super) fn most_drafted(&self, id: RequestId) -> usize {
        let sequence = &self.sequences[&id];
        sequence.most_tokens.saturating_sub(sequence.tokens.len() + 1).min(MAX_STEP_TOKENS - 1)
    }

    /// Number of tokens to verify of each proposal.
    fn lengths(&self, proposals: &[(RequestId, Proposal)], decode_rows: usize, rows: usize) -> Vec<usize> {
        if matches!(self.config.speculation, SpeculationMode::Ngram | SpeculationMode::Draft) {
            let mut left = rows;
            let whole = |(_, proposal): &(RequestId, Proposal)| {
                let length = proposal.length.min(left);
                left -= length;
                length
            };
            return proposals.iter().map(whole).collect();
        }
        let attended: usize = proposals.iter().map(|(id, _)| self.sequences[id].tokens.len()).sum();
        let Some(time) = self.step_time.predict(Work { rows: decode_rows, attended }) else {
            return vec![0; proposals.len()];
        };
        let candidate = |(id, proposal): &(RequestId, Proposal)| Candidate {
            probability: proposal.probability,
            most: proposal.length,
            row_seconds: self.step_time.of_row_at(self.sequences[id].tokens.len()),
        };
        select(time.as_secs_f64(), decode_rows, rows, &proposals.iter().map(candidate).collect::<Vec<_>>())
    }

    /// Records how many tokens of a draft a step accepted, after the sequence got its tokens.
    pub(super) fn verified(&mut self, id: RequestId, draft: MemberDraft, accepted: usize) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        sequence.drafter.record(draft, accepted, &mut self.acceptance);
        // The keys and values behind the accepted tokens belong to other tokens, and the newest token has none yet.
        let computed = draft.length + accepted;
        sequence.computed = sequence.computed.min(computed);
        sequence.planned = sequence.planned.min(computed);
        self.accept_state(id, accepted);
        self.cache_blocks(id);
    }
}
