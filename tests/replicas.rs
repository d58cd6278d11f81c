//! Tests of a model with several replicas, with simulated engines on a paused clock: which replica gets which request, and
//! that clients see no difference.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use cuelight::core::request::{Event, FinishReason, GenerationError, GenerationRequest, SubmitError, Usage};
use cuelight::metrics::exposition::{Compat, Exposition};
use cuelight::models::{ModelFactory, Models, ModelsOptions, NamedModel, PlanError, PlannedModel};
use cuelight::pipeline::policy::PolicyConfig;
use cuelight::pipeline::runtime::{Generation, Runtime, RuntimeOptions, Status};
use cuelight::pipeline::simulation::{Fault, SimulatedModel, tokenizer};
use cuelight::pipeline::supervisor::RestartPolicy;
use cuelight_engine::load::MemoryPlan;

#[path = "support/text_request.rs"]
mod text_request;

use text_request::{request, submit};

/// A copy with its own counters and the step times of a small model.
fn model() -> SimulatedModel {
    SimulatedModel {
        step_time: Duration::from_millis(5),
        row_time: Duration::from_micros(50),
        end_one_in: u64::MAX,
        ..SimulatedModel::new(tokenizer())
    }
}

async fn start(models: &[SimulatedModel], options: RuntimeOptions) -> Runtime {
    let runtime = Runtime::start_replicas(models.to_vec(), options).await.unwrap();
    runtime.wait_ready().await.ok().unwrap();
    runtime
}

/// The text of a request and how it ended.
async fn read(mut generation: Generation) -> (String, Result<(FinishReason, Usage), GenerationError>) {
    let mut received = String::new();
    loop {
        match generation.next().await.expect("a stream has a last event") {
            Event::Progress(_) | Event::Prompt { .. } | Event::Embedded { .. } => {}
            Event::Token { text, .. } => received.push_str(&text),
            Event::Block { tokens } => tokens.iter().for_each(|token| received.push_str(&token.text)),
            Event::Finished { reason, text, usage } => return (received + &text, Ok((reason, usage))),
            Event::Failed(error) => return (received, Err(error)),
        }
    }
}

async fn answer(runtime: &Runtime, request: &GenerationRequest) -> (String, Usage) {
    let (text, end) = read(submit(runtime, request).await).await;
    (text, end.unwrap().1)
}

/// Runs all requests concurrently.
async fn together(runtime: &Runtime, requests: &[GenerationRequest]) -> Vec<String> {
    let mut streams = Vec::new();
    for request in requests {
        streams.push(tokio::spawn(read(submit(runtime, request).await)));
    }
    let mut texts = Vec::new();
    for stream in streams {
        let (text, end) = stream.await.unwrap();
        end.unwrap();
        texts.push(text);
    }
    texts
}

/// Number of rows that each copy has computed.
fn rows(models: &[SimulatedModel]) -> Vec<u64> {
    models.iter().map(|model| model.counters.rows.load(Ordering::Relaxed)).collect()
}

fn loads(models: &[SimulatedModel]) -> Vec<u64> {
    models.iter().map(|model| model.counters.loads.load(Ordering::Relaxed)).collect()
}

fn assert_nothing_is_held(runtime: &Runtime) {
    let counts = runtime.snapshot();
    assert_eq!((counts.running, counts.waiting, counts.blocks_used), (0, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn replicas_share_the_work_and_give_the_same_texts_as_one() {
    let requests: Vec<_> = (0..60).map(|index| request(&format!("{index} asks for something"), 30)).collect();
    let expected = together(&start(&[model()], RuntimeOptions::default()).await, &requests).await;
    let models = [model(), model(), model()];
    let runtime = start(&models, RuntimeOptions::default()).await;
    let begin = tokio::time::Instant::now();
    assert_eq!(together(&runtime, &requests).await, expected);
    let computed = rows(&models);
    let (least, most) = (computed.iter().min().unwrap(), computed.iter().max().unwrap());
    assert!(*least * 10 >= *most * 9, "{computed:?}");
    // Each has twenty sequences, sixteen of them at once.
    assert!(begin.elapsed() < Duration::from_millis(2 * 30 * 7), "{:?}", begin.elapsed());
    assert_nothing_is_held(&runtime);
}

#[tokio::test(start_paused = true)]
async fn the_messages_of_a_conversation_go_to_the_replica_with_its_prefix() {
    let models = [model(), model()];
    let runtime = start(&models, RuntimeOptions::default()).await;
    let mut conversations: Vec<String> =
        (0..5).map(|index| format!("{index}. {}", "tell me more ".repeat(8))).collect();
    for message in 0..4 {
        for text in &mut conversations {
            let (answer, usage) = answer(&runtime, &request(text, 20)).await;
            if message > 0 {
                assert!(usage.cached_tokens + 48 > usage.prompt_tokens, "message {message}: {usage:?}");
            }
            text.push_str(&answer);
            text.push_str(" and then?");
        }
    }
    let computed = rows(&models);
    assert!(computed.iter().all(|rows| *rows > 200), "both have conversations: {computed:?}");
}

#[tokio::test(start_paused = true)]
async fn without_a_prefix_cache_the_least_loaded_replica_gets_a_request() {
    let models = [model(), model()];
    let policy = PolicyConfig { prefix_cache: false, ..PolicyConfig::default() };
    let runtime = start(&models, RuntimeOptions { policy, ..RuntimeOptions::default() }).await;
    for _ in 0..4 {
        answer(&runtime, &request(&"the same ".repeat(10), 5)).await;
    }
    let computed = rows(&models);
    assert_eq!(computed[0], computed[1]);
}

#[tokio::test(start_paused = true)]
async fn a_lost_device_delays_only_the_requests_of_its_replica() {
    let requests: Vec<_> = (0..16).map(|index| request(&format!("stream {index}"), 60)).collect();
    let expected = together(&start(&[model()], RuntimeOptions::default()).await, &requests).await;
    for fault in [Fault::DeviceLost, Fault::Panic] {
        let fails = Arc::new(move |step: u64, _: &_| (step == 20).then(|| fault.clone()));
        let models = [model(), SimulatedModel { faults: Some(fails), ..model() }];
        let runtime = start(&models, RuntimeOptions::default()).await;
        let mut watching = runtime.clone();
        // Consumes the change to ready.
        assert_eq!(watching.status_changed().await, Status::Ready);
        let changed = tokio::spawn(async move { watching.status_changed().await });
        assert_eq!(together(&runtime, &requests).await, expected);
        assert_eq!(loads(&models), [1, 2]);
        assert!(!changed.is_finished(), "the model must stay ready");
        changed.abort();
        assert_nothing_is_held(&runtime);
    }
}

#[tokio::test(start_paused = true)]
async fn a_replica_that_gives_up_fails_its_requests_and_the_others_continue() {
    let fails = Arc::new(|step: u64, _: &_| (step >= 20).then_some(Fault::DeviceLost));
    let models = [SimulatedModel { faults: Some(fails.clone()), ..model() }, model()];
    let restarts = RestartPolicy { max_restarts: 0, ..RestartPolicy::default() };
    let options = RuntimeOptions { restarts, ..RuntimeOptions::default() };
    let runtime = start(&models, options.clone()).await;
    let both = [submit(&runtime, &request("a", 40)).await, submit(&runtime, &request("b", 40)).await];
    let [first, second] = both.map(read);
    assert!(matches!(first.await.1, Err(GenerationError::Engine(_))));
    assert!(second.await.1.is_ok());
    assert_eq!(runtime.status(), Status::Ready);
    let texts = together(&runtime, &vec![request("c", 10); 8]).await;
    assert_eq!(texts.len(), 8, "all on the remaining replica");
    // The model fails with the last replica.
    let models = [0, 1].map(|_| SimulatedModel { faults: Some(fails.clone()), ..model() });
    let runtime = start(&models, options).await;
    let both = [submit(&runtime, &request("a", 40)).await, submit(&runtime, &request("b", 40)).await];
    for generation in both {
        assert!(read(generation).await.1.is_err());
    }
    assert!(matches!(runtime.status(), Status::Failed(_)), "{:?}", runtime.status());
    assert!(matches!(runtime.try_permit(1), Err(SubmitError::Unavailable { .. })));
}

#[tokio::test(start_paused = true)]
async fn limits_count_all_replicas_and_a_full_replica_is_skipped() {
    let mut models = [model(), model()];
    models.iter_mut().for_each(|model| model.limits.max_sequences = 1);
    let policy = PolicyConfig { max_queued_tokens: 50, ..PolicyConfig::default() };
    let runtime = start(&models, RuntimeOptions { max_requests: 5, policy, ..RuntimeOptions::default() }).await;
    let prompt = request(&"x".repeat(40), 100);
    let mut inside = Vec::new();
    // One request runs and one waits in each replica. The prefix routes all to the first, whose queue is full for the third.
    for _ in 0..4 {
        inside.push(submit(&runtime, &prompt).await);
    }
    assert_eq!(runtime.snapshots().iter().map(|counts| counts.running).collect::<Vec<_>>(), [1, 1]);
    let permit = runtime.try_permit(1).unwrap();
    let refused = runtime.submit(&permit, prompt).await.map(drop).unwrap_err();
    assert!(matches!(refused, SubmitError::QueueFull { .. }), "{refused:?}");
    assert!(matches!(runtime.try_permit(1), Err(SubmitError::Overloaded { waiting: 5, .. })));
    assert!(matches!(runtime.try_permit(6), Err(SubmitError::TooManySequences { asked: 6, most: 5 })));
    drop((inside, permit));
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_nothing_is_held(&runtime);
    assert!(runtime.try_permit(5).is_ok());
}

#[tokio::test(start_paused = true)]
async fn all_replicas_drain_and_then_stop() {
    let runtime = start(&[model(), model()], RuntimeOptions::default()).await;
    let short = [submit(&runtime, &request("a", 10)).await, submit(&runtime, &request("b", 10)).await];
    let long = [submit(&runtime, &request("c", 300)).await, submit(&runtime, &request("d", 300)).await];
    let stopping = tokio::spawn({
        let runtime = runtime.clone();
        async move { runtime.shutdown(Duration::from_millis(500)).await }
    });
    for generation in short {
        assert!(read(generation).await.1.is_ok());
    }
    assert_eq!(runtime.status(), Status::Draining);
    assert!(matches!(runtime.try_permit(1), Err(SubmitError::Unavailable { .. })));
    for generation in long {
        assert_eq!(read(generation).await.1, Err(GenerationError::ShuttingDown));
    }
    stopping.await.unwrap();
}

/// A model with two replicas that share their counters.
struct Two(SimulatedModel);

impl ModelFactory for Two {
    fn plan(&self, _limit: Option<u64>) -> Result<PlannedModel, PlanError> {
        let memory = MemoryPlan::of_replicas([self.0.memory(), self.0.memory()].iter());
        Ok(PlannedModel::replicated(memory, vec![self.0.clone(), self.0.clone()]))
    }
}

#[tokio::test(start_paused = true)]
async fn a_model_is_loaded_and_unloaded_with_all_replicas_and_reports_their_total_memory() {
    let (recorder, exposition) = Exposition::new(Compat::Vllm).unwrap();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let model = SimulatedModel { weights_bytes: 1000, ..model() };
    let (counters, memory) = (model.counters.clone(), model.memory());
    let named = NamedModel {
        id: "m".to_owned(),
        aliases: Vec::new(),
        adapters: Vec::new(),
        factory: Arc::new(Two(model.clone())),
        planned: None,
    };
    let models = Models::start(ModelsOptions::default(), vec![named], None).await.unwrap();
    for round in 1..=2 {
        models.load("m").await.unwrap();
        assert_eq!(counters.loads.load(Ordering::Relaxed), 2 * round);
        assert_eq!(counters.live_bytes.load(Ordering::Relaxed), 2 * memory.total_bytes());
        let info = models.show("m").await.unwrap();
        assert_eq!(info.memory.unwrap().total_bytes(), 2 * memory.total_bytes());
        let limits = info.model.unwrap().limits.clone();
        assert_eq!((limits.max_sequences, limits.device.as_str()), (32, "simulated, simulated"));
        assert_eq!(limits.context_tokens, model.limits.context_tokens);
        let call = models.acquire(Some("m")).await.unwrap();
        let running = [
            submit(call.runtime(), &request("one", 100)).await,
            submit(call.runtime(), &request("another", 100)).await,
        ];
        tokio::time::sleep(Duration::from_millis(20)).await;
        let scraped = exposition.render();
        for line in [
            "cuelight_requests_running{model=\"m\",replica=\"0\"} 1",
            "cuelight_requests_running{model=\"m\",replica=\"1\"} 1",
            "cuelight_replica_ready{model=\"m\",replica=\"1\"} 1",
            "cuelight_model_memory_bytes{model=\"m\",pool=\"weights\"} 2000",
            "vllm:num_requests_running{model_name=\"m\",engine=\"1\"} 1",
        ] {
            assert!(scraped.lines().any(|scraped| scraped == line), "{line}\n{scraped}");
        }
        drop((running, call));
        models.unload("m", Duration::from_secs(1)).await.unwrap();
        assert_eq!(counters.live_bytes.load(Ordering::Relaxed), 0);
        let scraped = exposition.render();
        for line in [
            "cuelight_replica_ready{model=\"m\",replica=\"1\"} 0",
            "cuelight_sequences_capacity{model=\"m\",replica=\"1\"} 0",
            "cuelight_model_memory_bytes{model=\"m\",pool=\"weights\"} 0",
        ] {
            assert!(scraped.lines().any(|scraped| scraped == line), "{line}\n{scraped}");
        }
    }
}
