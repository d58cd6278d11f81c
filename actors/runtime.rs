//! The front door to the cast: start it, submit to it, watch it, stop it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cuelight_engine::engine::EngineLimits;
use cuelight_engine::format::chat_template::ChatTemplate;
use cuelight_engine::format::tokenizer::Tokenizer;
use cuelight_engine::load::{LoadProgress, MemoryPlan, ModelCard};
use ractor::{Actor, ActorCell, ActorRef};
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use crate::client::{ClientStream, channel};
use crate::executor::OverlapMode;
use crate::loader::ModelSource;
use crate::metrics;
use crate::policy::{Counts, PolicyConfig};
use crate::request::{Event, GenerationRequest, RequestId, SubmitError};
use crate::scheduler::SchedulerMsg;
use crate::supervisor::{RestartPolicy, Supervisor, SupervisorArguments, SupervisorMsg};
use crate::trace::Tracer;
use crate::trace::call::Call;

/// Limits and times of a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeOptions {
    /// The name of the model: a label of every metric.
    pub model_id: Arc<str>,
    /// Most requests in the house, running and waiting.
    pub max_requests: usize,
    /// How steps are formed.
    pub policy: PolicyConfig,
    /// Events that wait for a client before its request pauses.
    pub client_buffer_events: usize,
    /// How long a client may leave its buffer full before it is cut off.
    pub client_stall_timeout: Duration,
    /// How long a step may take before its device counts as lost.
    pub step_timeout: Duration,
    /// Whether steps may be divided, so that the device works while experts on the host do.
    pub overlap: OverlapMode,
    /// How long to go on after faults.
    pub restarts: RestartPolicy,
    /// Hears what happens when.
    pub tracer: Tracer,
}

impl Default for RuntimeOptions {
    fn default() -> Self {
        RuntimeOptions {
            model_id: "default".into(),
            max_requests: 1024,
            policy: PolicyConfig::default(),
            client_buffer_events: 64,
            client_stall_timeout: Duration::from_secs(30),
            step_timeout: Duration::from_secs(120),
            overlap: OverlapMode::Auto,
            restarts: RestartPolicy::default(),
            tracer: Tracer::default(),
        }
    }
}

/// A model the cast serves.
pub struct Model {
    /// Facts for people and for `/v1/models`.
    pub card: ModelCard,
    /// What it takes of the machine.
    pub memory: MemoryPlan,
    /// What the engine can take.
    pub limits: EngineLimits,
    /// Text to tokens and back.
    pub tokenizer: Arc<Tokenizer>,
    /// How a conversation becomes a prompt, when the file says.
    pub chat_template: Option<Arc<ChatTemplate>>,
}

/// What the runtime is doing.
#[derive(Debug, Clone, PartialEq)]
pub enum Status {
    /// The model is being loaded for the first time.
    Loading(LoadProgress),
    /// Requests run.
    Ready,
    /// The executor is being rebuilt; requests wait.
    Recovering,
    /// No new requests; running ones end.
    Draining,
    /// The model could not be loaded, or failed too often: why.
    Failed(String),
}

impl Status {
    /// Every word of [`Self::word`].
    pub const WORDS: [&str; 5] = ["loading", "ready", "recovering", "draining", "failed"];

    /// The status in one word.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Status::Loading(_) => "loading",
            Status::Ready => "ready",
            Status::Recovering => "recovering",
            Status::Draining => "draining",
            Status::Failed(_) => "failed",
        }
    }
}

/// A runtime could not be started.
#[derive(Debug, thiserror::Error)]
#[error("the actors could not be started: {0}")]
pub struct StartError(#[from] ractor::SpawnErr);

/// A cheap handle on the running cast. The cast stops at once when the last handle is dropped.
#[derive(Clone)]
pub struct Runtime {
    shared: Arc<Shared>,
    status: watch::Receiver<Status>,
    cast: Arc<CastHandle>,
}

/// The supervisor, whatever its engine.
struct CastHandle {
    cell: ActorCell,
    drain: Box<dyn Fn(Duration) + Send + Sync>,
}

impl Drop for CastHandle {
    fn drop(&mut self) {
        self.cell.stop(None);
    }
}

impl Runtime {
    /// Starts the cast and begins to load the model; [`Self::status`] tells how far it is.
    ///
    /// # Errors
    /// [`StartError`] when no actor can be started; a model that cannot be loaded is a [`Status`].
    pub async fn start<S: ModelSource>(source: S, mut options: RuntimeOptions) -> Result<Runtime, StartError> {
        options.tracer = options.tracer.for_model(&options.model_id);
        let shared = Arc::new(Shared::new(&options));
        let arguments = SupervisorArguments { source: Arc::new(source), options, shared: shared.clone() };
        let (supervisor, _) = Actor::spawn(None, Supervisor::<S>::default(), arguments).await?;
        let cell = supervisor.get_cell();
        let drain = Box::new(move |limit| {
            let _ = supervisor.cast(SupervisorMsg::Drain(limit));
        });
        let status = shared.status.subscribe();
        Ok(Runtime { shared, status, cast: Arc::new(CastHandle { cell, drain }) })
    }

    /// What the cast is doing.
    #[must_use]
    pub fn status(&self) -> Status {
        self.shared.status()
    }

    /// Resolves whenever the status changes, to the new one.
    pub async fn status_changed(&mut self) -> Status {
        if self.status.changed().await.is_err() {
            // The sender lives in `shared`, which this handle holds.
            std::future::pending::<()>().await;
        }
        self.status.borrow_and_update().clone()
    }

    /// Waits until the model is loaded.
    ///
    /// # Errors
    /// The status that rules it out: failed or draining.
    pub async fn wait_ready(&self) -> Result<Arc<Model>, Status> {
        // An own receiver, so that `status_changed` misses nothing.
        let mut status = self.status.clone();
        let settled = status.wait_for(|status| !matches!(status, Status::Loading(_) | Status::Recovering)).await;
        let settled = settled.map_or(Status::Draining, |status| status.clone());
        match (settled, self.model()) {
            (Status::Ready, Some(model)) => Ok(model),
            (status, _) => Err(status),
        }
    }

    /// The model, once loaded.
    #[must_use]
    pub fn model(&self) -> Option<Arc<Model>> {
        self.shared.model.borrow().clone()
    }

    /// Counts for gauges, as of the last event.
    #[must_use]
    pub fn snapshot(&self) -> Counts {
        self.shared.counts()
    }

    /// Takes room for the sequences that a call will submit, before its body is looked at.
    ///
    /// # Errors
    /// [`SubmitError::Unavailable`] when no model is ready, [`SubmitError::Overloaded`] when the house is full.
    pub fn try_permit(&self, sequences: usize) -> Result<Permit, SubmitError> {
        let permit = self.available().and_then(|()| Admission::take(&self.shared.admission, sequences));
        let permit = permit.inspect_err(|error| metrics::rejected(&self.shared.model_id, error));
        permit.inspect(|_| metrics::permitted(&self.shared.model_id, sequences))
    }

    fn available(&self) -> Result<(), SubmitError> {
        let (reason, seconds) = match self.status() {
            Status::Ready | Status::Recovering => return Ok(()),
            Status::Loading(_) => ("the model is still loading".to_owned(), 2),
            Status::Draining => ("the server is shutting down".to_owned(), 5),
            Status::Failed(reason) => (reason, 30),
        };
        Err(SubmitError::Unavailable { reason, retry_after: Duration::from_secs(seconds) })
    }

    /// Submits one sequence within a permit.
    ///
    /// # Errors
    /// [`SubmitError`] when it cannot run, whatever the load.
    pub async fn submit(&self, permit: &Permit, request: GenerationRequest) -> Result<Generation, SubmitError> {
        let submitted = self.try_submit(permit, request).await;
        submitted.inspect_err(|error| metrics::rejected(&self.shared.model_id, error))
    }

    async fn try_submit(&self, permit: &Permit, request: GenerationRequest) -> Result<Generation, SubmitError> {
        let scheduler = self.shared.scheduler().ok_or_else(no_scheduler)?;
        let id = RequestId(self.shared.next_request.fetch_add(1, Ordering::Relaxed));
        let (sink, stream) = channel(self.shared.client_buffer_events);
        let sink = sink.on_behalf_of(Call::current());
        let (reply, answer) = oneshot::channel();
        let request = Box::new(request);
        scheduler
            .cast(SchedulerMsg::Submit { id, request, sink, submitted: Instant::now(), reply })
            .map_err(|_| no_scheduler())?;
        // From here on whoever drops this future cancels the request.
        let mut generation = Generation { id, stream, scheduler, open: true, _permit: permit.0.clone() };
        let answer = answer.await.unwrap_or_else(|_| Err(no_scheduler()));
        generation.open = answer.is_ok();
        answer.map(|()| generation)
    }

    /// Takes no more requests, lets running ones finish for up to `drain`, then stops the cast.
    pub async fn shutdown(&self, drain: Duration) {
        (self.cast.drain)(drain);
        // Without a limit the only error is that it has stopped already.
        let _ = self.cast.cell.wait(None).await;
    }
}

fn no_scheduler() -> SubmitError {
    let reason = "the server is restarting after a fault".to_owned();
    SubmitError::Unavailable { reason, retry_after: Duration::from_secs(1) }
}

/// A generation's events; dropping it cancels the request.
pub struct Generation {
    /// The request.
    pub id: RequestId,
    stream: ClientStream,
    scheduler: ActorRef<SchedulerMsg>,
    /// Whether there is something to cancel.
    open: bool,
    /// The request stays in the house as long as somebody waits for it.
    _permit: Arc<Room>,
}

impl Generation {
    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.stream.next().await;
        self.open = !self.stream.is_ended();
        event
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if self.open {
            // A scheduler that is gone has nothing to cancel.
            let _ = self.scheduler.cast(SchedulerMsg::Cancel(self.id));
        }
    }
}

/// Room for some requests, taken before the call's body is tokenised. It is given back when the permit and all
/// generations submitted with it are dropped.
pub struct Permit(Arc<Room>);

/// Requests counted as in the house until dropped.
struct Room {
    admission: Arc<Admission>,
    requests: usize,
}

impl Drop for Room {
    fn drop(&mut self) {
        self.admission.give_back(self.requests);
    }
}

/// Bounds the requests in the house, and measures how fast they leave.
struct Admission {
    limit: usize,
    inside: AtomicUsize,
    /// When the last few requests left, oldest first.
    departures: Mutex<VecDeque<Instant>>,
}

impl Admission {
    /// Departures that the drain rate is measured over.
    const DEPARTURES: usize = 32;

    fn take(admission: &Arc<Self>, requests: usize) -> Result<Permit, SubmitError> {
        let most = admission.limit;
        if requests > most {
            return Err(SubmitError::TooManySequences { asked: requests, most });
        }
        let fits = |inside: usize| inside.checked_add(requests).filter(|&inside| inside <= admission.limit);
        match admission.inside.fetch_update(Ordering::AcqRel, Ordering::Acquire, fits) {
            Ok(_) => Ok(Permit(Arc::new(Room { admission: admission.clone(), requests }))),
            Err(waiting) => Err(SubmitError::Overloaded { waiting, retry_after: admission.retry_after(requests) }),
        }
    }

    fn give_back(&self, requests: usize) {
        self.inside.fetch_sub(requests, Ordering::AcqRel);
        let now = Instant::now();
        let mut departures = self.departures.lock().unwrap_or_else(PoisonError::into_inner);
        for _ in 0..requests.min(Self::DEPARTURES) {
            departures.push_back(now);
        }
        let excess = departures.len().saturating_sub(Self::DEPARTURES);
        departures.drain(..excess);
    }

    /// When `requests` more will have left, at the rate of the last departures.
    fn retry_after(&self, requests: usize) -> Duration {
        let departures = self.departures.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(&first) = departures.front() else { return Duration::from_secs(1) };
        let each = first.elapsed() / u32::try_from(departures.len()).unwrap_or(1);
        let all = each.saturating_mul(u32::try_from(requests).unwrap_or(u32::MAX));
        all.clamp(Duration::from_millis(100), Duration::from_secs(60))
    }
}

/// What handles, supervisor and scheduler see of each other.
pub struct Shared {
    /// The name of the model, for metrics.
    pub(crate) model_id: Arc<str>,
    /// Hears what happens when.
    pub(crate) tracer: Tracer,
    status: watch::Sender<Status>,
    model: watch::Sender<Option<Arc<Model>>>,
    scheduler: watch::Sender<Option<ActorRef<SchedulerMsg>>>,
    counts: Mutex<Counts>,
    admission: Arc<Admission>,
    next_request: AtomicU64,
    client_buffer_events: usize,
}

impl Shared {
    fn new(options: &RuntimeOptions) -> Self {
        let admission = Admission {
            limit: options.max_requests,
            inside: AtomicUsize::new(0),
            departures: Mutex::new(VecDeque::new()),
        };
        let status = Status::Loading(LoadProgress { done_bytes: 0, total_bytes: 0 });
        metrics::state(&options.model_id, &status);
        options.tracer.status(&status);
        Shared {
            model_id: options.model_id.clone(),
            tracer: options.tracer.clone(),
            status: watch::Sender::new(status),
            model: watch::Sender::new(None),
            scheduler: watch::Sender::new(None),
            counts: Mutex::new(Counts::default()),
            admission: Arc::new(admission),
            next_request: AtomicU64::new(1),
            client_buffer_events: options.client_buffer_events,
        }
    }

    pub(crate) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    pub(crate) fn set_status(&self, status: Status) {
        let before = self.status.send_replace(status.clone());
        if before.word() != status.word() {
            metrics::state(&self.model_id, &status);
            self.tracer.status(&status);
        }
    }

    pub(crate) fn set_model(&self, model: Arc<Model>) {
        self.model.send_replace(Some(model));
    }

    fn scheduler(&self) -> Option<ActorRef<SchedulerMsg>> {
        self.scheduler.borrow().clone()
    }

    pub(crate) fn set_scheduler(&self, scheduler: Option<ActorRef<SchedulerMsg>>) {
        self.scheduler.send_replace(scheduler);
    }

    fn counts(&self) -> Counts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_counts(&self, counts: Counts) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::request::{GenerationError, SamplingParams, StopConditions};
    use crate::simulation::{SimulatedModel, tokenizer};

    fn request() -> GenerationRequest {
        GenerationRequest {
            prompt: vec![100],
            sampling: SamplingParams::default(),
            stop: StopConditions { max_tokens: 300, ignore_eos: true, ..Default::default() },
            skip_special_tokens: true,
            ..GenerationRequest::default()
        }
    }

    async fn last_event(mut generation: Generation) -> Event {
        let mut last = None;
        while let Some(event) = generation.next().await {
            last = Some(event);
        }
        last.unwrap()
    }

    /// Kills each child of the supervisor in turn: whoever dies, the house is soon open again.
    #[tokio::test(start_paused = true)]
    async fn whichever_actor_dies_the_server_comes_back() {
        let model = SimulatedModel { step_time: Duration::from_millis(5), ..SimulatedModel::new(tokenizer()) };
        let mut runtime = Runtime::start(model, RuntimeOptions::default()).await.unwrap();
        runtime.wait_ready().await.ok().unwrap();
        let children = runtime.cast.cell.get_children().len();
        assert_eq!(children, 5);
        for index in 0..children {
            let permit = runtime.try_permit(1).unwrap();
            let mut running = runtime.submit(&permit, request()).await.unwrap();
            running.next().await.unwrap();
            let mut cells = runtime.cast.cell.get_children();
            cells.sort_by_key(ActorCell::get_id);
            cells[index].kill();
            match last_event(running).await {
                // The loader and the executor hold nothing that a client waits for.
                Event::Finished { .. } => {}
                Event::Failed(error) => assert!(matches!(error, GenerationError::Engine(_))),
                event => panic!("{event:?} is no end"),
            }
            while runtime.status() != Status::Ready {
                runtime.status_changed().await;
            }
            let again = runtime.submit(&permit, request()).await.unwrap();
            assert!(matches!(last_event(again).await, Event::Finished { .. }), "after actor {index} died");
            assert_eq!(runtime.snapshot().blocks_used, 0);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_drain_rate_decides_when_to_come_again() {
        let admission = Admission { limit: 1, inside: AtomicUsize::new(0), departures: Mutex::default() };
        let admission = Arc::new(admission);
        for _ in 0..10 {
            let permit = Admission::take(&admission, 1).unwrap();
            tokio::time::sleep(Duration::from_secs(3)).await;
            drop(permit);
        }
        let _permit = Admission::take(&admission, 1).unwrap();
        let Err(SubmitError::Overloaded { waiting, retry_after }) = Admission::take(&admission, 1) else { panic!() };
        assert_eq!(waiting, 1);
        assert!((Duration::from_secs(2)..Duration::from_secs(4)).contains(&retry_after), "{retry_after:?}");
    }
}
