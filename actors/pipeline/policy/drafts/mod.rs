//! Drafts: guesses how a sequence continues, and which of them are worth to be verified.
//!
//! - [`drafter`]: proposes drafts for one sequence, from its own text ([`lookup`]), from [`recent`] answers, from the answer that
//!   its client expects, and from the draft model
//! - [`model_drafts`]: what the draft model was asked for, and how long it takes
//! - [`acceptance`]: how often drafts of each kind were accepted
//! - [`select`](mod@select): how many tokens of each draft to verify in a step

mod acceptance;
mod drafter;
mod lookup;
mod model_drafts;
mod recent;
mod select;

pub(super) use self::acceptance::Acceptance;
pub(super) use self::drafter::{Drafter, MemberDraft, Proposal, Texts};
pub(super) use self::model_drafts::DraftTime;
pub(super) use self::recent::RecentAnswers;
pub(super) use self::select::{Candidate, select};
