//! A draft model makes steps rarer and changes no token, whatever it answers, and when it is slow, broken or killed.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cuelight::core::request::GenerationRequest;
use cuelight::pipeline::executor::EngineHost;
use cuelight::pipeline::policy::{PolicyConfig, SpeculationMode};
use cuelight::pipeline::runtime::{Runtime, RuntimeOptions, Status};
use cuelight::pipeline::simulation::{Fault, SimulatedModel, tokenizer};
use cuelight::pipeline::supervisor::RestartPolicy;
use tokio::time::sleep;

#[path = "support/actor_deaths.rs"]
mod actor_deaths;
#[path = "support/simulated_clients.rs"]
mod simulated_clients;
#[path = "support/text_request.rs"]
mod text_request;

use actor_deaths::Role;
use simulated_clients::{Received, read};
use text_request::{request, submit};

fn plain() -> SimulatedModel {
    SimulatedModel { end_one_in: u64::MAX, ..SimulatedModel::new(tokenizer()) }
}

/// A model with this draft model.
fn drafted_by(draft: SimulatedModel) -> SimulatedModel {
    SimulatedModel { draft: Some(Arc::new(draft)), ..plain() }
}

fn options() -> RuntimeOptions {
    let policy = PolicyConfig { speculation: SpeculationMode::Draft, ..PolicyConfig::default() };
    RuntimeOptions { policy, ..RuntimeOptions::default() }
}

async fn start(model: &SimulatedModel, options: RuntimeOptions) -> Runtime {
    let runtime = Runtime::start(model.clone(), options).await.unwrap();
    runtime.wait_ready().await.ok().unwrap();
    // The draft model is loaded next.
    sleep(Duration::from_millis(10)).await;
    runtime
}

/// Greedy and random requests of 40 tokens.
fn requests() -> Vec<GenerationRequest> {
    let with_temperature = |i: usize| {
        let mut request = request(&format!("stream {i} of some length"), 40);
        request.sampling.temperature = if i.is_multiple_of(2) { 0.0 } else { 0.8 };
        request
    };
    (0..6).map(with_temperature).collect()
}

/// Runs all requests at the same time.
async fn run(runtime: &Runtime, requests: &[GenerationRequest]) -> Vec<Received> {
    let mut streams = Vec::new();
    for request in requests {
        streams.push(tokio::spawn(read(submit(runtime, request).await)));
    }
    let mut received = Vec::new();
    for stream in streams {
        received.push(stream.await.unwrap());
    }
    received
}

async fn expected(requests: &[GenerationRequest]) -> Vec<Received> {
    run(&start(&plain(), RuntimeOptions::default()).await, requests).await
}

fn steps(model: &SimulatedModel) -> u64 {
    model.counters.steps.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn right_drafts_take_a_fraction_of_the_steps() {
    let greedy: Vec<_> = requests().into_iter().step_by(2).collect();
    let model = drafted_by(plain());
    let runtime = start(&model, options()).await;
    assert_eq!(run(&runtime, &greedy).await, expected(&greedy).await);
    assert!(steps(&model) < 20, "{} steps for 40 tokens", steps(&model));
    assert_ne!(steps(model.draft.as_ref().unwrap()), 0);
    assert_eq!(runtime.snapshot().blocks_used, 0);
}

#[tokio::test(start_paused = true)]
async fn wrong_drafts_change_no_token() {
    let mut other = plain();
    // Computes other logits for the same tokens.
    other.output_tokens = other.output_tokens.iter().copied().skip(3).collect();
    let mut small = plain();
    (small.limits.kv_blocks, small.limits.context_tokens, small.limits.max_sequences) = (4, 50, 2);
    let broken = SimulatedModel { faults: Some(Arc::new(|_, _: &_| Some(Fault::NotANumber))), ..plain() };
    for draft in [other, small, broken] {
        let runtime = start(&drafted_by(draft), options()).await;
        assert_eq!(run(&runtime, &requests()).await, expected(&requests()).await);
    }
}

#[tokio::test(start_paused = true)]
async fn streams_survive_the_death_of_the_drafter_at_any_moment() {
    let expected = expected(&requests()).await;
    for moment in 0..40 {
        let model = drafted_by(plain());
        let runtime = start(&model, options()).await;
        let killing = tokio::spawn({
            let runtime = runtime.clone();
            async move {
                for _ in 0..moment * 4 {
                    tokio::task::yield_now().await;
                }
                assert!(Role::Drafter.kill(&runtime, 0));
            }
        });
        assert_eq!(run(&runtime, &requests()).await, expected, "moment {moment}");
        killing.await.unwrap();
        sleep(Duration::from_secs(5)).await;
        assert_eq!(runtime.status(), Status::Ready);
        assert_eq!(model.draft.as_ref().unwrap().counters.loads.load(Ordering::Relaxed), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn a_model_goes_on_without_a_draft_model_that_always_fails() {
    let broken = SimulatedModel { faults: Some(Arc::new(|_, _: &_| Some(Fault::DeviceLost))), ..plain() };
    let model = drafted_by(broken);
    let restarts = RestartPolicy { max_restarts: 2, ..Default::default() };
    let runtime = start(&model, RuntimeOptions { restarts, ..options() }).await;
    for _ in 0..6 {
        assert_eq!(run(&runtime, &requests()).await, expected(&requests()).await);
        sleep(Duration::from_secs(3)).await;
    }
    assert_eq!(runtime.status(), Status::Ready);
    assert_eq!(model.draft.as_ref().unwrap().counters.loads.load(Ordering::Relaxed), 3);
}

#[tokio::test]
async fn a_draft_model_on_its_own_thread_gives_the_same_text() {
    let model = SimulatedModel { host: EngineHost::Thread, ..drafted_by(plain()) };
    let runtime = start(&model, options()).await;
    assert_eq!(run(&runtime, &requests()).await, expected(&requests()).await);
    assert_ne!(steps(model.draft.as_ref().unwrap()), 0);
    runtime.shutdown(Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_draft_model_that_hangs_is_replaced() {
    let hangs = Arc::new(|step: u64, _: &_| (step == 3).then_some(Fault::Slow(Duration::from_secs(2))));
    let draft = SimulatedModel { faults: Some(hangs), host: EngineHost::Thread, ..plain() };
    let model = SimulatedModel { host: EngineHost::Thread, ..drafted_by(draft) };
    let runtime = start(&model, RuntimeOptions { step_timeout: Duration::from_millis(200), ..options() }).await;
    assert_eq!(run(&runtime, &requests()).await, expected(&requests()).await);
    assert_eq!(runtime.status(), Status::Ready);
    runtime.shutdown(Duration::from_secs(1)).await;
}

/// A model whose own layer drafts for it.
fn with_prediction() -> SimulatedModel {
    plain().with_prediction()
}

#[tokio::test(start_paused = true)]
async fn a_layer_with_the_hidden_values_of_the_model_is_always_right() {
    let model = with_prediction();
    let runtime = start(&model, options()).await;
    assert_eq!(run(&runtime, &requests()).await, expected(&requests()).await);
    // Eight tokens of a draft and the one after it in a step, after the steps of the prompts.
    assert!(steps(&model) < 14, "{} steps for 40 tokens", steps(&model));
    // The prompts are in the prefix cache now, so the model computes few of their hidden values.
    let before = steps(&model);
    assert_eq!(run(&runtime, &requests()).await, expected(&requests()).await);
    assert!(steps(&model) - before < 14, "{} more steps", steps(&model) - before);
    assert_eq!(runtime.snapshot().blocks_used, 0);
}

#[tokio::test(start_paused = true)]
async fn a_layer_changes_no_token_when_sequences_are_preempted() {
    let mut model = with_prediction();
    (model.limits.kv_blocks, model.samples) = (16, true);
    let runtime = start(&model, options()).await;
    assert_eq!(run(&runtime, &requests()).await, expected(&requests()).await);
    assert_eq!(runtime.snapshot().blocks_used, 0);
}

#[tokio::test(start_paused = true)]
async fn streams_survive_the_death_of_any_actor_next_to_a_layer() {
    let expected = expected(&requests()).await;
    for role in [Role::Drafter, Role::Executor, Role::Scheduler, Role::Sampler] {
        for moment in 0..12 {
            let runtime = start(&with_prediction(), options()).await;
            let killing = tokio::spawn({
                let runtime = runtime.clone();
                async move {
                    for _ in 0..moment * 12 {
                        tokio::task::yield_now().await;
                    }
                    role.kill(&runtime, 0);
                }
            });
            assert_eq!(run(&runtime, &requests()).await, expected, "{role:?} at moment {moment}");
            killing.await.unwrap();
        }
    }
}

#[tokio::test]
async fn a_layer_on_its_own_thread_gives_the_same_text() {
    let model = SimulatedModel { host: EngineHost::Thread, ..plain() }.with_prediction();
    let runtime = start(&model, options()).await;
    assert_eq!(run(&runtime, &requests()).await, expected(&requests()).await);
    assert_ne!(steps(model.draft.as_ref().unwrap()), 0);
    runtime.shutdown(Duration::from_secs(1)).await;
}
