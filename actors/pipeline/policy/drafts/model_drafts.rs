//! What the draft model was asked for a sequence, and the time that it takes.

use std::collections::VecDeque;
use std::time::Duration;

/// Number of tokens that the draft model may lack when a step waits for its draft. It computes a longer text meanwhile.
const MOST_MISSING: usize = 64;

/// Number of measured times that are kept. An odd number, so that one of them is the median.
const MEASURED: usize = 5;

/// Number of drafts that are not asked for, one after the other, until the time is measured again.
const DECLINED: usize = 256;

/// What the draft model was asked for a sequence.
#[derive(Debug, Default)]
pub(in crate::pipeline::policy) struct ModelDrafts {
    /// Whether there is no reply yet, and whether steps wait for it.
    pending: Option<Pending>,
    /// Number of leading tokens of the sequence that the draft model has computed.
    computed: usize,
    /// Length of the sequence when it was last decided whether to ask.
    decided: usize,
    /// Whether the sequence is too long for the draft model.
    too_long: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Pending {
    /// The next step is formed with the draft.
    Draft,
    /// The draft model computes the text, for a later draft.
    Text,
}

impl ModelDrafts {
    /// Whether the draft model may be asked about a sequence of `length` tokens.
    pub fn may_ask(&self, length: usize) -> bool {
        self.pending.is_none() && self.decided < length && !self.too_long
    }

    /// Records that the draft model is asked about a sequence of `length` tokens. Returns whether for a draft, and not only to
    /// compute the text.
    pub fn ask(&mut self, length: usize) -> bool {
        let drafts = length - self.computed <= MOST_MISSING;
        self.pending = Some(if drafts { Pending::Draft } else { Pending::Text });
        // The text grows while it is computed. It is asked for a draft as soon as it has caught up.
        self.decided = if drafts { length } else { 0 };
        drafts
    }

    /// Records that the draft model is not asked about a sequence of `length` tokens.
    pub fn decline(&mut self, length: usize) {
        self.decided = length;
    }

    /// Records a reply about the first `length` tokens; `is_too_long` if there will be none.
    pub fn replied(&mut self, length: usize, is_too_long: bool) {
        self.pending = None;
        self.computed = length;
        self.too_long = is_too_long;
    }

    /// Forgets everything: the draft model has no sequence.
    pub fn reset(&mut self) {
        *self = ModelDrafts { decided: self.decided, ..ModelDrafts::default() };
    }

    /// Whether steps wait for a draft.
    pub fn is_awaited(&self) -> bool {
        self.pending == Some(Pending::Draft)
    }
}

/// The measured time of drafts.
#[derive(Debug, Default)]
pub(in crate::pipeline::policy) struct DraftTime {
    /// Seconds per token of the last drafts.
    measured: VecDeque<f64>,
    declined: usize,
}

impl DraftTime {
    /// Adds a measurement.
    pub fn observe(&mut self, per_token: Duration) {
        if self.measured.len() == MEASURED {
            self.measured.pop_front();
        }
        self.measured.push_back(per_token.as_secs_f64());
        self.declined = 0;
    }

    /// Records that no draft was asked for. A time that is too long is forgotten in this way, so that it is measured again.
    pub fn decline(&mut self) {
        self.declined += 1;
        if self.declined == DECLINED {
            *self = DraftTime::default();
        }
    }

    /// Seconds per token: the median of the measurements, or `None` before the first one.
    pub fn seconds_per_token(&self) -> Option<f64> {
        let mut sorted: Vec<f64> = self.measured.iter().copied().collect();
        sorted.sort_by(f64::total_cmp);
        sorted.get(sorted.len() / 2).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_text_is_computed_before_drafts_are_asked_for() {
        let mut drafts = ModelDrafts::default();
        assert!(!drafts.ask(500), "the text first");
        assert!(!drafts.may_ask(501) && !drafts.is_awaited());
        drafts.replied(500, false);
        assert!(drafts.may_ask(510) && drafts.ask(510));
        assert!(drafts.is_awaited());
        drafts.replied(510, false);
        assert!(!drafts.may_ask(510), "it was decided");
        assert!(drafts.may_ask(511));
    }

    #[test]
    fn a_lost_draft_model_has_computed_nothing() {
        let mut drafts = ModelDrafts::default();
        drafts.ask(10);
        drafts.replied(10, false);
        drafts.ask(100);
        drafts.reset();
        assert!(!drafts.is_awaited() && drafts.may_ask(101));
        assert!(!drafts.ask(101), "the text first");
    }

    #[test]
    fn a_text_that_is_too_long_is_not_asked_about_again() {
        let mut drafts = ModelDrafts::default();
        drafts.ask(10);
        drafts.replied(10, true);
        assert!(!drafts.may_ask(11));
    }

    #[test]
    fn the_time_of_a_draft_is_a_median_that_is_forgotten_when_it_is_not_used() {
        let mut time = DraftTime::default();
        assert_eq!(time.seconds_per_token(), None);
        [9, 1, 2, 1, 8].into_iter().for_each(|seconds| time.observe(Duration::from_secs(seconds)));
        assert_eq!(time.seconds_per_token(), Some(2.0));
        (1..DECLINED).for_each(|_| time.decline());
        assert_eq!(time.seconds_per_token(), Some(2.0));
        time.decline();
        assert_eq!(time.seconds_per_token(), None);
    }
}
