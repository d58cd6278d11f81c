//! The scheduler's pure core: an event in, effects out, no clock and no actor.
//!
//! # Rules
//!
//! - Who goes first is decided by priority, by what the client had already ([`fair_queue`]), then by arrival.
//! - A step takes the decode rows first, then, unless prompts must stand back for streams ([`prompt_time`]), as many rows of
//!   prompts as the time that a step may take leaves room for ([`step_time`]): first of short ones, then of prompts that
//!   run, then of new ones ([`prompts`]).
//! - Steps overlap. While one is computed or sampled, the next is formed; a sequence whose newest token is not known yet
//!   gets a place for it ([`AwaitedToken`]).
//! - A sequence gets the blocks of all its tokens when it is admitted, those of its prefix from the cache if they are
//!   there ([`kv_blocks`]), and one more whenever it grows over a border. When none can be had, the one whose turn is
//!   last gives up its blocks and is computed again later.
//! - Its blocks are never free while the device may write to them.
//! - When the executor is lost, every sequence waits again with its tokens. Those of the failed step are suspects: each
//!   runs alone until it is past the point of failure, and fails by itself when it takes the executor down again.
//!
//! # Layout
//!
//! [`events`]: what is heard and said; [`batch`] and [`prompts`]: forming a step; [`residency`]: who holds blocks;
//! [`steps`]: what becomes of steps that were formed.
//!
//! [`Policy::check`] states the invariants; debug builds verify them after every event ([`PolicyConfig::verify`]).

mod batch;
mod events;
mod fair_queue;
pub mod kv_blocks;
mod prefix_cache;
mod prompt_time;
mod prompts;
mod residency;
mod sequence;
mod step_time;
mod steps;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use cuelight_engine::engine::{BLOCK_TOKENS, EngineLimits, StepId};

pub use self::events::{
    AwaitedToken, Counts, Effect, EngineChoice, Outcome, PlannedStep, PolicyEvent, SampleTask, Submission, Verdict,
};
use self::fair_queue::FairQueue;
use self::kv_blocks::BlockTable;
use self::prompt_time::PromptTime;
use self::sequence::{Place, Rank, Sequence};
use self::step_time::StepTime;
use self::steps::StepRecord;
use crate::request::{GenerationError, RequestId, SubmitError};

/// Tokens of an answer that are counted at most when a client's share is reckoned: few answers are as long as they may be.
const COUNTED_ANSWER: usize = 512;

/// How the policy forms steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyConfig {
    /// Most tokens of one prompt in a step, whatever the time.
    pub prefill_chunk_tokens: usize,
    /// How long a step with decode rows should take at most, prompt rows included, and as long as every one of them may
    /// take. `None`: twice what its decode rows take alone, and on average as the share of prompts says.
    pub inter_token_target: Option<Duration>,
    /// How long a step should take at most in which nobody waits for a next token.
    pub prefill_step_limit: Duration,
    /// Steps that may be formed and not yet sampled.
    pub steps_in_flight: usize,
    /// Steps among them that may be with the executor.
    pub steps_at_executor: usize,
    /// Whether blocks are kept for prompts with the same prefix.
    pub prefix_cache: bool,
    /// Most prompt tokens that may wait; more are refused.
    pub max_queued_tokens: usize,
    /// Verify the invariants after every event, and panic when one does not hold. For tests: it takes long.
    pub verify: bool,
}

impl Default for PolicyConfig {
    fn default() -> Self {
        PolicyConfig {
            prefill_chunk_tokens: usize::MAX,
            inter_token_target: None,
            prefill_step_limit: Duration::from_secs(1),
            steps_in_flight: 2,
            steps_at_executor: 1,
            prefix_cache: true,
            max_queued_tokens: usize::MAX,
            verify: cfg!(debug_assertions),
        }
    }
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
    queue: FairQueue,
    step_time: StepTime,
    /// From how many rows on a step takes hardly longer for more of them.
    bulk_rows: Option<usize>,
    prompt_time: PromptTime,
    steps: BTreeMap<StepId, StepRecord>,
    next_step: StepId,
    next_arrival: u64,
    /// Sequences whose client does not read.
    paused: usize,
    /// Tokens of prompts that no step has touched yet.
    queued_tokens: usize,
    /// Somebody found no block because all are in steps at the executor; form no step before those are done.
    wants_quiet: bool,
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
            queue: FairQueue::default(),
            step_time: StepTime::default(),
            bulk_rows: None,
            prompt_time: PromptTime::default(),
            steps: BTreeMap::new(),
            next_step: StepId(0),
            next_arrival: 0,
            paused: 0,
            queued_tokens: 0,
            wants_quiet: false,
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
            paused: self.paused,
            executor_ready: self.executor_ready,
            queued_tokens: self.queued_tokens,
            max_running: self.max_running(),
            blocks_used: self.blocks.used(),
            blocks_cached: self.blocks.cached(),
            blocks_total: self.blocks.total(),
            evictions: self.blocks.evictions(),
        }
    }

    /// Takes a request in, or says why not.
    ///
    /// # Errors
    /// [`SubmitError::InvalidPrompt`], [`SubmitError::ContextLengthExceeded`], [`SubmitError::QueueFull`], or
    /// [`SubmitError::Unavailable`] while draining.
    pub fn submit(&mut self, submission: Submission) -> Result<Vec<Effect>, SubmitError> {
        self.validate(&submission)?;
        let Submission { id, prompt, max_tokens, priority, client, cache_salt, scores_prompt, engine_choice } =
            submission;
        let prompt_tokens = prompt.len();
        let turn = self.queue.turn(client, prompt_tokens + max_tokens.min(COUNTED_ANSWER), priority);
        let rank = Rank { turn, arrival: self.next_arrival, id };
        self.next_arrival += 1;
        let sequence = Sequence {
            rank,
            priority,
            salt: cache_salt,
            tokens: prompt,
            prompt_tokens,
            most_tokens: prompt_tokens.saturating_add(max_tokens).min(self.context_tokens()),
            scores_prompt,
            scored: if scores_prompt { 0 } else { prompt_tokens },
            engine_choice,
            computed: 0,
            planned: 0,
            blocks: Vec::new(),
            remembered: 0,
            place: Place::Waiting,
            leader: None,
            in_flight: 0,
            pending: Vec::new(),
            paused: false,
            suspect_until: 0,
            started: false,
            last_step: StepId(0),
        };
        self.sequences.insert(id, sequence);
        self.waiting.insert(rank);
        self.queued_tokens += prompt_tokens;
        Ok(self.settle(Vec::new()))
    }

    /// Takes note of what happened and says what to do.
    pub fn on(&mut self, event: PolicyEvent) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            PolicyEvent::Cancel(id) => self.end(id, Effect::Cancelled(id), &mut effects),
            PolicyEvent::StepDone { step, elapsed, bulk_rows } => self.step_done(step, elapsed, bulk_rows),
            PolicyEvent::StepFailed { step, reason } => self.step_refused(step, &reason, &mut effects),
            PolicyEvent::Sampled { step, outcomes } => self.sampled(step, outcomes),
            PolicyEvent::Resume(id) => self.set_paused(id, false),
            PolicyEvent::ExecutorReady(limits) => self.executor_ready(limits, &mut effects),
            PolicyEvent::ExecutorLost { failed, reason } => self.executor_lost(failed, &reason, &mut effects),
            PolicyEvent::Drain => self.draining = true,
            PolicyEvent::EndAll(error) => {
                let mut ids: Vec<_> = self.sequences.keys().copied().collect();
                ids.sort_unstable();
                for id in ids {
                    self.end(id, Effect::Failed(id, error.clone()), &mut effects);
                }
            }
        }
        self.settle(effects)
    }

    /// Forms as many steps as may be in flight; every event ends here.
    fn settle(&mut self, mut effects: Vec<Effect>) -> Vec<Effect> {
        while self.may_form_step() && self.form_step(&mut effects) {}
        if self.config.verify {
            self.check();
        }
        effects
    }

    fn may_form_step(&mut self) -> bool {
        let at_executor = self.steps.values().filter(|step| step.is_computing()).count();
        if at_executor == 0 {
            self.wants_quiet = false;
        }
        self.executor_ready
            && !self.wants_quiet
            && at_executor < self.config.steps_at_executor.max(1)
            && self.steps.len() < self.config.steps_in_flight.max(1)
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
        if prompt_tokens + submission.max_tokens.min(1) > context_tokens {
            return Err(SubmitError::ContextLengthExceeded { prompt_tokens, context_tokens });
        }
        // A prompt that is longer than the limit by itself may still be the only one that waits.
        let queued = self.queued_tokens;
        let most = self.config.max_queued_tokens;
        if queued > 0 && queued + prompt_tokens > most {
            let excess = self.step_time.of_rows(queued + prompt_tokens - most);
            return Err(SubmitError::QueueFull {
                tokens: queued,
                retry_after: excess.unwrap_or(Duration::from_secs(1)),
            });
        }
        Ok(())
    }

    /// Ends a request that nobody wants any more.
    fn end(&mut self, id: RequestId, effect: Effect, effects: &mut Vec<Effect>) {
        if self.sequences.contains_key(&id) {
            effects.push(effect);
            self.forget(id);
        }
    }

    /// Gives a sequence's blocks back and remembers it no longer. Steps that still compute it do so for nothing.
    fn forget(&mut self, id: RequestId) {
        self.release_blocks(id);
        let Some(sequence) = self.sequences.remove(&id) else { return };
        self.waiting.remove(&sequence.rank);
        self.running.remove(&sequence.rank);
        self.paused -= usize::from(sequence.paused);
        if !sequence.started {
            self.queued_tokens -= sequence.prompt_tokens;
        }
    }

    fn set_paused(&mut self, id: RequestId, paused: bool) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        self.paused -= usize::from(sequence.paused);
        self.paused += usize::from(paused);
        sequence.paused = paused;
    }

    fn executor_ready(&mut self, limits: EngineLimits, effects: &mut Vec<Effect>) {
        debug_assert!(self.running.is_empty(), "an executor comes with empty blocks");
        self.blocks = BlockTable::new(limits.kv_blocks);
        self.limits = limits;
        self.executor_ready = true;
        let context_tokens = self.context_tokens();
        let mut too_long: Vec<_> =
            self.sequences.values().filter(|s| s.tokens.len() > context_tokens).map(|s| s.rank.id).collect();
        too_long.sort_unstable();
        for id in too_long {
            let reason = format!("it no longer fits the rebuilt engine's context of {context_tokens} tokens");
            self.end(id, Effect::Failed(id, GenerationError::Engine(reason)), effects);
        }
        for sequence in self.sequences.values_mut() {
            sequence.most_tokens = sequence.most_tokens.min(context_tokens);
        }
    }

    fn executor_lost(&mut self, failed: Option<StepId>, reason: &str, effects: &mut Vec<Effect>) {
        self.executor_ready = false;
        self.steps_lost(failed, reason, effects);
        for rank in std::mem::take(&mut self.running) {
            if let Some(sequence) = self.sequences.get_mut(&rank.id) {
                sequence.lose_blocks();
            }
            self.waiting.insert(rank);
        }
        // The blocks are gone with the device, and what they held.
        self.blocks = BlockTable::new(self.limits.kv_blocks);
    }

    /// Panics when an invariant does not hold.
    ///
    /// - Every block is free, cached or held, and by as many sequences as are counted.
    /// - A sequence either waits, without blocks, or runs, with blocks for all it has computed.
    /// - What a sequence is in flight for, steps say; at most `steps_in_flight` of them are.
    pub fn check(&self) {
        self.blocks.check(self.sequences.values().flat_map(|sequence| &sequence.blocks));
        assert_eq!(self.waiting.len() + self.running.len(), self.sequences.len(), "a sequence is nowhere or twice");
        for sequence in self.sequences.values() {
            let rank = sequence.rank;
            let (waits, runs) = (self.waiting.contains(&rank), self.running.contains(&rank));
            assert_eq!((waits, runs), (sequence.place == Place::Waiting, sequence.place == Place::Running));
            assert!(sequence.blocks.is_empty() || runs, "{rank:?} waits with blocks");
            assert!(sequence.computed <= sequence.planned, "{rank:?} computed more than planned");
            assert!(sequence.planned <= sequence.blocks.len() * BLOCK_TOKENS, "{rank:?} lacks blocks");
            assert!(sequence.planned <= sequence.length(), "{rank:?} plans what it has not");
            assert!(sequence.remembered * BLOCK_TOKENS <= sequence.computed, "{rank:?} is remembered too early");
            assert!(sequence.tokens.len() <= self.context_tokens(), "{rank:?} is longer than the context");
            let members = || self.steps.values().flat_map(|step| step.open_members()).filter(|m| m.id == rank.id);
            assert_eq!(members().count(), sequence.in_flight, "{rank:?} is in flight elsewhere");
            assert_eq!(members().filter(|member| member.samples).count(), sequence.pending.len());
        }
        let count = |counts: fn(&Sequence) -> usize| self.sequences.values().map(counts).sum::<usize>();
        assert_eq!(self.paused, count(|sequence| usize::from(sequence.paused)));
        assert_eq!(self.queued_tokens, count(|s| if s.started { 0 } else { s.prompt_tokens }));
        assert!(self.steps.len() <= self.config.steps_in_flight.max(1), "too many steps in flight");
    }
}
