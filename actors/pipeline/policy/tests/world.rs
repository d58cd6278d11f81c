//! A simulation of everything around the policy.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use cuelight_engine::engine::{
    BLOCK_TOKENS, BlockId, EngineLimits, HiddenRows, LogitsWanted, SequenceRows, SlotId, Step, StepId, TokenId,
};
use cuelight_engine::sample::Denoising;

use super::tiers::SimulatedTiers;
use super::{canvases, media};
use crate::core::block_hash::BlockHash;
use crate::core::cache_change::CacheChange;
use crate::core::cached_unit::UnitKind;
use crate::core::draft::{DraftReply, DraftRequest};
use crate::core::request::{GenerationError, MAX_STEP_TOKENS, RequestId};
use crate::core::tier::Tier;
use crate::pipeline::policy::*;

/// The step times of the simulated device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Machine {
    pub(super) base: Duration,
    pub(super) per_row: Duration,
    pub(super) per_attended: Duration,
    /// Number of rows from which on all steps take the same time, and that time.
    pub(super) saturation: Option<(usize, Duration)>,
}

pub(super) const MACHINE: Machine = Machine {
    base: Duration::from_millis(5),
    per_row: Duration::from_millis(1),
    per_attended: Duration::from_nanos(50),
    saturation: None,
};

impl Machine {
    pub(super) fn elapsed(self, step: &Step) -> Duration {
        let mut work = step_time::Work::default();
        for rows in &step.sequences {
            work.add(step_time::Work::of(rows.first_position as usize, rows.tokens.len()));
        }
        match self.saturation {
            Some((rows, elapsed)) if work.rows >= rows => elapsed,
            _ => self.base + self.per_row * work.rows as u32 + self.per_attended * work.attended as u32,
        }
    }
}

/// A draft model that knows how texts continue.
pub(super) struct DraftModel {
    /// Per cent of its tokens that are right.
    pub(super) accuracy: u64,
    /// Time per token.
    pub(super) token_time: Duration,
    /// The requests that it was asked about.
    pub(super) asked: Vec<RequestId>,
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    Sampled,
    Cancelled,
    Failed(GenerationError),
}

/// The state of a request at its client and at the sampler.
pub(super) struct RequestState {
    pub(super) submission: Submission,
    pub(super) tokens: Vec<TokenId>,
    pub(super) prompt_tokens: usize,
    /// Number of tokens at which it ends.
    pub(super) until: usize,
    pub(super) scored: usize,
    pub(super) end: Option<End>,
}

/// The simulation of everything around the policy.
pub(super) struct World {
    pub(super) policy: Policy,
    pub(super) limits: EngineLimits,
    pub(super) machine: Machine,
    pub(super) requests: HashMap<RequestId, RequestState>,
    /// For each slot of the KV cache, the hash of all tokens up to there.
    pub(super) kv: HashMap<(BlockId, usize), u64>,
    /// The same for each slot of layers that keep windows.
    pub(super) window_kv: HashMap<(BlockId, usize), u64>,
    /// For each slot of recurrent state, the hash of all tokens whose state it holds.
    pub(super) states: HashMap<SlotId, u64>,
    /// Whether the model has recurrent state only.
    pub(super) has_no_kv: bool,
    pub(super) computing: VecDeque<PlannedStep>,
    pub(super) sampling: VecDeque<PlannedStep>,
    /// Sampled outcomes that the executor knows and the policy does not know yet.
    pub(super) delivering: VecDeque<(StepId, Vec<Outcome>)>,
    /// The sampled tokens of each step.
    pub(super) tokens: HashMap<StepId, HashMap<RequestId, TokenId>>,
    pub(super) ready: bool,
    pub(super) awaits_resync: bool,
    pub(super) preempted: usize,
    /// Cached prompt tokens of each request when it started.
    pub(super) cached: HashMap<RequestId, usize>,
    /// Computed tokens of the prompt of each request, as reported.
    pub(super) reported: HashMap<RequestId, Vec<usize>>,
    pub(super) rows_computed: usize,
    /// Whether some tokens end their request like a stop string.
    pub(super) stops: bool,
    /// Whether the next token mostly follows from the last two, so that texts repeat.
    pub(super) repeats: bool,
    /// Whether a constraint forces some tokens.
    pub(super) forces: bool,
    /// Number of forced tokens.
    pub(super) forced: usize,
    /// Accepted tokens of drafts.
    pub(super) accepted: usize,
    pub(super) draft_model: Option<DraftModel>,
    /// How blocks are denoised, if requests are for blocks.
    pub(super) denoising: Option<Denoising>,
    /// What the draft model was asked for and has not answered.
    pub(super) drafting: VecDeque<DraftRequest>,
    pub(super) tiers: SimulatedTiers,
    /// The blocks of the prefix cache, as reported.
    known: HashSet<BlockHash>,
    known_in_tiers: HashSet<(Tier, BlockHash)>,
}

impl World {
    pub(super) fn new(config: PolicyConfig, limits: EngineLimits) -> Self {
        let mut world = World {
            policy: Policy::new(config, limits.clone()),
            limits: limits.clone(),
            machine: MACHINE,
            requests: HashMap::new(),
            kv: HashMap::new(),
            window_kv: HashMap::new(),
            states: HashMap::new(),
            has_no_kv: false,
            computing: VecDeque::new(),
            sampling: VecDeque::new(),
            delivering: VecDeque::new(),
            tokens: HashMap::new(),
            ready: true,
            awaits_resync: false,
            preempted: 0,
            cached: HashMap::new(),
            reported: HashMap::new(),
            rows_computed: 0,
            stops: false,
            repeats: false,
            forces: false,
            forced: 0,
            accepted: 0,
            draft_model: None,
            denoising: None,
            drafting: VecDeque::new(),
            tiers: SimulatedTiers::default(),
            known: HashSet::new(),
            known_in_tiers: HashSet::new(),
        };
        world.on(PolicyEvent::ExecutorReady(Box::new(limits)));
        world
    }

    pub(super) fn submit(&mut self, submission: Submission, generate: usize) {
        // Blocks of different requests begin as different tokens.
        let denoising = self.denoising.map(|denoising| Denoising { seed: submission.id.0, ..denoising });
        let submission = Submission { max_tokens: generate, denoising, ..submission };
        let prompt_tokens = submission.prompt.len();
        let state = RequestState {
            tokens: submission.prompt.clone(),
            prompt_tokens,
            until: (prompt_tokens + generate).min(self.policy.context_tokens_after(prompt_tokens)),
            scored: match submission.hidden {
                Some(HiddenRows::All) => submission.hidden_from,
                _ if submission.scores_prompt => 0,
                _ => prompt_tokens,
            },
            end: None,
            submission: submission.clone(),
        };
        let id = submission.id;
        let effects = self.policy.submit(submission).unwrap();
        self.requests.insert(id, state);
        self.perform(effects);
    }

    pub(super) fn on(&mut self, event: PolicyEvent) {
        let effects = self.policy.on(event);
        self.perform(effects);
        self.assert_reports_are_complete();
    }

    pub(super) fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Run(step) => self.begin(step),
                Effect::Draft(request) => self.drafting.push_back(request),
                Effect::Resync => self.awaits_resync = false,
                Effect::Started { id, cached_tokens } => {
                    assert_eq!(self.cached.insert(id, cached_tokens), None, "{id:?} started twice");
                }
                Effect::PromptComputed { id, tokens } => {
                    let state = &self.requests[&id];
                    assert!(
                        state.submission.reports_progress && tokens <= state.prompt_tokens,
                        "{id:?} reports {tokens}"
                    );
                    self.reported.entry(id).or_default().push(tokens);
                }
                Effect::Tier(TierEffect::Store(copies)) => self.store(copies),
                Effect::Tier(TierEffect::Demote(id)) => self.tiers.demote(id),
                Effect::Tier(TierEffect::Discard(tier, id)) => self.tiers.discard(tier, id),
                Effect::Tier(TierEffect::Fetch { fetch, tier, units, .. }) => {
                    self.tiers.fetching.push_back((fetch, tier, units));
                }
                Effect::Tier(TierEffect::Write { fetch, units }) => self.write(fetch, &units),
                Effect::CacheChanged(changes) => changes.into_iter().for_each(|change| self.cache_changed(change)),
                Effect::Preempted(_) => self.preempted += 1,
                Effect::Cancelled(id) => self.end(id, End::Cancelled),
                Effect::Failed(id, error) => self.end(id, End::Failed(error)),
            }
        }
    }

    /// Follows what the prefix cache holds, from its reports alone.
    fn cache_changed(&mut self, change: CacheChange) {
        let found = match change {
            CacheChange::Stored(content, _) => self.known.insert(content.hash),
            CacheChange::Removed(hash) => self.known.remove(&hash),
            CacheChange::Cleared => {
                self.known.clear();
                self.known_in_tiers.clear();
                true
            }
            CacheChange::Copied(tier, hash) => self.known_in_tiers.insert((tier, hash)),
            CacheChange::Dropped(tier, hash) => self.known_in_tiers.remove(&(tier, hash)),
        };
        assert!(found, "stored twice, or removed without being there: {change:?}");
    }

    fn assert_reports_are_complete(&self) {
        if !self.policy.config.reports_cache {
            return;
        }
        let known: HashSet<BlockHash> = self.policy.blocks.known().map(|content| content.hash).collect();
        assert_eq!(self.known, known);
        let in_tier = |tier| self.policy.tiers.index(tier).oldest_first().map(move |unit| (tier, unit.id));
        let in_tiers = Tier::ALL.into_iter().flat_map(in_tier).filter(|(_, id)| id.kind == UnitKind::Block);
        assert_eq!(self.known_in_tiers, in_tiers.map(|(tier, id)| (tier, id.block)).collect());
    }

    pub(super) fn end(&mut self, id: RequestId, end: End) {
        let state = self.requests.get_mut(&id).unwrap();
        assert!(state.end.is_none() || state.end == Some(End::Sampled), "{id:?} ended twice");
        // The sampler may have ended it already, without the policy knowing yet.
        state.end.get_or_insert(end);
    }

    pub(super) fn begin(&mut self, planned: PlannedStep) {
        assert!(self.ready, "a step was sent to a lost executor");
        let (step, tasks) = (&planned.step, &planned.tasks);
        assert!(step.rows() <= self.limits.max_batched_tokens);
        assert!(step.sequences.len() <= self.limits.max_sequences);
        assert!(step.logits_rows() <= self.limits.max_logits_rows);
        let denoised = |task: &&SampleTask| task.canvas.is_some();
        let canvas_rows: usize = tasks.iter().filter(denoised).map(|task| task.hidden_rows).sum();
        assert_eq!(step.logits_rows(), tasks.iter().map(|task| task.rows).sum::<usize>() + canvas_rows);
        assert!(step.hidden_rows() <= self.limits.hidden.max_rows);
        assert_eq!(step.hidden_rows() + canvas_rows, tasks.iter().map(|task| task.hidden_rows).sum::<usize>());
        if !self.awaits_resync {
            self.computing.push_back(planned);
        }
    }

    /// Takes the oldest step at the executor and fills in its awaited tokens. `None` while a token is missing.
    pub(super) fn take_step(&mut self) -> Option<PlannedStep> {
        let first = self.computing.front()?;
        if !first.awaits.iter().all(|awaited| self.tokens.contains_key(&awaited.from)) {
            return None;
        }
        let mut planned = self.computing.pop_front()?;
        for awaited in planned.awaits.iter().rev() {
            match self.tokens[&awaited.from].get(&awaited.id) {
                Some(&token) => planned.step.sequences[awaited.sequence].tokens = vec![token],
                None => {
                    planned.step.sequences.remove(awaited.sequence);
                    planned.tasks.retain(|task| task.id != awaited.id);
                }
            }
        }
        Some(planned)
    }

    /// Computes the oldest step on the device, and checks that every row continues the content of the cache.
    pub(super) fn finish_step(&mut self) {
        let Some(planned) = self.take_step() else { return };
        let PlannedStep { step, tasks, .. } = &planned;
        assert_slots_are_apart(step);
        assert_window_blocks_are_apart(step);
        for sequence in &step.sequences {
            assert!(!sequence.tokens.is_empty());
            let mut state = sequence.state.from.map_or(0, |slot| self.states[&slot]);
            for (row, input) in media::inputs_of_rows(sequence).into_iter().enumerate() {
                let position = sequence.first_position as usize + row;
                let slot = |position: usize| (sequence.block_table[position / BLOCK_TOKENS], position % BLOCK_TOKENS);
                let before = match position {
                    0 => 0,
                    _ if self.has_no_kv => state,
                    _ => self.kv[&slot(position - 1)],
                };
                self.kv.insert(slot(position), hash_input(before, input));
                self.check_window(sequence, position);
                if self.limits.state_slots > 0 {
                    assert_eq!(state, before, "the state is that of other tokens");
                    state = hash_input(before, input);
                    let stored = sequence.state.to.iter().filter(|(rows, _)| *rows as usize == row + 1);
                    self.states.extend(stored.map(|(_, slot)| (*slot, state)));
                }
            }
            assert_eq!(sequence.state.to.is_empty(), self.limits.state_slots == 0);
        }
        for task in tasks {
            if let Some(canvas) = &task.canvas {
                self.check_canvas(step, task, canvas);
                continue;
            }
            let mut sampled_rows = step.sequences.iter().filter(|rows| rows.logits != LogitsWanted::None);
            let state = &self.requests[&task.id];
            let end = task.first_position + task.rows + task.hidden_rows;
            let drafted = task.draft.iter().flat_map(|draft| &draft.tokens);
            let known: Vec<TokenId> = state.tokens.iter().chain(drafted.clone()).take(end).copied().collect();
            let inputs = media::inputs_of_tokens(&known, &state.submission.media);
            let expected = inputs.into_iter().fold(0, hash_input);
            let found = sampled_rows.any(|rows| {
                let last = rows.first_position as usize + rows.tokens.len() - 1;
                let slot = (rows.block_table[last / BLOCK_TOKENS], last % BLOCK_TOKENS);
                last + 1 == end && self.kv[&slot] == expected
            });
            assert!(found, "{:?} was computed from wrong blocks or tokens", task.id);
            let next = state.tokens.len() + drafted.count();
            assert!(!task.samples || end == next || (self.forces && end < next) || state.end.is_some());
        }
        self.rows_computed += step.rows();
        let prefill_saturation_rows = self.machine.saturation.map(|(rows, _)| rows);
        let event =
            PolicyEvent::StepDone { step: step.id, elapsed: self.machine.elapsed(step), prefill_saturation_rows };
        self.sampling.push_back(planned);
        self.on(event);
    }

    /// Stores a position in the layers that keep windows, and checks that they have those that its row reads.
    fn check_window(&mut self, sequence: &SequenceRows, position: usize) {
        let Some(window) = self.limits.window else { return assert!(sequence.window_table.is_empty()) };
        let slot = |table: &[BlockId], position: usize| (table[position / BLOCK_TOKENS], position % BLOCK_TOKENS);
        let of_all = |position: usize| self.kv[&slot(&sequence.block_table, position)];
        assert!((sequence.window_table[position / BLOCK_TOKENS] as usize) < window.blocks);
        self.window_kv.insert(slot(&sequence.window_table, position), of_all(position));
        for read in (position + 1).saturating_sub(window.positions)..position {
            let kept = self.window_kv.get(&slot(&sequence.window_table, read));
            assert_eq!(kept, Some(&of_all(read)), "position {read} is read at {position}");
        }
    }

    /// Samples the tokens of the oldest step. The executor knows them at once.
    pub(super) fn sample_tokens(&mut self, pause: bool) {
        let Some(PlannedStep { step, tasks, .. }) = self.sampling.pop_front() else { return };
        let (mut outcomes, mut tokens) = (Vec::new(), HashMap::new());
        for task in tasks {
            let state = self.requests.get_mut(&task.id).unwrap();
            if state.end.is_some() {
                continue;
            }
            if task.scores_prompt {
                assert!(task.first_position <= state.scored, "rows of the prompt were left out");
                state.scored = state.scored.max((task.first_position + task.rows).min(state.prompt_tokens));
            }
            let position = task.first_position + 1;
            let is_known = task.samples && task.rows == 1 && position < state.tokens.len();
            let mut newest = None;
            let mut forced = 0;
            let verdict = if let Some(canvas) = task.canvas {
                canvases::denoise(state, canvas, self.stops)
            } else if task.hidden_rows > 0 {
                pool(state, task.first_position, task.hidden_rows)
            } else if !task.samples {
                Verdict::Unchanged
            } else if is_known {
                newest = Some(state.tokens[position]);
                Verdict::Unchanged
            } else {
                assert_eq!(state.scored, state.prompt_tokens, "it generates before its prompt is scored");
                let draft = task.draft.map(|draft| draft.tokens).unwrap_or_default();
                let mut verdict = sample(state, &draft, self.stops, self.repeats);
                newest = state.tokens.last().copied().filter(|_| state.tokens.len() < state.until);
                if let Verdict::Tokens(sampled) = &mut verdict {
                    self.accepted += sampled.len() - 1;
                    let most = if self.forces { MAX_STEP_TOKENS - sampled.len() } else { 0 };
                    forced = force(state, most, self.repeats, sampled);
                }
                if state.end.is_some() { Verdict::Ended } else { verdict }
            };
            self.forced += forced;
            // A stop string is found only in the text, after the executor has got the token.
            tokens.extend(newest.map(|token| (task.id, token)));
            let pause = pause && verdict != Verdict::Ended;
            outcomes.push(Outcome { id: task.id, verdict, forced, pause });
        }
        self.tokens.insert(step.id, tokens);
        self.delivering.push_back((step.id, outcomes));
    }

    /// Sends the outcomes of the oldest sampled step to the policy.
    pub(super) fn deliver(&mut self) {
        if let Some((step, outcomes)) = self.delivering.pop_front() {
            self.on(PolicyEvent::Sampled { step, outcomes });
        }
    }

    /// Answers all that the draft model was asked for. Returns whether there was anything.
    pub(super) fn draft(&mut self) -> bool {
        let requests: Vec<_> = self.drafting.drain(..).collect();
        for DraftRequest { id, tokens, draws, .. } in &requests {
            let Some(model) = &mut self.draft_model else { continue };
            model.asked.push(*id);
            let token_time = (!draws.is_empty()).then_some(model.token_time);
            let mut text = tokens.clone();
            for _ in draws {
                let right = next_token(&text, self.repeats);
                let is_right = hash(5, right) % 100 < model.accuracy;
                text.push(if is_right { right } else { right + 1 });
            }
            let drafted = text.split_off(tokens.len());
            self.on(PolicyEvent::Drafted(DraftReply {
                id: *id,
                length: tokens.len(),
                tokens: Some(drafted),
                token_time,
            }));
        }
        !requests.is_empty()
    }

    /// The draft model is lost with all that it was asked for, and another one starts.
    pub(super) fn lose_draft_model(&mut self) {
        self.drafting.clear();
        self.on(PolicyEvent::DrafterLost);
        if self.draft_model.is_some() {
            self.on(PolicyEvent::DrafterReady);
        }
    }

    pub(super) fn sample(&mut self, pause: bool) {
        self.sample_tokens(pause);
        self.deliver();
    }

    pub(super) fn lose_executor(&mut self, named: bool) {
        let failed = self.computing.front().filter(|_| named).map(|planned| planned.step.id);
        self.computing.clear();
        self.kv.clear();
        self.window_kv.clear();
        self.states.clear();
        self.ready = false;
        self.on(PolicyEvent::ExecutorLost { failed, reason: "lost".into() });
    }

    /// The executor refuses its next step and drops all steps behind it.
    pub(super) fn refuse_step(&mut self) {
        if let Some(PlannedStep { step, .. }) = self.take_step() {
            self.computing.clear();
            self.awaits_resync = true;
            self.on(PolicyEvent::StepFailed { step: step.id, reason: "refused".into() });
        }
    }

    pub(super) fn restart_executor(&mut self) {
        if !self.ready {
            self.ready = true;
            self.awaits_resync = false;
            self.on(PolicyEvent::ExecutorReady(Box::new(self.limits.clone())));
        }
    }

    /// The scheduler and the sampler died. Another policy continues the requests with the tokens that were sent.
    pub(super) fn replace_scheduler(&mut self, suspects: bool, paused: bool) {
        self.computing.clear();
        self.sampling.clear();
        self.delivering.clear();
        self.cached.clear();
        // What the tiers read for the old scheduler is sent to nothing.
        self.tiers.fetching.clear();
        self.awaits_resync = false;
        self.policy = Policy::starting_at(self.policy.next_step, self.policy.config, self.limits.clone());
        let mut open: Vec<_> = self.requests.values_mut().filter(|state| state.end.is_none()).collect();
        open.sort_unstable_by_key(|state| state.submission.id);
        for state in open {
            let is_scored = state.scored == state.prompt_tokens;
            if !is_scored {
                // The sampler has lost the first part.
                state.scored = 0;
            }
            let tokens = state.tokens[state.prompt_tokens..].to_vec();
            let progress = Progress { tokens, is_scored, is_paused: paused, is_suspect: suspects };
            self.policy.resume(state.submission.clone(), progress);
        }
        self.drafting.clear();
        if self.draft_model.is_some() {
            self.on(PolicyEvent::DrafterReady);
        }
        self.connect_tiers();
        if self.ready {
            self.on(PolicyEvent::ExecutorReady(Box::new(self.limits.clone())));
        }
    }

    pub(super) fn resume_all(&mut self) {
        let mut ids: Vec<_> = self.requests.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.on(PolicyEvent::Resume(id));
        }
    }

    /// Runs all requests to their end and returns the number of steps.
    pub(super) fn run_out(&mut self) -> usize {
        self.restart_executor();
        while !self.delivering.is_empty() {
            self.deliver();
        }
        self.resume_all();
        let mut steps = 0;
        while self.draft()
            || !(self.computing.is_empty() && self.sampling.is_empty() && self.delivering.is_empty())
            || self.tiers.is_busy()
        {
            self.keep_stored();
            self.fetch(usize::MAX);
            self.finish_step();
            self.sample(false);
            steps += 1;
            assert!(steps < 5000, "the requests do not end");
        }
        steps
    }

    pub(super) fn assert_all_ended(&self) {
        assert!(self.policy.is_empty());
        assert_eq!(self.policy.counts().blocks_used, 0);
        for (id, state) in &self.requests {
            assert!(state.end.is_some(), "{id:?} never ended");
        }
    }

    /// Number of rows of each sequence in the step at the device.
    pub(super) fn rows_per_sequence(&self) -> Vec<usize> {
        self.computing[0].step.sequences.iter().map(|rows| rows.tokens.len()).collect()
    }
}

pub(super) fn hash(before: u64, token: TokenId) -> u64 {
    hash_input(before, u64::from(token))
}

/// As [`hash`], of a token or of what is given in its place.
pub(super) fn hash_input(before: u64, input: u64) -> u64 {
    (before ^ input.wrapping_add(0x9E37_79B9)).wrapping_mul(0x0100_0000_01B3).rotate_left(23)
}

/// Adds up to `most` tokens that a constraint forces after the newest one, and returns their number.
fn force(state: &mut RequestState, most: usize, repeats: bool, tokens: &mut Vec<TokenId>) -> usize {
    let newest = state.tokens.last().copied().unwrap_or_default();
    let forced = if newest % 3 == 0 { most.min(newest as usize % 7) } else { 0 };
    for added in 0..forced {
        let token = next_token(&state.tokens, repeats);
        state.tokens.push(token);
        tokens.push(token);
        if state.tokens.len() >= state.until {
            state.end = Some(End::Sampled);
            return added + 1;
        }
    }
    forced
}

/// Samples the tokens after the rows of a sequence: one, and one more for each that is equal to the draft's.
fn sample(state: &mut RequestState, draft: &[TokenId], stops: bool, repeats: bool) -> Verdict {
    let mut sampled = Vec::new();
    loop {
        let token = next_token(&state.tokens, repeats);
        state.tokens.push(token);
        sampled.push(token);
        if state.tokens.len() >= state.until || (stops && token.is_multiple_of(97)) {
            state.end = Some(End::Sampled);
            return Verdict::Ended;
        }
        if draft.get(sampled.len() - 1) != Some(&token) {
            return Verdict::Tokens(sampled);
        }
    }
}

/// The token after others.
pub(super) fn next_token(tokens: &[TokenId], repeats: bool) -> TokenId {
    let all = tokens.iter().fold(7, |before, &token| hash(before, token));
    let last = tokens[tokens.len().saturating_sub(2)..].iter().fold(7, |before, &token| hash(before, token));
    if repeats && !all.is_multiple_of(6) { 1 + (last % 8) as TokenId } else { (all % 1000) as TokenId }
}

/// Asserts that no slot is written twice, or written by one sequence and read by another.
fn assert_slots_are_apart(step: &Step) {
    let mut writers = HashMap::new();
    for (index, sequence) in step.sequences.iter().enumerate() {
        for (_, slot) in &sequence.state.to {
            assert_eq!(writers.insert(*slot, index), None, "slot {slot} is written twice");
        }
    }
    for (index, sequence) in step.sequences.iter().enumerate() {
        let writer = sequence.state.from.and_then(|slot| writers.get(&slot));
        assert!(writer.is_none_or(|writer| *writer == index), "a slot is read and written by another");
    }
}

/// Asserts that no window block that a sequence writes is read or written by another one.
fn assert_window_blocks_are_apart(step: &Step) {
    let mut writers = HashMap::new();
    for (index, sequence) in step.sequences.iter().enumerate().filter(|(_, rows)| !rows.window_table.is_empty()) {
        let first = sequence.first_position as usize;
        for block in &sequence.window_table[first / BLOCK_TOKENS..=(first + sequence.tokens.len() - 1) / BLOCK_TOKENS] {
            assert_eq!(writers.insert(*block, index), None, "window block {block} is written twice");
        }
    }
}

/// Adds rows of hidden values to what the sampler has of a request. It ends when none is missing.
fn pool(state: &mut RequestState, first_position: usize, rows: usize) -> Verdict {
    assert!(first_position <= state.scored, "rows of the text were left out");
    state.scored = state.scored.max(first_position + rows);
    if state.scored < state.prompt_tokens {
        return Verdict::Unchanged;
    }
    state.end = Some(End::Sampled);
    Verdict::Ended
}
