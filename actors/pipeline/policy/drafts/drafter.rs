//! Proposes how one sequence may continue.

use std::sync::Arc;

use cuelight_engine::engine::TokenId;

use super::acceptance::{Acceptance, Basis, DraftKind};
use super::lookup::LookupIndex;
use super::model_drafts::ModelDrafts;
use super::recent::RecentText;
use crate::core::draft::DraftSource;
use crate::core::request::MAX_STEP_TOKENS;

/// How much the results of a sequence count after the next one of their kind.
const FADE: f64 = 0.9;

/// The same for all sequences together.
const SHARED_FADE: f64 = 0.995;

/// The same when a draft was not tried.
const SKIP_FADE: f64 = 0.98;

/// A guess how a sequence continues.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(in crate::pipeline::policy) struct Proposal {
    pub kind: DraftKind,
    /// Position of its first token in the text of its source.
    pub position: usize,
    /// Number of its tokens, at least one.
    pub length: usize,
    /// The probability that a token is accepted when those before it are.
    pub probability: f64,
}

/// The texts of a sequence's drafts, besides those that its drafter has.
#[derive(Debug, Clone, Copy)]
pub(in crate::pipeline::policy) struct Texts<'a> {
    /// The sequence so far.
    pub tokens: &'a [TokenId],
    /// Recent answers of its scope.
    pub recent: Option<&'a RecentText>,
}

/// A place in the text of a source.
#[derive(Debug, Clone, Copy)]
struct Cursor {
    source: DraftSource,
    position: usize,
    /// Length of the sequence that continues there.
    length: usize,
    basis: Basis,
}

/// Tokens that follow a sequence of some length.
#[derive(Debug, Default)]
struct Continuation {
    length: usize,
    tokens: Vec<TokenId>,
}

impl Continuation {
    /// Where it continues `tokens`, which may have grown by some of its own tokens.
    fn position(&self, tokens: &[TokenId]) -> Option<usize> {
        let used = tokens.len().checked_sub(self.length)?;
        (used < self.tokens.len() && tokens[self.length..] == self.tokens[..used]).then_some(used)
    }
}

/// What is known about the continuation of a sequence.
#[derive(Debug, Default)]
pub(in crate::pipeline::policy) struct Drafter {
    own: LookupIndex,
    /// The answer that the client expects.
    prediction: Arc<[TokenId]>,
    predicted: LookupIndex,
    /// Where a source continues if it does so here: at its start, or behind the token that replaced one of its own.
    cursor: Option<Cursor>,
    /// The last draft of the draft model.
    modelled: Continuation,
    /// What the draft model was asked for.
    pub model: ModelDrafts,
    acceptance: Acceptance,
}

impl Drafter {
    /// A sequence with a prompt of `prompt_tokens` tokens whose client expects the answer `prediction`.
    pub fn new(prediction: Arc<[TokenId]>, prompt_tokens: usize) -> Self {
        let mut predicted = LookupIndex::default();
        predicted.extend(&prediction);
        let start = Cursor { source: DraftSource::Prediction, position: 0, length: prompt_tokens, basis: Basis::Known };
        let cursor = (!prediction.is_empty()).then_some(start);
        Drafter { prediction, predicted, cursor, ..Drafter::default() }
    }

    /// The draft model's continuation of a sequence of `length` tokens.
    pub fn set_model_draft(&mut self, length: usize, tokens: Vec<TokenId>) {
        self.modelled = Continuation { length, tokens };
    }

    /// Records that the draft model is not asked about a sequence of `length` tokens.
    pub fn decline(&mut self, length: usize, shared: &mut Acceptance) {
        self.model.decline(length);
        self.skip(DraftKind::MODEL, shared);
    }

    /// The probability that a token of a draft by the draft model is accepted when those before it are.
    pub fn model_rate(&self, shared: &Acceptance) -> f64 {
        self.acceptance.rate(DraftKind::MODEL, shared)
    }

    /// The likeliest continuation of the sequence so far, at most [`MAX_STEP_TOKENS`] tokens. `shared` are the rates
    /// of all sequences.
    pub fn propose(&mut self, texts: Texts<'_>, shared: &Acceptance) -> Option<Proposal> {
        self.own.extend(texts.tokens);
        let found = [DraftSource::Prediction, DraftSource::Recent, DraftSource::Lookup].map(|it| self.found(it, texts));
        let places = [self.at_cursor(texts), self.by_model(texts.tokens)].into_iter().chain(found).flatten();
        let rated = places.map(|(kind, position)| (self.acceptance.rate(kind, shared), kind, position));
        let (probability, kind, position) = rated.reduce(|best, other| if other.0 > best.0 { other } else { best })?;
        let length = (self.text(kind.source, texts).len() - position).min(MAX_STEP_TOKENS);
        (length > 0).then_some(Proposal { kind, position, length, probability })
    }

    /// The first `length` tokens of a proposal that was made from the same texts.
    pub fn draft(&self, proposal: &Proposal, texts: Texts<'_>, length: usize) -> Vec<TokenId> {
        self.text(proposal.kind.source, texts)[proposal.position..][..length].to_vec()
    }

    /// Records how many tokens of a draft were accepted.
    pub fn record(&mut self, draft: MemberDraft, accepted: usize, shared: &mut Acceptance) {
        let MemberDraft { kind, position, length, drafted } = draft;
        self.acceptance.record(kind, drafted, accepted, FADE);
        shared.record(kind, drafted, accepted, SHARED_FADE);
        // The token after the accepted ones was sampled: it replaces the draft's next token, or follows its last one.
        let (position, length) = (position + accepted + 1, length + accepted + 1);
        // Recent answers move when others are forgotten.
        let has_text = matches!(kind.source, DraftSource::Lookup | DraftSource::Prediction);
        self.cursor = has_text.then_some(Cursor { source: kind.source, position, length, basis: Basis::Replacement });
    }

    /// Records that a proposal was not tried.
    pub fn skip(&mut self, kind: DraftKind, shared: &mut Acceptance) {
        self.acceptance.skip(kind, SKIP_FADE);
        shared.skip(kind, SHARED_FADE);
    }

    fn text<'a>(&'a self, source: DraftSource, texts: Texts<'a>) -> &'a [TokenId] {
        match source {
            DraftSource::Lookup => texts.tokens,
            DraftSource::Recent => texts.recent.map_or(&[], RecentText::tokens),
            DraftSource::Prediction => &self.prediction,
            DraftSource::Model => &self.modelled.tokens,
        }
    }

    fn found(&self, source: DraftSource, texts: Texts<'_>) -> Option<(DraftKind, usize)> {
        let found = match source {
            DraftSource::Lookup => self.own.find(texts.tokens, texts.tokens),
            DraftSource::Prediction => self.predicted.find(&self.prediction, texts.tokens),
            DraftSource::Recent => texts.recent?.find(texts.tokens),
            DraftSource::Model => None,
        }?;
        Some((DraftKind { source, basis: Basis::Match(found.length) }, found.next))
    }

    fn at_cursor(&self, texts: Texts<'_>) -> Option<(DraftKind, usize)> {
        let Cursor { source, position, length, basis } = self.cursor?;
        let is_here = length == texts.tokens.len() && position < self.text(source, texts).len();
        is_here.then_some((DraftKind { source, basis }, position))
    }

    fn by_model(&self, tokens: &[TokenId]) -> Option<(DraftKind, usize)> {
        Some((DraftKind::MODEL, self.modelled.position(tokens)?))
    }
}

/// The draft of a member of a step.
#[derive(Debug, Clone, Copy)]
pub(in crate::pipeline::policy) struct MemberDraft {
    pub kind: DraftKind,
    /// Position of its first token in the text of its source.
    pub position: usize,
    /// Length of the sequence before it.
    pub length: usize,
    /// Number of its tokens.
    pub drafted: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proposed(drafter: &mut Drafter, tokens: &[TokenId]) -> Vec<TokenId> {
        let texts = Texts { tokens, recent: None };
        let proposal = drafter.propose(texts, &Acceptance::default());
        proposal.map(|proposal| drafter.draft(&proposal, texts, proposal.length)).unwrap_or_default()
    }

    #[test]
    fn a_repeated_text_continues_as_before() {
        let mut drafter = Drafter::default();
        assert!(proposed(&mut drafter, &[1, 2, 3, 4, 5]).is_empty());
        assert_eq!(proposed(&mut drafter, &[1, 2, 3, 4, 5, 1, 2, 3]), [4, 5, 1, 2, 3]);
    }

    #[test]
    fn behind_a_replaced_token_the_source_continues() {
        let mut drafter = Drafter::default();
        let mut tokens = vec![1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3];
        let texts = Texts { tokens: &tokens, recent: None };
        let proposal = drafter.propose(texts, &Acceptance::default());
        let Some((kind, position)) = proposal.map(|proposal| (proposal.kind, proposal.position)) else {
            panic!("a match")
        };
        let draft = MemberDraft { kind, position, length: tokens.len(), drafted: 4 };
        drafter.record(draft, 1, &mut Acceptance::default());
        tokens.extend([4, 50]);
        assert_eq!(proposed(&mut drafter, &tokens)[..3], [6, 7, 8], "50 replaces 5");
        tokens.push(60);
        assert!(proposed(&mut drafter, &tokens).is_empty(), "only directly behind it");
    }

    #[test]
    fn a_prediction_is_proposed_from_its_start_and_wherever_the_answer_meets_it() {
        let mut drafter = Drafter::new([10, 11, 12, 13, 14].into(), 2);
        assert_eq!(proposed(&mut drafter, &[1, 2]), [10, 11, 12, 13, 14]);
        assert!(proposed(&mut drafter, &[1, 2, 99]).is_empty());
        assert_eq!(proposed(&mut drafter, &[1, 2, 99, 11, 12, 13]), [14]);
    }

    #[test]
    fn a_draft_of_the_model_is_proposed_as_long_as_the_answer_follows_it() {
        let mut drafter = Drafter::default();
        drafter.set_model_draft(2, vec![5, 6, 7]);
        assert_eq!(proposed(&mut drafter, &[1, 2, 5]), [6, 7]);
        let draft = MemberDraft { kind: DraftKind::MODEL, position: 1, length: 3, drafted: 2 };
        drafter.record(draft, 0, &mut Acceptance::default());
        assert!(proposed(&mut drafter, &[1, 2, 5, 9]).is_empty(), "it does not continue behind a replaced token");
        drafter.set_model_draft(4, vec![8]);
        assert_eq!(proposed(&mut drafter, &[1, 2, 5, 9]), [8]);
    }
}
