//! Tests of the policy against a simulation of everything around it, which detects every wrong block, row and end.
#![allow(clippy::unwrap_used)]

mod prompts;

use std::collections::{HashMap, VecDeque};

use std::time::Duration;

use cuelight_engine::engine::{
    BLOCK_TOKENS, BlockId, EngineLimits, LogitsWanted, RowSamplingParams, Step, StepId, TokenId,
};
use proptest::prelude::*;

use super::*;
use crate::core::request::{GenerationError, RequestId, SubmitError};

fn limits() -> EngineLimits {
    EngineLimits {
        vocab_size: 1000,
        context_tokens: 128,
        kv_blocks: 12,
        max_batched_tokens: 32,
        max_sequences: 4,
        max_logits_rows: 8,
        device: "none".into(),
    }
}

const CONFIG: PolicyConfig = PolicyConfig {
    prefill_chunk_tokens: 7,
    inter_token_target: Some(Duration::from_secs(3600)),
    prefill_step_limit: Duration::from_secs(3600),
    steps_in_flight: 1,
    steps_at_executor: 1,
    prefix_cache: true,
    max_queued_tokens: usize::MAX,
    verify: true,
};

fn submission(id: u64, prompt_tokens: usize) -> Submission {
    let prompt = (0..prompt_tokens).map(|i| ((id as usize * 37 + i * 11) % 1000) as TokenId).collect();
    Submission {
        id: RequestId(id),
        prompt,
        max_tokens: 1000,
        priority: 0,
        client: None,
        cache_salt: None,
        scores_prompt: false,
        engine_sampling: None,
    }
}

/// The step times of the simulated device.
#[derive(Debug, Clone, Copy)]
struct Machine {
    base: Duration,
    per_row: Duration,
    per_attended: Duration,
    /// Number of rows from which on all steps take the same time, and that time.
    saturation: Option<(usize, Duration)>,
}

const MACHINE: Machine = Machine {
    base: Duration::from_millis(5),
    per_row: Duration::from_millis(1),
    per_attended: Duration::from_nanos(50),
    saturation: None,
};

impl Machine {
    fn elapsed(self, step: &Step) -> Duration {
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

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    Sampled,
    Cancelled,
    Failed(GenerationError),
}

/// The state of a request at its client and at the sampler.
struct RequestState {
    submission: Submission,
    tokens: Vec<TokenId>,
    prompt_tokens: usize,
    /// Number of tokens at which it ends.
    until: usize,
    scored: usize,
    end: Option<End>,
}

/// The simulation of everything around the policy.
struct World {
    policy: Policy,
    limits: EngineLimits,
    machine: Machine,
    requests: HashMap<RequestId, RequestState>,
    /// For each slot of the KV cache, the hash of all tokens up to there.
    kv: HashMap<(BlockId, usize), u64>,
    computing: VecDeque<PlannedStep>,
    sampling: VecDeque<PlannedStep>,
    /// Sampled outcomes that the executor knows and the policy does not know yet.
    delivering: VecDeque<(StepId, Vec<Outcome>)>,
    /// The sampled tokens of each step.
    tokens: HashMap<StepId, HashMap<RequestId, TokenId>>,
    ready: bool,
    awaits_resync: bool,
    preempted: usize,
    /// Cached prompt tokens of each request when it started.
    cached: HashMap<RequestId, usize>,
    rows_computed: usize,
    /// Whether some tokens end their request like a stop string.
    stops: bool,
}

impl World {
    fn new(config: PolicyConfig, limits: EngineLimits) -> Self {
        let mut world = World {
            policy: Policy::new(config, limits.clone()),
            limits: limits.clone(),
            machine: MACHINE,
            requests: HashMap::new(),
            kv: HashMap::new(),
            computing: VecDeque::new(),
            sampling: VecDeque::new(),
            delivering: VecDeque::new(),
            tokens: HashMap::new(),
            ready: true,
            awaits_resync: false,
            preempted: 0,
            cached: HashMap::new(),
            rows_computed: 0,
            stops: false,
        };
        world.on(PolicyEvent::ExecutorReady(limits));
        world
    }

    fn submit(&mut self, submission: Submission, generate: usize) {
        let submission = Submission { max_tokens: generate, ..submission };
        let prompt_tokens = submission.prompt.len();
        let state = RequestState {
            tokens: submission.prompt.clone(),
            prompt_tokens,
            until: (prompt_tokens + generate).min(self.policy.context_tokens()),
            scored: if submission.scores_prompt { 0 } else { prompt_tokens },
            end: None,
            submission: submission.clone(),
        };
        let id = submission.id;
        let effects = self.policy.submit(submission).unwrap();
        self.requests.insert(id, state);
        self.perform(effects);
    }

    fn on(&mut self, event: PolicyEvent) {
        let effects = self.policy.on(event);
        self.perform(effects);
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Run(step) => self.begin(step),
                Effect::Resync => self.awaits_resync = false,
                Effect::Started { id, cached_tokens } => {
                    assert_eq!(self.cached.insert(id, cached_tokens), None, "{id:?} started twice");
                }
                Effect::Preempted(_) => self.preempted += 1,
                Effect::Cancelled(id) => self.end(id, End::Cancelled),
                Effect::Failed(id, error) => self.end(id, End::Failed(error)),
            }
        }
    }

    fn end(&mut self, id: RequestId, end: End) {
        let state = self.requests.get_mut(&id).unwrap();
        assert!(state.end.is_none() || state.end == Some(End::Sampled), "{id:?} ended twice");
        // The sampler may have ended it already, without the policy knowing yet.
        state.end.get_or_insert(end);
    }

    fn begin(&mut self, planned: PlannedStep) {
        assert!(self.ready, "a step was sent to a lost executor");
        let (step, tasks) = (&planned.step, &planned.tasks);
        assert!(step.rows() <= self.limits.max_batched_tokens);
        assert!(step.sequences.len() <= self.limits.max_sequences);
        assert!(step.logits_rows() <= self.limits.max_logits_rows);
        assert_eq!(step.logits_rows(), tasks.iter().map(|task| task.rows).sum::<usize>());
        if !self.awaits_resync {
            self.computing.push_back(planned);
        }
    }

    /// Takes the oldest step at the executor and fills in its awaited tokens. `None` while a token is missing.
    fn take_step(&mut self) -> Option<PlannedStep> {
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
    fn finish_step(&mut self) {
        let Some(planned) = self.take_step() else { return };
        let PlannedStep { step, tasks, .. } = &planned;
        for sequence in &step.sequences {
            assert!(!sequence.tokens.is_empty());
            for (row, &token) in sequence.tokens.iter().enumerate() {
                let position = sequence.first_position as usize + row;
                let slot = |position: usize| (sequence.block_table[position / BLOCK_TOKENS], position % BLOCK_TOKENS);
                let before = if position == 0 { 0 } else { self.kv[&slot(position - 1)] };
                self.kv.insert(slot(position), hash(before, token));
            }
        }
        for task in tasks {
            let mut sampled_rows = step.sequences.iter().filter(|rows| rows.logits != LogitsWanted::None);
            let state = &self.requests[&task.id];
            let end = task.first_position + task.rows;
            let expected = state.tokens[..end].iter().fold(0, |before, &token| hash(before, token));
            let found = sampled_rows.any(|rows| {
                let last = rows.first_position as usize + rows.tokens.len() - 1;
                let slot = (rows.block_table[last / BLOCK_TOKENS], last % BLOCK_TOKENS);
                last + 1 == end && self.kv[&slot] == expected
            });
            assert!(found, "{:?} was computed from wrong blocks or tokens", task.id);
            assert!(!task.samples || end == state.tokens.len() || state.end.is_some());
        }
        self.rows_computed += step.rows();
        let prefill_saturation_rows = self.machine.saturation.map(|(rows, _)| rows);
        let event =
            PolicyEvent::StepDone { step: step.id, elapsed: self.machine.elapsed(step), prefill_saturation_rows };
        self.sampling.push_back(planned);
        self.on(event);
    }

    /// Samples the tokens of the oldest step. The executor knows them at once.
    fn sample_tokens(&mut self, pause: bool) {
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
            let verdict = if !task.samples {
                Verdict::Scored
            } else {
                assert_eq!(state.scored, state.prompt_tokens, "it generates before its prompt is scored");
                let token = (state.tokens.iter().fold(7, |before, &token| hash(before, token)) % 1000) as TokenId;
                state.tokens.push(token);
                if state.tokens.len() >= state.until {
                    state.end = Some(End::Sampled);
                    Verdict::Ended
                } else {
                    tokens.insert(task.id, token);
                    // A stop string is found only in the text, after the executor has got the token.
                    let stops = self.stops && token.is_multiple_of(97);
                    if stops {
                        state.end = Some(End::Sampled);
                    }
                    if stops { Verdict::Ended } else { Verdict::Token(token) }
                }
            };
            outcomes.push(Outcome { id: task.id, verdict, pause: pause && verdict != Verdict::Ended });
        }
        self.tokens.insert(step.id, tokens);
        self.delivering.push_back((step.id, outcomes));
    }

    /// Sends the outcomes of the oldest sampled step to the policy.
    fn deliver(&mut self) {
        if let Some((step, outcomes)) = self.delivering.pop_front() {
            self.on(PolicyEvent::Sampled { step, outcomes });
        }
    }

    fn sample(&mut self, pause: bool) {
        self.sample_tokens(pause);
        self.deliver();
    }

    fn lose_executor(&mut self, named: bool) {
        let failed = self.computing.front().filter(|_| named).map(|planned| planned.step.id);
        self.computing.clear();
        self.kv.clear();
        self.ready = false;
        self.on(PolicyEvent::ExecutorLost { failed, reason: "lost".into() });
    }

    /// The executor refuses its next step and drops all steps behind it.
    fn refuse_step(&mut self) {
        if let Some(PlannedStep { step, .. }) = self.take_step() {
            self.computing.clear();
            self.awaits_resync = true;
            self.on(PolicyEvent::StepFailed { step: step.id, reason: "refused".into() });
        }
    }

    fn restart_executor(&mut self) {
        if !self.ready {
            self.ready = true;
            self.awaits_resync = false;
            self.on(PolicyEvent::ExecutorReady(self.limits.clone()));
        }
    }

    /// The scheduler and the sampler died. Another policy continues the requests with the tokens that were sent.
    fn replace_scheduler(&mut self, suspects: bool, paused: bool) {
        self.computing.clear();
        self.sampling.clear();
        self.delivering.clear();
        self.cached.clear();
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
        if self.ready {
            self.on(PolicyEvent::ExecutorReady(self.limits.clone()));
        }
    }

    fn resume_all(&mut self) {
        let mut ids: Vec<_> = self.requests.keys().copied().collect();
        ids.sort_unstable();
        for id in ids {
            self.on(PolicyEvent::Resume(id));
        }
    }

    /// Runs all requests to their end and returns the number of steps.
    fn run_out(&mut self) -> usize {
        self.restart_executor();
        while !self.delivering.is_empty() {
            self.deliver();
        }
        self.resume_all();
        let mut steps = 0;
        while !(self.computing.is_empty() && self.sampling.is_empty() && self.delivering.is_empty()) {
            self.finish_step();
            self.sample(false);
            steps += 1;
            assert!(steps < 5000, "the requests do not end");
        }
        steps
    }

    fn assert_all_ended(&self) {
        assert!(self.policy.is_empty());
        assert_eq!(self.policy.counts().blocks_used, 0);
        for (id, state) in &self.requests {
            assert!(state.end.is_some(), "{id:?} never ended");
        }
    }

    /// Number of rows of each sequence in the step at the device.
    fn rows_per_sequence(&self) -> Vec<usize> {
        self.computing[0].step.sequences.iter().map(|rows| rows.tokens.len()).collect()
    }
}

fn hash(before: u64, token: TokenId) -> u64 {
    (before ^ u64::from(token).wrapping_add(0x9E37_79B9)).wrapping_mul(0x0100_0000_01B3).rotate_left(23)
}

#[test]
fn two_requests_share_a_step_with_decode_rows_first() {
    let mut world = World::new(CONFIG, limits());
    world.submit(submission(1, 3), 10);
    world.finish_step();
    world.sample(false);
    world.submit(submission(2, 20), 10);
    world.finish_step();
    world.sample(false);
    assert_eq!(world.rows_per_sequence(), [1, 7], "one decode row, then a chunk of the prompt");
    world.run_out();
    world.assert_all_ended();
}

#[test]
fn cancel_frees_blocks_when_the_device_has_finished_the_step() {
    let mut world = World::new(CONFIG, limits());
    world.submit(submission(1, 40), 10);
    assert_eq!(world.policy.counts().blocks_used, 3);
    world.on(PolicyEvent::Cancel(RequestId(1)));
    assert_eq!(world.policy.counts().blocks_used, 3, "the device still writes to them");
    world.finish_step();
    assert_eq!(world.policy.counts().blocks_used, 0);
    world.assert_all_ended();
}

#[test]
fn cancel_between_steps_frees_blocks_at_once() {
    let mut world = World::new(CONFIG, limits());
    world.submit(submission(1, 5), 10);
    world.finish_step();
    world.on(PolicyEvent::Cancel(RequestId(1)));
    world.assert_all_ended();
    world.sample(false);
    world.assert_all_ended();
}

#[test]
fn without_free_blocks_the_last_request_in_rank_order_is_preempted() {
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 64, ..CONFIG }, limits());
    world.submit(Submission { priority: 1, ..submission(1, 30) }, 60);
    world.submit(submission(2, 30), 60);
    world.submit(submission(3, 30), 60);
    while world.preempted == 0 {
        world.finish_step();
        world.sample(false);
    }
    let waiting: Vec<_> = world.policy.waiting.iter().map(|rank| rank.id.0).collect();
    assert_eq!(waiting, [1], "the oldest request, but of lower priority");
    world.run_out();
    world.assert_all_ended();
}

#[test]
fn a_request_that_cannot_fit_is_refused_with_the_sizes() {
    let mut policy = Policy::new(CONFIG, limits());
    let refused = policy.submit(submission(1, 128)).unwrap_err();
    assert_eq!(refused, SubmitError::ContextLengthExceeded { prompt_tokens: 128, context_tokens: 128 });
    assert!(policy.submit(Submission { max_tokens: 0, ..submission(2, 128) }).is_ok());
    assert!(matches!(policy.submit(submission(3, 0)), Err(SubmitError::InvalidPrompt(_))));
    let prompt = vec![1, 1000];
    assert!(matches!(policy.submit(Submission { prompt, ..submission(4, 1) }), Err(SubmitError::InvalidPrompt(_))));
    policy.on(PolicyEvent::Drain);
    assert!(matches!(policy.submit(submission(5, 1)), Err(SubmitError::Unavailable { .. })));
}

#[test]
fn scored_prompts_are_split_at_the_limit_of_logits_rows() {
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 512, ..CONFIG }, limits());
    world.submit(Submission { scores_prompt: true, ..submission(1, 30) }, 3);
    assert_eq!(world.computing[0].step.logits_rows(), 8);
    assert_eq!(world.run_out(), 4 + 2, "30 rows in chunks of 8, then one token per step");
    world.assert_all_ended();
}

#[test]
fn the_engine_samples_from_the_first_allowed_token_on() {
    let engine = EngineSampling { params: RowSamplingParams::GREEDY, seed: 5, from: 2 };
    let mut world = World::new(CONFIG, limits());
    world.submit(Submission { engine_sampling: Some(engine), ..submission(1, 20) }, 4);
    let mut wanted = Vec::new();
    while let Some(planned) = world.computing.front() {
        wanted.extend(planned.step.sequences.iter().map(|rows| rows.logits));
        world.finish_step();
        world.sample(false);
    }
    wanted.retain(|wanted| *wanted != LogitsWanted::None);
    let random = |index| cuelight_engine::sample::Draw { seed: 5, index }.random();
    let token = |index| LogitsWanted::Token(RowSamplingParams { random: random(index), ..RowSamplingParams::GREEDY });
    assert_eq!(wanted, [LogitsWanted::Last, LogitsWanted::Last, token(2), token(3)]);
}

#[test]
fn a_request_that_breaks_the_executor_fails_alone() {
    let mut world = World::new(CONFIG, limits());
    let poison = RequestId(2);
    for id in 1..=3 {
        world.submit(submission(id, 20), 10);
    }
    let mut losses = 0;
    for _ in 0..1000 {
        let Some(pending) = world.computing.front() else { break };
        let poisoned = pending.tasks.iter().any(|task| task.id == poison && task.samples);
        if poisoned {
            losses += 1;
            world.lose_executor(true);
            world.restart_executor();
        } else {
            world.finish_step();
            world.sample(false);
        }
    }
    assert_eq!(losses, 2, "once with others, once alone");
    world.assert_all_ended();
    let end = |id| world.requests[&RequestId(id)].end.clone().unwrap();
    assert_eq!(end(2), End::Failed(GenerationError::Engine("lost".into())));
    assert_eq!((end(1), end(3)), (End::Sampled, End::Sampled));
}

#[test]
fn a_refused_step_is_retried_once_and_then_fails_its_request() {
    let mut world = World::new(CONFIG, limits());
    world.submit(submission(1, 5), 5);
    for _ in 0..2 {
        world.refuse_step();
    }
    world.assert_all_ended();
}

#[test]
fn equal_requests_are_served_in_order_of_arrival() {
    let mut world = World::new(CONFIG, limits());
    for id in 1..=40 {
        world.submit(submission(id, 10), 4);
    }
    let mut order = Vec::new();
    while !world.computing.is_empty() {
        world.finish_step();
        world.sample(false);
        for id in (1..=40).map(RequestId) {
            if world.requests[&id].end.is_some() && !order.contains(&id.0) {
                order.push(id.0);
            }
        }
    }
    assert!(order.is_sorted(), "{order:?}");
}

#[test]
fn another_policy_continues_requests_with_their_tokens_and_new_step_ids() {
    let mut world = World::new(PolicyConfig { steps_in_flight: 2, ..CONFIG }, limits());
    world.submit(Submission { scores_prompt: true, ..submission(1, 20) }, 10);
    world.submit(submission(2, 5), 10);
    for _ in 0..6 {
        world.finish_step();
        world.sample(false);
    }
    let before = world.policy.next_step;
    let sent: Vec<_> = [1, 2].map(|id| world.requests[&RequestId(id)].tokens.clone()).into();
    world.replace_scheduler(true, false);
    assert_eq!(world.computing[0].step.id, before);
    assert_eq!(world.rows_per_sequence().len(), 1, "a suspect runs alone");
    world.run_out();
    world.assert_all_ended();
    for (id, sent) in [1, 2].into_iter().zip(sent) {
        let state = &world.requests[&RequestId(id)];
        assert!(state.tokens.starts_with(&sent) && state.tokens.len() == state.until, "{id}");
    }
}

/// A random action in the simulation.
#[derive(Debug, Clone)]
enum Action {
    Submit { like: u64, prompt_tokens: usize, generate: usize, priority: i32, salted: bool, scores_prompt: bool },
    Cancel(u64),
    FinishStep,
    Sample { pause: bool },
    Deliver,
    Resume(u64),
    LoseExecutor { named: bool },
    RefuseStep,
    RestartExecutor,
    ReplaceScheduler { suspects: bool, paused: bool },
}

fn action() -> impl Strategy<Value = Action> {
    let submit = (0u64..4, 1usize..100, 1usize..60, 0i32..2, any::<bool>(), prop::bool::weighted(0.2)).prop_map(
        |(like, prompt_tokens, generate, priority, salted, scores_prompt)| Action::Submit {
            like,
            prompt_tokens,
            generate,
            priority,
            salted,
            scores_prompt,
        },
    );
    prop_oneof![
        6 => submit,
        2 => (1u64..20).prop_map(Action::Cancel),
        30 => Just(Action::FinishStep),
        30 => prop::bool::weighted(0.1).prop_map(|pause| Action::Sample { pause }),
        30 => Just(Action::Deliver),
        4 => (1u64..20).prop_map(Action::Resume),
        1 => any::<bool>().prop_map(|named| Action::LoseExecutor { named }),
        1 => Just(Action::RefuseStep),
        2 => Just(Action::RestartExecutor),
        1 => any::<(bool, bool)>().prop_map(|(suspects, paused)| Action::ReplaceScheduler { suspects, paused }),
    ]
}

impl World {
    fn act(&mut self, action: Action) {
        match action {
            Action::Submit { like, prompt_tokens, generate, priority, salted, scores_prompt } => {
                // There are few different prompts, so that many have a prefix in common.
                let submission = Submission {
                    id: RequestId(self.requests.len() as u64 + 1),
                    priority,
                    scores_prompt,
                    client: Some(like.to_string().into()),
                    cache_salt: salted.then(|| "salt".into()),
                    ..submission(like, prompt_tokens)
                };
                self.submit(submission, generate);
            }
            Action::Cancel(id) => self.on(PolicyEvent::Cancel(RequestId(id))),
            Action::FinishStep => self.finish_step(),
            Action::Sample { pause } => self.sample_tokens(pause),
            Action::Deliver => self.deliver(),
            Action::Resume(id) => self.on(PolicyEvent::Resume(RequestId(id))),
            Action::LoseExecutor { named } => {
                if self.ready {
                    self.lose_executor(named);
                }
            }
            Action::RefuseStep => self.refuse_step(),
            Action::RestartExecutor => self.restart_executor(),
            Action::ReplaceScheduler { suspects, paused } => self.replace_scheduler(suspects, paused),
        }
    }
}

/// A suspect and a request before it in rank order both need several steps, and there are blocks for only one of them.
/// They must not preempt each other forever.
#[test]
fn a_suspect_and_a_request_before_it_both_end() {
    use Action::{Deliver, FinishStep, LoseExecutor, Sample};
    let submit = |prompt_tokens, priority, scores_prompt| Action::Submit {
        like: 0,
        prompt_tokens,
        generate: 1,
        priority,
        salted: false,
        scores_prompt,
    };
    let (sampled, paused) = (|| Sample { pause: false }, || Sample { pause: true });
    let actions = vec![
        submit(33, 1, true),
        FinishStep,
        FinishStep,
        FinishStep,
        paused(),
        submit(25, 0, true),
        sampled(),
        sampled(),
        Deliver,
        Deliver,
        FinishStep,
        submit(81, 1, false),
        Deliver,
        FinishStep,
        sampled(),
        Deliver,
        paused(),
        FinishStep,
        FinishStep,
        Deliver,
        LoseExecutor { named: false },
        submit(1, 0, false),
        submit(81, 0, false),
    ];
    let config = PolicyConfig {
        prefill_chunk_tokens: 512,
        steps_in_flight: 3,
        steps_at_executor: 1,
        prefix_cache: false,
        ..CONFIG
    };
    let mut world = World::new(config, EngineLimits { kv_blocks: 10, ..limits() });
    world.stops = true;
    actions.into_iter().for_each(|action| world.act(action));
    world.run_out();
    world.assert_all_ended();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn every_request_ends_once_with_the_right_tokens_and_no_block_is_lost(
        actions in prop::collection::vec(action(), 1..400),
        chunk in prop::sample::select(vec![1usize, 7, 512]),
        steps_in_flight in 1usize..4,
        steps_at_executor in 1usize..3,
        prefix_cache in any::<bool>(),
        kv_blocks in 8usize..40,
    ) {
        let config = PolicyConfig {
            prefill_chunk_tokens: chunk, steps_in_flight, steps_at_executor, prefix_cache, ..CONFIG
        };
        let mut world = World::new(config, EngineLimits { kv_blocks, ..limits() });
        world.stops = true;
        actions.into_iter().for_each(|action| world.act(action));
        world.run_out();
        world.assert_all_ended();
        for (id, state) in &world.requests {
            // The tokens were checked row by row. A request that was not stopped has all of them.
            let stopped = state.tokens.len() > state.prompt_tokens
                && state.tokens.last().is_some_and(|token| token.is_multiple_of(97));
            prop_assert!(state.end != Some(End::Sampled) || state.tokens.len() == state.until || stopped, "{:?}", id);
        }
    }
}

/// Runs one request to its end and returns the number of computed rows.
fn rows_for(world: &mut World, submission: Submission, generate: usize) -> usize {
    let before = world.rows_computed;
    world.submit(submission, generate);
    world.run_out();
    world.rows_computed - before
}

fn large_limits() -> EngineLimits {
    EngineLimits {
        kv_blocks: 64,
        context_tokens: 1024,
        max_batched_tokens: 256,
        max_sequences: 8,
        max_logits_rows: 64,
        ..limits()
    }
}

#[test]
fn the_next_message_of_a_conversation_computes_only_new_tokens() {
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 512, ..CONFIG }, large_limits());
    assert_eq!(rows_for(&mut world, submission(1, 100), 5), 100 + 4);
    let mut prompt = world.requests[&RequestId(1)].tokens.clone();
    prompt.extend(0..10);
    let second = Submission { id: RequestId(2), prompt, ..submission(1, 1) };
    assert_eq!(rows_for(&mut world, second, 1), 115 - 96);
    assert_eq!(world.cached[&RequestId(2)], 96, "the cache also contains the tokens of the answer");
}

#[test]
fn tenants_do_not_share_cached_prefixes() {
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 512, ..CONFIG }, large_limits());
    let of = |id: u64, salt: &str| Submission { id: RequestId(id), cache_salt: Some(salt.into()), ..submission(1, 64) };
    assert_eq!(rows_for(&mut world, of(1, "a"), 1), 64);
    assert_eq!(rows_for(&mut world, of(2, "b"), 1), 64);
    assert_eq!(rows_for(&mut world, of(3, "a"), 1), 16, "all except the block of the last token");
}

#[test]
fn several_answers_compute_their_common_prompt_once() {
    let config = PolicyConfig { prefill_chunk_tokens: 32, steps_in_flight: 2, ..CONFIG };
    let mut world = World::new(config, large_limits());
    for id in 1..=8 {
        world.submit(Submission { id: RequestId(id), ..submission(1, 200) }, 1);
    }
    let used = world.policy.counts().blocks_used;
    world.run_out();
    world.assert_all_ended();
    assert_eq!(used, 13, "the others wait for the first");
    assert_eq!(world.rows_computed, 200 + 7 * 8);
}

#[test]
fn a_request_that_waits_for_a_prefix_continues_when_the_other_is_cancelled() {
    let mut world = World::new(CONFIG, large_limits());
    world.submit(submission(1, 200), 1);
    world.submit(Submission { id: RequestId(2), ..submission(1, 200) }, 1);
    for _ in 0..10 {
        world.finish_step();
        world.sample(false);
    }
    assert_eq!(world.policy.counts().waiting, 1);
    world.on(PolicyEvent::Cancel(RequestId(1)));
    world.run_out();
    world.assert_all_ended();
    assert_eq!(world.requests[&RequestId(2)].end, Some(End::Sampled));
    assert!(world.cached[&RequestId(2)] > 0, "it uses what was computed until then");
}

#[test]
fn a_step_is_formed_before_its_tokens_are_known() {
    let mut world = World::new(PolicyConfig { steps_in_flight: 2, ..CONFIG }, limits());
    world.submit(submission(1, 5), 3);
    world.finish_step();
    let next = &world.computing[0];
    assert_eq!(next.awaits, [AwaitedToken { sequence: 0, id: RequestId(1), from: StepId(0) }]);
    world.finish_step();
    assert_eq!(world.computing.len(), 1, "without its token it cannot be computed");
    world.sample_tokens(false);
    world.finish_step();
    assert_eq!(world.computing.len(), 0, "two are in flight already");
    world.deliver();
    assert_eq!(world.computing.len(), 1);
    world.run_out();
    world.assert_all_ended();
    assert_eq!(world.rows_computed, 5 + 2);
}

#[test]
fn a_client_with_one_request_does_not_wait_for_all_requests_of_another() {
    let mut world = World::new(CONFIG, limits());
    let of = |id: u64, client: &str| Submission { client: Some(client.into()), ..submission(id, 10) };
    for id in 1..=40 {
        world.submit(of(id, "busy"), 10);
    }
    for _ in 0..20 {
        world.finish_step();
        world.sample(false);
    }
    world.submit(of(100, "new"), 10);
    while world.requests[&RequestId(100)].end.is_none() {
        world.finish_step();
        world.sample(false);
    }
    let ended = world.requests.values().filter(|state| state.end.is_some()).count();
    assert!(ended < 20, "{ended} of 40 requests ended before");
}

#[test]
fn a_client_that_holds_every_slot_gives_its_share_to_a_newcomer() {
    let limits = EngineLimits { kv_blocks: 64, ..limits() };
    for steps_in_flight in [1, 2] {
        let mut world = World::new(PolicyConfig { steps_in_flight, ..CONFIG }, limits.clone());
        let of = |id: u64, client: &str| Submission { client: Some(client.into()), ..submission(id, 10) };
        for id in 1..=8 {
            world.submit(of(id, "greedy"), 90);
        }
        for _ in 0..20 {
            world.finish_step();
            world.sample(false);
        }
        assert_eq!((world.policy.counts().running, world.preempted), (4, 0));
        for id in 101..=104 {
            world.submit(of(id, "modest"), 40);
        }
        for _ in 0..12 {
            world.finish_step();
            world.sample(false);
        }
        let generated = |id: u64| world.requests[&RequestId(id)].tokens.len() - 10;
        assert!(generated(101) > 0 && generated(102) > 0, "{} {}", generated(101), generated(102));
        assert_eq!((generated(103), world.preempted), (0, 2), "two slots are its share");
        world.run_out();
        world.assert_all_ended();
        assert!(world.preempted <= 6, "swaps are not undone: {}", world.preempted);
    }
}

#[test]
fn a_prompt_of_another_client_waits_although_one_client_fills_the_queue() {
    let mut policy = Policy::new(PolicyConfig { max_queued_tokens: 50, ..CONFIG }, limits());
    let of = |id: u64, client: &str, tokens| Submission { client: Some(client.into()), ..submission(id, tokens) };
    assert!(policy.submit(of(1, "greedy", 50)).is_ok());
    assert!(policy.submit(of(2, "greedy", 1)).is_err());
    assert!(policy.submit(of(3, "modest", 60)).is_ok(), "the first prompt may be longer than the share");
    assert!(policy.submit(of(4, "modest", 1)).is_err());
}

#[test]
fn past_the_limit_of_queued_tokens_a_request_is_refused_unless_nothing_waits() {
    let config = PolicyConfig { max_queued_tokens: 50, ..CONFIG };
    let mut policy = Policy::new(config, limits());
    assert!(policy.submit(submission(1, 60)).is_ok(), "a single prompt may exceed the limit");
    assert!(matches!(policy.submit(submission(2, 1)), Err(SubmitError::QueueFull { tokens: 60, .. })));
    policy.on(PolicyEvent::Cancel(RequestId(1)));
    assert!(policy.submit(submission(3, 30)).is_ok());
    assert!(policy.submit(submission(4, 20)).is_ok());
    assert!(policy.submit(submission(5, 1)).is_err());
}
