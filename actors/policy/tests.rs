//! The policy alone, against a model of the rest of the world that notices every wrong block, row and end.
#![allow(clippy::unwrap_used)]

use std::collections::{HashMap, VecDeque};

use cuelight_engine::engine::{BLOCK_TOKENS, BlockId, LogitsWanted};
use proptest::prelude::*;

use super::*;

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

const CONFIG: PolicyConfig = PolicyConfig { prefill_chunk_tokens: 7, steps_in_flight: 1 };

fn submission(id: u64, prompt_tokens: usize) -> Submission {
    let prompt = (0..prompt_tokens).map(|i| ((id as usize * 37 + i * 11) % 1000) as TokenId).collect();
    Submission { id: RequestId(id), prompt, priority: 0, generates: true, scores_prompt: false }
}

/// How a request ended.
#[derive(Debug, Clone, PartialEq, Eq)]
enum End {
    Sampled,
    Cancelled,
    Failed(GenerationError),
}

/// A request as its client and the sampler know it.
struct Known {
    tokens: Vec<TokenId>,
    prompt_tokens: usize,
    /// It ends when it has this many tokens.
    until: usize,
    scored: usize,
    end: Option<End>,
}

/// A step at the device or at the sampler.
struct Pending {
    step: Step,
    tasks: Vec<SampleTask>,
}

/// Everything around the policy.
struct World {
    policy: Policy,
    limits: EngineLimits,
    requests: HashMap<RequestId, Known>,
    /// For each slot of the KV cache the hash of all tokens up to there.
    kv: HashMap<(BlockId, usize), u64>,
    computing: VecDeque<Pending>,
    sampling: VecDeque<Pending>,
    ready: bool,
    preempted: usize,
}

impl World {
    fn new(config: PolicyConfig, limits: EngineLimits) -> Self {
        let mut world = World {
            policy: Policy::new(config, limits.clone()),
            limits: limits.clone(),
            requests: HashMap::new(),
            kv: HashMap::new(),
            computing: VecDeque::new(),
            sampling: VecDeque::new(),
            ready: true,
            preempted: 0,
        };
        world.on(PolicyEvent::ExecutorReady(limits));
        world
    }

    fn submit(&mut self, submission: Submission, generate: usize) {
        let prompt_tokens = submission.prompt.len();
        let known = Known {
            tokens: submission.prompt.clone(),
            prompt_tokens,
            until: (prompt_tokens + generate).min(self.policy.context_tokens()),
            scored: if submission.scores_prompt { 0 } else { prompt_tokens },
            end: None,
        };
        let id = submission.id;
        let effects = self.policy.submit(submission).unwrap();
        self.requests.insert(id, known);
        self.perform(effects);
    }

    fn on(&mut self, event: PolicyEvent) {
        let effects = self.policy.on(event);
        self.perform(effects);
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        for effect in effects {
            match effect {
                Effect::Run { step, tasks } => self.begin(step, tasks),
                Effect::Started(_) => {}
                Effect::Preempted(_) => self.preempted += 1,
                Effect::Cancelled(id) => self.end(id, End::Cancelled),
                Effect::Failed(id, error) => self.end(id, End::Failed(error)),
            }
        }
    }

    fn end(&mut self, id: RequestId, end: End) {
        let known = self.requests.get_mut(&id).unwrap();
        assert_eq!(known.end.replace(end), None, "{id:?} ended twice");
    }

    fn begin(&mut self, step: Step, tasks: Vec<SampleTask>) {
        assert!(self.ready, "a step for an executor that is gone");
        assert!(step.rows() <= self.limits.max_batched_tokens);
        assert!(step.sequences.len() <= self.limits.max_sequences);
        assert!(step.logits_rows() <= self.limits.max_logits_rows);
        assert_eq!(step.logits_rows(), tasks.iter().map(|task| task.rows).sum::<usize>());
        self.computing.push_back(Pending { step, tasks });
    }

    /// The device finishes the oldest step: every row must follow on what the cache holds.
    fn finish_step(&mut self) {
        let Some(Pending { step, tasks }) = self.computing.pop_front() else { return };
        for sequence in &step.sequences {
            assert!(!sequence.tokens.is_empty());
            for (row, &token) in sequence.tokens.iter().enumerate() {
                let position = sequence.first_position as usize + row;
                let slot = |position: usize| (sequence.block_table[position / BLOCK_TOKENS], position % BLOCK_TOKENS);
                let before = if position == 0 { 0 } else { self.kv[&slot(position - 1)] };
                self.kv.insert(slot(position), hash(before, token));
            }
        }
        for task in &tasks {
            let mut shares = step.sequences.iter().filter(|share| share.logits != LogitsWanted::None);
            let known = &self.requests[&task.id];
            let end = task.first_position + task.rows;
            let expected = known.tokens[..end].iter().fold(0, |before, &token| hash(before, token));
            let found = shares.any(|share| {
                let last = share.first_position as usize + share.tokens.len() - 1;
                let slot = (share.block_table[last / BLOCK_TOKENS], last % BLOCK_TOKENS);
                last + 1 == end && self.kv[&slot] == expected
            });
            assert!(found, "{:?} was computed from wrong blocks or tokens", task.id);
            assert!(!task.samples || end == known.tokens.len());
        }
        let id = step.id;
        if !tasks.is_empty() {
            self.sampling.push_back(Pending { step, tasks });
        }
        self.on(PolicyEvent::StepDone(id));
    }

    /// The sampler finishes the oldest step.
    fn sample(&mut self, pause: bool) {
        let Some(Pending { step, tasks }) = self.sampling.pop_front() else { return };
        let mut outcomes = Vec::new();
        for task in tasks {
            let known = self.requests.get_mut(&task.id).unwrap();
            if known.end.is_some() {
                continue;
            }
            if task.scores_prompt {
                assert!(task.first_position <= known.scored, "rows of the prompt were left out");
                known.scored = known.scored.max((task.first_position + task.rows).min(known.prompt_tokens));
            }
            let verdict = if !task.samples {
                Verdict::Scored
            } else {
                assert_eq!(known.scored, known.prompt_tokens, "it generates before its prompt is scored");
                let token = known.tokens.iter().fold(7, |before, &token| hash(before, token)) % 1000;
                known.tokens.push(token as TokenId);
                if known.tokens.len() >= known.until {
                    known.end = Some(End::Sampled);
                    Verdict::Ended
                } else {
                    Verdict::Token(token as TokenId)
                }
            };
            outcomes.push(Outcome { id: task.id, verdict, pause: pause && verdict != Verdict::Ended });
        }
        self.on(PolicyEvent::Sampled { step: step.id, outcomes });
    }

    fn lose_executor(&mut self, named: bool) {
        let failed = self.computing.front().filter(|_| named).map(|pending| pending.step.id);
        self.computing.clear();
        self.kv.clear();
        self.ready = false;
        self.on(PolicyEvent::ExecutorLost { failed, reason: "lost".into() });
    }

    fn restart_executor(&mut self) {
        if !self.ready {
            self.ready = true;
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

    /// Lets everything run to its end; how many steps that took.
    fn run_out(&mut self) -> usize {
        self.restart_executor();
        self.resume_all();
        let mut steps = 0;
        while !(self.computing.is_empty() && self.sampling.is_empty()) {
            self.finish_step();
            self.sample(false);
            steps += 1;
            assert!(steps < 100_000, "it does not come to an end");
        }
        steps
    }

    fn assert_all_ended(&self) {
        assert!(self.policy.is_empty());
        assert_eq!(self.policy.counts().blocks_used, 0);
        for (id, known) in &self.requests {
            assert!(known.end.is_some(), "{id:?} never ended");
        }
    }
}

fn hash(before: u64, token: TokenId) -> u64 {
    (before ^ u64::from(token).wrapping_add(0x9E37_79B9)).wrapping_mul(0x0100_0000_01B3).rotate_left(23)
}

#[test]
fn two_requests_share_steps_and_decode_rows_come_first() {
    let mut world = World::new(CONFIG, limits());
    world.submit(submission(1, 3), 10);
    world.finish_step();
    world.sample(false);
    world.submit(submission(2, 20), 10);
    world.finish_step();
    world.sample(false);
    let step = &world.computing[0].step;
    let rows: Vec<_> = step.sequences.iter().map(|share| share.tokens.len()).collect();
    assert_eq!(rows, [1, 7], "one decode row, then a chunk of the prompt");
    world.run_out();
    world.assert_all_ended();
}

#[test]
fn cancel_frees_blocks_as_soon_as_the_device_is_done_with_them() {
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
fn when_blocks_run_out_the_youngest_of_the_lowest_priority_gives_way_and_still_finishes() {
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 64, ..CONFIG }, limits());
    world.submit(Submission { priority: 1, ..submission(1, 30) }, 60);
    world.submit(submission(2, 30), 60);
    world.submit(submission(3, 30), 60);
    while world.preempted == 0 {
        world.finish_step();
        world.sample(false);
    }
    let waiting: Vec<_> = world.policy.waiting.iter().map(|rank| rank.id.0).collect();
    assert_eq!(waiting, [1], "the oldest, but of lower priority");
    world.run_out();
    world.assert_all_ended();
}

#[test]
fn a_request_that_cannot_fit_is_refused_with_the_sizes() {
    let mut policy = Policy::new(CONFIG, limits());
    let refused = policy.submit(submission(1, 128)).unwrap_err();
    assert_eq!(refused, SubmitError::ContextLengthExceeded { prompt_tokens: 128, context_tokens: 128 });
    assert!(policy.submit(Submission { generates: false, ..submission(2, 128) }).is_ok());
    assert!(matches!(policy.submit(submission(3, 0)), Err(SubmitError::InvalidPrompt(_))));
    let prompt = vec![1, 1000];
    assert!(matches!(policy.submit(Submission { prompt, ..submission(4, 1) }), Err(SubmitError::InvalidPrompt(_))));
    policy.on(PolicyEvent::Drain);
    assert!(matches!(policy.submit(submission(5, 1)), Err(SubmitError::Unavailable { .. })));
}

#[test]
fn scored_prompts_are_cut_to_the_rows_of_logits_there_are() {
    let mut world = World::new(PolicyConfig { prefill_chunk_tokens: 512, ..CONFIG }, limits());
    world.submit(Submission { scores_prompt: true, ..submission(1, 30) }, 3);
    assert_eq!(world.computing[0].step.logits_rows(), 8);
    assert_eq!(world.run_out(), 4 + 2, "30 rows by 8, then a token a step");
    world.assert_all_ended();
}

#[test]
fn a_poisoned_request_fails_alone_and_the_others_go_on() {
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
    assert_eq!(losses, 2, "once in company, once alone");
    world.assert_all_ended();
    let end = |id| world.requests[&RequestId(id)].end.clone().unwrap();
    assert_eq!(end(2), End::Failed(GenerationError::Engine("lost".into())));
    assert_eq!((end(1), end(3)), (End::Sampled, End::Sampled));
}

#[test]
fn a_refused_step_is_tried_again_and_then_fails_its_request() {
    let mut world = World::new(CONFIG, limits());
    world.submit(submission(1, 5), 5);
    for _ in 0..2 {
        let step = world.computing.pop_front().unwrap().step.id;
        world.on(PolicyEvent::StepFailed { step, reason: "refused".into() });
    }
    world.assert_all_ended();
}

#[test]
fn equals_are_served_in_order_of_arrival() {
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

/// One thing that happens to the world.
#[derive(Debug, Clone)]
enum Happening {
    Submit { prompt_tokens: usize, generate: usize, priority: i32, scores_prompt: bool },
    Cancel(u64),
    FinishStep,
    Sample { pause: bool },
    Resume(u64),
    LoseExecutor { named: bool },
    RestartExecutor,
}

fn happening() -> impl Strategy<Value = Happening> {
    prop_oneof![
        6 => (1usize..100, 1usize..60, 0i32..2, prop::bool::weighted(0.2)).prop_map(
            |(prompt_tokens, generate, priority, scores_prompt)| Happening::Submit {
                prompt_tokens, generate, priority, scores_prompt
            }
        ),
        2 => (1u64..20).prop_map(Happening::Cancel),
        30 => Just(Happening::FinishStep),
        30 => prop::bool::weighted(0.1).prop_map(|pause| Happening::Sample { pause }),
        4 => (1u64..20).prop_map(Happening::Resume),
        1 => any::<bool>().prop_map(|named| Happening::LoseExecutor { named }),
        2 => Just(Happening::RestartExecutor),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]
    #[test]
    fn whatever_happens_blocks_are_conserved_and_every_request_ends_once_with_the_right_tokens(
        happenings in prop::collection::vec(happening(), 1..400),
        chunk in prop::sample::select(vec![1usize, 7, 512]),
        steps_in_flight in 1usize..3,
        kv_blocks in 8usize..40,
    ) {
        let config = PolicyConfig { prefill_chunk_tokens: chunk, steps_in_flight };
        let mut world = World::new(config, EngineLimits { kv_blocks, ..limits() });
        let mut next = 1;
        for happening in happenings {
            match happening {
                Happening::Submit { prompt_tokens, generate, priority, scores_prompt } => {
                    let submission = Submission { priority, scores_prompt, ..submission(next, prompt_tokens) };
                    world.submit(submission, generate);
                    next += 1;
                }
                Happening::Cancel(id) => world.on(PolicyEvent::Cancel(RequestId(id))),
                Happening::FinishStep => world.finish_step(),
                Happening::Sample { pause } => world.sample(pause),
                Happening::Resume(id) => world.on(PolicyEvent::Resume(RequestId(id))),
                Happening::LoseExecutor { named } => {
                    if world.ready {
                        world.lose_executor(named);
                    }
                }
                Happening::RestartExecutor => world.restart_executor(),
            }
        }
        world.run_out();
        world.assert_all_ended();
        for known in world.requests.values() {
            // The tokens were checked row by row; a request that was not stopped has all of them.
            prop_assert!(known.end != Some(End::Sampled) || known.tokens.len() == known.until);
        }
    }
}
