//! The pure core of the scheduler: it takes an event and returns effects, without clock or actor.
//!
//! # Rules
//!
//! - Requests are ordered by priority, then by what their client has used already ([`fair_queue`]), then by arrival.
//! - A step first takes decode rows. Unless the prompts' time budget is in deficit ([`prompt_time`]), it then takes as many
//!   prompt rows as its time limit allows ([`step_time`]): first of short prompts, then of running prompts, then of new
//!   ones ([`prompts`]).
//! - Steps overlap. While one is computed or sampled, the next is formed. A sequence whose newest token is not known yet
//!   gets a row that is filled in later ([`AwaitedToken`]).
//! - A decode row may be followed by rows of a draft, where that is expected to give more tokens per time. The next step is
//!   then formed when the tokens are sampled ([`speculation`]).
//! - A sequence gets the blocks for all of its tokens when it is admitted. Blocks of its prefix come from the cache
//!   ([`kv_blocks`]). It gets one more block whenever it grows past a block boundary. When no block is available, the
//!   sequence that is last in the order is preempted and recomputed later.
//! - Requests wait in a fair order, and clients share the running slots: a client that runs many sequences gives slots and
//!   blocks to one that runs few ([`fair_share`]).
//! - Evicted blocks and recurrent states are copied to lower tiers. A prompt whose prefix is there waits until it is loaded, where
//!   that is faster than computing it ([`tiers`]).
//! - A block is never free while the device may write to it.
//! - When the executor is lost, every sequence waits again and keeps its tokens. The sequences of the failed step become
//!   suspects: each runs alone until it is past the point of failure, and fails when it loses the executor again.
//!
//! # Layout
//!
//! - [`config`], [`events`]: settings, input and output
//! - [`state`]: the [`Policy`] itself
//! - [`batch`] and [`prompts`]: form a step
//! - [`speculation`]: drafts of several tokens that a step verifies; [`drafts`] proposes and measures them
//! - [`draft_model`]: when to ask the draft model for a draft
//! - [`canvases`]: blocks of tokens that are denoised in some steps
//! - [`residency`]: which sequences hold blocks
//! - [`steps`]: what happens to formed steps
//! - [`recurrent`]: slots for the state of recurrent layers, and checkpoints ([`state_slots`])
//! - [`windows`]: blocks of layers that keep the positions of a window ([`window_blocks`])
//! - [`tiers`], [`tier_events`], [`tier_loads`]: copies of blocks and states in host memory and on disk
//! - [`resume`]: continues the requests of a scheduler that died
//!
//! [`Policy::check`] states the invariants. Debug builds check them after every event ([`PolicyConfig::verify`]).

mod batch;
mod canvases;
mod config;
mod draft_model;
mod drafts;
mod events;
mod fair_queue;
mod fair_share;
pub mod kv_blocks;
pub mod prefix_cache;
mod prompt_time;
mod prompts;
mod recurrent;
mod recurrent_state;
mod residency;
mod resume;
mod sequence;
mod sequence_window;
mod speculation;
mod state;
pub mod state_slots;
mod step_record;
mod step_time;
mod steps;
mod tier_events;
mod tier_loads;
mod tiers;
pub mod window_blocks;
mod windows;

pub use self::config::{PolicyConfig, SpeculationMode};
pub use self::events::{
    AwaitedToken, CanvasState, CanvasTask, Draft, Effect, EngineSampling, Found, Outcome, PlannedStep, PolicyEvent,
    SampleTask, Submission, TierEffect, TierReport, UnitCopy, Verdict,
};
pub use self::resume::Progress;
pub use self::state::Policy;
pub use crate::core::counts::Counts;

#[cfg(test)]
mod tests;
