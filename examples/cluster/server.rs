//! A server: the scheduling policy of the program, and a formula instead of a device.

use std::time::Duration;

use cuelight::core::cache_change::CacheChange;
use cuelight::core::request::RequestId;
use cuelight::pipeline::policy::{
    Effect, Outcome, PlannedStep, Policy, PolicyConfig, PolicyEvent, SpeculationMode, Submission, Verdict,
};
use cuelight_engine::engine::{EngineLimits, TokenId};

/// The device of a server. Times in seconds.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Time of a step without rows.
    pub base: f64,
    pub per_row: f64,
    /// Time for each pair of a row and a token that it attends to.
    pub per_attended: f64,
    pub kv_blocks: usize,
    pub max_sequences: usize,
    pub max_batched_tokens: usize,
}

/// What has happened at a server.
pub enum Happened {
    /// A step began that takes this time, in this life of the server.
    StepBegan {
        seconds: f64,
        life: u32,
    },
    Started {
        id: RequestId,
        cached: usize,
    },
    Token {
        id: RequestId,
    },
    Ended {
        id: RequestId,
    },
    CacheChanged(Vec<CacheChange>),
}

/// A server.
pub struct Server {
    machine: Machine,
    policy: Policy,
    step: Option<(PlannedStep, f64)>,
    reports_cache: bool,
    life: u32,
}

fn new_policy(machine: Machine, reports_cache: bool) -> Policy {
    let config = PolicyConfig {
        steps_in_flight: 1,
        reports_cache,
        speculation: SpeculationMode::Off,
        verify: false,
        ..PolicyConfig::default()
    };
    let limits = EngineLimits {
        vocab_size: 50_000,
        context_tokens: 16_384,
        kv_blocks: machine.kv_blocks,
        max_batched_tokens: machine.max_batched_tokens,
        max_sequences: machine.max_sequences,
        max_logits_rows: machine.max_sequences,
        device: "simulated".into(),
        ..EngineLimits::default()
    };
    let mut policy = Policy::new(config, limits.clone());
    policy.on(PolicyEvent::ExecutorReady(Box::new(limits)));
    policy
}

impl Server {
    pub fn new(machine: Machine, reports_cache: bool) -> Self {
        Server { machine, policy: new_policy(machine, reports_cache), step: None, reports_cache, life: 0 }
    }

    /// How often it was restarted.
    pub fn life(&self) -> u32 {
        self.life
    }

    /// It fails and comes back with an empty cache.
    pub fn restart(&mut self) {
        *self = Server { life: self.life + 1, ..Server::new(self.machine, self.reports_cache) };
    }

    pub fn submit(&mut self, id: RequestId, prompt: Vec<TokenId>, max_tokens: usize) -> Vec<Happened> {
        let submission = Submission::new(id, prompt, max_tokens);
        let effects = self.policy.submit(submission).unwrap_or_else(|error| panic!("{id:?} is refused: {error}"));
        self.perform(effects)
    }

    /// The step ends. `next` is the token of a request at a position; `None` after its last one.
    pub fn finish_step(&mut self, next: impl Fn(RequestId, usize) -> Option<TokenId>) -> Vec<Happened> {
        let Some((PlannedStep { step, tasks, .. }, seconds)) = self.step.take() else { return Vec::new() };
        let elapsed = Duration::from_secs_f64(seconds);
        let mut happened = Vec::new();
        let effects = self.policy.on(PolicyEvent::StepDone { step: step.id, elapsed, prefill_saturation_rows: None });
        happened.extend(self.perform(effects));
        let mut outcomes = Vec::with_capacity(tasks.len());
        for task in tasks {
            let position = task.first_position + task.rows;
            let verdict = match (task.samples, next(task.id, position), next(task.id, position + 1)) {
                (false, ..) => Verdict::Unchanged,
                (true, Some(token), Some(_)) => {
                    happened.push(Happened::Token { id: task.id });
                    Verdict::Tokens(vec![token])
                }
                (true, ..) => {
                    happened.extend([Happened::Token { id: task.id }, Happened::Ended { id: task.id }]);
                    Verdict::Ended
                }
            };
            outcomes.push(Outcome { id: task.id, verdict, forced: 0, pause: false });
        }
        let effects = self.policy.on(PolicyEvent::Sampled { step: step.id, outcomes });
        happened.extend(self.perform(effects));
        happened
    }

    fn perform(&mut self, effects: Vec<Effect>) -> Vec<Happened> {
        let mut happened = Vec::new();
        for effect in effects {
            match effect {
                Effect::Run(planned) => {
                    let seconds = self.seconds(&planned);
                    happened.push(Happened::StepBegan { seconds, life: self.life });
                    self.step = Some((planned, seconds));
                }
                Effect::Started { id, cached_tokens } => happened.push(Happened::Started { id, cached: cached_tokens }),
                Effect::CacheChanged(changes) => happened.push(Happened::CacheChanged(changes)),
                Effect::Failed(id, error) => panic!("{id:?} failed: {error}"),
                _ => {}
            }
        }
        happened
    }

    fn seconds(&self, planned: &PlannedStep) -> f64 {
        let Machine { base, per_row, per_attended, .. } = self.machine;
        let work = |(rows, first): (usize, u32)| {
            per_row * rows as f64 + per_attended * rows as f64 * (f64::from(first) + rows as f64 / 2.0)
        };
        let sequences = &planned.step.sequences;
        base + sequences.iter().map(|one| work((one.tokens.len(), one.first_position))).sum::<f64>()
    }
}
