//! How often the tokens of drafts are accepted, measured.

use super::lookup::{GRAM, MAX_MATCH};
use crate::core::draft::DraftSource;

/// What a draft was made from. Drafts of one kind are accepted about equally often.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pipeline::policy) struct DraftKind {
    pub source: DraftSource,
    pub basis: Basis,
}

/// Why a draft begins where it does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::pipeline::policy) enum Basis {
    /// The text before it has this many tokens in common with the answer.
    Match(usize),
    /// It continues the last draft behind the token that was not accepted, as if that token was replaced.
    Replacement,
    /// It is known to follow.
    Known,
    /// A model computed it.
    Computed,
}

/// Number of kinds that are told apart for a source.
const CLASSES: usize = 6;

const SOURCES: usize = DraftSource::NAMES.len();

/// The rates of a kind before anything was measured.
const PRIOR: [f64; CLASSES] = [0.3, 0.4, 0.55, 0.7, 0.85, 0.9];

/// Number of drafted tokens that the prior counts for.
const PRIOR_WEIGHT: f64 = 4.0;

/// Number of drafted tokens that the rate of all sequences counts for in the rate of one.
const SHARED_WEIGHT: f64 = 3.0;

impl DraftKind {
    /// A draft by the draft model.
    pub const MODEL: DraftKind = DraftKind { source: DraftSource::Model, basis: Basis::Computed };

    fn class(self) -> usize {
        match self.basis {
            Basis::Replacement => 0,
            Basis::Match(length) if length <= GRAM => 1,
            Basis::Match(length) if length <= 2 * GRAM => 2,
            Basis::Match(length) if length < MAX_MATCH => 3,
            Basis::Computed => 3,
            Basis::Match(_) => 4,
            Basis::Known => 5,
        }
    }
}

/// Drafted tokens of one kind, older ones counted less.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    tried: f64,
    accepted: f64,
}

impl Counts {
    fn fade(&mut self, factor: f64) {
        self.tried *= factor;
        self.accepted *= factor;
    }

    fn rate(self, expected: f64, weight: f64) -> f64 {
        (self.accepted + expected * weight) / (self.tried + weight)
    }
}

/// Measured rates of one sequence, or of all.
#[derive(Debug, Default)]
pub(in crate::pipeline::policy) struct Acceptance {
    counts: [[Counts; CLASSES]; SOURCES],
}

impl Acceptance {
    fn counts(&mut self, kind: DraftKind) -> &mut Counts {
        &mut self.counts[kind.source as usize][kind.class()]
    }

    /// Records that the first `accepted` of `drafted` tokens were accepted. Older results lose by `fade`.
    pub fn record(&mut self, kind: DraftKind, drafted: usize, accepted: usize, fade: f64) {
        let counts = self.counts(kind);
        counts.fade(fade);
        // Tokens behind the first that was not accepted were not tried.
        counts.tried += drafted.min(accepted + 1) as f64;
        counts.accepted += accepted as f64;
    }

    /// Records that a draft was not tried. A bad rate is forgotten in this way, so that it is measured again.
    pub fn skip(&mut self, kind: DraftKind, fade: f64) {
        self.counts(kind).fade(fade);
    }

    /// The probability that a token of a sequence's draft is accepted when those before it are. `self` are the rates of the
    /// sequence, `shared` those of all.
    pub fn rate(&self, kind: DraftKind, shared: &Acceptance) -> f64 {
        let (source, class) = (kind.source as usize, kind.class());
        let shared = shared.counts[source][class].rate(PRIOR[class], PRIOR_WEIGHT);
        self.counts[source][class].rate(shared, SHARED_WEIGHT)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: DraftKind = DraftKind { source: DraftSource::Lookup, basis: Basis::Match(5) };

    #[test]
    fn a_rate_follows_what_was_measured_and_returns_when_it_is_not() {
        let (mut own, shared) = (Acceptance::default(), Acceptance::default());
        let first = own.rate(KIND, &shared);
        (0..20).for_each(|_| own.record(KIND, 4, 4, 0.9));
        let good = own.rate(KIND, &shared);
        assert!(good > 0.9 && good > first, "{good}");
        (0..40).for_each(|_| own.record(KIND, 4, 0, 0.9));
        let bad = own.rate(KIND, &shared);
        assert!(bad < 0.2, "{bad}");
        (0..1000).for_each(|_| own.skip(KIND, 0.99));
        assert!((own.rate(KIND, &shared) - first).abs() < 0.01, "it is tried again");
    }

    #[test]
    fn kinds_do_not_influence_each_other() {
        let (mut own, shared) = (Acceptance::default(), Acceptance::default());
        let other = DraftKind { basis: Basis::Replacement, ..KIND };
        let before = own.rate(other, &shared);
        own.record(KIND, 8, 0, 0.9);
        assert_eq!(own.rate(other, &shared), before);
    }
}
