//! The front door to a model's cast: start it, submit to it, watch it, stop it.
//!
//! - this file: [`Runtime`], the handle that everybody else holds
//! - [`admission`]: who may come in
//! - [`replica`]: one copy of the model and its cast, as seen from here
//! - [`front`]: what the copies have in common, and what they are as one
//! - [`router`]: which of them takes a request, as a pure decision
//!
//! A model has one cast, or several that know nothing of each other: each with its own copy of the model, scheduler and KV
//! cache. That there are several is known in this folder only.

mod admission;
mod front;
mod replica;
pub mod router;

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::EngineLimits;
use cuelight_engine::format::chat_template::ChatTemplate;
use cuelight_engine::format::tokenizer::Tokenizer;
use cuelight_engine::load::{LoadProgress, MemoryPlan, ModelCard};
use futures_util::future::join_all;
use ractor::ActorRef;
use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

pub use self::admission::Permit;
use self::admission::{Admission, Room};
use self::front::{Front, Ticket};
use self::replica::Replica;
pub use self::replica::Shared;
use crate::client::{ClientStream, channel};
use crate::executor::OverlapMode;
use crate::loader::ModelSource;
use crate::metrics;
use crate::policy::{Counts, PolicyConfig};
use crate::request::{Event, GenerationRequest, RequestId, SubmitError};
use crate::scheduler::SchedulerMsg;
use crate::supervisor::RestartPolicy;
use crate::trace::Tracer;
use crate::trace::call::Call;

/// Limits and times of a runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeOptions {
    /// The name of the model: a label of every metric.
    pub model_id: Arc<str>,
    /// Most requests in the house, running and waiting, of all replicas together.
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

/// A cheap handle on the running cast, or casts. They stop at once when the last handle is dropped.
#[derive(Clone)]
pub struct Runtime {
    front: Arc<Front>,
    status: watch::Receiver<Status>,
    replicas: Arc<[Replica]>,
}

impl Runtime {
    /// Starts the cast and begins to load the model; [`Self::status`] tells how far it is.
    ///
    /// # Errors
    /// [`StartError`] when no actor can be started; a model that cannot be loaded is a [`Status`].
    pub async fn start<S: ModelSource>(source: S, options: RuntimeOptions) -> Result<Runtime, StartError> {
        Self::start_replicas(vec![source], options).await
    }

    /// The same with a cast for each of the sources, which are those of one model.
    ///
    /// # Errors
    /// [`StartError`].
    pub async fn start_replicas<S: ModelSource>(
        sources: Vec<S>,
        options: RuntimeOptions,
    ) -> Result<Runtime, StartError> {
        let front = Arc::new(Front::new(sources.len(), &options));
        let mut replicas = Vec::with_capacity(sources.len());
        for (index, source) in sources.into_iter().enumerate() {
            replicas.push(Replica::start(index, source, options.clone(), &front).await?);
        }
        Ok(Runtime { status: front.subscribe(), front, replicas: replicas.into() })
    }

    /// What the cast is doing.
    #[must_use]
    pub fn status(&self) -> Status {
        self.front.status()
    }

    /// Resolves whenever the status changes, to the new one.
    pub async fn status_changed(&mut self) -> Status {
        if self.status.changed().await.is_err() {
            // The sender lives in `front`, which this handle holds.
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

    /// The model, once loaded. Of several replicas: what they take and can together.
    #[must_use]
    pub fn model(&self) -> Option<Arc<Model>> {
        self.front.model()
    }

    /// Counts for gauges, as of the last event, summed over the replicas.
    #[must_use]
    pub fn snapshot(&self) -> Counts {
        self.replicas.iter().map(|replica| replica.shared.counts()).fold(Counts::default(), Counts::plus)
    }

    /// The same of each replica.
    #[must_use]
    pub fn snapshots(&self) -> Vec<Counts> {
        self.replicas.iter().map(|replica| replica.shared.counts()).collect()
    }

    /// Takes room for the sequences that a call will submit, before its body is looked at.
    ///
    /// # Errors
    /// [`SubmitError::Unavailable`] when no model is ready, [`SubmitError::Overloaded`] when the house is full.
    pub fn try_permit(&self, sequences: usize) -> Result<Permit, SubmitError> {
        let permit = self.available().and_then(|()| Admission::take(&self.front.admission, sequences));
        let permit = permit.inspect_err(|error| metrics::rejected(&self.front.model_id, error));
        permit.inspect(|_| metrics::permitted(&self.front.model_id, sequences))
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
        submitted.inspect_err(|error| metrics::rejected(&self.front.model_id, error))
    }

    /// Submits it to the replica that the router names, and to another when that one has no room or no scheduler.
    async fn try_submit(&self, permit: &Permit, request: GenerationRequest) -> Result<Generation, SubmitError> {
        let prefix = self.front.prefix_of(&request);
        let mut request = Some(request);
        let mut refused = Vec::new();
        let mut refusal = None;
        while let Some(ticket) = Front::route(&self.front, &prefix, &refused) {
            refused.push(ticket.replica());
            let is_last = refused.len() == self.replicas.len();
            let Some(this) = (if is_last { request.take() } else { request.clone() }) else { break };
            match self.submit_to(ticket, permit, this).await {
                Err(error @ (SubmitError::QueueFull { .. } | SubmitError::Unavailable { .. })) => {
                    // The router's first choice knows best when to come again.
                    refusal.get_or_insert(error);
                }
                answer => return answer,
            }
        }
        self.available()?;
        Err(refusal.unwrap_or_else(no_scheduler))
    }

    async fn submit_to(
        &self,
        ticket: Ticket,
        permit: &Permit,
        request: GenerationRequest,
    ) -> Result<Generation, SubmitError> {
        let scheduler = self.replicas[ticket.replica()].shared.scheduler().ok_or_else(no_scheduler)?;
        let id = self.front.next_request();
        let (sink, stream) = channel(self.front.client_buffer_events);
        let sink = sink.on_behalf_of(Call::current());
        let (reply, answer) = oneshot::channel();
        let request = Box::new(request);
        scheduler
            .cast(SchedulerMsg::Submit { id, request, sink, submitted: Instant::now(), reply })
            .map_err(|_| no_scheduler())?;
        // From here on whoever drops this future cancels the request.
        let mut generation = Generation { id, stream, scheduler, open: true, ticket, _permit: permit.0.clone() };
        let answer = answer.await.unwrap_or_else(|_| Err(no_scheduler()));
        generation.open = answer.is_ok();
        answer.map(|()| generation)
    }

    /// Takes no more requests, lets running ones finish for up to `drain`, then stops the cast.
    pub async fn shutdown(&self, drain: Duration) {
        join_all(self.replicas.iter().map(|replica| replica.shutdown(drain))).await;
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
    /// Its share of the load of its replica.
    ticket: Ticket,
    /// The request stays in the house as long as somebody waits for it.
    _permit: Arc<Room>,
}

impl Generation {
    /// The next event; `None` after the last.
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.stream.next().await;
        self.open = !self.stream.is_ended();
        if event.is_some() {
            self.ticket.prompt_computed();
        }
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

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use ractor::ActorCell;

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
        let children = runtime.replicas[0].cell.get_children().len();
        assert_eq!(children, 5);
        for index in 0..children {
            let permit = runtime.try_permit(1).unwrap();
            let mut running = runtime.submit(&permit, request()).await.unwrap();
            running.next().await.unwrap();
            let mut cells = runtime.replicas[0].cell.get_children();
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
}
