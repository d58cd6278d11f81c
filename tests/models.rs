//! Tests of loading and unloading models: which are loaded, which calls wait, which models are unloaded, and that memory
//! never exceeds its limit.

#![allow(clippy::unwrap_used)]

mod common;

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use axum::Router;
use axum::body::Body;
use axum::http::Request;
use cuelight::api::{ServerOptions, models_router};
use cuelight::core::request::{Event, GenerationError, GenerationRequest, SamplingParams, StopConditions, SubmitError};
use cuelight::metrics::exposition::{Compat, Exposition};
use cuelight::models::{
    KeepAlive, Machine, ModelFactory, ModelLease, ModelState, Models, ModelsDirectory, ModelsError, ModelsOptions,
    NamedModel, PlanError, PlannedModel,
};
use cuelight::pipeline::executor::EngineHost;
use cuelight::pipeline::loader::{ModelSource, SourceError};
use cuelight::pipeline::runtime::Generation;
use cuelight::pipeline::simulation::{Fault, SimulatedModel, SimulationCounters};
use cuelight_engine::engine::{Engine, Step, WrapsEngine};
use cuelight_engine::load::{LoadCancel, LoadProgress, LoadedModel};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::ServiceExt;

use common::{Answer, post};

/// Memory of each simulated model, in bytes.
const SIZE: u64 = 100 << 10;

const MINUTE: Duration = Duration::from_secs(60);

fn sized(counters: &Arc<SimulationCounters>, bytes: u64) -> SimulatedModel {
    let mut model = common::model();
    model.counters = counters.clone();
    model.step_time = Duration::from_millis(10);
    model.end_one_in = u64::MAX;
    model.weights_bytes = bytes - model.memory().used.kv;
    model
}

/// A machine with unlimited memory, so that only the budget matters.
fn endless_machine() -> Machine {
    Machine { available_bytes: None, occupied_bytes: 0 }
}

fn options() -> ModelsOptions {
    ModelsOptions { machine: endless_machine, ..ModelsOptions::default() }
}

fn named(id: &str, factory: impl ModelFactory) -> NamedModel {
    NamedModel {
        id: id.to_owned(),
        aliases: Vec::new(),
        adapters: Vec::new(),
        factory: Arc::new(factory),
        planned: None,
    }
}

/// A server of simulated models that share their counters.
struct TestServer {
    models: Models,
    counters: Arc<SimulationCounters>,
    router: Router,
}

impl TestServer {
    /// Models with these names, each of [`SIZE`], that may be unloaded when their memory is needed.
    async fn open(names: &[&str], options: ModelsOptions) -> Self {
        let counters = Arc::default();
        let models = names.iter().map(|name| named(name, sized(&counters, SIZE))).collect();
        let options = ModelsOptions { keep_alive: options.keep_alive.or(Some(KeepAlive::Forever)), ..options };
        let models = Models::start(options, models, None).await.unwrap();
        Self::over(models, counters)
    }

    fn over(models: Models, counters: Arc<SimulationCounters>) -> Self {
        let router = models_router(models.clone(), ServerOptions::default()).unwrap();
        TestServer { models, counters, router }
    }

    /// Loads these in order, like a server at startup.
    async fn load(&self, names: &[&str]) {
        for name in names {
            self.models.load(name).await.unwrap();
        }
    }

    async fn state(&self, name: &str) -> ModelState {
        self.models.show(name).await.unwrap().state
    }

    /// The names of the models that use memory.
    async fn loaded(&self) -> Vec<String> {
        self.models.list().await.into_iter().filter(|info| info.memory.is_some()).map(|info| info.id).collect()
    }

    fn loads(&self) -> u64 {
        self.counters.loads.load(Ordering::Relaxed)
    }

    fn peak(&self) -> u64 {
        self.counters.peak_live_bytes.load(Ordering::Relaxed)
    }

    fn live(&self) -> u64 {
        self.counters.live_bytes.load(Ordering::Relaxed)
    }

    async fn send(&self, request: Request<Body>) -> Answer {
        let (parts, body) = self.router.clone().oneshot(request).await.unwrap().into_parts();
        let body = body.collect().await.unwrap().to_bytes().to_vec();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(post(path, &body)).await
    }

    async fn get(&self, path: &str) -> Answer {
        self.send(Request::get(path).body(Body::empty()).unwrap()).await
    }

    /// Completes with a loaded model, and panics with the error of any other answer.
    async fn complete_loaded(&self, model: &str) {
        let answer = self.complete(model).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
    }

    async fn complete(&self, model: &str) -> Answer {
        self.post("/v1/completions", json!({ "model": model, "prompt": "the sky", "max_tokens": 4 })).await
    }
}

/// A generation of `max_tokens` tokens, with the lease on its model.
async fn generate(models: &Models, name: &str, max_tokens: usize) -> Result<(ModelLease, Generation), ModelsError> {
    let call = models.acquire(Some(name)).await?;
    let request = GenerationRequest {
        prompt: vec![100, 101],
        sampling: SamplingParams::default(),
        stop: StopConditions { max_tokens, ignore_eos: true, ..Default::default() },
        skip_special_tokens: true,
        ..GenerationRequest::default()
    };
    // A model may be unloaded during a call that takes too long.
    let gone = |error: SubmitError| ModelsError::Unavailable { reason: error.to_string(), retry_after: MINUTE };
    let permit = call.runtime().try_permit(1).map_err(gone)?;
    let generation = call.runtime().submit(&permit, request).await.map_err(gone)?;
    Ok((call, generation))
}

async fn last_event(mut generation: Generation) -> Event {
    let mut last = None;
    while let Some(event) = generation.next().await {
        last = Some(event);
    }
    last.unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_call_loads_its_model_and_the_next_call_uses_it() {
    let server = TestServer::open(&["a", "org/b"], options()).await;
    server.load(&["a"]).await;
    server.models.load("org/b").await.unwrap();
    server.models.unload("org/b", MINUTE).await.unwrap();
    assert_eq!(server.state("org/b").await, ModelState::Unloaded);
    for _ in 0..2 {
        let answer = server.complete("org/b").await;
        assert_eq!((answer.status.as_u16(), &answer.json()["model"]), (200, &json!("org/b")));
    }
    assert_eq!(server.loads(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_load_can_be_started_without_waiting_for_it() {
    let server = TestServer::open(&["a"], options()).await;
    let begun = server.post("/models/load", json!({ "model": "a", "wait": false })).await;
    assert_eq!((begun.status.as_u16(), &begun.json()["model"]["state"]), (200, &json!("loading")));
    while server.state("a").await != ModelState::Ready {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(server.loads(), 1);
}

#[tokio::test(start_paused = true)]
async fn parallel_calls_cause_one_load() {
    let server = TestServer::open(&["a"], options()).await;
    server.load(&["a"]).await;
    server.models.unload("a", MINUTE).await.unwrap();
    let calls = (0..20).map(|_| server.complete("a"));
    let answers = futures_util::future::join_all(calls).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert_eq!(server.loads(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_least_recently_used_model_is_unloaded_first() {
    let server = TestServer::open(&["a", "b", "c"], ModelsOptions { memory_bytes: Some(2 * SIZE), ..options() }).await;
    server.load(&["a", "b"]).await;
    tokio::time::sleep(MINUTE).await;
    drop(server.models.acquire(Some("a")).await.unwrap());
    server.load(&["c"]).await;
    assert_eq!(server.loaded().await, ["a", "c"]);
    assert_eq!(server.peak(), 2 * SIZE);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_loaded_models_can_be_limited() {
    let options = ModelsOptions { max_loaded_models: NonZeroUsize::new(1), ..options() };
    let server = TestServer::open(&["a", "b"], options).await;
    server.load(&["a", "b"]).await;
    assert_eq!((server.loaded().await, server.peak()), (vec!["b".to_owned()], SIZE));
}

#[tokio::test(start_paused = true)]
async fn a_model_in_use_is_not_unloaded_for_another() {
    let server = TestServer::open(&["a", "b"], ModelsOptions { memory_bytes: Some(SIZE), ..options() }).await;
    server.load(&["a"]).await;
    let (call, generation) = generate(&server.models, "a", 100).await.unwrap();
    let refused = server.post("/models/load", json!({ "model": "b" })).await;
    assert_eq!(refused.status, 503);
    assert!(refused.headers.contains_key("retry-after"));
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(
        message,
        "the model `b` takes 100.0 KiB of memory, and 0 B are free; models with calls in progress hold 100.0 KiB"
    );
    assert!(matches!(last_event(generation).await, Event::Finished { .. }));
    assert_eq!(server.state("b").await, ModelState::Unloaded, "a busy server is not a failure of the model");
    drop(call);
    server.load(&["b"]).await;
    assert_eq!(server.loaded().await, ["b"]);
}

#[tokio::test(start_paused = true)]
async fn a_model_that_can_never_fit_is_refused_with_the_sizes() {
    let counters = Arc::default();
    let models = vec![named("small", sized(&counters, SIZE)), named("huge", sized(&counters, 3 * SIZE))];
    // Without a keep-alive time, models named at startup stay loaded.
    let options = ModelsOptions { memory_bytes: Some(2 * SIZE), ..options() };
    let server = TestServer::over(Models::start(options, models, None).await.unwrap(), counters);
    server.load(&["small"]).await;
    let refused = server.post("/models/load", json!({ "model": "huge" })).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["code"], "model_too_large");
    assert_eq!(refused.headers["x-should-retry"], "false");
    let message = refused.json()["error"]["message"].to_string();
    assert!(message.contains("307200 bytes") && message.contains("102400 can be free"), "{message}");
    let ModelState::Failed(reason) = server.state("huge").await else { panic!() };
    assert!(message.contains(&reason));
    assert_eq!(server.loaded().await, ["small"]);
    server.complete_loaded("small").await;
}

#[tokio::test(start_paused = true)]
async fn named_models_stay_loaded_and_others_are_unloaded_after_five_minutes() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("found.gguf"), b"").unwrap();
    let counters: Arc<SimulationCounters> = Arc::default();
    let found = sized(&counters, SIZE);
    let found = ModelsDirectory::open(directory.path(), move |_: &Path| Arc::new(found.clone())).unwrap();
    let models = Models::start(options(), vec![named("named", sized(&counters, SIZE))], Some(found)).await.unwrap();
    let server = TestServer::over(models, counters);
    server.load(&["named", "found"]).await;
    tokio::time::sleep(4 * MINUTE).await;
    drop(server.models.acquire(Some("found")).await.unwrap());
    tokio::time::sleep(4 * MINUTE).await;
    assert_eq!(server.loaded().await, ["named", "found"], "a call restarts the time");
    tokio::time::sleep(2 * MINUTE).await;
    assert_eq!(server.loaded().await, ["named"]);
    assert_eq!((server.live(), server.loads()), (SIZE, 2));
    server.complete_loaded("found").await;
    assert_eq!(server.loads(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_takes_longer_than_the_keep_alive_time_is_not_cut_off() {
    let keep_alive = Some(KeepAlive::For(Duration::from_secs(1)));
    let server = TestServer::open(&["a"], ModelsOptions { keep_alive, ..options() }).await;
    server.load(&["a"]).await;
    let (call, generation) = generate(&server.models, "a", 400).await.unwrap();
    let started = Instant::now();
    assert!(matches!(last_event(generation).await, Event::Finished { .. }));
    assert!(started.elapsed() > Duration::from_secs(3));
    assert_eq!(server.state("a").await, ModelState::Ready);
    drop(call);
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert_eq!(server.state("a").await, ModelState::Ready);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!((server.state("a").await, server.live()), (ModelState::Unloaded, 0));
}

#[tokio::test(start_paused = true)]
async fn with_a_keep_alive_time_of_zero_a_model_is_unloaded_after_its_last_call() {
    let keep_alive = Some(KeepAlive::For(Duration::ZERO));
    let server = TestServer::open(&["a"], ModelsOptions { keep_alive, ..options() }).await;
    let answer = server.post("/models/load", json!({ "model": "a" })).await;
    assert_eq!(answer.status, 200);
    tokio::time::sleep(Duration::from_millis(1)).await;
    server.complete_loaded("a").await;
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!((server.state("a").await, server.live()), (ModelState::Unloaded, 0));
}

#[tokio::test(start_paused = true)]
async fn unloading_waits_for_answers_and_later_calls_load_again() {
    let server = TestServer::open(&["a"], options()).await;
    server.load(&["a"]).await;
    let (call, generation) = generate(&server.models, "a", 100).await.unwrap();
    let running = async {
        let last = last_event(generation).await;
        drop(call);
        last
    };
    let later = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(server.state("a").await, ModelState::Unloading);
        server.complete("a").await
    };
    let unload = server.post("/models/unload", json!({ "model": "a" }));
    let (unloaded, last, later) = tokio::join!(unload, running, later);
    assert_eq!(unloaded.status, 200, "{}", unloaded.text());
    assert!(matches!(last, Event::Finished { .. }));
    assert_eq!((later.status.as_u16(), server.loads(), server.peak()), (200, 2, SIZE));
}

#[tokio::test(start_paused = true)]
async fn unloading_does_not_wait_forever() {
    let server = TestServer::open(&["a"], options()).await;
    server.load(&["a"]).await;
    let (_call, generation) = generate(&server.models, "a", 400).await.unwrap();
    server.models.unload("a", Duration::from_secs(1)).await.unwrap();
    assert_eq!(last_event(generation).await, Event::Failed(GenerationError::ShuttingDown));
    assert_eq!((server.state("a").await, server.live()), (ModelState::Unloaded, 0));
}

/// A model whose load can be blocked or made to fail.
#[derive(Clone)]
struct Moody {
    model: SimulatedModel,
    broken: Arc<AtomicBool>,
    gate: Option<Arc<Mutex<mpsc::Receiver<()>>>>,
}

impl Moody {
    fn new(model: SimulatedModel) -> Self {
        Moody { model, broken: Arc::default(), gate: None }
    }

    /// A model that loads on a thread, once per message.
    fn gated(model: SimulatedModel) -> (Self, mpsc::Sender<()>) {
        let (open, gate) = mpsc::channel();
        let model = SimulatedModel { host: EngineHost::Thread, step_time: Duration::ZERO, ..model };
        (Moody { gate: Some(Arc::new(Mutex::new(gate))), ..Moody::new(model) }, open)
    }
}

impl ModelSource for Moody {
    type Engine = <SimulatedModel as ModelSource>::Engine;

    fn load(
        &self,
        cancel: &LoadCancel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedModel<Self::Engine>, SourceError> {
        if let Some(gate) = &self.gate {
            progress(LoadProgress { done_bytes: 1, total_bytes: 4 });
            let gate = gate.lock().unwrap();
            while let Err(mpsc::RecvTimeoutError::Timeout) = gate.recv_timeout(Duration::from_millis(5)) {
                cancel.check().map_err(|_| SourceError::Cancelled)?;
            }
        }
        if self.broken.load(Ordering::Relaxed) {
            return Err(SourceError::Failed("the disk is on fire".into()));
        }
        self.model.load(cancel, progress)
    }

    fn host(&self) -> EngineHost {
        self.model.host()
    }
}

impl ModelFactory for Moody {
    fn plan(&self, _limit: Option<u64>) -> Result<PlannedModel, PlanError> {
        Ok(PlannedModel::new(self.model.memory(), self.clone()))
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_load_does_not_affect_other_models_and_can_be_retried() {
    let counters = Arc::default();
    let moody = Moody::new(sized(&counters, SIZE));
    moody.broken.store(true, Ordering::Relaxed);
    let broken = moody.broken.clone();
    let models = vec![named("sound", sized(&counters, SIZE)), named("moody", moody)];
    let options = ModelsOptions { memory_bytes: Some(2 * SIZE), ..options() };
    let server = TestServer::over(Models::start(options, models, None).await.unwrap(), counters);
    server.load(&["sound"]).await;
    let refused = server.post("/models/load", json!({ "model": "moody" })).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["code"]), (503, &json!("model_failed")));
    assert!(refused.text().contains("the disk is on fire"), "{}", refused.text());
    assert_eq!(server.live(), SIZE);
    server.complete_loaded("sound").await;

    let listed = server.get("/v1/models").await.json();
    let status = &listed["data"][1]["status"];
    assert_eq!(status["value"], "failed");
    assert!(status["reason"].as_str().unwrap().contains("the disk is on fire"));

    broken.store(false, Ordering::Relaxed);
    assert_eq!(server.complete("moody").await.status, 503, "the refusal is repeated for a while");
    tokio::time::sleep(Duration::from_secs(6)).await;
    server.complete_loaded("moody").await;

    server.models.unload("moody", MINUTE).await.unwrap();
    broken.store(true, Ordering::Relaxed);
    assert_eq!(server.complete("moody").await.status, 503);
    broken.store(false, Ordering::Relaxed);
    server.models.load("moody").await.expect("an explicit load is tried at once");
}

#[tokio::test]
async fn while_a_model_loads_calls_wait_up_to_both_limits() {
    let (recorder, exposition) = Exposition::new(Compat::None).unwrap();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let counters = Arc::default();
    let (gated, open) = Moody::gated(sized(&counters, SIZE));
    let options = ModelsOptions { load_timeout: Duration::from_millis(200), max_waiting_calls: 2, ..options() };
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("slow.gguf"), b"").unwrap();
    let found = ModelsDirectory::open(directory.path(), move |_: &Path| Arc::new(gated.clone())).unwrap();
    let server = TestServer::over(Models::start(options, Vec::new(), Some(found)).await.unwrap(), counters);

    let (first, second, third) =
        tokio::join!(server.complete("slow"), server.complete("slow"), server.complete("slow"));
    for late in [first, second] {
        assert_eq!(late.status, 503);
        assert!(late.text().contains("was not loaded within 0.2 seconds"), "{}", late.text());
    }
    assert_eq!(third.status, 429);
    assert!(third.headers.contains_key("retry-after"));
    let scraped = exposition.render();
    let mut rejections = scraped.lines().filter(|line| line.starts_with("cuelight_rejections_total{"));
    assert!(rejections.any(|line| line.contains("\"waiting_for_load\"") && line.ends_with(" 1")), "{scraped}");

    let listed = server.get("/v1/models/slow").await.json();
    assert_eq!(
        listed["status"],
        json!({ "value": "loading", "progress": { "done_bytes": 1, "total_bytes": 4 } }),
        "{listed}"
    );
    open.send(()).unwrap();
    server.models.load("slow").await.unwrap();
    server.complete_loaded("slow").await;
    assert_eq!(server.loads(), 1);
}

#[tokio::test]
async fn a_load_in_progress_ends_when_the_model_is_unloaded_or_the_server_stops() {
    let counters: Arc<SimulationCounters> = Arc::default();
    let (gated, open) = Moody::gated(sized(&counters, SIZE));
    let options = ModelsOptions { memory_bytes: Some(SIZE), ..options() };
    let models = vec![named("slow", gated), named("next", sized(&counters, SIZE))];
    let models = Models::start(options, models, None).await.unwrap();
    let server = TestServer::over(models, counters);

    let is_loading = || async {
        while server.state("slow").await != ModelState::Loading(LoadProgress { done_bytes: 1, total_bytes: 4 }) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let unload = async {
        is_loading().await;
        server.models.unload("slow", MINUTE).await
    };
    let (loaded, unloaded) = tokio::join!(server.models.load("slow"), unload);
    assert!(
        matches!(&loaded, Err(ModelsError::Unavailable { reason, .. }) if reason.contains("was cancelled")),
        "{loaded:?}"
    );
    unloaded.unwrap();
    assert_eq!(server.state("slow").await, ModelState::Unloaded);
    server.models.load("next").await.expect("its memory is free");
    server.models.unload("next", MINUTE).await.unwrap();

    open.send(()).unwrap();
    server.models.load("slow").await.expect("it can be loaded again");
    server.models.unload("slow", MINUTE).await.unwrap();
    let stop = async {
        is_loading().await;
        server.models.shutdown(MINUTE).await;
    };
    let stopping = tokio::time::timeout(MINUTE, async { tokio::join!(server.models.load("slow"), stop) });
    assert!(stopping.await.expect("nothing waits for the load").0.is_err());
}

#[tokio::test]
async fn a_slow_load_does_not_delay_other_models() {
    let counters: Arc<SimulationCounters> = Arc::default();
    let (gated, open) = Moody::gated(sized(&counters, SIZE));
    let options = ModelsOptions { memory_bytes: Some(3 * SIZE), keep_alive: Some(KeepAlive::Forever), ..options() };
    let models = vec![
        named("ready", sized(&counters, SIZE)),
        named("slow", gated),
        named("other", sized(&counters, SIZE)),
        named("fourth", sized(&counters, SIZE)),
    ];
    let server = TestServer::over(Models::start(options, models, None).await.unwrap(), counters);
    server.load(&["ready"]).await;
    let slow = server.models.load("slow");
    let others = async {
        while !matches!(server.state("slow").await, ModelState::Loading(_)) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        assert_eq!(server.complete("ready").await.status, 200, "a loaded model");
        server.models.load("other").await.expect("a model that is loaded meanwhile");
        server.complete_loaded("other").await;
        // Loaded models are unloaded for it, not the one that is being loaded.
        server.models.load("fourth").await.unwrap();
        open.send(()).unwrap();
    };
    let (loaded, ()) = tokio::time::timeout(MINUTE, async { tokio::join!(slow, others) }).await.unwrap();
    loaded.unwrap();
    assert_eq!(server.loads(), 4);
    assert!(server.peak() <= 3 * SIZE);
}

#[tokio::test(start_paused = true)]
async fn faults_of_one_model_do_not_affect_others() {
    let counters: Arc<SimulationCounters> = Arc::default();
    let steps = AtomicU64::new(0);
    let faulty = SimulatedModel {
        faults: Some(Arc::new(move |_, _: &Step| {
            steps.fetch_add(1, Ordering::Relaxed).is_multiple_of(5).then_some(Fault::DeviceLost)
        })),
        ..sized(&counters, SIZE)
    };
    let models = vec![named("sound", sized(&counters, SIZE)), named("faulty", faulty)];
    let server = TestServer::over(Models::start(options(), models, None).await.unwrap(), counters);
    server.load(&["sound", "faulty"]).await;

    let (call, sound) = generate(&server.models, "sound", 300).await.unwrap();
    let (faulty_call, faulty) = generate(&server.models, "faulty", 300).await.unwrap();
    let started = Instant::now();
    let sound = async {
        let last = last_event(sound).await;
        (last, started.elapsed())
    };
    let ((last, took), failed) = tokio::join!(sound, last_event(faulty));
    assert!(matches!(last, Event::Finished { .. }));
    assert!(took < Duration::from_millis(300 * 10 + 100), "{took:?}");
    assert!(matches!(failed, Event::Failed(_)), "it gives up after too many faults");
    drop((call, faulty_call));

    tokio::time::sleep(Duration::from_secs(1)).await;
    let ModelState::Failed(reason) = server.state("faulty").await else { panic!() };
    assert!(reason.contains("gave up"), "{reason}");
    assert_eq!((server.loaded().await, server.live()), (vec!["sound".to_owned()], SIZE));
    let ready = server.get("/ready").await;
    assert_eq!((ready.status.as_u16(), &ready.json()["status"]), (503, &json!("failed")));
    assert_eq!(server.get("/health").await.status, 200, "one model still works");
    tokio::time::sleep(MINUTE).await;
    server.models.load("faulty").await.unwrap();
    assert_eq!(server.get("/ready").await.status, 200);
}

/// An engine that is dropped slowly.
struct Lingering<E> {
    engine: E,
    gate: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl<E> Drop for Lingering<E> {
    fn drop(&mut self) {
        // Also ends when the test has ended.
        let _ = self.gate.lock().unwrap().recv();
    }
}

impl<E: Engine> WrapsEngine for Lingering<E> {
    type Inner = E;

    fn inner(&self) -> &E {
        &self.engine
    }

    fn inner_mut(&mut self) -> &mut E {
        &mut self.engine
    }
}

#[derive(Clone)]
struct LingeringModel {
    model: SimulatedModel,
    gate: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl ModelSource for LingeringModel {
    type Engine = Lingering<<SimulatedModel as ModelSource>::Engine>;

    fn load(
        &self,
        cancel: &LoadCancel,
        progress: &mut dyn FnMut(LoadProgress),
    ) -> Result<LoadedModel<Self::Engine>, SourceError> {
        let loaded = self.model.load(cancel, progress)?;
        Ok(loaded.map_engine(|engine| Lingering { engine, gate: self.gate.clone() }))
    }
}

impl ModelFactory for LingeringModel {
    fn plan(&self, _limit: Option<u64>) -> Result<PlannedModel, PlanError> {
        Ok(PlannedModel::new(self.model.memory(), self.clone()))
    }
}

#[tokio::test]
async fn the_next_load_waits_until_the_previous_engine_is_dropped() {
    let counters = Arc::default();
    let (let_go, gate) = mpsc::channel();
    let lingering = LingeringModel { model: sized(&counters, SIZE), gate: Arc::new(Mutex::new(gate)) };
    let models = vec![named("lingering", lingering), named("next", sized(&counters, SIZE))];
    let options = ModelsOptions { memory_bytes: Some(SIZE), keep_alive: Some(KeepAlive::Forever), ..options() };
    let server = TestServer::over(Models::start(options, models, None).await.unwrap(), counters);
    server.load(&["lingering"]).await;
    let models = server.models.clone();
    let next = tokio::spawn(async move { models.load("next").await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!((server.state("lingering").await, next.is_finished()), (ModelState::Unloading, false));
    let_go.send(()).unwrap();
    next.await.unwrap().unwrap();
    assert_eq!((server.loaded().await, server.peak()), (vec!["next".to_owned()], SIZE));
}

#[tokio::test(start_paused = true)]
async fn autoload_can_be_turned_off() {
    let server = TestServer::open(&["a"], ModelsOptions { autoload: false, ..options() }).await;
    server.load(&["a"]).await;
    server.models.unload("a", MINUTE).await.unwrap();
    let refused = server.complete("a").await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["code"]), (503, &json!("model_not_loaded")));
    assert!(refused.text().contains("POST /models/load"), "{}", refused.text());
    assert_eq!(server.post("/models/load", json!({ "model": "a" })).await.status, 200);
    server.complete_loaded("a").await;
}

#[tokio::test]
async fn an_unknown_name_means_the_default_model_if_any_name_does() {
    let counters = Arc::default();
    let models = vec![named("first", sized(&counters, SIZE)), named("second", sized(&counters, SIZE))];
    let options = ModelsOptions { any_name: true, ..options() };
    let server = TestServer::over(Models::start(options, models, None).await.unwrap(), counters);
    server.load(&["first", "second"]).await;
    for (name, id) in [("gpt-3.5-turbo", "first"), ("second", "second")] {
        assert_eq!(server.complete(name).await.json()["model"], id, "{name}");
    }
    assert_eq!(server.get("/v1/models/gpt-3.5-turbo").await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn a_model_has_aliases_and_the_first_model_is_the_default() {
    let counters = Arc::default();
    let aliased = NamedModel { aliases: vec!["nick".into()], ..named("org/first", sized(&counters, SIZE)) };
    let models = vec![aliased, named("second", sized(&counters, SIZE))];
    let server = TestServer::over(Models::start(options(), models, None).await.unwrap(), counters);
    server.load(&["org/first", "second"]).await;
    for (name, id) in
        [("org/first", "org/first"), ("nick", "org/first"), ("default", "org/first"), ("second", "second")]
    {
        assert_eq!(server.complete(name).await.json()["model"], id, "{name}");
    }
    let unnamed = server.post("/v1/completions", json!({ "prompt": "x", "max_tokens": 1 })).await;
    assert_eq!(unnamed.json()["model"], "org/first");
    let unknown = server.complete(&"x".repeat(5000)).await;
    assert_eq!((unknown.status.as_u16(), &unknown.json()["error"]["code"]), (404, &json!("model_not_found")));
    assert!(unknown.body.len() < 500);
    let ids: Vec<Value> = server.get("/v1/models").await.json()["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["id"].clone())
        .collect();
    assert_eq!(ids, ["org/first", "nick", "second"]);
    assert_eq!(server.get("/v1/models/org/first").await.json()["status"], json!({ "value": "loaded" }));
}

#[tokio::test(start_paused = true)]
async fn models_follow_the_files_of_a_directory() {
    let directory = tempfile::tempdir().unwrap();
    let counters: Arc<SimulationCounters> = Arc::default();
    let model = sized(&counters, SIZE);
    let found = ModelsDirectory::open(directory.path(), move |_: &Path| Arc::new(model.clone())).unwrap();
    let server = TestServer::over(Models::start(options(), Vec::new(), Some(found)).await.unwrap(), counters);
    assert_eq!(server.get("/ready").await.status, 200, "no model has to be loaded at startup");
    assert_eq!(server.get("/v1/models").await.json()["data"], json!([]));
    for name in ["one.gguf", "two-00001-of-00002.gguf", "two-00002-of-00002.gguf"] {
        std::fs::write(directory.path().join(name), b"").unwrap();
    }
    assert_eq!(server.complete("two").await.status, 200, "found without a list request");
    let unnamed = server.post("/v1/completions", json!({ "prompt": "x" })).await;
    assert_eq!((unnamed.status.as_u16(), &unnamed.json()["model"]), (200, &json!("two")), "the only loaded model");

    std::fs::remove_file(directory.path().join("one.gguf")).unwrap();
    std::fs::remove_file(directory.path().join("two-00001-of-00002.gguf")).unwrap();
    let ids = |listed: Value| -> Vec<Value> {
        listed["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect()
    };
    assert_eq!(ids(server.get("/v1/models").await.json()), ["two"], "it is still loaded");
    server.models.unload("two", MINUTE).await.unwrap();
    assert!(ids(server.get("/v1/models").await.json()).is_empty());
    assert_eq!(server.complete("one").await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn the_models_endpoint_reports_memory_and_activity() {
    let keep_alive = Some(KeepAlive::For(10 * MINUTE));
    let options = ModelsOptions { keep_alive, memory_bytes: Some(3 * SIZE), ..options() };
    let server = TestServer::open(&["a", "b"], options).await;
    server.load(&["a"]).await;
    let (call, _generation) = generate(&server.models, "a", 100).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let busy = server.get("/models").await.json()["data"][0].clone();
    assert_eq!((&busy["state"], &busy["memory"]["total_bytes"]), (&json!("ready"), &json!(SIZE)));
    assert_eq!((&busy["requests"]["running"], &busy["requests"]["calls"]), (&json!(1), &json!(1)));
    assert!(busy["kv_blocks"]["used"].as_u64().unwrap() > 0);
    assert_eq!((&busy["idle_seconds"], &busy["expires_at"]), (&Value::Null, &Value::Null));
    drop((call, _generation));
    tokio::time::sleep(MINUTE).await;
    let report = server.get("/models").await.json();
    let idle = &report["data"][0];
    assert_eq!((idle["idle_seconds"].as_f64(), idle["unloads_in_seconds"].as_f64()), (Some(60.0), Some(540.0)));
    assert!(idle["expires_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(report["memory"], json!({ "limit_bytes": 3 * SIZE, "held_bytes": SIZE, "free_bytes": 2 * SIZE }));
    let unloaded = &report["data"][1];
    assert_eq!((&unloaded["status"]["value"], &unloaded["memory"]), (&json!("unloaded"), &Value::Null));
}

#[tokio::test(start_paused = true)]
async fn invalid_commands_are_refused_and_a_fixed_model_cannot_be_unloaded() {
    let server = TestServer::open(&["a"], options()).await;
    server.load(&["a"]).await;
    for path in ["/models/load", "/models/unload"] {
        let refused = server.post(path, json!({ "model": "nope" })).await;
        assert_eq!((refused.status.as_u16(), &refused.json()["error"]["code"]), (404, &json!("model_not_found")));
        for body in [json!({}), json!({ "model": 7 }), json!([])] {
            assert_eq!(server.post(path, body).await.status, 400);
        }
    }
    assert_eq!(server.get("/models/load").await.status, 405);
    let call = server.models.acquire(Some("a")).await.unwrap();
    let fixed = Models::fixed(call.runtime().clone(), "own", Vec::new());
    assert_eq!(fixed.unload("own", MINUTE).await, Err(ModelsError::Fixed("own".into())));
    fixed.load("own").await.unwrap();
}

#[tokio::test]
async fn while_the_first_models_load_the_server_reports_it_and_lists_all() {
    let counters = Arc::default();
    let (one, open_one) = Moody::gated(sized(&counters, SIZE));
    let (two, open_two) = Moody::gated(sized(&counters, SIZE));
    let models = vec![named("one", one), named("two", two)];
    let server = TestServer::over(Models::start(options(), models, None).await.unwrap(), counters);
    let models = server.models.clone();
    let loads = tokio::spawn(async move { tokio::join!(models.load("one"), models.load("two")) });
    open_one.send(()).unwrap();
    while server.state("one").await != ModelState::Ready {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(server.complete("one").await.status, 200, "it does not wait for the other model");
    let health = server.get("/health").await;
    assert_eq!((health.status.as_u16(), &health.json()["error"]["message"]), (503, &json!("Loading model")));
    assert_eq!(server.get("/ready").await.json()["status"], "loading");
    let early = server.complete("two").await;
    assert_eq!(early.status, 503);
    assert!(early.headers.contains_key("retry-after"));
    open_two.send(()).unwrap();
    let (one, two) = loads.await.unwrap();
    assert_eq!((one, two), (Ok(()), Ok(())));
    assert_eq!(
        (server.get("/health").await.status, server.get("/ready").await.status),
        (200.try_into().unwrap(), 200.try_into().unwrap())
    );
    server.models.unload("two", MINUTE).await.unwrap();
    assert_eq!(server.get("/ready").await.status, 200, "a call would load it");
}

#[tokio::test(start_paused = true)]
async fn shutdown_drains_all_models_concurrently() {
    let server = TestServer::open(&["a", "b"], options()).await;
    server.load(&["a", "b"]).await;
    let (a, b) = (generate(&server.models, "a", 400).await.unwrap(), generate(&server.models, "b", 400).await.unwrap());
    let started = Instant::now();
    let models = server.models.clone();
    let stopped = tokio::spawn(async move { models.shutdown(MINUTE).await });
    tokio::task::yield_now().await;
    let refused = server.complete("a").await;
    assert_eq!(refused.status, 503);
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(server.get("/ready").await.json(), json!({ "status": "draining" }));
    let (a, b) = tokio::join!(last_event(a.1), last_event(b.1));
    assert!(matches!((a, b), (Event::Finished { .. }, Event::Finished { .. })));
    stopped.await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(server.live(), 0);
    assert!(server.models.acquire(Some("a")).await.is_err());
}

#[tokio::test]
async fn shutdown_refuses_calls_that_wait_for_a_model() {
    let counters = Arc::default();
    let (gated, _never_open) = Moody::gated(sized(&counters, SIZE));
    let models = vec![named("sound", sized(&counters, SIZE)), named("slow", gated)];
    let options = ModelsOptions { memory_bytes: Some(2 * SIZE), ..options() };
    let server = TestServer::over(Models::start(options, models, None).await.unwrap(), counters);
    server.load(&["sound"]).await;
    let wait = server.post("/models/load", json!({ "model": "slow" }));
    let stop = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        server.models.shutdown(MINUTE).await;
    };
    let both = async { tokio::join!(wait, stop) };
    let (refused_call, ()) = tokio::time::timeout(Duration::from_secs(20), both).await.unwrap();
    assert_eq!(refused_call.status, 503);
    assert!(refused_call.text().contains("the server is shutting down"), "{}", refused_call.text());
}

#[tokio::test(start_paused = true)]
async fn a_stream_keeps_its_model_loaded_until_its_body_is_dropped() {
    let server = TestServer::open(&["a"], options()).await;
    server.load(&["a"]).await;
    let stream = json!({ "model": "a", "prompt": "the sky", "max_tokens": 400, "ignore_eos": true, "stream": true });
    let response = server.router.clone().oneshot(post("/v1/completions", &stream)).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(server.models.show("a").await.unwrap().calls, 1);
    let unload = server.models.unload("a", MINUTE);
    let hang_up = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(server.state("a").await, ModelState::Unloading);
        drop(response);
        Instant::now()
    };
    let (unloaded, hung_up) = tokio::join!(unload, hang_up);
    unloaded.unwrap();
    assert!(hung_up.elapsed() < Duration::from_millis(100));
    assert_eq!(server.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_model_loaded_for_a_call_that_gave_up_is_unloaded_later() {
    let keep_alive = Some(KeepAlive::For(MINUTE));
    let server = TestServer::open(&["a"], ModelsOptions { keep_alive, ..options() }).await;
    server.load(&["a"]).await;
    server.models.unload("a", MINUTE).await.unwrap();
    let given_up = tokio::time::timeout(Duration::ZERO, server.models.acquire(Some("a"))).await;
    assert!(given_up.is_err());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((server.state("a").await, server.loads()), (ModelState::Ready, 2));
    tokio::time::sleep(MINUTE).await;
    assert_eq!(server.state("a").await, ModelState::Unloaded);
}

#[tokio::test(start_paused = true)]
async fn free_memory_is_read_before_each_load() {
    static AVAILABLE: AtomicU64 = AtomicU64::new(10 * SIZE);
    let machine = || Machine { available_bytes: Some(AVAILABLE.load(Ordering::Relaxed)), occupied_bytes: 0 };
    let server = TestServer::open(&["a", "b"], ModelsOptions { machine, ..options() }).await;
    server.load(&["a"]).await;
    // Another program uses the memory that the first model has not written yet, and more.
    AVAILABLE.store(SIZE + SIZE / 2, Ordering::Relaxed);
    let (call, _generation) = generate(&server.models, "a", 10).await.unwrap();
    let refused = server.models.load("b").await.unwrap_err();
    assert!(matches!(refused, ModelsError::Unavailable { .. }), "{refused}");
    assert!(refused.to_string().contains("50.0 KiB are free"), "{refused}");
    drop((call, _generation));
    server.models.load("b").await.unwrap();
    assert_eq!(server.loaded().await, ["b"]);
}

#[tokio::test(start_paused = true)]
async fn loads_and_unloads_are_counted_and_gauges_are_reset() {
    let (recorder, exposition) = Exposition::new(Compat::None).unwrap();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let server = TestServer::open(&["a", "b"], ModelsOptions { memory_bytes: Some(SIZE), ..options() }).await;
    server.load(&["a", "b"]).await;
    let (call, _generation) = generate(&server.models, "b", 10).await.unwrap();
    server.models.load("a").await.unwrap_err();
    drop(call);
    server.models.unload("b", MINUTE).await.unwrap();
    let scraped = exposition.render();
    for line in [
        "cuelight_model_loads_total{model=\"a\",outcome=\"loaded\"} 1",
        "cuelight_model_loads_total{model=\"a\",outcome=\"no_memory\"} 1",
        "cuelight_model_unloads_total{model=\"a\",reason=\"memory\"} 1",
        "cuelight_model_unloads_total{model=\"b\",reason=\"request\"} 1",
        "cuelight_model_state{model=\"b\",state=\"draining\"} 0",
        "cuelight_model_state{model=\"b\",state=\"unloaded\"} 1",
        "cuelight_model_memory_bytes{model=\"b\",pool=\"weights\"} 0",
    ] {
        assert!(scraped.lines().any(|scraped| scraped == line), "{line}\n{scraped}");
    }
}

/// The SplitMix64 random number generator.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (z ^ (z >> 31)) % below
    }
}

/// The settings of a random test.
#[derive(Clone, Copy)]
struct Storm {
    seed: u64,
    host: EngineHost,
    /// Maximum pause between two requests.
    pace: Duration,
    keep_alive: Duration,
}

/// Runs random calls, loads and unloads of models that do not fit together. Each must end, and memory must stay within its
/// limit.
async fn storm(Storm { seed, host, pace, keep_alive }: Storm) {
    const ASKED: usize = 200;
    let counters: Arc<SimulationCounters> = Arc::default();
    let sizes = [SIZE, SIZE, 2 * SIZE, 3 * SIZE, 4 * SIZE].into_iter().enumerate();
    let models = sizes.map(|(i, bytes)| named(&format!("m{i}"), SimulatedModel { host, ..sized(&counters, bytes) }));
    let keep_alive = Some(KeepAlive::For(keep_alive));
    let options = ModelsOptions { memory_bytes: Some(4 * SIZE), keep_alive, ..options() };
    let server = TestServer::over(Models::start(options, models.collect(), None).await.unwrap(), counters);
    let mut dice = Dice(seed);
    let mut tasks = Vec::new();
    for _ in 0..ASKED {
        tokio::time::sleep(pace * u32::try_from(dice.roll(100)).unwrap() / 100).await;
        let (models, name) = (server.models.clone(), format!("m{}", dice.roll(5)));
        let (what, tokens) = (dice.roll(10), 1 + dice.roll(60) as usize);
        tasks.push(tokio::spawn(async move {
            match what {
                0 => models.load(&name).await.map(|()| true),
                1 => models.unload(&name, Duration::from_millis(50)).await.map(|()| true),
                _ => match generate(&models, &name, tokens).await {
                    Ok((_call, generation)) => {
                        let last = last_event(generation).await;
                        let cut = last == Event::Failed(GenerationError::ShuttingDown);
                        Ok(cut || matches!(last, Event::Finished { .. }))
                    }
                    Err(error) => Err(error),
                },
            }
        }));
    }
    let mut served = 0;
    for task in tasks {
        match task.await.unwrap() {
            Ok(ended_well) => {
                assert!(ended_well);
                served += 1;
            }
            Err(ModelsError::Unavailable { .. }) => {}
            Err(error) => panic!("seed {seed}: {error}"),
        }
    }
    assert!(served > ASKED / 4, "seed {seed}: {served} served");
    assert!(server.peak() <= 4 * SIZE, "seed {seed}: {}", server.peak());
    let idle = async {
        while server.live() > 0 || !server.loaded().await.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(MINUTE, idle).await.unwrap_or_else(|_| panic!("seed {seed}: a model stays loaded"));
}

#[tokio::test(start_paused = true)]
async fn memory_stays_within_its_limit_and_every_call_ends() {
    for seed in 0..8 {
        let (pace, keep_alive) = (Duration::from_millis(100), Duration::from_secs(2));
        storm(Storm { seed, host: EngineHost::VirtualTime, pace, keep_alive }).await;
    }
}

/// The same on real threads, where requests really are concurrent.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn memory_stays_within_its_limit_with_concurrent_threads() {
    for seed in 0..4 {
        let (pace, keep_alive) = (Duration::from_millis(3), Duration::from_millis(10));
        storm(Storm { seed, host: EngineHost::Thread, pace, keep_alive }).await;
    }
}
