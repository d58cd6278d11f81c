//! What the policy hears and what it wants done.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::{EngineLimits, Step, StepId, TokenChoice, TokenId};
use cuelight_engine::sample::Draw;

use crate::request::{GenerationError, RequestId};

/// A request, as far as scheduling is concerned.
#[derive(Debug, Clone, PartialEq)]
pub struct Submission {
    /// The request.
    pub id: RequestId,
    /// Its prompt.
    pub prompt: Vec<TokenId>,
    /// Most tokens it generates; 0 needs no room for an answer.
    pub max_tokens: usize,
    /// Lower runs first.
    pub priority: i32,
    /// Who asks; clients share the engine fairly. `None`: one client of all that do not say.
    pub client: Option<Arc<str>>,
    /// Requests share cached prefixes only with those of the same salt.
    pub cache_salt: Option<Arc<str>>,
    /// Whether all rows of the prompt must bring their logits back.
    pub scores_prompt: bool,
    /// How the engine may choose its tokens; `None` when the sampler must see the logits.
    pub engine_choice: Option<EngineChoice>,
}

/// How an engine may choose a request's tokens by itself.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct EngineChoice {
    /// How, but for the random number.
    pub choice: TokenChoice,
    /// Where the random numbers come from.
    pub seed: u64,
    /// So many tokens are chosen by the sampler first.
    pub from: usize,
}

impl EngineChoice {
    /// The choice of the token number `index` of those that are generated, if that is the engine's.
    #[must_use]
    pub fn of_token(&self, index: usize) -> Option<TokenChoice> {
        let random = Draw { seed: self.seed, index: index as u64 }.random();
        (index >= self.from).then_some(TokenChoice { random, ..self.choice })
    }
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum PolicyEvent {
    /// The client does not want the request any more.
    Cancel(RequestId),
    /// The device finished a step; its logits are with the sampler.
    StepDone {
        /// The step.
        step: StepId,
        /// Time the device took.
        elapsed: Duration,
        /// From how many rows on a step takes hardly longer for more of them, as far as the engine knows.
        bulk_rows: Option<usize>,
    },
    /// A step failed; the executor lives on and has forgotten the steps behind it.
    StepFailed {
        /// The step.
        step: StepId,
        /// Why.
        reason: String,
    },
    /// The sampler finished a step.
    Sampled {
        /// The step.
        step: StepId,
        /// One for each [`SampleTask`] of it.
        outcomes: Vec<Outcome>,
    },
    /// The client of a paused request reads again.
    Resume(RequestId),
    /// An executor with empty KV blocks is ready.
    ExecutorReady(EngineLimits),
    /// The executor and all KV blocks are gone.
    ExecutorLost {
        /// The step that took it down; `None` when unknown: then any step it was computing may have.
        failed: Option<StepId>,
        /// Why.
        reason: String,
    },
    /// Take no new requests.
    Drain,
    /// End every request with this error.
    EndAll(GenerationError),
}

/// What the sampler made of one sequence's logits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// The request.
    pub id: RequestId,
    /// What comes next for it.
    pub verdict: Verdict,
    /// The client's channel is full; wait for [`PolicyEvent::Resume`].
    pub pause: bool,
}

/// What comes next for a sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It goes on with this token.
    Token(TokenId),
    /// A part of the prompt was scored; nothing was sampled.
    Scored,
    /// It ended, and the client knows.
    Ended,
}

/// What must be done about it.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Give the step to the executor, and its tasks to the sampler with the logits.
    Run(PlannedStep),
    /// The executor may take steps again after one failed: all that are formed from here on know of the failure.
    Resync,
    /// A request takes part in a step for the first time.
    Started {
        /// The request.
        id: RequestId,
        /// Tokens of its prompt that were found in the prefix cache.
        cached_tokens: usize,
    },
    /// A request lost its blocks to others and waits again.
    Preempted(RequestId),
    /// A request ended by its client's wish and is forgotten.
    Cancelled(RequestId),
    /// A request failed and is forgotten.
    Failed(RequestId, GenerationError),
}

/// A step, and what belongs to it outside of the engine.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct PlannedStep {
    /// The rows to compute.
    pub step: Step,
    /// What the sampler does with the logits, in their order.
    pub tasks: Vec<SampleTask>,
    /// Rows whose token is not sampled yet. The step can begin as soon as those of `awaits` are.
    pub awaits: Vec<AwaitedToken>,
}

/// A place in a step for a token that another step is about to bring.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AwaitedToken {
    /// Which of the step's sequences; it has this one row.
    pub sequence: usize,
    /// Whose token.
    pub id: RequestId,
    /// The step that brings it. When it brings none, the request ended and its row is left out.
    pub from: StepId,
}

/// One sequence's share of a step's logits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SampleTask {
    /// The request.
    pub id: RequestId,
    /// Rows of logits that are its own.
    pub rows: usize,
    /// Position of the token that the first of these rows computed.
    pub first_position: usize,
    /// Whether the rows tell how likely the prompt's tokens are.
    pub scores_prompt: bool,
    /// Whether the last row decides the next token.
    pub samples: bool,
}

/// Counts for gauges.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Sequences that hold blocks.
    pub running: usize,
    /// Sequences that wait for blocks, for a place, or for the prefix that another computes.
    pub waiting: usize,
    /// Of all sequences those whose client does not read.
    pub paused: usize,
    /// Whether there is an executor (of several schedulers: any); without one everybody waits for it.
    pub executor_ready: bool,
    /// Tokens of prompts that no step has touched yet.
    pub queued_tokens: usize,
    /// Most sequences that run at once.
    pub max_running: usize,
    /// KV blocks that sequences hold.
    pub blocks_used: usize,
    /// KV blocks that nobody holds and whose content may be used again.
    pub blocks_cached: usize,
    /// KV blocks in all.
    pub blocks_total: usize,
    /// Cached blocks forgotten so far, to make room for others.
    pub evictions: u64,
}

impl Counts {
    /// Those of two schedulers together.
    #[must_use]
    pub fn plus(self, other: Counts) -> Counts {
        Counts {
            running: self.running + other.running,
            waiting: self.waiting + other.waiting,
            paused: self.paused + other.paused,
            executor_ready: self.executor_ready || other.executor_ready,
            queued_tokens: self.queued_tokens + other.queued_tokens,
            max_running: self.max_running + other.max_running,
            blocks_used: self.blocks_used + other.blocks_used,
            blocks_cached: self.blocks_cached + other.blocks_cached,
            blocks_total: self.blocks_total + other.blocks_total,
            evictions: self.evictions + other.evictions,
        }
    }
}
