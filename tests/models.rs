//! Models that come and go: which are loaded, who waits, who must leave, and that memory never exceeds its budget.

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
use cuelight::executor::EngineHost;
use cuelight::loader::ModelSource;
use cuelight::metrics::exposition::{Compat, Exposition};
use cuelight::models::{
    Call, KeepAlive, Machine, ModelFactory, ModelState, Models, ModelsDirectory, ModelsError, ModelsOptions,
    NamedModel, PlanError, PlannedModel,
};
use cuelight::request::{Event, GenerationError, GenerationRequest, SamplingParams, StopConditions, SubmitError};
use cuelight::runtime::Generation;
use cuelight::simulation::{Fault, SimulatedModel, SimulationCounters};
use cuelight_engine::engine::{Engine, EngineError, EngineLimits, ExpertResult, Progress, Step, StepId};
use cuelight_engine::load::{LoadProgress, LoadedModel};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::time::Instant;
use tower::ServiceExt;

use common::{Answer, post};

/// What each simulated model takes in all.
const SIZE: u64 = 100 << 10;

const MINUTE: Duration = Duration::from_secs(60);

fn sized(counters: &Arc<SimulationCounters>, bytes: u64) -> SimulatedModel {
    let mut model = common::model();
    model.counters = counters.clone();
    model.step_time = Duration::from_millis(10);
    model.end_one_in = u64::MAX;
    model.weights_bytes = bytes - model.memory().kv_bytes;
    model
}

/// The machine does not matter here, only the budget.
fn endless_machine() -> Machine {
    Machine { available_bytes: None, occupied_bytes: 0 }
}

fn options() -> ModelsOptions {
    ModelsOptions { machine: endless_machine, ..ModelsOptions::default() }
}

fn named(id: &str, factory: impl ModelFactory) -> NamedModel {
    NamedModel { id: id.to_owned(), aliases: Vec::new(), factory: Arc::new(factory), planned: None }
}

/// A house of simulated models that share their counters.
struct House {
    models: Models,
    counters: Arc<SimulationCounters>,
    router: Router,
}

impl House {
    /// Models of these names, each of [`SIZE`], that may go when their room is needed.
    async fn open(names: &[&str], options: ModelsOptions) -> Self {
        let counters = Arc::default();
        let models = names.iter().map(|name| named(name, sized(&counters, SIZE))).collect();
        let options = ModelsOptions { keep_alive: options.keep_alive.or(Some(KeepAlive::Forever)), ..options };
        let models = Models::start(options, models, None).await.unwrap();
        Self::over(models, counters)
    }

    fn over(models: Models, counters: Arc<SimulationCounters>) -> Self {
        let router = models_router(models.clone(), ServerOptions::default()).unwrap();
        House { models, counters, router }
    }

    /// Brings these up in their order, as a start does.
    async fn load(&self, names: &[&str]) {
        for name in names {
            self.models.load(name).await.unwrap();
        }
    }

    async fn state(&self, name: &str) -> ModelState {
        self.models.show(name).await.unwrap().state
    }

    /// The names of those that hold memory.
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

    async fn complete(&self, model: &str) -> Answer {
        self.post("/v1/completions", json!({ "model": model, "prompt": "the sky", "max_tokens": 4 })).await
    }
}

/// A generation of so many tokens, with the call that holds its model.
async fn generate(models: &Models, name: &str, max_tokens: usize) -> Result<(Call, Generation), ModelsError> {
    let call = models.call(Some(name)).await?;
    let request = GenerationRequest {
        prompt: vec![100, 101],
        sampling: SamplingParams::default(),
        stop: StopConditions { max_tokens, ignore_eos: true, ..Default::default() },
        skip_special_tokens: true,
        ..GenerationRequest::default()
    };
    // A model may be unloaded under a call that takes too long.
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
async fn a_call_loads_its_model_and_the_next_finds_it() {
    let house = House::open(&["a", "org/b"], options()).await;
    house.load(&["a"]).await;
    house.models.load("org/b").await.unwrap();
    house.models.unload("org/b", MINUTE).await.unwrap();
    assert_eq!(house.state("org/b").await, ModelState::Unloaded);
    for _ in 0..2 {
        let answer = house.complete("org/b").await;
        assert_eq!((answer.status.as_u16(), &answer.json()["model"]), (200, &json!("org/b")));
    }
    assert_eq!(house.loads(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_load_can_be_begun_without_waiting_for_it() {
    let house = House::open(&["a"], options()).await;
    let begun = house.post("/models/load", json!({ "model": "a", "wait": false })).await;
    assert_eq!((begun.status.as_u16(), &begun.json()["model"]["state"]), (200, &json!("loading")));
    while house.state("a").await != ModelState::Ready {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(house.loads(), 1);
}

#[tokio::test(start_paused = true)]
async fn parallel_calls_cause_one_load() {
    let house = House::open(&["a"], options()).await;
    house.load(&["a"]).await;
    house.models.unload("a", MINUTE).await.unwrap();
    let calls = (0..20).map(|_| house.complete("a"));
    let answers = futures_util::future::join_all(calls).await;
    assert!(answers.iter().all(|answer| answer.status == 200));
    assert_eq!(house.loads(), 2);
}

#[tokio::test(start_paused = true)]
async fn the_least_recently_used_model_makes_room() {
    let house = House::open(&["a", "b", "c"], ModelsOptions { memory_bytes: Some(2 * SIZE), ..options() }).await;
    house.load(&["a", "b"]).await;
    tokio::time::sleep(MINUTE).await;
    drop(house.models.call(Some("a")).await.unwrap());
    house.load(&["c"]).await;
    assert_eq!(house.loaded().await, ["a", "c"]);
    assert_eq!(house.peak(), 2 * SIZE);
}

#[tokio::test(start_paused = true)]
async fn the_number_of_loaded_models_can_be_limited_too() {
    let options = ModelsOptions { max_loaded_models: NonZeroUsize::new(1), ..options() };
    let house = House::open(&["a", "b"], options).await;
    house.load(&["a", "b"]).await;
    assert_eq!((house.loaded().await, house.peak()), (vec!["b".to_owned()], SIZE));
}

#[tokio::test(start_paused = true)]
async fn a_model_that_answers_is_not_unloaded_for_another() {
    let house = House::open(&["a", "b"], ModelsOptions { memory_bytes: Some(SIZE), ..options() }).await;
    house.load(&["a"]).await;
    let (call, generation) = generate(&house.models, "a", 100).await.unwrap();
    let refused = house.post("/models/load", json!({ "model": "b" })).await;
    assert_eq!(refused.status, 503);
    assert!(refused.headers.contains_key("retry-after"));
    let message = refused.json()["error"]["message"].as_str().unwrap().to_owned();
    assert_eq!(
        message,
        "the model `b` takes 100.0 KiB of memory, and 0 B are free; models with calls in progress hold 100.0 KiB"
    );
    assert!(matches!(last_event(generation).await, Event::Finished { .. }));
    assert_eq!(house.state("b").await, ModelState::Unloaded, "to be busy is no failure");
    drop(call);
    house.load(&["b"]).await;
    assert_eq!(house.loaded().await, ["b"]);
}

#[tokio::test(start_paused = true)]
async fn what_can_never_fit_is_refused_once_and_for_all_in_sizes() {
    let counters = Arc::default();
    let models = vec![named("small", sized(&counters, SIZE)), named("huge", sized(&counters, 3 * SIZE))];
    // Without a keep-alive, models named at the start stay.
    let options = ModelsOptions { memory_bytes: Some(2 * SIZE), ..options() };
    let house = House::over(Models::start(options, models, None).await.unwrap(), counters);
    house.load(&["small"]).await;
    let refused = house.post("/models/load", json!({ "model": "huge" })).await;
    assert_eq!(refused.status, 507);
    assert_eq!(refused.json()["error"]["code"], "model_too_large");
    assert_eq!(refused.headers["x-should-retry"], "false");
    let message = refused.json()["error"]["message"].to_string();
    assert!(message.contains("307200 bytes") && message.contains("102400 can be free"), "{message}");
    let ModelState::Failed(reason) = house.state("huge").await else { panic!() };
    assert!(message.contains(&reason));
    assert_eq!(house.loaded().await, ["small"]);
    assert_eq!(house.complete("small").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn models_named_at_the_start_stay_and_others_leave_after_five_minutes() {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("found.gguf"), b"").unwrap();
    let counters: Arc<SimulationCounters> = Arc::default();
    let found = sized(&counters, SIZE);
    let found = ModelsDirectory::open(directory.path(), move |_: &Path| Arc::new(found.clone())).unwrap();
    let models = Models::start(options(), vec![named("named", sized(&counters, SIZE))], Some(found)).await.unwrap();
    let house = House::over(models, counters);
    house.load(&["named", "found"]).await;
    tokio::time::sleep(4 * MINUTE).await;
    drop(house.models.call(Some("found")).await.unwrap());
    tokio::time::sleep(4 * MINUTE).await;
    assert_eq!(house.loaded().await, ["named", "found"], "a call begins the time anew");
    tokio::time::sleep(2 * MINUTE).await;
    assert_eq!(house.loaded().await, ["named"]);
    assert_eq!((house.live(), house.loads()), (SIZE, 2));
    assert_eq!(house.complete("found").await.status, 200);
    assert_eq!(house.loads(), 3);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_takes_longer_than_the_idle_time_is_not_cut() {
    let keep_alive = Some(KeepAlive::For(Duration::from_secs(1)));
    let house = House::open(&["a"], ModelsOptions { keep_alive, ..options() }).await;
    house.load(&["a"]).await;
    let (call, generation) = generate(&house.models, "a", 400).await.unwrap();
    let started = Instant::now();
    assert!(matches!(last_event(generation).await, Event::Finished { .. }));
    assert!(started.elapsed() > Duration::from_secs(3));
    assert_eq!(house.state("a").await, ModelState::Ready);
    drop(call);
    tokio::time::sleep(Duration::from_millis(900)).await;
    assert_eq!(house.state("a").await, ModelState::Ready);
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!((house.state("a").await, house.live()), (ModelState::Unloaded, 0));
}

#[tokio::test(start_paused = true)]
async fn without_idle_time_a_model_goes_with_its_last_call() {
    let keep_alive = Some(KeepAlive::For(Duration::ZERO));
    let house = House::open(&["a"], ModelsOptions { keep_alive, ..options() }).await;
    let answer = house.post("/models/load", json!({ "model": "a" })).await;
    assert_eq!(answer.status, 200);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!(house.complete("a").await.status, 200);
    tokio::time::sleep(Duration::from_millis(1)).await;
    assert_eq!((house.state("a").await, house.live()), (ModelState::Unloaded, 0));
}

#[tokio::test(start_paused = true)]
async fn to_unload_waits_for_answers_and_later_calls_load_anew() {
    let house = House::open(&["a"], options()).await;
    house.load(&["a"]).await;
    let (call, generation) = generate(&house.models, "a", 100).await.unwrap();
    let running = async {
        let last = last_event(generation).await;
        drop(call);
        last
    };
    let later = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        assert_eq!(house.state("a").await, ModelState::Unloading);
        house.complete("a").await
    };
    let unload = house.post("/models/unload", json!({ "model": "a" }));
    let (unloaded, last, later) = tokio::join!(unload, running, later);
    assert_eq!(unloaded.status, 200, "{}", unloaded.text());
    assert!(matches!(last, Event::Finished { .. }));
    assert_eq!((later.status.as_u16(), house.loads(), house.peak()), (200, 2, SIZE));
}

#[tokio::test(start_paused = true)]
async fn to_unload_does_not_wait_for_ever() {
    let house = House::open(&["a"], options()).await;
    house.load(&["a"]).await;
    let (_call, generation) = generate(&house.models, "a", 400).await.unwrap();
    house.models.unload("a", Duration::from_secs(1)).await.unwrap();
    assert_eq!(last_event(generation).await, Event::Failed(GenerationError::ShuttingDown));
    assert_eq!((house.state("a").await, house.live()), (ModelState::Unloaded, 0));
}

/// A model that loads when it is let, or fails when it is told to.
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

    /// One that loads on a thread, once for each message.
    fn gated(model: SimulatedModel) -> (Self, mpsc::Sender<()>) {
        let (open, gate) = mpsc::channel();
        let model = SimulatedModel { host: EngineHost::Thread, step_time: Duration::ZERO, ..model };
        (Moody { gate: Some(Arc::new(Mutex::new(gate))), ..Moody::new(model) }, open)
    }
}

impl ModelSource for Moody {
    type Engine = <SimulatedModel as ModelSource>::Engine;

    fn load(&self, progress: &mut dyn FnMut(LoadProgress)) -> Result<LoadedModel<Self::Engine>, String> {
        if let Some(gate) = &self.gate {
            progress(LoadProgress { done_bytes: 1, total_bytes: 4 });
            gate.lock().unwrap().recv().unwrap();
        }
        if self.broken.load(Ordering::Relaxed) { Err("the disk is on fire".into()) } else { self.model.load(progress) }
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
async fn a_model_that_does_not_load_leaves_the_others_alone_and_can_be_tried_again() {
    let counters = Arc::default();
    let moody = Moody::new(sized(&counters, SIZE));
    moody.broken.store(true, Ordering::Relaxed);
    let broken = moody.broken.clone();
    let models = vec![named("sound", sized(&counters, SIZE)), named("moody", moody)];
    let options = ModelsOptions { memory_bytes: Some(2 * SIZE), ..options() };
    let house = House::over(Models::start(options, models, None).await.unwrap(), counters);
    house.load(&["sound"]).await;
    let refused = house.post("/models/load", json!({ "model": "moody" })).await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["code"]), (503, &json!("model_failed")));
    assert!(refused.text().contains("the disk is on fire"), "{}", refused.text());
    assert_eq!(house.live(), SIZE);
    assert_eq!(house.complete("sound").await.status, 200);

    let listed = house.get("/v1/models").await.json();
    let status = &listed["data"][1]["status"];
    assert_eq!(status["value"], "failed");
    assert!(status["reason"].as_str().unwrap().contains("the disk is on fire"));

    broken.store(false, Ordering::Relaxed);
    assert_eq!(house.complete("moody").await.status, 503, "the answer stands for a while");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert_eq!(house.complete("moody").await.status, 200);

    house.models.unload("moody", MINUTE).await.unwrap();
    broken.store(true, Ordering::Relaxed);
    assert_eq!(house.complete("moody").await.status, 503);
    broken.store(false, Ordering::Relaxed);
    house.models.load("moody").await.expect("whoever asks for it by name need not wait");
}

#[tokio::test]
async fn while_a_model_loads_calls_wait_but_not_too_many_and_not_too_long() {
    let counters = Arc::default();
    let (gated, open) = Moody::gated(sized(&counters, SIZE));
    let options = ModelsOptions { load_timeout: Duration::from_millis(200), max_waiting_calls: 2, ..options() };
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("slow.gguf"), b"").unwrap();
    let found = ModelsDirectory::open(directory.path(), move |_: &Path| Arc::new(gated.clone())).unwrap();
    let house = House::over(Models::start(options, Vec::new(), Some(found)).await.unwrap(), counters);

    let (first, second, third) = tokio::join!(house.complete("slow"), house.complete("slow"), house.complete("slow"));
    for late in [first, second] {
        assert_eq!(late.status, 503);
        assert!(late.text().contains("was not loaded within 0.2 seconds"), "{}", late.text());
    }
    assert_eq!(third.status, 429);
    assert!(third.headers.contains_key("retry-after"));

    let listed = house.get("/v1/models/slow").await.json();
    assert_eq!(
        listed["status"],
        json!({ "value": "loading", "progress": { "done_bytes": 1, "total_bytes": 4 } }),
        "{listed}"
    );
    let refused = house.post("/models/unload", json!({ "model": "slow" })).await;
    assert_eq!(refused.status, 503);
    assert!(refused.text().contains("is being loaded"), "{}", refused.text());

    let waiting = house.complete("slow");
    open.send(()).unwrap();
    assert_eq!(waiting.await.status, 200);
    assert_eq!(house.loads(), 1);
}

#[tokio::test(start_paused = true)]
async fn the_faults_of_one_model_are_not_the_others() {
    let counters: Arc<SimulationCounters> = Arc::default();
    let steps = AtomicU64::new(0);
    let faulty = SimulatedModel {
        faults: Some(Arc::new(move |_, _: &Step| {
            steps.fetch_add(1, Ordering::Relaxed).is_multiple_of(5).then_some(Fault::DeviceLost)
        })),
        ..sized(&counters, SIZE)
    };
    let models = vec![named("sound", sized(&counters, SIZE)), named("faulty", faulty)];
    let house = House::over(Models::start(options(), models, None).await.unwrap(), counters);
    house.load(&["sound", "faulty"]).await;

    let (call, sound) = generate(&house.models, "sound", 300).await.unwrap();
    let (faulty_call, faulty) = generate(&house.models, "faulty", 300).await.unwrap();
    let started = Instant::now();
    let sound = async {
        let last = last_event(sound).await;
        (last, started.elapsed())
    };
    let ((last, took), failed) = tokio::join!(sound, last_event(faulty));
    assert!(matches!(last, Event::Finished { .. }));
    assert!(took < Duration::from_millis(300 * 10 + 100), "{took:?}");
    assert!(matches!(failed, Event::Failed(_)), "after so many faults it gives up");
    drop((call, faulty_call));

    tokio::time::sleep(Duration::from_secs(1)).await;
    let ModelState::Failed(reason) = house.state("faulty").await else { panic!() };
    assert!(reason.contains("gave up"), "{reason}");
    assert_eq!((house.loaded().await, house.live()), (vec!["sound".to_owned()], SIZE));
    let ready = house.get("/ready").await;
    assert_eq!((ready.status.as_u16(), &ready.json()["status"]), (503, &json!("failed")));
    assert_eq!(house.get("/health").await.status, 200, "a part of it works");
    tokio::time::sleep(MINUTE).await;
    house.models.load("faulty").await.unwrap();
    assert_eq!(house.get("/ready").await.status, 200);
}

/// An engine whose memory takes its time to go.
struct Lingering<E> {
    engine: E,
    gate: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl<E> Drop for Lingering<E> {
    fn drop(&mut self) {
        // A test that has ended lets it go too.
        let _ = self.gate.lock().unwrap().recv();
    }
}

impl<E: Engine> Engine for Lingering<E> {
    fn limits(&self) -> &EngineLimits {
        self.engine.limits()
    }

    fn begin(&mut self, step: Step) -> Result<Progress, EngineError> {
        self.engine.begin(step)
    }

    fn work_beside(&mut self, step: StepId) -> Result<bool, EngineError> {
        self.engine.work_beside(step)
    }

    fn resume(&mut self, result: ExpertResult) -> Result<Progress, EngineError> {
        self.engine.resume(result)
    }
}

#[derive(Clone)]
struct LingeringModel {
    model: SimulatedModel,
    gate: Arc<Mutex<mpsc::Receiver<()>>>,
}

impl ModelSource for LingeringModel {
    type Engine = Lingering<<SimulatedModel as ModelSource>::Engine>;

    fn load(&self, progress: &mut dyn FnMut(LoadProgress)) -> Result<LoadedModel<Self::Engine>, String> {
        let LoadedModel { engine, tokenizer, chat_template, experts, card, memory } = self.model.load(progress)?;
        let engine = Lingering { engine, gate: self.gate.clone() };
        Ok(LoadedModel { engine, tokenizer, chat_template, experts, card, memory })
    }
}

impl ModelFactory for LingeringModel {
    fn plan(&self, _limit: Option<u64>) -> Result<PlannedModel, PlanError> {
        Ok(PlannedModel::new(self.model.memory(), self.clone()))
    }
}

#[tokio::test]
async fn the_next_load_waits_until_the_last_engine_is_really_gone() {
    let counters = Arc::default();
    let (let_go, gate) = mpsc::channel();
    let lingering = LingeringModel { model: sized(&counters, SIZE), gate: Arc::new(Mutex::new(gate)) };
    let models = vec![named("lingering", lingering), named("next", sized(&counters, SIZE))];
    let options = ModelsOptions { memory_bytes: Some(SIZE), keep_alive: Some(KeepAlive::Forever), ..options() };
    let house = House::over(Models::start(options, models, None).await.unwrap(), counters);
    house.load(&["lingering"]).await;
    let models = house.models.clone();
    let next = tokio::spawn(async move { models.load("next").await });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert_eq!((house.state("lingering").await, next.is_finished()), (ModelState::Unloading, false));
    let_go.send(()).unwrap();
    next.await.unwrap().unwrap();
    assert_eq!((house.loaded().await, house.peak()), (vec!["next".to_owned()], SIZE));
}

#[tokio::test(start_paused = true)]
async fn calls_need_not_load_models() {
    let house = House::open(&["a"], ModelsOptions { autoload: false, ..options() }).await;
    house.load(&["a"]).await;
    house.models.unload("a", MINUTE).await.unwrap();
    let refused = house.complete("a").await;
    assert_eq!((refused.status.as_u16(), &refused.json()["error"]["code"]), (503, &json!("model_not_loaded")));
    assert!(refused.text().contains("POST /models/load"), "{}", refused.text());
    assert_eq!(house.post("/models/load", json!({ "model": "a" })).await.status, 200);
    assert_eq!(house.complete("a").await.status, 200);
}

#[tokio::test(start_paused = true)]
async fn a_model_is_called_by_its_names_and_the_first_is_the_default() {
    let counters = Arc::default();
    let aliased = NamedModel { aliases: vec!["nick".into()], ..named("org/first", sized(&counters, SIZE)) };
    let models = vec![aliased, named("second", sized(&counters, SIZE))];
    let house = House::over(Models::start(options(), models, None).await.unwrap(), counters);
    house.load(&["org/first", "second"]).await;
    for (name, id) in
        [("org/first", "org/first"), ("nick", "org/first"), ("default", "org/first"), ("second", "second")]
    {
        assert_eq!(house.complete(name).await.json()["model"], id, "{name}");
    }
    let unnamed = house.post("/v1/completions", json!({ "prompt": "x", "max_tokens": 1 })).await;
    assert_eq!(unnamed.json()["model"], "org/first");
    let unknown = house.complete(&"x".repeat(5000)).await;
    assert_eq!((unknown.status.as_u16(), &unknown.json()["error"]["code"]), (404, &json!("model_not_found")));
    assert!(unknown.body.len() < 500);
    let ids: Vec<Value> = house.get("/v1/models").await.json()["data"]
        .as_array()
        .unwrap()
        .iter()
        .map(|model| model["id"].clone())
        .collect();
    assert_eq!(ids, ["org/first", "nick", "second"]);
    assert_eq!(house.get("/v1/models/org/first").await.json()["status"], json!({ "value": "loaded" }));
}

#[tokio::test(start_paused = true)]
async fn files_of_a_directory_come_and_go() {
    let directory = tempfile::tempdir().unwrap();
    let counters: Arc<SimulationCounters> = Arc::default();
    let model = sized(&counters, SIZE);
    let found = ModelsDirectory::open(directory.path(), move |_: &Path| Arc::new(model.clone())).unwrap();
    let house = House::over(Models::start(options(), Vec::new(), Some(found)).await.unwrap(), counters);
    assert_eq!(house.get("/ready").await.status, 200, "nothing has to be loaded first");
    assert_eq!(house.get("/v1/models").await.json()["data"], json!([]));
    for name in ["one.gguf", "two-00001-of-00002.gguf", "two-00002-of-00002.gguf"] {
        std::fs::write(directory.path().join(name), b"").unwrap();
    }
    assert_eq!(house.complete("two").await.status, 200, "found without anybody listing");
    let unnamed = house.post("/v1/completions", json!({ "prompt": "x" })).await;
    assert_eq!((unnamed.status.as_u16(), &unnamed.json()["error"]["param"]), (400, &json!("model")));

    std::fs::remove_file(directory.path().join("one.gguf")).unwrap();
    std::fs::remove_file(directory.path().join("two-00001-of-00002.gguf")).unwrap();
    let ids = |listed: Value| -> Vec<Value> {
        listed["data"].as_array().unwrap().iter().map(|model| model["id"].clone()).collect()
    };
    assert_eq!(ids(house.get("/v1/models").await.json()), ["two"], "it is loaded still");
    house.models.unload("two", MINUTE).await.unwrap();
    assert!(ids(house.get("/v1/models").await.json()).is_empty());
    assert_eq!(house.complete("one").await.status, 404);
}

#[tokio::test(start_paused = true)]
async fn operators_see_what_each_model_takes_and_does() {
    let keep_alive = Some(KeepAlive::For(10 * MINUTE));
    let options = ModelsOptions { keep_alive, memory_bytes: Some(3 * SIZE), ..options() };
    let house = House::open(&["a", "b"], options).await;
    house.load(&["a"]).await;
    let (call, _generation) = generate(&house.models, "a", 100).await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    let busy = house.get("/models").await.json()["data"][0].clone();
    assert_eq!((&busy["state"], &busy["memory"]["total_bytes"]), (&json!("ready"), &json!(SIZE)));
    assert_eq!((&busy["requests"]["running"], &busy["requests"]["calls"]), (&json!(1), &json!(1)));
    assert!(busy["kv_blocks"]["used"].as_u64().unwrap() > 0);
    assert_eq!((&busy["idle_seconds"], &busy["expires_at"]), (&Value::Null, &Value::Null));
    drop((call, _generation));
    tokio::time::sleep(MINUTE).await;
    let report = house.get("/models").await.json();
    let idle = &report["data"][0];
    assert_eq!((idle["idle_seconds"].as_f64(), idle["unloads_in_seconds"].as_f64()), (Some(60.0), Some(540.0)));
    assert!(idle["expires_at"].as_str().unwrap().ends_with('Z'));
    assert_eq!(report["memory"], json!({ "limit_bytes": 3 * SIZE, "held_bytes": SIZE, "free_bytes": 2 * SIZE }));
    let unloaded = &report["data"][1];
    assert_eq!((&unloaded["status"]["value"], &unloaded["memory"]), (&json!("unloaded"), &Value::Null));
}

#[tokio::test(start_paused = true)]
async fn wrong_orders_are_refused_and_a_model_of_ones_own_cannot_be_unloaded() {
    let house = House::open(&["a"], options()).await;
    house.load(&["a"]).await;
    for path in ["/models/load", "/models/unload"] {
        let refused = house.post(path, json!({ "model": "nope" })).await;
        assert_eq!((refused.status.as_u16(), &refused.json()["error"]["code"]), (404, &json!("model_not_found")));
        for body in [json!({}), json!({ "model": 7 }), json!([])] {
            assert_eq!(house.post(path, body).await.status, 400);
        }
    }
    assert_eq!(house.get("/models/load").await.status, 405);
    let call = house.models.call(Some("a")).await.unwrap();
    let fixed = Models::fixed(call.runtime().clone(), "own", Vec::new());
    assert_eq!(fixed.unload("own", MINUTE).await, Err(ModelsError::Fixed("own".into())));
    fixed.load("own").await.unwrap();
}

#[tokio::test]
async fn while_the_first_models_load_the_server_says_so_and_lists_all() {
    let counters = Arc::default();
    let (one, open_one) = Moody::gated(sized(&counters, SIZE));
    let (two, open_two) = Moody::gated(sized(&counters, SIZE));
    let models = vec![named("one", one), named("two", two)];
    let house = House::over(Models::start(options(), models, None).await.unwrap(), counters);
    let models = house.models.clone();
    let loads = tokio::spawn(async move { tokio::join!(models.load("one"), models.load("two")) });
    open_one.send(()).unwrap();
    while house.state("one").await != ModelState::Ready {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    assert_eq!(house.complete("one").await.status, 200, "it need not wait for the other");
    let health = house.get("/health").await;
    assert_eq!((health.status.as_u16(), &health.json()["error"]["message"]), (503, &json!("Loading model")));
    assert_eq!(house.get("/ready").await.json()["status"], "loading");
    let early = house.complete("two").await;
    assert_eq!(early.status, 503);
    assert!(early.headers.contains_key("retry-after"));
    open_two.send(()).unwrap();
    let (one, two) = loads.await.unwrap();
    assert_eq!((one, two), (Ok(()), Ok(())));
    assert_eq!(
        (house.get("/health").await.status, house.get("/ready").await.status),
        (200.try_into().unwrap(), 200.try_into().unwrap())
    );
    house.models.unload("two", MINUTE).await.unwrap();
    assert_eq!(house.get("/ready").await.status, 200, "a call would load it");
}

#[tokio::test(start_paused = true)]
async fn to_stop_drains_all_models_at_the_same_time() {
    let house = House::open(&["a", "b"], options()).await;
    house.load(&["a", "b"]).await;
    let (a, b) = (generate(&house.models, "a", 400).await.unwrap(), generate(&house.models, "b", 400).await.unwrap());
    let started = Instant::now();
    let models = house.models.clone();
    let stopped = tokio::spawn(async move { models.shutdown(MINUTE).await });
    tokio::task::yield_now().await;
    let refused = house.complete("a").await;
    assert_eq!(refused.status, 503);
    assert!(refused.headers.contains_key("retry-after"));
    assert_eq!(house.get("/ready").await.json(), json!({ "status": "draining" }));
    let (a, b) = tokio::join!(last_event(a.1), last_event(b.1));
    assert!(matches!((a, b), (Event::Finished { .. }, Event::Finished { .. })));
    stopped.await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(house.live(), 0);
    assert!(house.models.call(Some("a")).await.is_err());
}

#[tokio::test]
async fn to_stop_sends_away_those_who_wait_for_a_model() {
    let counters = Arc::default();
    let (gated, _never_open) = Moody::gated(sized(&counters, SIZE));
    let models = vec![named("sound", sized(&counters, SIZE)), named("slow", gated)];
    let options = ModelsOptions { memory_bytes: Some(2 * SIZE), ..options() };
    let house = House::over(Models::start(options, models, None).await.unwrap(), counters);
    house.load(&["sound"]).await;
    let wait = house.post("/models/load", json!({ "model": "slow" }));
    let stop = async {
        tokio::time::sleep(Duration::from_millis(50)).await;
        house.models.shutdown(MINUTE).await;
    };
    let both = async { tokio::join!(wait, stop) };
    let (sent_away, ()) = tokio::time::timeout(Duration::from_secs(20), both).await.unwrap();
    assert_eq!(sent_away.status, 503);
    assert!(sent_away.text().contains("the server is shutting down"), "{}", sent_away.text());
}

#[tokio::test(start_paused = true)]
async fn a_stream_holds_its_model_until_its_body_is_gone() {
    let house = House::open(&["a"], options()).await;
    house.load(&["a"]).await;
    let stream = json!({ "model": "a", "prompt": "the sky", "max_tokens": 400, "ignore_eos": true, "stream": true });
    let response = house.router.clone().oneshot(post("/v1/completions", &stream)).await.unwrap();
    assert_eq!(response.status(), 200);
    assert_eq!(house.models.show("a").await.unwrap().calls, 1);
    let unload = house.models.unload("a", MINUTE);
    let hang_up = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(house.state("a").await, ModelState::Unloading);
        drop(response);
        Instant::now()
    };
    let (unloaded, hung_up) = tokio::join!(unload, hang_up);
    unloaded.unwrap();
    assert!(hung_up.elapsed() < Duration::from_millis(100));
    assert_eq!(house.live(), 0);
}

#[tokio::test(start_paused = true)]
async fn whoever_gives_up_waiting_leaves_no_model_behind_for_ever() {
    let keep_alive = Some(KeepAlive::For(MINUTE));
    let house = House::open(&["a"], ModelsOptions { keep_alive, ..options() }).await;
    house.load(&["a"]).await;
    house.models.unload("a", MINUTE).await.unwrap();
    let given_up = tokio::time::timeout(Duration::ZERO, house.models.call(Some("a"))).await;
    assert!(given_up.is_err());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!((house.state("a").await, house.loads()), (ModelState::Ready, 2));
    tokio::time::sleep(MINUTE).await;
    assert_eq!(house.state("a").await, ModelState::Unloaded);
}

#[tokio::test(start_paused = true)]
async fn the_machine_is_looked_at_again_before_each_load() {
    static AVAILABLE: AtomicU64 = AtomicU64::new(10 * SIZE);
    let machine = || Machine { available_bytes: Some(AVAILABLE.load(Ordering::Relaxed)), occupied_bytes: 0 };
    let house = House::open(&["a", "b"], ModelsOptions { machine, ..options() }).await;
    house.load(&["a"]).await;
    // Another program took what the first model has not written to yet, and then some.
    AVAILABLE.store(SIZE + SIZE / 2, Ordering::Relaxed);
    let (call, _generation) = generate(&house.models, "a", 10).await.unwrap();
    let refused = house.models.load("b").await.unwrap_err();
    assert!(matches!(refused, ModelsError::Unavailable { .. }), "{refused}");
    assert!(refused.to_string().contains("50.0 KiB are free"), "{refused}");
    drop((call, _generation));
    house.models.load("b").await.unwrap();
    assert_eq!(house.loaded().await, ["b"]);
}

#[tokio::test(start_paused = true)]
async fn what_comes_and_goes_is_counted_and_no_gauge_speaks_of_memory_that_is_free() {
    let (recorder, exposition) = Exposition::new(Compat::None).unwrap();
    let _guard = metrics::set_default_local_recorder(&recorder);
    let house = House::open(&["a", "b"], ModelsOptions { memory_bytes: Some(SIZE), ..options() }).await;
    house.load(&["a", "b"]).await;
    let (call, _generation) = generate(&house.models, "b", 10).await.unwrap();
    house.models.load("a").await.unwrap_err();
    drop(call);
    house.models.unload("b", MINUTE).await.unwrap();
    let scraped = exposition.render();
    for line in [
        "cuelight_model_loads_total{model=\"a\",outcome=\"loaded\"} 1",
        "cuelight_model_loads_total{model=\"a\",outcome=\"no_room\"} 1",
        "cuelight_model_unloads_total{model=\"a\",reason=\"room\"} 1",
        "cuelight_model_unloads_total{model=\"b\",reason=\"request\"} 1",
        "cuelight_model_state{model=\"b\",state=\"draining\"} 0",
        "cuelight_model_state{model=\"b\",state=\"unloaded\"} 1",
        "cuelight_model_memory_bytes{model=\"b\",pool=\"weights\"} 0",
    ] {
        assert!(scraped.lines().any(|scraped| scraped == line), "{line}\n{scraped}");
    }
}

/// The SplitMix64 generator, for choices that a seed repeats.
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

/// How a storm blows.
#[derive(Clone, Copy)]
struct Storm {
    seed: u64,
    host: EngineHost,
    /// Between two things that are asked for, at most.
    pace: Duration,
    keep_alive: Duration,
}

/// Calls, loads and unloads of models that do not fit together, at random: each ends, and memory keeps to its budget.
async fn storm(Storm { seed, host, pace, keep_alive }: Storm) {
    const ASKED: usize = 200;
    let counters: Arc<SimulationCounters> = Arc::default();
    let sizes = [SIZE, SIZE, 2 * SIZE, 3 * SIZE, 4 * SIZE].into_iter().enumerate();
    let models = sizes.map(|(i, bytes)| named(&format!("m{i}"), SimulatedModel { host, ..sized(&counters, bytes) }));
    let keep_alive = Some(KeepAlive::For(keep_alive));
    let options = ModelsOptions { memory_bytes: Some(4 * SIZE), keep_alive, ..options() };
    let house = House::over(Models::start(options, models.collect(), None).await.unwrap(), counters);
    let mut dice = Dice(seed);
    let mut tasks = Vec::new();
    for _ in 0..ASKED {
        tokio::time::sleep(pace * u32::try_from(dice.roll(100)).unwrap() / 100).await;
        let (models, name) = (house.models.clone(), format!("m{}", dice.roll(5)));
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
    assert!(house.peak() <= 4 * SIZE, "seed {seed}: {}", house.peak());
    let idle = async {
        while house.live() > 0 || !house.loaded().await.is_empty() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(MINUTE, idle).await.unwrap_or_else(|_| panic!("seed {seed}: a model stays for ever"));
}

#[tokio::test(start_paused = true)]
async fn whatever_is_asked_for_memory_keeps_to_its_budget_and_every_call_ends() {
    for seed in 0..8 {
        let (pace, keep_alive) = (Duration::from_millis(100), Duration::from_secs(2));
        storm(Storm { seed, host: EngineHost::VirtualTime, pace, keep_alive }).await;
    }
}

/// The same on real threads, where what happens at the same time really does.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn threads_that_race_for_models_change_nothing_about_that() {
    for seed in 0..4 {
        let (pace, keep_alive) = (Duration::from_millis(3), Duration::from_millis(10));
        storm(Storm { seed, host: EngineHost::Thread, pace, keep_alive }).await;
    }
}
