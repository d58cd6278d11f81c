//! Drafts: guesses how a sequence continues, and which of them are worth to be verified.
//!
//! - [`drafter`]: proposes drafts for one sequence, from its own text ([`lookup`]), from the answer that its client expects,
//!   and from what a constraint forces
//! - [`acceptance`]: how often drafts of each kind were accepted
//! - [`select`](mod@select): how many tokens of each draft to verify in a step

mod acceptance;
mod drafter;
mod lookup;
mod select;

pub(super) use self::acceptance::Acceptance;
pub(super) use self::drafter::{Drafter, MemberDraft, Proposal};
pub(super) use self::select::{Candidate, select};
