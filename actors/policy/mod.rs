//! The scheduler's pure core: an event in, effects out, no clock and no actor.
//!
//! # Rules
//!
//! - Who goes first is decided by priority, then arrival; nobody of the same priority is overtaken in the queue.
//! - A step takes the decode rows first, then the next chunks of prompts that run, then new sequences, within
//!   `max_batched_tokens`, `max_sequences` and `max_logits_rows`.
//! - A sequence gets the blocks of all its tokens when it is admitted, and one more whenever it grows over a border.
//!   When none is free, the youngest of the lowest priority gives up its blocks and is computed again later.
//! - A sequence takes part in one step at a time. Its blocks are never freed while the device may write to them.
//! - When the executor is lost, every sequence waits again with its tokens. Those of the failed step are suspects: each
//!   runs alone until it is past the point of failure, and fails by itself when it takes the executor down again.
//!
//! [`Policy::check`] states the invariants; debug builds verify them after every event.

pub mod kv_blocks;

mod batch;
mod sequence;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use cuelight_engine::engine::{BLOCK_TOKENS, EngineLimits, Step, StepId, TokenId};

use self::kv_blocks::BlockTable;
use self::sequence::{Place, Rank, Sequence};
use crate::request::{GenerationError, RequestId, SubmitError};

/// How the policy forms steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyConfig {
    /// Most tokens of one prompt in a step.
    pub prefill_chunk_tokens: usize,
    /// Steps that may be formed and not yet sampled.
    pub steps_in_flight: usize,
}

/// A request, as far as scheduling is concerned.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submission {
    /// The request.
    pub id: RequestId,
    /// Its prompt.
    pub prompt: Vec<TokenId>,
    /// Lower runs first.
    pub priority: i32,
    /// Whether it will generate anything; `false` needs no room for an answer.
    pub generates: bool,
    /// Whether all rows of the prompt must bring their logits back.
    pub scores_prompt: bool,
}

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum PolicyEvent {
    /// The client does not want the request any more.
    Cancel(RequestId),
    /// The device finished a step; its logits are with the sampler.
    StepDone(StepId),
    /// A step failed, the executor lives on.
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
    Run {
        /// The step.
        step: Step,
        /// What the sampler does with the logits, in their order.
        tasks: Vec<SampleTask>,
    },
    /// A request takes part in a step for the first time.
    Started(RequestId),
    /// A request lost its blocks to others and waits again.
    Preempted(RequestId),
    /// A request ended by its client's wish and is forgotten.
    Cancelled(RequestId),
    /// A request failed and is forgotten.
    Failed(RequestId, GenerationError),
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
    /// Sequences that wait for blocks or for a place.
    pub waiting: usize,
    /// KV blocks in use.
    pub blocks_used: usize,
    /// KV blocks in all.
    pub blocks_total: usize,
}

/// A sequence's part in a step.
#[derive(Debug)]
struct Member {
    id: RequestId,
    /// Computed tokens of the sequence once the step is done.
    computed_after: usize,
    /// Whether the sampler has to answer for it.
    task: bool,
}

/// A step that is not sampled yet.
#[derive(Debug)]
struct StepRecord {
    members: Vec<Member>,
    /// The device still works on it, and writes to its members' blocks.
    computing: bool,
}

/// The scheduler's state.
#[derive(Debug)]
pub struct Policy {
    config: PolicyConfig,
    limits: EngineLimits,
    executor_ready: bool,
    draining: bool,
    blocks: BlockTable,
    sequences: HashMap<RequestId, Sequence>,
    waiting: BTreeSet<Rank>,
    running: BTreeSet<Rank>,
    steps: BTreeMap<StepId, StepRecord>,
    next_step: StepId,
    next_arrival: u64,
}

impl Policy {
    /// A policy for an engine that is not ready yet.
    #[must_use]
    pub fn new(config: PolicyConfig, limits: EngineLimits) -> Self {
        Policy {
            config,
            executor_ready: false,
            draining: false,
            blocks: BlockTable::new(limits.kv_blocks),
            limits,
            sequences: HashMap::new(),
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            steps: BTreeMap::new(),
            next_step: StepId(0),
            next_arrival: 0,
        }
    }

    /// Longest sequence that the context and the KV cache can hold, in tokens.
    #[must_use]
    pub fn context_tokens(&self) -> usize {
        self.limits.context_tokens.min(self.limits.kv_blocks * BLOCK_TOKENS)
    }

    /// Whether no request is left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.sequences.is_empty()
    }

    /// Counts for gauges.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            running: self.running.len(),
            waiting: self.waiting.len(),
            blocks_used: self.blocks.used(),
            blocks_total: self.blocks.total(),
        }
    }

    /// The requests that share a step that is not sampled yet, in the step's order.
    pub fn members(&self, step: StepId) -> impl Iterator<Item = RequestId> {
        self.steps.get(&step).into_iter().flat_map(|record| record.members.iter().map(|member| member.id))
    }

    /// Takes a request in, or says why not.
    ///
    /// # Errors
    /// [`SubmitError::InvalidPrompt`], [`SubmitError::ContextLengthExceeded`], or [`SubmitError::Unavailable`] while
    /// draining.
    pub fn submit(&mut self, submission: Submission) -> Result<Vec<Effect>, SubmitError> {
        self.validate(&submission)?;
        let rank = Rank { priority: submission.priority, arrival: self.next_arrival, id: submission.id };
        self.next_arrival += 1;
        let prompt_tokens = submission.prompt.len();
        let sequence = Sequence {
            rank,
            tokens: submission.prompt,
            prompt_tokens,
            scored: if submission.scores_prompt { 0 } else { prompt_tokens },
            computed: 0,
            blocks: Vec::new(),
            place: Place::Waiting,
            in_flight: None,
            paused: false,
            ended: false,
            suspect_until: 0,
            started: false,
            last_step: StepId(0),
        };
        self.sequences.insert(submission.id, sequence);
        self.waiting.insert(rank);
        Ok(self.settle(Vec::new()))
    }

    /// Takes note of what happened and says what to do.
    pub fn on(&mut self, event: PolicyEvent) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            PolicyEvent::Cancel(id) => self.end(id, Effect::Cancelled(id), &mut effects),
            PolicyEvent::StepDone(step) => self.step_done(step),
            PolicyEvent::StepFailed { step, reason } => self.step_failed(step, &reason, &mut effects),
            PolicyEvent::Sampled { step, outcomes } => self.sampled(step, outcomes),
            PolicyEvent::Resume(id) => self.resume(id),
            PolicyEvent::ExecutorReady(limits) => self.executor_ready(limits, &mut effects),
            PolicyEvent::ExecutorLost { failed, reason } => self.executor_lost(failed, &reason, &mut effects),
            PolicyEvent::Drain => self.draining = true,
            PolicyEvent::EndAll(error) => {
                let ids: Vec<_> = self.sequences.keys().copied().collect();
                for id in ids {
                    self.end(id, Effect::Failed(id, error.clone()), &mut effects);
                }
            }
        }
        self.settle(effects)
    }

    /// Forms as many steps as may be in flight; every event ends here.
    fn settle(&mut self, mut effects: Vec<Effect>) -> Vec<Effect> {
        while self.executor_ready && self.steps.len() < self.config.steps_in_flight.max(1) {
            if !self.form_step(&mut effects) {
                break;
            }
        }
        if cfg!(debug_assertions) {
            self.check();
        }
        effects
    }

    fn validate(&self, submission: &Submission) -> Result<(), SubmitError> {
        if self.draining {
            return Err(SubmitError::Unavailable {
                reason: "the server is shutting down and takes no new requests".into(),
                retry_after: Duration::from_secs(5),
            });
        }
        if submission.prompt.is_empty() {
            return Err(SubmitError::InvalidPrompt("the prompt has no tokens; give it at least one".into()));
        }
        let vocab_size = self.limits.vocab_size;
        if let Some(token) = submission.prompt.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(SubmitError::InvalidPrompt(format!(
                "token id {token} is outside of the vocabulary; ids are below {vocab_size}"
            )));
        }
        let (prompt_tokens, context_tokens) = (submission.prompt.len(), self.context_tokens());
        if prompt_tokens + usize::from(submission.generates) > context_tokens {
            return Err(SubmitError::ContextLengthExceeded { prompt_tokens, context_tokens });
        }
        Ok(())
    }

    /// Ends a request that nobody wants any more. Its blocks are free at once, or as soon as the device is done with them.
    fn end(&mut self, id: RequestId, effect: Effect, effects: &mut Vec<Effect>) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        if sequence.ended {
            return;
        }
        effects.push(effect);
        let computing = sequence.in_flight.and_then(|step| self.steps.get(&step)).is_some_and(|step| step.computing);
        if computing {
            sequence.ended = true;
        } else {
            self.forget(id);
        }
    }

    fn step_done(&mut self, step: StepId) {
        let Some(record) = self.steps.get_mut(&step).filter(|record| record.computing) else { return };
        record.computing = false;
        let mut ended = Vec::new();
        for member in &record.members {
            let Some(sequence) = self.sequences.get_mut(&member.id) else { continue };
            sequence.computed = member.computed_after;
            if sequence.computed >= sequence.suspect_until {
                sequence.suspect_until = 0;
            }
            if !member.task {
                sequence.in_flight = None;
            }
            if sequence.ended {
                ended.push(member.id);
            }
        }
        let sampling = record.members.iter().any(|member| member.task);
        for id in ended {
            self.forget(id);
        }
        if !sampling {
            self.steps.remove(&step);
        }
    }

    fn sampled(&mut self, step: StepId, outcomes: Vec<Outcome>) {
        debug_assert!(self.steps.get(&step).is_none_or(|record| !record.computing), "sampled before it was computed");
        for Outcome { id, verdict, pause } in outcomes {
            let Some(sequence) = self.sequences.get_mut(&id).filter(|sequence| sequence.in_flight == Some(step)) else {
                continue;
            };
            sequence.in_flight = None;
            sequence.paused = pause;
            sequence.scored = sequence.scored.max(sequence.computed.min(sequence.prompt_tokens));
            match verdict {
                Verdict::Token(token) => sequence.tokens.push(token),
                Verdict::Scored => {}
                Verdict::Ended => self.forget(id),
            }
        }
        self.steps.remove(&step);
    }

    fn resume(&mut self, id: RequestId) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.paused = false;
        }
    }

    fn executor_ready(&mut self, limits: EngineLimits, effects: &mut Vec<Effect>) {
        debug_assert!(self.running.is_empty(), "an executor comes with empty blocks");
        self.blocks = BlockTable::new(limits.kv_blocks);
        self.limits = limits;
        self.executor_ready = true;
        let context_tokens = self.context_tokens();
        let too_long: Vec<_> =
            self.sequences.values().filter(|s| s.tokens.len() > context_tokens).map(|s| s.rank.id).collect();
        for id in too_long {
            let reason = format!("it no longer fits the rebuilt engine's context of {context_tokens} tokens");
            self.end(id, Effect::Failed(id, GenerationError::Engine(reason)), effects);
        }
    }

    fn executor_lost(&mut self, failed: Option<StepId>, reason: &str, effects: &mut Vec<Effect>) {
        self.executor_ready = false;
        let computing: Vec<_> = self.steps.iter().filter(|(_, step)| step.computing).map(|(&id, _)| id).collect();
        for step in computing {
            if failed.is_none_or(|failed| failed == step) {
                self.step_failed(step, reason, effects);
            } else {
                self.abandon(step);
            }
        }
        for rank in std::mem::take(&mut self.running) {
            self.release_blocks(rank.id);
            self.waiting.insert(rank);
        }
    }

    /// A step did not succeed: whoever took part is a suspect, and whoever was alone and suspect already has failed.
    fn step_failed(&mut self, step: StepId, reason: &str, effects: &mut Vec<Effect>) {
        let Some(record) = self.abandon(step) else { return };
        let alone = record.members.len() == 1;
        for member in record.members {
            let Some(sequence) = self.sequences.get_mut(&member.id) else { continue };
            if alone && sequence.is_suspect() {
                let error = GenerationError::Engine(reason.to_owned());
                self.end(member.id, Effect::Failed(member.id, error), effects);
            } else {
                sequence.suspect_until = sequence.suspect_until.max(member.computed_after);
            }
        }
    }

    /// Takes back a step that the device will not finish; nothing of it counts as computed.
    fn abandon(&mut self, step: StepId) -> Option<StepRecord> {
        let record = self.steps.remove(&step)?;
        for member in &record.members {
            let Some(sequence) = self.sequences.get_mut(&member.id) else { continue };
            sequence.in_flight = None;
            if sequence.ended {
                self.forget(member.id);
            }
        }
        Some(record)
    }

    /// Gives a sequence's blocks back and remembers it no longer.
    fn forget(&mut self, id: RequestId) {
        self.release_blocks(id);
        if let Some(sequence) = self.sequences.remove(&id) {
            self.waiting.remove(&sequence.rank);
            self.running.remove(&sequence.rank);
        }
    }

    /// Takes a sequence's blocks; what it had computed must be computed again.
    fn release_blocks(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        sequence.computed = 0;
        sequence.place = Place::Waiting;
        for block in sequence.blocks.drain(..) {
            self.blocks.release(block);
        }
    }

    /// Panics when an invariant does not hold.
    ///
    /// - Every block is free or held, and by as many sequences as are counted.
    /// - A sequence either waits, without blocks, or runs, with blocks for all it has computed.
    /// - A sequence is in flight exactly when a step says so; at most `steps_in_flight` steps are.
    pub fn check(&self) {
        assert!(
            self.blocks.accounts_for(self.sequences.values().flat_map(|s| &s.blocks)),
            "blocks are lost or doubled"
        );
        assert_eq!(self.waiting.len() + self.running.len(), self.sequences.len(), "a sequence is nowhere or twice");
        for sequence in self.sequences.values() {
            let (waits, runs) = (self.waiting.contains(&sequence.rank), self.running.contains(&sequence.rank));
            assert_eq!((waits, runs), (sequence.place == Place::Waiting, sequence.place == Place::Running));
            assert!(sequence.blocks.is_empty() || runs, "{:?} waits with blocks", sequence.rank);
            assert!(sequence.computed <= sequence.blocks.len() * BLOCK_TOKENS, "{:?} lacks blocks", sequence.rank);
            assert!(sequence.computed <= sequence.tokens.len(), "{:?} computed what it has not", sequence.rank);
            assert!(sequence.tokens.len() <= self.context_tokens(), "{:?} is longer than the context", sequence.rank);
            if let Some(step) = sequence.in_flight {
                let record = self.steps.get(&step).expect("a sequence is in flight in a step that exists");
                assert!(record.members.iter().any(|member| member.id == sequence.rank.id));
            }
        }
        assert!(self.steps.len() <= self.config.steps_in_flight.max(1), "too many steps in flight");
    }
}
