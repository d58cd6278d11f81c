//! Tests of the whole pipeline with a simulated engine, mostly on a paused clock: thousands of requests in seconds.
//!
//! A simulated token depends only on the tokens before it, which are read through the KV blocks that the scheduler chose.
//! So a text that equals the one of a request that runs alone also shows that no block was lost or mixed up.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cuelight::core::request::{FinishReason, GenerationError, GenerationRequest, SubmitError};
use cuelight::core::stop_strings::StopStrings;
use cuelight::pipeline::executor::EngineHost;
use cuelight::pipeline::kv_store::KvStoreOptions;
use cuelight::pipeline::policy::{PolicyConfig, SpeculationMode};
use cuelight::pipeline::runtime::{Runtime, RuntimeOptions, Status};
use cuelight::pipeline::simulation::{Fault, FaultInjector, SimulatedModel, tokenizer};
use cuelight::pipeline::supervisor::RestartPolicy;
use cuelight_engine::engine::Step;
use tokio::time::sleep;

#[path = "support/actor_deaths.rs"]
mod actor_deaths;
#[path = "support/simulated_clients.rs"]
mod simulated_clients;
#[path = "support/test_seed.rs"]
mod test_seed;
#[path = "support/text_request.rs"]
mod text_request;

use actor_deaths::Role;
use simulated_clients::{Client, Dice, POISON, Received, read, read_slowly};
use test_seed::test_seed;
use text_request::{request, submit};

fn model() -> SimulatedModel {
    SimulatedModel::new(tokenizer())
}

/// A model with the step times of a small model on a CPU.
fn timed_model() -> SimulatedModel {
    SimulatedModel { step_time: Duration::from_millis(5), row_time: Duration::from_micros(50), ..model() }
}

fn options() -> RuntimeOptions {
    RuntimeOptions { restarts: RestartPolicy { max_restarts: usize::MAX, ..Default::default() }, ..Default::default() }
}

async fn start(model: SimulatedModel, options: RuntimeOptions) -> Runtime {
    let runtime = Runtime::start(model, options).await.unwrap();
    runtime.wait_ready().await.ok().unwrap();
    runtime
}

/// The result of the request alone, in one chunk, without faults.
async fn alone(request: &GenerationRequest) -> Received {
    let runtime = start(model(), options()).await;
    read(submit(&runtime, request).await).await
}

fn assert_nothing_is_held(runtime: &Runtime) {
    let counts = runtime.snapshot();
    assert_eq!((counts.running, counts.waiting, counts.blocks_used), (0, 0, 0));
    assert_eq!(counts.slots_used, counts.slots_cached, "only checkpoints are left");
    assert!(runtime.try_permit(options().max_requests).is_ok(), "a permit was not released");
}

#[tokio::test(start_paused = true)]
async fn one_request_streams_through_all_actors() {
    let runtime = start(model(), options()).await;
    assert_eq!(runtime.status(), Status::Ready);
    let received = read(submit(&runtime, &request("hello", 20)).await).await;
    assert!(matches!(received.end, Some(Ok(_))));
    assert!(!received.text.is_empty());
    assert_nothing_is_held(&runtime);
}

#[tokio::test]
async fn an_engine_on_its_own_thread_gives_the_same_result() {
    let request = request("hello", 50);
    let runtime = start(SimulatedModel { host: EngineHost::Thread, ..model() }, options()).await;
    let generations = [submit(&runtime, &request).await, submit(&runtime, &request).await];
    let expected = alone(&request).await;
    for generation in generations {
        assert_eq!(read(generation).await, expected);
    }
    runtime.shutdown(Duration::from_secs(1)).await;
}

#[tokio::test(start_paused = true)]
async fn two_clients_share_steps() {
    let model = SimulatedModel { end_one_in: u64::MAX, ..timed_model() };
    let counters = model.counters.clone();
    let runtime = start(model, options()).await;
    let first = submit(&runtime, &request("one", 30)).await;
    let second = submit(&runtime, &request("two", 30)).await;
    tokio::join!(read(first), read(second));
    let (steps, sequences) = (counters.steps.load(Ordering::Relaxed), counters.sequences.load(Ordering::Relaxed));
    assert_eq!(sequences, 60);
    assert!(steps <= 32, "{steps} steps for 2 x 30 tokens");
}

/// A lower tier of `bytes` bytes.
fn host_memory(bytes: u64) -> KvStoreOptions {
    KvStoreOptions { host_bytes: bytes, ..KvStoreOptions::default() }
}

#[tokio::test(start_paused = true)]
async fn batching_chunks_and_preemption_do_not_change_any_bit() {
    let mut asked = request("a prompt of some length, so that it is cut into many chunks", 60);
    asked.logprobs = Some(2);
    asked.prompt_logprobs = Some(1);
    let expected = alone(&asked).await;
    for prefill_chunk_tokens in [1, 7, 512] {
        for (steps_in_flight, kv_blocks, state_slots) in
            [(1, 256, 0), (2, 256, 0), (1, 34, 0), (2, 256, 3), (1, 34, 40)]
        {
            let mut model = timed_model();
            (model.limits.kv_blocks, model.limits.state_slots) = (kv_blocks, state_slots);
            let policy = PolicyConfig { prefill_chunk_tokens, steps_in_flight, ..PolicyConfig::default() };
            let kv_store = host_memory(if state_slots > 0 { 20_000 } else { 0 });
            let runtime = start(model, RuntimeOptions { policy, kv_store, ..options() }).await;
            let mut others = Vec::new();
            for i in 0..16 {
                let other = request(&format!("another request, number {i}"), 100);
                others.push(tokio::spawn(read(submit(&runtime, &other).await)));
            }
            assert_eq!(read(submit(&runtime, &asked).await).await, expected);
            for other in others {
                other.await.unwrap();
            }
            assert_nothing_is_held(&runtime);
        }
    }
}

#[tokio::test(start_paused = true)]
async fn dropping_a_generation_frees_its_blocks_within_one_step() {
    let model = SimulatedModel { end_one_in: u64::MAX, ..timed_model() };
    let runtime = start(model, options()).await;
    let mut generation = submit(&runtime, &request("hello", 400)).await;
    generation.next().await.unwrap();
    assert_ne!(runtime.snapshot().blocks_used, 0);
    drop(generation);
    // A step takes 5.05 ms, and timers round up to whole milliseconds.
    sleep(Duration::from_millis(7)).await;
    assert_nothing_is_held(&runtime);
}

#[tokio::test(start_paused = true)]
async fn a_stalled_reader_slows_only_itself_and_is_cut_off() {
    let model = SimulatedModel { end_one_in: u64::MAX, ..timed_model() };
    let client_stall_timeout = Duration::from_secs(10);
    let runtime = start(model, RuntimeOptions { client_stall_timeout, client_buffer_events: 8, ..options() }).await;
    let mut stalled = submit(&runtime, &request("stalled", 400)).await;
    let slow = tokio::spawn(read_slowly(submit(&runtime, &request("slow", 100)).await, Duration::from_millis(100)));
    let begin = tokio::time::Instant::now();
    read(submit(&runtime, &request("fast", 400)).await).await;
    assert!(begin.elapsed() < Duration::from_secs(3), "the fast client took {:?}", begin.elapsed());
    assert_eq!(slow.await.unwrap(), alone_without_end(&request("slow", 100)).await);
    sleep(client_stall_timeout).await;
    assert_nothing_is_held_except(&runtime, 1);
    let mut received = Received::default();
    while let Some(event) = stalled.next().await {
        received.take(event);
    }
    assert_eq!(received.end, Some(Err(GenerationError::StalledClient)));
}

async fn alone_without_end(request: &GenerationRequest) -> Received {
    let runtime = start(SimulatedModel { end_one_in: u64::MAX, ..model() }, options()).await;
    read(submit(&runtime, request).await).await
}

/// No blocks are held, although `clients` have not read their last event yet.
fn assert_nothing_is_held_except(runtime: &Runtime, clients: usize) {
    let counts = runtime.snapshot();
    assert_eq!((counts.running, counts.waiting, counts.blocks_used), (0, 0, 0));
    assert_eq!(counts.slots_used, counts.slots_cached, "only checkpoints are left");
    assert!(runtime.try_permit(options().max_requests - clients).is_ok());
}

#[tokio::test(start_paused = true)]
async fn requests_beyond_the_limit_are_refused_at_once() {
    let runtime = start(timed_model(), RuntimeOptions { max_requests: 3, ..options() }).await;
    let first = runtime.try_permit(2).unwrap();
    let second = runtime.try_permit(1).unwrap();
    let refused = runtime.try_permit(1).err().unwrap();
    assert!(matches!(refused, SubmitError::Overloaded { waiting: 3, .. }), "{refused:?}");
    let generation = runtime.submit(&second, request("hello", 5)).await.unwrap();
    drop(second);
    assert!(runtime.try_permit(1).is_err(), "the generation still holds its slot");
    read(generation).await;
    assert!(runtime.try_permit(1).is_ok());
    drop(first);
    assert!(runtime.try_permit(3).is_ok());
}

#[tokio::test(start_paused = true)]
async fn unusable_logits_fail_only_the_requests_of_that_step() {
    let faults = Arc::new(|step: u64, _: &_| (step == 3).then_some(Fault::NotANumber));
    let runtime = start(SimulatedModel { faults: Some(faults), ..timed_model() }, options()).await;
    let received = read(submit(&runtime, &request("hello", 50)).await).await;
    assert!(matches!(received.end, Some(Err(GenerationError::Engine(_)))), "{received:?}");
    let request = request("hello", 50);
    assert_eq!(read(submit(&runtime, &request).await).await, alone(&request).await);
    assert_nothing_is_held(&runtime);
}

#[tokio::test(start_paused = true)]
async fn a_job_for_absent_experts_fails_its_request_with_the_reason() {
    let faults = Arc::new(|_, step: &Step| {
        step.sequences.iter().any(|share| share.tokens.contains(&POISON)).then_some(Fault::AwaitExperts)
    });
    let runtime = start(SimulatedModel { faults: Some(faults), ..timed_model() }, options()).await;
    let received = read(submit(&runtime, &request("\u{1}", 5)).await).await;
    let Some(Err(GenerationError::Engine(reason))) = received.end else { panic!("{received:?}") };
    assert!(reason.contains("experts on the host"), "{reason}");
    assert_eq!(runtime.status(), Status::Recovering);
}

#[tokio::test(start_paused = true)]
async fn sixteen_streams_survive_a_panic_with_the_same_text() {
    let faults = Arc::new(|step: u64, _: &_| (step == 20).then_some(Fault::Panic));
    let model = SimulatedModel { faults: Some(faults), ..timed_model() };
    let counters = model.counters.clone();
    let runtime = start(model, options()).await;
    let requests: Vec<_> = (0..16).map(|i| request(&format!("stream {i}"), 60)).collect();
    let mut streams = Vec::new();
    for request in &requests {
        streams.push(tokio::spawn(read(submit(&runtime, request).await)));
    }
    for (stream, request) in streams.into_iter().zip(&requests) {
        assert_eq!(stream.await.unwrap(), alone(request).await);
    }
    assert_eq!(counters.loads.load(Ordering::Relaxed), 2);
    assert_eq!(runtime.status(), Status::Ready);
}

#[tokio::test(start_paused = true)]
async fn sixteen_streams_survive_a_hanging_device_with_the_same_text() {
    let faults = Arc::new(|step: u64, _: &_| (step == 20).then_some(Fault::Slow(Duration::from_secs(3600))));
    let model = SimulatedModel { faults: Some(faults), ..timed_model() };
    let counters = model.counters.clone();
    let step_timeout = Duration::from_secs(10);
    let runtime = start(model, RuntimeOptions { step_timeout, ..options() }).await;
    let begin = tokio::time::Instant::now();
    let requests: Vec<_> = (0..16).map(|i| request(&format!("stream {i}"), 60)).collect();
    let mut streams = Vec::new();
    for request in &requests {
        streams.push(tokio::spawn(read(submit(&runtime, request).await)));
    }
    for (stream, request) in streams.into_iter().zip(&requests) {
        assert_eq!(stream.await.unwrap(), alone(request).await);
    }
    assert!(begin.elapsed() < 2 * step_timeout, "{:?}", begin.elapsed());
    assert_eq!(counters.loads.load(Ordering::Relaxed), 2);
}

#[tokio::test(start_paused = true)]
async fn after_too_many_faults_requests_fail_and_the_status_has_the_reason() {
    let faults = Arc::new(|_, _: &_| Some(Fault::DeviceLost));
    let restarts = RestartPolicy { max_restarts: 1, ..Default::default() };
    let mut runtime =
        start(SimulatedModel { faults: Some(faults), ..timed_model() }, RuntimeOptions { restarts, ..options() }).await;
    let both = [submit(&runtime, &request("a", 5)).await, submit(&runtime, &request("b", 5)).await];
    for generation in both {
        let received = read(generation).await;
        assert!(matches!(received.end, Some(Err(GenerationError::Engine(_)))));
    }
    while !matches!(runtime.status(), Status::Failed(_)) {
        runtime.status_changed().await;
    }
    assert!(matches!(runtime.try_permit(1), Err(SubmitError::Unavailable { .. })));
}

#[tokio::test(start_paused = true)]
async fn shutdown_lets_running_requests_finish_and_ends_the_rest() {
    let model = SimulatedModel { end_one_in: u64::MAX, ..timed_model() };
    let runtime = start(model, options()).await;
    let short = tokio::spawn(read(submit(&runtime, &request("short", 10)).await));
    let long = tokio::spawn(read(submit(&runtime, &request("long", 400)).await));
    let permit = runtime.try_permit(1).unwrap();
    let stopping = tokio::spawn({
        let runtime = runtime.clone();
        async move { runtime.shutdown(Duration::from_millis(500)).await }
    });
    sleep(Duration::from_millis(1)).await;
    assert_eq!(runtime.status(), Status::Draining);
    assert!(matches!(runtime.try_permit(1), Err(SubmitError::Unavailable { .. })));
    assert!(matches!(runtime.submit(&permit, request("late", 1)).await, Err(SubmitError::Unavailable { .. })));
    assert_eq!(short.await.unwrap().end, Some(Ok(FinishReason::Length)));
    assert_eq!(long.await.unwrap().end, Some(Err(GenerationError::ShuttingDown)));
    stopping.await.unwrap();
}

/// Requests with everything that a new sampler has to restore.
fn requests_with_state(count: usize) -> Vec<GenerationRequest> {
    let with_state = |i: usize| {
        let mut request = request(&format!("stream {i}"), 40);
        request.sampling.frequency_penalty = 0.5;
        request.logprobs = i.is_multiple_of(2).then_some(1);
        request.prompt_logprobs = i.is_multiple_of(3).then_some(1);
        request.stop.strings = Arc::new(StopStrings::new(vec!["ab".into(), "xyz".into()]).unwrap());
        request.stop.min_tokens = i % 5;
        request
    };
    (0..count).map(with_state).collect()
}

/// Runs requests and kills an actor after the runtime has polled its tasks about `polls` times.
async fn with_a_death(requests: &[GenerationRequest], role: Role, polls: u64, samples: bool) -> Vec<Received> {
    // Steps take no time, so a test task that yields again and again runs between the messages of all actors.
    let runtime = start(SimulatedModel { samples, ..model() }, options()).await;
    let mut streams = Vec::new();
    for request in requests {
        streams.push(tokio::spawn(read(submit(&runtime, request).await)));
    }
    for _ in 0..polls {
        tokio::task::yield_now().await;
    }
    assert!(role.kill(&runtime, 0));
    let mut received = Vec::new();
    for stream in streams {
        received.push(stream.await.unwrap());
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(runtime.status(), Status::Ready);
    assert_nothing_is_held(&runtime);
    received
}

#[tokio::test(start_paused = true)]
async fn streams_survive_the_death_of_sampler_or_scheduler_at_any_moment() {
    let requests = requests_with_state(8);
    let mut expected = Vec::new();
    for request in &requests {
        expected.push(alone(request).await);
    }
    for role in [Role::Sampler, Role::Scheduler] {
        for moment in 0..60 {
            // Close together at first, when the requests begin.
            let polls = moment + moment * moment / 8;
            let received = with_a_death(&requests, role, polls, moment % 2 == 1).await;
            assert_eq!(received, expected, "{role:?} after {polls} polls");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn the_engine_is_kept_when_the_scheduler_dies() {
    let model = timed_model();
    let counters = model.counters.clone();
    let runtime = start(model, options()).await;
    let asked = request("hello", 50);
    let stream = tokio::spawn(read(submit(&runtime, &asked).await));
    sleep(Duration::from_millis(52)).await;
    Role::Scheduler.kill(&runtime, 0);
    assert_eq!(stream.await.unwrap(), alone(&asked).await);
    assert_eq!(counters.loads.load(Ordering::Relaxed), 1);
    assert_eq!(runtime.status(), Status::Ready);
}

#[tokio::test(start_paused = true)]
async fn a_loader_that_dies_before_it_reloads_leaves_one_engine() {
    let model = timed_model();
    let (counters, bytes) = (model.counters.clone(), model.memory().total_bytes());
    let runtime = start(model, options()).await;
    let asked = request("hello", 50);
    let stream = tokio::spawn(read(submit(&runtime, &asked).await));
    sleep(Duration::from_millis(52)).await;
    for role in [Role::Executor, Role::Loader, Role::Loader] {
        assert!(role.kill(&runtime, 0));
        sleep(Duration::from_millis(2)).await;
    }
    assert_eq!(stream.await.unwrap(), alone(&asked).await);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(counters.live_bytes.load(Ordering::Relaxed), bytes);
    assert_eq!(read(submit(&runtime, &asked).await).await, alone(&asked).await);
}

/// Kills the scheduler and waits until the supervisor has noticed, so that there is no scheduler for a while.
async fn begin_outage(runtime: &Runtime) {
    Role::Scheduler.kill(runtime, 0);
    sleep(Duration::from_millis(2)).await;
    assert_eq!(runtime.status(), Status::Recovering);
}

#[tokio::test(start_paused = true)]
async fn a_client_that_leaves_while_there_is_no_scheduler_is_not_continued() {
    let model = SimulatedModel { end_one_in: u64::MAX, ..timed_model() };
    let counters = model.counters.clone();
    let runtime = start(model, options()).await;
    let mut leaves = submit(&runtime, &request("leaves", 400)).await;
    leaves.next().await.unwrap();
    begin_outage(&runtime).await;
    let steps = counters.steps.load(Ordering::Relaxed);
    drop(leaves);
    sleep(Duration::from_secs(1)).await;
    assert_eq!(runtime.status(), Status::Ready);
    assert_eq!(counters.steps.load(Ordering::Relaxed), steps);
    assert_nothing_is_held(&runtime);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_arrives_while_there_is_no_scheduler_waits() {
    let runtime = start(timed_model(), options()).await;
    begin_outage(&runtime).await;
    let asked = request("hello", 20);
    assert_eq!(read(submit(&runtime, &asked).await).await, alone(&asked).await);
    begin_outage(&runtime).await;
    let permit = runtime.try_permit(1).unwrap();
    let leaves = tokio::time::timeout(Duration::from_millis(3), runtime.submit(&permit, asked)).await;
    assert!(leaves.is_err(), "there is no decision yet");
    drop(permit);
    sleep(Duration::from_secs(1)).await;
    assert_nothing_is_held(&runtime);
}

#[tokio::test(start_paused = true)]
async fn a_paused_client_reads_on_after_the_death_of_the_sampler() {
    let model = SimulatedModel { end_one_in: u64::MAX, ..timed_model() };
    let runtime = start(model, RuntimeOptions { client_buffer_events: 8, ..options() }).await;
    let asked = request("hello", 100);
    let generation = submit(&runtime, &asked).await;
    sleep(Duration::from_secs(1)).await;
    assert_eq!(runtime.snapshot().paused, 1);
    for _ in 0..3 {
        Role::Sampler.kill(&runtime, 0);
        sleep(Duration::from_secs(2)).await;
    }
    assert_eq!((runtime.snapshot().paused, runtime.status()), (1, Status::Ready));
    let begin = tokio::time::Instant::now();
    assert_eq!(read_slowly(generation, Duration::from_millis(20)).await, alone_without_end(&asked).await);
    assert!(begin.elapsed() < Duration::from_secs(5), "{:?}", begin.elapsed());
    assert_nothing_is_held(&runtime);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_kills_the_sampler_each_time_fails_alone() {
    let (strike, mut strikes) = tokio::sync::mpsc::unbounded_channel();
    let faults = Arc::new(move |_, step: &Step| {
        // Each step with the last token of this prompt, which is the one that returns logits.
        if step.sequences.iter().any(|share| share.tokens.last() == Some(&POISON)) {
            strike.send(()).unwrap();
        }
        None
    });
    let runtime = start(SimulatedModel { faults: Some(faults), ..timed_model() }, options()).await;
    let killer = tokio::spawn({
        let runtime = runtime.clone();
        async move {
            let mut deaths = 0;
            while strikes.recv().await.is_some() {
                deaths += u32::from(Role::Sampler.kill(&runtime, 0));
                if deaths > 20 {
                    break;
                }
            }
        }
    });
    let requests: Vec<_> = (0..16).map(|i| request(&format!("stream {i}"), 60)).collect();
    let mut streams = Vec::new();
    for request in &requests[..8] {
        streams.push(tokio::spawn(read(submit(&runtime, request).await)));
    }
    let cause = tokio::spawn(read(submit(&runtime, &request("poison \u{1}", 60)).await));
    for request in &requests[8..] {
        streams.push(tokio::spawn(read(submit(&runtime, request).await)));
    }
    let Some(Err(GenerationError::Engine(reason))) = cause.await.unwrap().end else { panic!("it did not fail") };
    assert!(reason.contains("times in a row"), "{reason}");
    for (stream, request) in streams.into_iter().zip(&requests) {
        assert_eq!(stream.await.unwrap(), alone(request).await);
    }
    assert_eq!(runtime.status(), Status::Ready);
    killer.abort();
}

#[tokio::test(start_paused = true)]
async fn when_the_scheduler_dies_too_often_every_request_ends_once_with_the_reason() {
    let model = SimulatedModel { end_one_in: u64::MAX, ..timed_model() };
    let restarts = RestartPolicy { max_restarts: 2, ..Default::default() };
    let runtime = start(model, RuntimeOptions { restarts, ..options() }).await;
    let running = tokio::spawn(read(submit(&runtime, &request("runs", 400)).await));
    for _ in 0..3 {
        sleep(Duration::from_millis(500)).await;
        Role::Scheduler.kill(&runtime, 0);
    }
    assert!(matches!(running.await.unwrap().end, Some(Err(GenerationError::Engine(_)))));
    let Status::Failed(reason) = runtime.status() else { panic!("{:?}", runtime.status()) };
    assert!(reason.contains("gave up"), "{reason}");
    assert!(matches!(runtime.try_permit(1), Err(SubmitError::Unavailable { .. })));
    runtime.shutdown(Duration::from_secs(1)).await;
}

/// How long a client may stall.
const STALL_TIMEOUT: Duration = Duration::from_secs(20);

async fn serve_client(runtime: Runtime, request: GenerationRequest, client: Client, arrival: Duration) -> Received {
    sleep(arrival).await;
    let permit = loop {
        match runtime.try_permit(1) {
            Ok(permit) => break permit,
            Err(SubmitError::Overloaded { retry_after, .. }) => sleep(retry_after).await,
            Err(error) => panic!("{error}"),
        }
    };
    let generation = runtime.submit(&permit, request).await.unwrap();
    client.read(generation, 20 * STALL_TIMEOUT).await
}

/// Maximum time from submission to the first token, in virtual time, including faults and bursts. Requests of low priority
/// from the client with most of the requests wait longest, because all clients have equal shares: 31 to 121 seconds with
/// sixteen seeds and ten thousand requests each. A request that is never scheduled waits until its run ends.
const LONGEST_WAIT: Duration = Duration::from_secs(240);

/// Whether a request failed because random deaths hit it as if it were the cause: twice the executor, the second time
/// while the request ran alone, or four times the scheduler or the sampler.
fn is_blamed(received: &Received) -> bool {
    match &received.end {
        Some(Err(GenerationError::Engine(reason))) => reason.contains("killed") || reason.contains("times in a row"),
        _ => false,
    }
}

/// Kills random actors, each some time after the pipeline has recovered from the death before.
async fn kill_actors(runtime: Runtime, mut dice: Dice) {
    loop {
        while runtime.status() != Status::Ready {
            sleep(Duration::from_millis(10)).await;
        }
        sleep(Duration::from_millis(1000 + dice.roll(4000))).await;
        let role = Role::ALL[dice.roll(5) as usize];
        role.kill(&runtime, 0);
    }
}

const SPECULATION: [SpeculationMode; 3] = [SpeculationMode::Auto, SpeculationMode::Ngram, SpeculationMode::Off];

/// Random faults of steps, and a panic in every step with the poisoned token.
fn faults_of(seed: u64) -> FaultInjector {
    Arc::new(move |number: u64, step: &Step| {
        if step.sequences.iter().any(|share| share.tokens.contains(&POISON)) {
            return Some(Fault::Panic);
        }
        // A request that fails twice alone is at fault itself, so random faults only hit steps of several requests.
        let strikes = step.sequences.len() > 1;
        match Dice(seed ^ number).roll(1600) {
            0 if strikes => Some(Fault::Panic),
            1 if strikes => Some(Fault::DeviceLost),
            2 if strikes => Some(Fault::InvalidStep),
            // Longer than the step timeout.
            3 if strikes => Some(Fault::Slow(Duration::from_secs(30))),
            4..8 => Some(Fault::Slow(Duration::from_millis(300))),
            _ => None,
        }
    })
}

/// The model of a seed.
fn chaos_model(seed: u64) -> SimulatedModel {
    let mut model = SimulatedModel {
        faults: Some(faults_of(seed)),
        samples: seed % 2 == 1,
        repeats: repeats(seed),
        ..timed_model()
    };
    model.limits.kv_blocks = 60;
    // Without recurrent state, with enough slots for checkpoints, and with hardly enough for sequences.
    model.limits.state_slots = [0, 40, 5][seed as usize % 3];
    model
}

/// Whether texts repeat. They are the same whether the engine or the sampler samples.
fn repeats(seed: u64) -> bool {
    seed % 4 < 2
}

/// The settings of a seed.
fn chaos_options(seed: u64, dice: &mut Dice) -> RuntimeOptions {
    let policy = PolicyConfig {
        prefill_chunk_tokens: 1 + dice.roll(64) as usize,
        inter_token_target: (dice.roll(2) == 0).then_some(Duration::from_millis(7)),
        steps_in_flight: 1 + dice.roll(2) as usize,
        steps_at_executor: 1 + dice.roll(2) as usize,
        prefix_cache: dice.roll(4) != 0,
        verify: true,
        speculation: SPECULATION[dice.roll(3) as usize],
        ..PolicyConfig::default()
    };
    RuntimeOptions {
        policy,
        client_buffer_events: 16,
        client_stall_timeout: STALL_TIMEOUT,
        step_timeout: Duration::from_secs(2),
        max_requests: 64,
        // For about a hundred blocks, with their states.
        kv_store: host_memory([0, 20_000][seed as usize / 3 % 2]),
        ..options()
    }
}

/// Checks what a client received, given the result of its request alone. Returns whether the request was blamed for a fault.
fn check_received(request: &GenerationRequest, client: Client, received: &Received, expected: &Received) -> bool {
    let is_beginning = || assert!(expected.tokens.starts_with(&received.tokens), "{request:?}");
    match client {
        Client::LeavesAfter(_) => is_beginning(),
        _ if request.prompt.contains(&POISON) => {
            assert!(matches!(received.end, Some(Err(GenerationError::Engine(_)))), "{received:?}");
        }
        Client::Stalls if received.end == Some(Err(GenerationError::StalledClient)) => is_beginning(),
        _ if is_blamed(received) => {
            is_beginning();
            return true;
        }
        _ => {
            assert!(received.time_to_first_token < LONGEST_WAIT, "{:?}", received.time_to_first_token);
            assert_eq!(received, expected, "{request:?}");
        }
    }
    false
}

/// Runs random requests, faults and clients from one seed, and returns what each client received.
///
/// The policy checks its invariants after every event: no block is lost, limits are kept, and every sequence is in exactly
/// one set.
async fn chaos(seed: u64, requests: usize) -> Vec<Received> {
    let mut dice = Dice(seed);
    let faulty = chaos_model(seed);
    let counters = faulty.counters.clone();
    let runtime = start(faulty, chaos_options(seed, &mut dice)).await;
    let deaths = tokio::spawn(kill_actors(runtime.clone(), Dice(seed ^ 0xDEAD)));
    let mut clients = Vec::new();
    let mut arrival = Duration::ZERO;
    for _ in 0..requests {
        // Occasionally fifty arrive at once.
        let bursts = dice.roll(100) < 50 && clients.len() % 500 < 50;
        arrival += if bursts { Duration::ZERO } else { Duration::from_micros(dice.roll(60_000)) };
        let (request, client) = (dice.request(), dice.client());
        let served = tokio::spawn(serve_client(runtime.clone(), request.clone(), client, arrival));
        clients.push((request, client, served));
    }
    // The result of each request alone, without cache, without speculation and without faults.
    let policy = PolicyConfig { prefix_cache: false, speculation: SpeculationMode::Off, ..PolicyConfig::default() };
    let reference_model = SimulatedModel { repeats: repeats(seed), ..model() };
    let reference = start(reference_model, RuntimeOptions { policy, ..options() }).await;
    let mut all = Vec::new();
    let mut blamed = 0;
    for (request, client, served) in clients {
        let received = served.await.unwrap();
        let expected = read(submit(&reference, &request).await).await;
        blamed += usize::from(check_received(&request, client, &received, &expected));
        all.push(received);
    }
    deaths.abort();
    assert!(blamed * 500 <= requests, "seed {seed}: {blamed} of {requests} requests failed");
    sleep(Duration::from_secs(10)).await;
    let counts = runtime.snapshot();
    assert_eq!((counts.running, counts.waiting, counts.blocks_used), (0, 0, 0), "seed {seed}");
    assert_eq!(counts.slots_used, counts.slots_cached, "seed {seed}");
    assert!(runtime.try_permit(64).is_ok(), "seed {seed}: a permit was not given back");
    assert!(counters.loads.load(Ordering::Relaxed) > 1, "seed {seed}: nothing was restarted");
    all
}

#[tokio::test(start_paused = true)]
async fn with_faults_cancels_and_slow_readers_every_text_is_as_if_alone() {
    for seed in 0..4 {
        chaos(seed, 600).await;
    }
}

#[tokio::test(start_paused = true)]
#[ignore = "takes long without optimisation"]
async fn ten_thousand_requests_end_exactly_once_with_the_seed_of_the_day() {
    chaos(100 + test_seed() % 3, 10_000).await;
}

/// Tried again: one run in over a hundred had other times, on a machine with other work. Why is not known.
#[tokio::test(start_paused = true)]
async fn a_run_is_determined_by_its_seed() {
    let first = chaos(77, 100).await;
    for _ in 0..3 {
        let again = chaos(77, 100).await;
        let Some((a, b)) = first.iter().zip(&again).find(|(a, b)| a != b) else { return };
        println!("{a:?} in one run, {b:?} in another");
    }
    panic!("no run was like the first");
}
