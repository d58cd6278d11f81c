//! The state of the policy, and how it handles events.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::{BLOCK_TOKENS, BlockId, EngineLimits, StepId};

use super::config::{PolicyConfig, SpeculationMode};
use super::drafts::{Acceptance, DraftTime, Drafter, RecentAnswers};
use super::events::{Effect, PolicyEvent, Submission};
use super::fair_queue::FairQueue;
use super::kv_blocks::{BlockHandle, BlockManager};
use super::prompt_time::PromptTime;
use super::recurrent_state::RecurrentState;
use super::sequence::{Rank, Residency, Sequence};
use super::sequence_window::SequenceWindow;
use super::state_slots::StateSlots;
use super::step_record::StepRecord;
use super::step_time::StepTime;
use super::tiers::Tiers;
use super::window_blocks::WindowBlocks;
use crate::core::adapter_counts::AdapterCounts;
use crate::core::cache_change::CacheChange;
use crate::core::counts::Counts;
use crate::core::prompt_media::MediaRun;
use crate::core::request::{GenerationError, RequestId, SubmitError};
use crate::core::shared_limit::{Client, SharedLimit};
use crate::core::tier::Tier;

/// Maximum number of answer tokens that are charged to a client in advance: few answers are as long as they may be.
const COUNTED_ANSWER: usize = 512;

/// Why a prompt for a model that attends to an encoder is refused that does not start with the rows of the encoder.
const NO_RECORDING: &str =
    "this model writes what it hears and nothing else: its prompt must start with a recording, and have no other";

/// Why a prompt for a model that attends to an encoder is refused that has nothing after its recording.
const ONLY_A_RECORDING: &str = "this model writes after a token: its prompt must have one after the recording";

/// The scheduling state: sequences, KV blocks and steps in flight.
#[derive(Debug)]
pub struct Policy {
    pub(super) config: PolicyConfig,
    pub(super) limits: EngineLimits,
    pub(super) executor_ready: bool,
    pub(super) draining: bool,
    pub(super) blocks: BlockManager,
    pub(super) slots: StateSlots,
    pub(super) windows: WindowBlocks,
    pub(super) sequences: foldhash::HashMap<RequestId, Sequence>,
    pub(super) waiting: BTreeSet<Rank>,
    pub(super) running: BTreeSet<Rank>,
    pub(super) fair_queue: FairQueue,
    pub(super) step_time: StepTime,
    /// Number of prompt rows from which on a step takes hardly longer for more rows.
    pub(super) prefill_saturation_rows: Option<usize>,
    pub(super) prompt_time: PromptTime,
    /// How often drafts of all sequences were accepted.
    pub(super) acceptance: Acceptance,
    /// Answers that ended, for drafts.
    pub(super) recent_answers: RecentAnswers,
    /// Whether there is a draft model to ask.
    pub(super) drafter_ready: bool,
    pub(super) draft_time: DraftTime,
    pub(super) tiers: Tiers,
    pub(super) steps: BTreeMap<StepId, StepRecord>,
    pub(super) next_step: StepId,
    pub(super) next_arrival: u64,
    /// Sequences whose client does not read.
    pub(super) paused: usize,
    /// Prompt tokens of requests that have not taken part in a step yet, limited for each client.
    pub(super) queued: SharedLimit,
    /// A sequence found no block because all candidates for preemption are at the executor. No step is formed until the
    /// executor has finished its steps.
    pub(super) awaits_executor: bool,
}

impl Policy {
    /// A policy without requests, for an engine that is not ready yet.
    #[must_use]
    pub fn new(config: PolicyConfig, limits: EngineLimits) -> Self {
        Policy {
            config,
            executor_ready: false,
            draining: false,
            blocks: empty_blocks(&config, limits.kv_blocks),
            slots: StateSlots::new(limits.state_slots),
            windows: empty_windows(&limits),
            limits,
            queued: SharedLimit::new(config.max_queued_tokens),
            sequences: foldhash::HashMap::default(),
            waiting: BTreeSet::new(),
            running: BTreeSet::new(),
            fair_queue: FairQueue::default(),
            step_time: StepTime::default(),
            prefill_saturation_rows: None,
            prompt_time: PromptTime::default(),
            acceptance: Acceptance::default(),
            recent_answers: RecentAnswers::default(),
            drafter_ready: false,
            draft_time: DraftTime::default(),
            tiers: empty_tiers(&config),
            steps: BTreeMap::new(),
            next_step: StepId(0),
            next_arrival: 0,
            paused: 0,
            awaits_executor: false,
        }
    }

    /// Maximum length of a sequence, in tokens: what fits into the context and into the KV cache.
    #[must_use]
    pub fn context_tokens(&self) -> usize {
        let whole = if self.limits.hidden.whole_sequences { self.limits.max_batched_tokens } else { usize::MAX };
        self.limits.context_tokens.min(self.limits.kv_blocks * BLOCK_TOKENS).min(whole)
    }

    /// Whether it has a request that has not ended.
    #[must_use]
    pub fn has(&self, id: RequestId) -> bool {
        self.sequences.contains_key(&id)
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
            queued_tokens: self.queued.used(),
            max_running: self.max_running(),
            blocks_used: self.blocks.used(),
            blocks_cached: self.blocks.cached(),
            blocks_total: self.blocks.total(),
            evictions: self.blocks.evictions(),
            slots_used: self.slots.used(),
            slots_cached: self.slots.checkpoints(),
            slots_total: self.slots.total(),
            slot_evictions: self.slots.evictions(),
            windows_used: self.windows.total() - self.windows.available(),
            windows_kept: self.windows.kept(),
            windows_total: self.windows.total(),
            window_evictions: self.windows.evictions(),
            tiers: Tier::ALL.map(|tier| self.tiers.counts(tier)),
        }
    }

    /// The running and waiting sequences of each adapter. It visits all sequences only of a model that may have adapters.
    #[must_use]
    pub fn adapter_counts(&self) -> AdapterCounts {
        let mut counts = AdapterCounts::new(self.running.len(), self.waiting.len());
        if self.limits.adapters.slots > 0 {
            self.adapter_names(&self.running).for_each(|name| counts.add_running(name));
            self.adapter_names(&self.waiting).for_each(|name| counts.add_waiting(name));
        }
        counts
    }

    /// The names of the adapters of some sequences.
    fn adapter_names<'a>(&'a self, ranks: &'a BTreeSet<Rank>) -> impl Iterator<Item = Arc<str>> + 'a {
        let adapter = |rank: &Rank| self.sequences.get(&rank.id)?.adapter.as_ref();
        ranks.iter().filter_map(adapter).map(|used| Arc::clone(used.adapter.name()))
    }

    /// Accepts or refuses a request.
    ///
    /// # Errors
    /// [`SubmitError::InvalidPrompt`], [`SubmitError::ContextLengthExceeded`], [`SubmitError::QueueFull`], or
    /// [`SubmitError::Unavailable`] while draining.
    pub fn submit(&mut self, submission: Submission) -> Result<Vec<Effect>, SubmitError> {
        self.validate(&submission)?;
        self.enqueue(submission);
        Ok(self.form_steps(Vec::new()))
    }

    /// Adds a request to the waiting ones.
    pub(super) fn enqueue(&mut self, submission: Submission) -> &mut Sequence {
        let Submission { id, prompt, max_tokens, priority, client, scope, scores_prompt, .. } = submission;
        let Submission { adapter, hidden, engine_sampling, draft_sampling, speculation, reports_progress, .. } =
            submission;
        let Submission { denoising, kv_transfer, second_text, media, hidden_from, .. } = submission;
        let prompt_tokens = prompt.len();
        let cost = prompt_tokens + max_tokens.min(COUNTED_ANSWER);
        let span = self.fair_queue.enqueue(client.clone(), cost, priority);
        self.queued.take(&client, prompt_tokens);
        let rank = Rank { virtual_finish: span.finish, arrival: self.next_arrival, id };
        self.next_arrival += 1;
        let sequence = Sequence {
            rank,
            span,
            priority,
            client,
            scope,
            adapter,
            tokens: prompt,
            prompt_tokens,
            media,
            reports_progress,
            most_tokens: prompt_tokens.saturating_add(max_tokens).min(self.context_tokens()),
            scores_prompt,
            hidden,
            hidden_from,
            second_text,
            scored: if scores_prompt { 0 } else { prompt_tokens },
            engine_sampling,
            denoising,
            canvas: None,
            draft_sampling,
            computed: 0,
            planned: 0,
            blocks: Vec::new(),
            state: RecurrentState::default(),
            window: SequenceWindow::default(),
            hashes: Vec::new(),
            loading: None,
            computes: false,
            cached_blocks: 0,
            kv_transfer,
            shared_blocks: 0,
            residency: Residency::Waiting,
            leader: None,
            in_flight: 0,
            pending: Vec::new(),
            unverified: 0,
            speculates: !speculation.is_off && denoising.is_none(),
            drafter: Drafter::new(speculation.prediction, prompt_tokens),
            paused: false,
            suspect_until: 0,
            yielded: 0,
            started: false,
            last_step: StepId(0),
        };
        self.waiting.insert(rank);
        self.sequences.entry(id).insert_entry(sequence).into_mut()
    }

    /// Handles an event.
    pub fn on(&mut self, event: PolicyEvent) -> Vec<Effect> {
        let mut effects = Vec::new();
        match event {
            PolicyEvent::Cancel(id) => self.end(id, Effect::Cancelled(id), &mut effects),
            PolicyEvent::StepDone { step, elapsed, prefill_saturation_rows } => {
                self.step_done(step, elapsed, prefill_saturation_rows, &mut effects);
            }
            PolicyEvent::StepFailed { step, reason } => self.step_refused(step, &reason, &mut effects),
            PolicyEvent::Sampled { step, outcomes } => self.sampled(step, outcomes, &mut effects),
            PolicyEvent::Resume(id) => self.set_paused(id, false),
            PolicyEvent::ExecutorReady(limits) => self.executor_ready(*limits, &mut effects),
            PolicyEvent::ExecutorLost { failed, reason } => self.executor_lost(failed, &reason, &mut effects),
            PolicyEvent::DrafterReady => self.drafter_ready(),
            PolicyEvent::DrafterLost => self.drafter_lost(),
            PolicyEvent::Drafted(reply) => self.drafted(reply),
            PolicyEvent::Tier(tier, report) => self.tier_reported(tier, report, &mut effects),
            PolicyEvent::Fetched { fetch, found, elapsed } => self.fetched(fetch, found, elapsed, &mut effects),
            PolicyEvent::FetchTimedOut(fetch) => self.fetch_timed_out(fetch, &mut effects),
            PolicyEvent::UnitsWritten { bytes, elapsed } => self.tiers.times.written(bytes, elapsed),
            PolicyEvent::Drain => self.draining = true,
            PolicyEvent::EndAll(error) => {
                let mut ids: Vec<_> = self.sequences.keys().copied().collect();
                ids.sort_unstable();
                for id in ids {
                    self.end(id, Effect::Failed(id, error.clone()), &mut effects);
                }
            }
        }
        self.form_steps(effects)
    }

    /// Forms as many steps as may be in flight. Called after every event.
    fn form_steps(&mut self, mut effects: Vec<Effect>) -> Vec<Effect> {
        self.ask_draft_model(&mut effects);
        while self.may_form_step() && self.form_step(&mut effects) {}
        self.store_evicted(&mut effects);
        self.flush(&mut effects);
        let changes = self.cache_changes();
        if !changes.is_empty() {
            effects.push(Effect::CacheChanged(changes));
        }
        if self.config.verify {
            self.check();
        }
        effects
    }

    /// What has changed on the device and in the tiers since the last call.
    fn cache_changes(&mut self) -> Vec<CacheChange> {
        let mut changes = self.blocks.take_changes();
        let of_tiers = self.tiers.take_changes();
        if changes.contains(&CacheChange::Cleared) {
            changes.extend(self.tiers.all_as_changes());
        } else {
            changes.extend(of_tiers);
        }
        changes
    }

    fn may_form_step(&mut self) -> bool {
        let at_executor = self.steps.values().filter(|step| step.is_computing()).count();
        if at_executor == 0 {
            self.awaits_executor = false;
        }
        self.executor_ready
            && !self.awaits_executor
            && at_executor < self.config.steps_at_executor.max(1)
            && self.steps.len() < self.config.steps_in_flight.max(1)
            && !self.awaits_drafts()
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
        match submission.hidden {
            None if self.limits.max_logits_rows == 0 => {
                return Err(SubmitError::InvalidPrompt("the model makes embeddings and generates no text".into()));
            }
            Some(_) if self.limits.hidden.width == 0 => {
                return Err(SubmitError::InvalidPrompt("the model makes no embeddings".into()));
            }
            _ => {}
        }
        self.validate_media(submission)?;
        let vocab_size = self.limits.vocab_size;
        if let Some(token) = submission.prompt.iter().find(|&&token| token as usize >= vocab_size) {
            return Err(SubmitError::InvalidPrompt(format!(
                "token id {token} is outside of the vocabulary; ids are below {vocab_size}"
            )));
        }
        let (prompt_tokens, context_tokens) = (submission.prompt.len(), self.context_tokens());
        let least = submission.denoising.map_or(submission.max_tokens.min(1), |denoising| denoising.rule.tokens);
        if prompt_tokens + least > context_tokens {
            return Err(SubmitError::ContextLengthExceeded { prompt_tokens, context_tokens });
        }
        // A prompt that exceeds the limit by itself is accepted when no other prompt waits.
        let queued = self.queued.used();
        if queued > 0 && !self.admits_prompt(&submission.client, prompt_tokens) {
            let excess = self.step_time.of_rows((queued + prompt_tokens).saturating_sub(self.config.max_queued_tokens));
            return Err(SubmitError::QueueFull {
                tokens: queued,
                retry_after: excess.unwrap_or(Duration::from_secs(1)),
            });
        }
        Ok(())
    }

    /// Checks that the rows of media are at positions of the prompt, and that a step can have them.
    fn validate_media(&self, submission: &Submission) -> Result<(), SubmitError> {
        let Submission { media, prompt, hidden, hidden_from, scores_prompt, .. } = submission;
        let refuse = |reason: String| Err(SubmitError::InvalidPrompt(reason));
        let leading = self.limits.embeddings.unwrap_or_default().leading_rows;
        if leading > 0 {
            let is_recording = |run: &MediaRun| run.positions() == (0..leading);
            if media.runs().len() != 1 || !media.runs().iter().all(is_recording) {
                return refuse(NO_RECORDING.into());
            }
            if prompt.len() == leading {
                return refuse(ONLY_A_RECORDING.into());
            }
        }
        if media.is_empty() {
            return Ok(());
        }
        let Some(limits) = self.limits.embeddings else { return refuse("the model takes no media".into()) };
        let ends_of_media = media.runs().iter().map(|run| run.positions().end);
        let has_hidden_media = hidden.is_some() && ends_of_media.max() > Some(*hidden_from);
        if *scores_prompt || has_hidden_media {
            return refuse("the tokens of a prompt with media have no log-probabilities and no embedding".into());
        }
        let (most, limit) = (media.most_rows_at_once(), self.limits.max_batched_tokens);
        if most > limit {
            return refuse(format!("a media item has {most} rows that must be in one step, which has at most {limit}"));
        }
        let width = limits.values();
        let fits = |run: &MediaRun| run.positions().end <= prompt.len() && run.media.width() == width;
        match media.runs().iter().all(fits) {
            true => Ok(()),
            false => refuse("the rows of a media item are not those of this prompt and model".into()),
        }
    }

    /// Whether a prompt may wait. The first prompt of a client may be longer than the client's share.
    fn admits_prompt(&self, client: &Client, prompt_tokens: usize) -> bool {
        let counted = if self.queued.used_by(client) == 0 { 1 } else { prompt_tokens };
        self.queued.admits(client, counted)
    }

    /// Removes a request, if it exists, and adds the effect that reports it.
    pub(super) fn end(&mut self, id: RequestId, effect: Effect, effects: &mut Vec<Effect>) {
        if self.sequences.contains_key(&id) {
            effects.push(effect);
            self.forget(id);
        }
    }

    /// Removes a sequence and releases its blocks. Results of steps that still compute it are ignored.
    pub(super) fn forget(&mut self, id: RequestId) {
        self.release_blocks(id);
        let Some(sequence) = self.sequences.remove(&id) else { return };
        self.waiting.remove(&sequence.rank);
        self.running.remove(&sequence.rank);
        self.fair_queue.ended(&sequence.client);
        self.paused -= usize::from(sequence.paused);
        if sequence.speculates && self.config.speculation != SpeculationMode::Off {
            self.recent_answers.add(&sequence.scope, &sequence.tokens[sequence.prompt_tokens..]);
        }
        if !sequence.started {
            self.queued.give_back(&sequence.client, sequence.prompt_tokens);
        }
    }

    pub(super) fn set_paused(&mut self, id: RequestId, paused: bool) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        self.paused -= usize::from(sequence.paused);
        self.paused += usize::from(paused);
        sequence.paused = paused;
    }

    fn executor_ready(&mut self, limits: EngineLimits, effects: &mut Vec<Effect>) {
        debug_assert!(self.running.is_empty(), "the sequences must wait when a new executor is ready");
        self.limits = limits;
        self.replace_cache();
        self.executor_ready = true;
        let context_tokens = self.context_tokens();
        let mut too_long: Vec<_> = self
            .sequences
            .values()
            .filter(|s| s.tokens.len() + s.block_tokens() > context_tokens)
            .map(|s| s.rank.id)
            .collect();
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
        // The contents of all blocks and slots are lost with the device.
        self.tiers.executor_lost();
        self.replace_cache();
    }

    /// Continues with empty blocks and slots.
    fn replace_cache(&mut self) {
        self.blocks = empty_blocks(&self.config, self.limits.kv_blocks);
        self.slots = StateSlots::new(self.limits.state_slots);
        self.windows = empty_windows(&self.limits);
        self.record_evictions();
    }

    /// Panics when an invariant does not hold.
    ///
    /// - Every block and slot is free, cached or held, and its reference count equals the number of its holders.
    /// - A sequence either waits, without blocks, or runs, with blocks for everything that it has computed.
    /// - The steps that a sequence is in flight for exist, and at most `steps_in_flight` steps do.
    pub fn check(&self) {
        self.tiers.check();
        let held = self.sequences.values().flat_map(|sequence| &sequence.blocks);
        self.blocks.check(held.chain(self.tiers.block_handles()));
        let states = self.sequences.values().flat_map(|sequence| sequence.state.handles());
        self.slots.check(states.chain(self.tiers.slot_handles()));
        let blocks_read = |sequence: &Sequence| -> Vec<BlockId> {
            sequence.blocks[sequence.window.used.clone()].iter().map(BlockHandle::id).collect()
        };
        self.windows.check(self.sequences.values().flat_map(blocks_read));
        assert_eq!(self.waiting.len() + self.running.len(), self.sequences.len(), "a sequence is in no set or in two");
        for sequence in self.sequences.values() {
            let rank = sequence.rank;
            let (waits, runs) = (self.waiting.contains(&rank), self.running.contains(&rank));
            assert_eq!(
                (waits, runs),
                (sequence.residency == Residency::Waiting, sequence.residency == Residency::Running)
            );
            assert!(sequence.blocks.is_empty() || runs, "{rank:?} waits with blocks");
            assert!(sequence.loading.is_none() || (runs && sequence.in_flight == 0), "{rank:?} computes what it loads");
            assert!(sequence.computed <= sequence.planned, "{rank:?} computed more than planned");
            assert!(sequence.planned <= sequence.blocks.len() * BLOCK_TOKENS, "{rank:?} lacks blocks");
            assert!(sequence.planned <= sequence.length(), "{rank:?} has planned more tokens than it has");
            assert!(
                sequence.cached_blocks * BLOCK_TOKENS <= sequence.computed,
                "{rank:?} has uncomputed blocks in the cache"
            );
            assert!(sequence.tokens.len() <= self.context_tokens(), "{rank:?} is longer than the context");
            let members = || self.steps.values().flat_map(|step| step.open_members()).filter(|m| m.id == rank.id);
            assert_eq!(members().count(), sequence.in_flight, "{rank:?} counts wrong steps in flight");
            assert_eq!(members().filter(|member| member.samples).count(), sequence.pending.len());
        }
        let count = |counts: fn(&Sequence) -> usize| self.sequences.values().map(counts).sum::<usize>();
        assert_eq!(self.paused, count(|sequence| usize::from(sequence.paused)));
        assert_eq!(self.queued.used(), count(|s| if s.started { 0 } else { s.prompt_tokens }));
        assert!(self.steps.len() <= self.config.steps_in_flight.max(1), "too many steps in flight");
    }
}

/// Blocks without content.
fn empty_blocks(config: &PolicyConfig, blocks: usize) -> BlockManager {
    let mut blocks = BlockManager::new(blocks);
    if config.prefix_cache && config.reports_cache {
        blocks.record_changes();
    }
    blocks
}

/// Window blocks without content.
fn empty_windows(limits: &EngineLimits) -> WindowBlocks {
    WindowBlocks::new(limits.kv_blocks, limits.window.map(|window| window.blocks))
}

/// Tiers that have not reported anything.
fn empty_tiers(config: &PolicyConfig) -> Tiers {
    let mut tiers = Tiers::default();
    if config.prefix_cache && config.reports_cache {
        tiers.record_changes();
    }
    tiers
}
