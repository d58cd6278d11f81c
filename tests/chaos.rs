//! Chaos: random faults of every actor under 200 streams, by seed, on a paused clock.
//!
//! One seed determines a run: engine panics, lost and hung devices, refused steps, deaths of every actor alone and
//! together, jumps of the clock, clients that leave alone or all at once, read slowly or not at all, submissions that
//! cannot fit, and more requests than the server takes. After each run:
//!
//! - every request has ended exactly once, and every text is that of a request which ran alone
//! - nothing is held: sequences, blocks, permits, engines
//! - the metrics count every accepted request once
//!
//! During a run the probes are asked all the time: they answer at once, and `/ready` is 200 only if a request would be
//! accepted.
//!
//! ```text
//! cargo test --test chaos                                       # 50 seeds
//! CUELIGHT_CHAOS_SEED=17 cargo test --test chaos -- --nocapture # one of them
//! CUELIGHT_CHAOS_SEEDS=5000 cargo test --release --test chaos   # more
//! ```
//!
//! In a debug build with `CUELIGHT_CHAOS_PANICS=1` the sampler, the scheduler and the loader also panic in the middle of a message.
#![allow(clippy::unwrap_used)]

#[path = "support/actor_deaths.rs"]
mod actor_deaths;
mod common;
#[path = "support/simulated_clients.rs"]
mod simulated_clients;
#[path = "support/text_request.rs"]
mod text_request;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use cuelight::api::{ServerOptions, router};
use cuelight::core::request::{GenerationError, GenerationRequest, SubmitError};
use cuelight::metrics::exposition::{Compat, Exposition};
use cuelight::pipeline::policy::{PolicyConfig, SpeculationMode};
use cuelight::pipeline::runtime::{Permit, Runtime, RuntimeOptions, Status};
use cuelight::pipeline::simulation::{Fault, SimulatedModel};
use cuelight::pipeline::supervisor::RestartPolicy;
use cuelight_engine::engine::Step;
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep};

use actor_deaths::Role;
use common::{MODEL, Server, model};
use simulated_clients::{Client, Dice, POISON, Received, read};
use text_request::submit;

/// Clients of a run.
const STREAMS: usize = 200;

/// Runs of the test.
const SEEDS: u64 = 50;

/// Different requests of all runs.
const REQUESTS: u64 = 96;

/// Maximum number of requests in flight.
const MAX_REQUESTS: usize = 64;

/// How long a client may stall.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);

const STEP_TIMEOUT: Duration = Duration::from_secs(2);

/// Interval of the probes.
const PROBE_EVERY: Duration = Duration::from_millis(100);

/// Parts of the reasons of requests that random deaths hit as if they were the cause: too many deaths of the scheduler or
/// the sampler, or an executor that was killed, or overtaken by the clock, twice while the request ran, the second time alone.
const BLAMED: [&str; 3] = ["times in a row", "killed", "did not finish a step"];

/// Requests with their results alone, without faults.
struct Pool(Vec<(GenerationRequest, Received)>);

impl Pool {
    async fn new() -> Self {
        let policy = PolicyConfig { prefix_cache: false, ..PolicyConfig::default() };
        let runtime = Runtime::start(model(), RuntimeOptions { policy, ..RuntimeOptions::default() }).await.unwrap();
        runtime.wait_ready().await.ok().unwrap();
        let mut dice = Dice(0xC4A05);
        let mut requests = Vec::new();
        for number in 0..REQUESTS {
            let mut request = dice.request();
            request.logprobs = (number % 7 == 0).then_some(1);
            request.prompt.retain(|&token| token != POISON);
            if number == 0 {
                request.prompt.push(POISON);
            }
            let expected = read(submit(&runtime, &request).await).await;
            requests.push((request, expected));
        }
        Pool(requests)
    }
}

/// How a call ended.
#[derive(Debug)]
enum Outcome {
    /// It was accepted, and this is what its client received.
    Accepted(Received),
    /// It was refused, because the server was full and the client did not wait, or because it failed.
    Refused,
}

/// What the runs did.
#[derive(Debug, Default)]
struct Totals {
    accepted: usize,
    refused: usize,
    finished: usize,
    left: usize,
    cut_off: usize,
    blamed: usize,
    given_up: usize,
    kills: usize,
    restarts: usize,
    jumps: usize,
    probes: usize,
}

/// One run.
struct Chaos {
    seed: u64,
    server: Server,
    /// Whether few restarts are allowed, so that the server gives up.
    gives_up: bool,
    kills: AtomicUsize,
    jumps: AtomicUsize,
    probes: AtomicUsize,
}

impl Chaos {
    async fn start(seed: u64, exposition: Exposition, model: &SimulatedModel) -> Arc<Self> {
        let mut dice = Dice(seed);
        let gives_up = seed % 10 == 9;
        let options = RuntimeOptions {
            model_id: MODEL.into(),
            policy: policy(&mut dice),
            client_buffer_events: 16,
            client_stall_timeout: STALL_TIMEOUT,
            step_timeout: STEP_TIMEOUT,
            max_requests: MAX_REQUESTS,
            restarts: restarts(gives_up),
            ..RuntimeOptions::default()
        };
        let replicas = if seed % 4 == 3 { 2 } else { 1 };
        let runtime = Runtime::start_replicas(vec![model.clone(); replicas], options).await.unwrap();
        runtime.wait_ready().await.ok().unwrap();
        let options = ServerOptions { metrics: Some(exposition), ..ServerOptions::new(MODEL) };
        let server = Server { router: router(runtime.clone(), options).unwrap(), runtime };
        let count = || AtomicUsize::new(0);
        Arc::new(Chaos { seed, server, gives_up, kills: count(), jumps: count(), probes: count() })
    }

    fn runtime(&self) -> &Runtime {
        &self.server.runtime
    }

    /// Waits for a slot, unless the client is impatient. `None` when it is refused.
    async fn permit(&self, is_patient: bool) -> Option<Permit> {
        loop {
            match self.runtime().try_permit(1) {
                Ok(permit) => return Some(permit),
                Err(SubmitError::Overloaded { retry_after, .. }) if is_patient => sleep(retry_after).await,
                Err(SubmitError::Overloaded { .. }) => return None,
                Err(error) => return self.refused(&error),
            }
        }
    }

    /// A server that gave up refuses, with its reason. Others do not.
    #[track_caller]
    fn refused<T>(&self, error: &SubmitError) -> Option<T> {
        let is_failed = matches!(error, SubmitError::Unavailable { .. }) && self.gives_up;
        assert!(is_failed, "seed {}: {error}", self.seed);
        None
    }

    async fn serve(self: Arc<Self>, request: GenerationRequest, client: Client, is_patient: bool) -> Outcome {
        loop {
            let Some(permit) = self.permit(is_patient).await else { return Outcome::Refused };
            match self.runtime().submit(&permit, request.clone()).await {
                Ok(generation) => {
                    drop(permit);
                    return Outcome::Accepted(client.read(generation, 3 * STALL_TIMEOUT).await);
                }
                // The scheduler died while it decided, or too many prompts wait.
                Err(SubmitError::Unavailable { retry_after, .. } | SubmitError::QueueFull { retry_after, .. })
                    if !matches!(self.runtime().status(), Status::Failed(_)) =>
                {
                    // Not after each step, as the server advises here: most of the time would go to these calls.
                    sleep(retry_after.max(Duration::from_millis(100))).await;
                }
                Err(error) => {
                    self.refused::<()>(&error);
                    return Outcome::Refused;
                }
            }
        }
    }

    /// Submits prompts that cannot fit, which are refused with the reason whatever happens.
    async fn overreach(self: Arc<Self>, mut dice: Dice) {
        for _ in 0..10 {
            sleep(Duration::from_millis(dice.roll(1000))).await;
            let Some(permit) = self.permit(false).await else { continue };
            let prompt = vec![u32::from(b'a'); 600 + dice.roll(1000) as usize];
            let request = GenerationRequest { prompt, ..text_request::request("", 1) };
            match self.runtime().submit(&permit, request).await.err().unwrap() {
                SubmitError::ContextLengthExceeded { .. } | SubmitError::Unavailable { .. } => {}
                error => panic!("seed {}: {error}", self.seed),
            }
        }
    }

    /// Kills actors, alone, together, and while others are being restarted.
    async fn kill(self: Arc<Self>, mut dice: Dice) {
        loop {
            while self.runtime().status() != Status::Ready {
                sleep(Duration::from_millis(10)).await;
            }
            sleep(Duration::from_millis(200 + dice.roll(1800))).await;
            // Between the messages that the actors handle at the same moment.
            for _ in 0..dice.roll(100) {
                tokio::task::yield_now().await;
            }
            self.strike(&mut dice);
            match dice.roll(4) {
                0 => self.strike(&mut dice),
                1 => {
                    sleep(Duration::from_millis(dice.roll(120))).await;
                    self.strike(&mut dice);
                }
                _ => {}
            }
            self.probe_once().await;
        }
    }

    fn strike(&self, dice: &mut Dice) {
        let role = Role::ALL[dice.roll(Role::ALL.len() as u64) as usize];
        let killed = panics(role, dice) || role.kill(self.runtime(), dice.roll(2));
        self.kills.fetch_add(usize::from(killed), Ordering::Relaxed);
    }

    /// Lets the clock jump, as after a suspended machine. A long jump looks like a hung device.
    async fn jump(self: Arc<Self>, mut dice: Dice) {
        loop {
            sleep(Duration::from_millis(1000 + dice.roll(4000))).await;
            let longest = [20, 500, 4000][dice.roll(3) as usize];
            tokio::time::advance(Duration::from_millis(dice.roll(longest))).await;
            self.jumps.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Asks the probes all the time.
    async fn probe(self: Arc<Self>) {
        loop {
            self.probe_once().await;
            sleep(PROBE_EVERY).await;
        }
    }

    async fn probe_once(&self) {
        let (begin, real) = (Instant::now(), std::time::Instant::now());
        let health = self.server.get("/health").await.status;
        let ready = self.server.get("/ready").await.status;
        // The runtime has one thread, so nothing has happened since the last answer.
        let accepts = self.runtime().try_permit(1);
        let status = self.runtime().status();
        let context = || format!("seed {}: {health} {ready} {status:?}", self.seed);
        assert!(begin.elapsed() < PROBE_EVERY, "{}: {:?}", context(), begin.elapsed());
        assert!(real.elapsed() < Duration::from_secs(5), "{}: {:?}", context(), real.elapsed());
        assert_eq!(health == 200, !matches!(status, Status::Failed(_)), "{}", context());
        assert_eq!(ready == 200, status == Status::Ready, "{}", context());
        if ready == 200 {
            assert!(matches!(accepts, Ok(_) | Err(SubmitError::Overloaded { .. })), "{}", context());
        }
        self.probes.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits until nothing is held, and checks the metrics.
    async fn assert_nothing_is_left(&self, accepted: usize) {
        sleep(Duration::from_secs(30)).await;
        let counts = self.runtime().snapshot();
        let held = (counts.running, counts.waiting, counts.paused, counts.queued_tokens, counts.blocks_used);
        assert_eq!(held, (0, 0, 0, 0, 0), "seed {}", self.seed);
        if !self.gives_up {
            assert_eq!(self.runtime().status(), Status::Ready, "seed {}", self.seed);
            assert!(self.runtime().try_permit(MAX_REQUESTS).is_ok(), "seed {}: a permit is held", self.seed);
        }
        let text = self.server.get("/metrics").await.text();
        assert_eq!(sum(&text, "cuelight_requests_finished_total") as usize, accepted, "seed {}\n{text}", self.seed);
    }
}

/// The sum of a metric over its labels.
fn sum(text: &str, name: &str) -> f64 {
    let is_sample = |line: &&str| line.strip_prefix(name).is_some_and(|rest| rest.starts_with(['{', ' ']));
    text.lines().filter(is_sample).map(|line| line.rsplit_once(' ').unwrap().1.parse::<f64>().unwrap()).sum()
}

fn policy(dice: &mut Dice) -> PolicyConfig {
    PolicyConfig {
        prefill_chunk_tokens: 8 + dice.roll(64) as usize,
        inter_token_target: (dice.roll(2) == 0).then_some(Duration::from_millis(7)),
        steps_in_flight: 1 + dice.roll(2) as usize,
        steps_at_executor: 1 + dice.roll(2) as usize,
        prefix_cache: dice.roll(4) != 0,
        speculation: [SpeculationMode::Auto, SpeculationMode::Draft][dice.roll(2) as usize],
        max_queued_tokens: if dice.roll(2) == 0 { 2000 } else { usize::MAX },
        // Takes most of the time of a run.
        verify: dice.roll(8) == 0,
        ..PolicyConfig::default()
    }
}

fn restarts(gives_up: bool) -> RestartPolicy {
    let max_restarts = if gives_up { 3 } else { usize::MAX };
    RestartPolicy { max_restarts, max_backoff: Duration::from_millis(400), ..RestartPolicy::default() }
}

/// A model whose engine fails at random steps.
fn faulty_model(seed: u64) -> SimulatedModel {
    let faults = Arc::new(move |number: u64, step: &Step| {
        if step.sequences.iter().any(|share| share.tokens.contains(&POISON)) {
            return Some(Fault::Panic);
        }
        // A request that fails twice alone is at fault itself, so random faults only hit steps of several requests.
        let strikes = step.sequences.len() > 1;
        match Dice(seed ^ (number << 20)).roll(800) {
            0 if strikes => Some(Fault::Panic),
            1 if strikes => Some(Fault::DeviceLost),
            2 if strikes => Some(Fault::InvalidStep),
            3 if strikes => Some(Fault::Slow(10 * STEP_TIMEOUT)),
            4..8 => Some(Fault::Slow(Duration::from_millis(300))),
            _ => None,
        }
    });
    let (step_time, row_time) = (Duration::from_millis(5), Duration::from_micros(50));
    let mut model = SimulatedModel { faults: Some(faults), samples: seed % 2 == 1, step_time, row_time, ..model() };
    model.limits.kv_blocks = 60;
    match seed % 3 {
        0 => SimulatedModel { draft: Some(Arc::new(draft_model(seed))), ..model },
        // Its layer has the same faults.
        1 => model.with_prediction(),
        _ => model,
    }
}

/// A draft model with few blocks that guesses all greedy tokens, and fails at random steps.
fn draft_model(seed: u64) -> SimulatedModel {
    let faults = Arc::new(move |number: u64, _: &Step| match Dice(!seed ^ (number << 20)).roll(400) {
        0 => Some(Fault::Panic),
        1 => Some(Fault::DeviceLost),
        2..20 => Some(Fault::NotANumber),
        _ => None,
    });
    let mut model = SimulatedModel { faults: Some(faults), samples: seed.is_multiple_of(2), ..model() };
    (model.limits.kv_blocks, model.limits.context_tokens) = (20, 160);
    model
}

/// Arms a panic in the middle of an actor's next message, in half of the cases, if the environment asks for it. Returns
/// whether it did.
#[cfg(debug_assertions)]
fn panics(role: Role, dice: &mut Dice) -> bool {
    use cuelight::pipeline::faults;
    let fault = match role {
        Role::Sampler => faults::Fault::Sampler,
        Role::Scheduler => faults::Fault::Scheduler,
        Role::Loader => faults::Fault::Loader,
        Role::Executor | Role::Experts | Role::Drafter => return false,
    };
    let arms = std::env::var_os("CUELIGHT_CHAOS_PANICS").is_some() && dice.roll(2) == 0;
    if arms {
        fault.arm();
    }
    arms
}

#[cfg(not(debug_assertions))]
fn panics(_: Role, _: &mut Dice) -> bool {
    false
}

/// A request with the client that sends it.
struct Call {
    request: usize,
    client: Client,
    served: JoinHandle<Outcome>,
}

/// Starts the clients of a run.
fn clients(chaos: &Arc<Chaos>, pool: &Pool, dice: &mut Dice) -> Vec<Call> {
    let mut arrival = Duration::ZERO;
    let storm = Duration::from_millis(500 + dice.roll(3000));
    let calls = (0..STREAMS).map(|_| {
        // Half of them arrive in bursts.
        arrival += Duration::from_millis(if dice.roll(2) == 0 { 0 } else { dice.roll(60) });
        let request = if dice.roll(200) == 0 { 0 } else { 1 + dice.roll(REQUESTS - 1) as usize };
        let client = match dice.roll(40) {
            0..6 => Client::LeavesAfter(Duration::from_millis(dice.roll(2000))),
            // Many leave at the same moment.
            6..12 => Client::LeavesAfter(storm.saturating_sub(arrival)),
            12..16 => Client::ReadsSlowly,
            16 => Client::Stalls,
            _ => Client::Reads,
        };
        let is_patient = dice.roll(10) != 0;
        let (chaos, asked) = (chaos.clone(), pool.0[request].0.clone());
        let served = tokio::spawn(async move {
            sleep(arrival).await;
            chaos.serve(asked, client, is_patient).await
        });
        Call { request, client, served }
    });
    calls.collect()
}

/// Checks what a client received, and counts it.
fn check(chaos: &Chaos, asked: &(GenerationRequest, Received), client: Client, got: Received, totals: &mut Totals) {
    let (seed, (request, expected)) = (chaos.seed, asked);
    assert!(expected.tokens.starts_with(&got.tokens), "seed {seed}: {got:?} instead of {expected:?}");
    match &got.end {
        None => {
            assert!(matches!(client, Client::LeavesAfter(_)), "seed {seed}: no end");
            totals.left += 1;
        }
        Some(Err(GenerationError::StalledClient)) if matches!(client, Client::Stalls) => totals.cut_off += 1,
        Some(Err(GenerationError::Engine(_))) if chaos.gives_up || request.prompt.contains(&POISON) => {
            totals.given_up += 1;
        }
        Some(Err(GenerationError::Engine(reason))) if BLAMED.iter().any(|part| reason.contains(part)) => {
            totals.blamed += 1;
        }
        _ => {
            assert_eq!(&got, expected, "seed {seed}: {request:?}");
            totals.finished += 1;
        }
    }
}

/// Runs have armed faults in common, so there is one at a time.
static RUN: tokio::sync::Mutex<()> = tokio::sync::Mutex::const_new(());

/// Runs one seed.
async fn run(seed: u64, pool: &Pool, totals: &mut Totals) {
    let (recorder, exposition) = Exposition::new(Compat::None).unwrap();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let _run = RUN.lock().await;
    let model = faulty_model(seed);
    let chaos = Chaos::start(seed, exposition, &model).await;
    let mut dice = Dice(seed ^ 0xD1CE);
    let calls = clients(&chaos, pool, &mut dice);
    let mut background = JoinSet::new();
    background.spawn(chaos.clone().kill(Dice(seed ^ 0xDEAD)));
    background.spawn(chaos.clone().jump(Dice(seed ^ 0x70B)));
    background.spawn(chaos.clone().probe());
    let overreaching = tokio::spawn(chaos.clone().overreach(Dice(seed ^ 0xB16)));
    let mut accepted = 0;
    for Call { request, client, served } in calls {
        match served.await.unwrap() {
            Outcome::Refused => totals.refused += 1,
            Outcome::Accepted(received) => {
                accepted += 1;
                check(&chaos, &pool.0[request], client, received, totals);
            }
        }
        // A probe that failed panics here.
        if let Some(ended) = background.try_join_next() {
            ended.unwrap();
        }
    }
    overreaching.await.unwrap();
    background.shutdown().await;
    disarm();
    chaos.assert_nothing_is_left(accepted).await;
    totals.accepted += accepted;
    totals.kills += chaos.kills.load(Ordering::Relaxed);
    totals.jumps += chaos.jumps.load(Ordering::Relaxed);
    totals.probes += chaos.probes.load(Ordering::Relaxed);
    totals.restarts += sum(&chaos.server.get("/metrics").await.text(), "cuelight_actor_restarts_total") as usize;
    chaos.runtime().shutdown(Duration::from_secs(1)).await;
    assert_eq!(model.counters.live_bytes.load(Ordering::Relaxed), 0, "seed {seed}: an engine is left");
}

/// Takes back a fault that nothing has triggered.
fn disarm() {
    #[cfg(debug_assertions)]
    cuelight::pipeline::faults::Fault::disarm();
}

/// The seeds of this run of the test.
fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
    match number("CUELIGHT_CHAOS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("CUELIGHT_CHAOS_SEEDS").unwrap_or(SEEDS),
    }
}

/// Prints the seed of a run that panics.
struct Running(u64);

impl Drop for Running {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("To repeat it: CUELIGHT_CHAOS_SEED={} cargo test --test chaos -- --nocapture", self.0);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn under_random_faults_nothing_is_lost_and_every_request_ends_once() {
    let pool = Pool::new().await;
    let mut totals = Totals::default();
    let begin = std::time::Instant::now();
    let seeds = seeds();
    for seed in seeds.clone() {
        let _running = Running(seed);
        run(seed, &pool, &mut totals).await;
        println!("seed {seed} after {:?}", begin.elapsed());
    }
    println!("{} seeds of {STREAMS} streams in {:?}: {totals:?}", seeds.end - seeds.start, begin.elapsed());
    assert!(totals.blamed * 200 <= totals.accepted, "{totals:?}");
}

#[tokio::test(start_paused = true)]
async fn a_run_is_determined_by_its_seed() {
    let pool = Pool::new().await;
    let mut results = Vec::new();
    for _ in 0..2 {
        let mut totals = Totals::default();
        run(5, &pool, &mut totals).await;
        results.push(format!("{totals:?}"));
    }
    assert_eq!(results[0], results[1]);
}
