//! The entry point to the pipelines of a model: start them, submit requests, read the status, stop them.
//!
//! - this file: [`Runtime`], the handle that all callers hold
//! - [`admission`]: limits the requests in flight
//! - [`replica`], [`replica_state`]: one copy of the model with its actors
//! - [`replica_set`]: the state of all replicas together
//! - [`router`]: chooses the replica of a request, as a pure function
//!
//! A model has one replica or several. Each replica has its own copy of the model, scheduler and KV cache, and no replica
//! depends on another. Only this folder handles more than one replica.

mod admission;
mod replica;
mod replica_set;
mod replica_state;
pub mod router;

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use ractor::ActorCell;
use tokio::sync::watch;

pub use self::admission::Permit;
use self::admission::{AdmissionControl, AdmissionSlots};
use self::replica::Replica;
pub use self::replica::StartError;
use self::replica_set::{ReplicaSet, Ticket};
pub use self::replica_state::ReplicaState;
use super::client::{ClientStream, channel};
use super::journal::{RequestRecord, no_scheduler};
use super::media::{EncoderOptions, ModelMedia};
use super::messages::SchedulerMsg;
use super::model_source::ModelSource;
pub use super::options::RuntimeOptions;
use super::policy::PolicyEvent;
pub use super::served_model::{ContentForm, OutputRules, ServedModel};
use crate::core::counts::Counts;
use crate::core::request::{Event, GenerationRequest, RequestId, SubmitError};
use crate::core::request_context::RequestContext;
pub use crate::core::shared_limit::Client;
pub use crate::core::status::Status;
use crate::metrics;

/// A cheap handle on the replicas of a model. Their actors stop at once when the last handle is dropped.
#[derive(Clone)]
pub struct Runtime {
    replica_set: Arc<ReplicaSet>,
    status: watch::Receiver<Status>,
    replicas: Arc<[Replica]>,
}

impl Runtime {
    /// Starts one replica, which begins to load the model. [`Self::status`] reports the progress.
    ///
    /// # Errors
    /// [`StartError`] when an actor cannot be started. A model that cannot be loaded is reported as a [`Status`].
    pub async fn start<S: ModelSource>(source: S, options: RuntimeOptions) -> Result<Runtime, StartError> {
        Self::start_replicas(vec![source], options).await
    }

    /// Starts one replica for each source. All sources must load the same model.
    ///
    /// # Errors
    /// [`StartError`] when an actor cannot be started.
    pub async fn start_replicas<S: ModelSource>(
        sources: Vec<S>,
        options: RuntimeOptions,
    ) -> Result<Runtime, StartError> {
        let media = images_of(&sources, &options);
        let replica_set = Arc::new(ReplicaSet::new(sources.len(), &options, media));
        let mut replicas = Vec::with_capacity(sources.len());
        for (index, source) in sources.into_iter().enumerate() {
            replicas.push(Replica::start(index, source, options.clone(), &replica_set).await?);
        }
        Ok(Runtime { status: replica_set.subscribe(), replica_set, replicas: replicas.into() })
    }

    /// The status of the model.
    #[must_use]
    pub fn status(&self) -> Status {
        self.replica_set.status()
    }

    /// Waits for the next change of the status and returns the new one.
    pub async fn status_changed(&mut self) -> Status {
        if self.status.changed().await.is_err() {
            // Unreachable: the sender is in `replica_set`, which this handle holds.
            std::future::pending::<()>().await;
        }
        self.status.borrow_and_update().clone()
    }

    /// Waits until the model is loaded.
    ///
    /// # Errors
    /// The status when the model will not become ready: failed or draining.
    pub async fn wait_ready(&self) -> Result<Arc<ServedModel>, Status> {
        // A separate receiver, so that `status_changed` still sees every change.
        let mut status = self.status.clone();
        let settled = status.wait_for(|status| !matches!(status, Status::Loading(_) | Status::Recovering)).await;
        let settled = settled.map_or(Status::Draining, |status| status.clone());
        match (settled, self.model()) {
            (Status::Ready, Some(model)) => Ok(model),
            (status, _) => Err(status),
        }
    }

    /// The model, once it is loaded. For several replicas, their combined memory and limits.
    #[must_use]
    pub fn model(&self) -> Option<Arc<ServedModel>> {
        self.replica_set.model()
    }

    /// The scheduler counts after the last event, summed over the replicas.
    #[must_use]
    pub fn snapshot(&self) -> Counts {
        self.replicas.iter().map(|replica| replica.state.counts()).fold(Counts::default(), Counts::plus)
    }

    /// The scheduler counts of each replica.
    #[must_use]
    pub fn snapshots(&self) -> Vec<Counts> {
        self.replicas.iter().map(|replica| replica.state.counts()).collect()
    }

    /// As [`Self::try_permit_for`], for a caller that is no particular client.
    ///
    /// # Errors
    /// As [`Self::try_permit_for`].
    pub fn try_permit(&self, sequences: usize) -> Result<Permit, SubmitError> {
        self.try_permit_for(None, sequences)
    }

    /// Reserves slots for the sequences that a call of a client will submit, before its texts are tokenized.
    ///
    /// # Errors
    /// [`SubmitError::Unavailable`] when no model is ready, [`SubmitError::TooManySequences`] when the call exceeds the
    /// limit by itself, [`SubmitError::Overloaded`] when too many requests are in flight.
    pub fn try_permit_for(&self, client: Client, sequences: usize) -> Result<Permit, SubmitError> {
        let admission = &self.replica_set.admission;
        let permit = self.available().and_then(|()| AdmissionControl::acquire(admission, client, sequences));
        let permit = permit.inspect_err(|error| metrics::rejected(&self.replica_set.model_id, error));
        permit.inspect(|_| metrics::permitted(&self.replica_set.model_id, sequences))
    }

    fn available(&self) -> Result<(), SubmitError> {
        let (reason, seconds) = match self.status() {
            Status::Ready | Status::Recovering => return Ok(()),
            Status::Loading(_) => ("the model is still loading".to_owned(), 2),
            Status::Draining => ("the server is shutting down".to_owned(), 5),
            Status::Failed(reason) | Status::FileChanged(reason) => (reason, 30),
        };
        Err(SubmitError::Unavailable { reason, retry_after: Duration::from_secs(seconds) })
    }

    /// Counts a request that was refused before it was submitted.
    pub(crate) fn count_rejection(&self, error: &SubmitError) {
        metrics::rejected(&self.replica_set.model_id, error);
    }

    /// Submits one sequence within a permit.
    ///
    /// # Errors
    /// [`SubmitError`] when the request is invalid, does not fit, or no replica accepts it.
    pub async fn submit(&self, permit: &Permit, request: GenerationRequest) -> Result<Generation, SubmitError> {
        let submitted = self.try_submit(permit, request).await;
        submitted.inspect_err(|error| metrics::rejected(&self.replica_set.model_id, error))
    }

    /// Submits to the replica that the router chooses, and to the next one when its queue is full or it has no scheduler.
    async fn try_submit(&self, permit: &Permit, request: GenerationRequest) -> Result<Generation, SubmitError> {
        let prefix = self.replica_set.prefix_of(&request);
        let mut request = Some(request);
        let mut refused = Vec::new();
        let mut refusal = None;
        while let Some(ticket) = ReplicaSet::route(&self.replica_set, &prefix, &refused) {
            refused.push(ticket.replica());
            let is_last = refused.len() == self.replicas.len();
            let Some(this) = (if is_last { request.take() } else { request.clone() }) else { break };
            match self.submit_to(ticket, permit, this).await {
                Err(error @ (SubmitError::QueueFull { .. } | SubmitError::Unavailable { .. })) => {
                    // The error of the router's first choice has the best estimate of when to retry.
                    refusal.get_or_insert(error);
                }
                result => return result,
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
        let replica = self.replicas[ticket.replica()].state.clone();
        let id = self.replica_set.next_request();
        let (sink, stream) = channel(self.replica_set.client_buffer_events);
        let sink = sink.with_context(RequestContext::current());
        let record = Arc::new(RequestRecord::new(id, request, sink));
        let decision = replica.journal().submit(&record).ok_or_else(no_scheduler)?;
        // While the scheduler is being replaced, the request waits in the journal for the next one.
        replica.send_to_scheduler(SchedulerMsg::Submit(id));
        // From here on, dropping this future cancels the request.
        let mut generation = Generation { id, stream, record, replica, open: true, ticket, _permit: permit.0.clone() };
        let decision = decision.await.unwrap_or_else(|_| Err(no_scheduler()));
        generation.open = decision.is_ok();
        decision.map(|()| generation)
    }

    /// The running actors of all replicas, for tests that kill them.
    #[must_use]
    pub fn actors(&self) -> Vec<ActorCell> {
        self.replicas.iter().flat_map(|replica| replica.supervisor.get_children()).collect()
    }

    /// Accepts no more requests, lets running ones finish for at most `drain`, then stops the actors.
    pub async fn shutdown(&self, drain: Duration) {
        join_all(self.replicas.iter().map(|replica| replica.shutdown(drain))).await;
        if let Some(media) = &self.replica_set.media {
            media.stop();
        }
    }
}

/// The media of a model that takes them: one encoder for all replicas.
fn images_of<S: ModelSource>(sources: &[S], options: &RuntimeOptions) -> Option<Arc<ModelMedia>> {
    let source = sources.first()?;
    let model = source.media_model()?;
    Some(ModelMedia::start(model, EncoderOptions::of_runtime(options, source.host())))
}

/// The events of a request. Dropping it cancels the request.
pub struct Generation {
    /// The request.
    pub id: RequestId,
    stream: ClientStream,
    record: Arc<RequestRecord>,
    replica: Arc<ReplicaState>,
    /// Whether the request has not ended.
    open: bool,
    /// Counts the request in the load of its replica.
    ticket: Ticket,
    /// Keeps the slots of the call until this is dropped.
    _permit: Arc<AdmissionSlots>,
}

impl Generation {
    /// The next event. `None` after the last one.
    pub async fn next(&mut self) -> Option<Event> {
        let event = self.stream.next().await;
        self.open = !self.stream.is_ended();
        if event.as_ref().is_some_and(|event| !matches!(event, Event::Progress(_))) {
            self.ticket.prompt_computed();
        }
        event
    }
}

impl Drop for Generation {
    fn drop(&mut self) {
        if self.open {
            // First in the record, for a scheduler that is being started and would continue the request.
            self.record.cancel();
            self.replica.send_to_scheduler(PolicyEvent::Cancel(self.id).into());
        }
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering;
    use std::thread;

    use cuelight_engine::engine::Step;
    use cuelight_engine::load::{LoadCancel, LoadProgress, LoadedModel};

    use super::*;
    use crate::core::request::{SamplingParams, StopConditions};
    use crate::pipeline::model_source::{EngineHost, SourceError};
    use crate::pipeline::simulation::{Fault, SimulatedEngine, SimulatedModel, tokenizer};
    use crate::pipeline::supervisor::RestartPolicy;

    fn request() -> GenerationRequest {
        GenerationRequest {
            prompt: vec![100],
            sampling: SamplingParams::default(),
            stop: StopConditions { max_tokens: 300, ignore_eos: true, ..Default::default() },
            skip_special_tokens: true,
            ..GenerationRequest::default()
        }
    }

    /// The number of tokens, and the last event.
    async fn read(mut generation: Generation) -> (usize, Event) {
        let mut tokens = 0;
        loop {
            match generation.next().await.unwrap() {
                Event::Token { .. } => tokens += 1,
                Event::Block { tokens: block } => tokens += block.len(),
                Event::Progress(_) | Event::Prompt { .. } | Event::Embedded { .. } => {}
                last => return (tokens, last),
            }
        }
    }

    /// Kills each child of the supervisor, one after the other. A request that runs and one afterwards get all tokens.
    #[tokio::test(start_paused = true)]
    async fn the_pipeline_recovers_from_the_death_of_any_actor() {
        let model = SimulatedModel { step_time: Duration::from_millis(5), ..SimulatedModel::new(tokenizer()) };
        let mut runtime = Runtime::start(model, RuntimeOptions::default()).await.unwrap();
        runtime.wait_ready().await.ok().unwrap();
        let children = runtime.replicas[0].supervisor.get_children().len();
        assert_eq!(children, 5);
        for index in 0..children {
            let permit = runtime.try_permit(1).unwrap();
            let mut running = runtime.submit(&permit, request()).await.unwrap();
            running.next().await.unwrap();
            let mut cells = runtime.replicas[0].supervisor.get_children();
            cells.sort_by_key(ActorCell::get_id);
            cells[index].kill();
            let (tokens, last) = read(running).await;
            assert!(
                tokens == 299 && matches!(last, Event::Finished { .. }),
                "actor {index}: {tokens} tokens, {last:?}"
            );
            while runtime.status() != Status::Ready {
                runtime.status_changed().await;
            }
            let again = runtime.submit(&permit, request()).await.unwrap();
            assert!(matches!(read(again).await, (300, Event::Finished { .. })), "after the death of actor {index}");
            assert_eq!(runtime.snapshot().blocks_used, 0);
        }
    }

    /// A model whose device is lost in its fourth step, and which cannot be loaded again. To find that out takes half of the window
    /// in which restarts are counted.
    struct LoadsOnce(SimulatedModel);

    impl LoadsOnce {
        const WINDOW: Duration = Duration::from_millis(200);

        fn new() -> Self {
            let faults = |number: u64, _: &Step| (number == 3).then_some(Fault::DeviceLost);
            LoadsOnce(SimulatedModel { faults: Some(Arc::new(faults)), ..SimulatedModel::new(tokenizer()) })
        }
    }

    impl ModelSource for LoadsOnce {
        type Engine = SimulatedEngine;

        fn load(
            &self,
            cancel: &LoadCancel,
            progress: &mut dyn FnMut(LoadProgress),
        ) -> Result<LoadedModel<SimulatedEngine>, SourceError> {
            if self.0.counters.loads.load(Ordering::Relaxed) > 0 {
                thread::sleep(Self::WINDOW / 2);
                return Err("the file is gone".to_owned().into());
            }
            ModelSource::load(&self.0, cancel, progress)
        }

        fn host(&self) -> EngineHost {
            self.0.host
        }
    }

    #[tokio::test]
    async fn a_model_that_cannot_be_loaded_again_is_given_up_however_long_its_loads_take() {
        let restarts = RestartPolicy { max_restarts: 4, window: LoadsOnce::WINDOW, ..RestartPolicy::default() };
        let options = RuntimeOptions { restarts, ..RuntimeOptions::default() };
        let runtime = Runtime::start(LoadsOnce::new(), options).await.unwrap();
        runtime.wait_ready().await.ok().unwrap();
        let permit = runtime.try_permit(1).unwrap();
        let running = runtime.submit(&permit, request()).await.unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(20), read(running)).await;
        assert!(matches!(ended, Ok((3, Event::Failed(_)))), "{ended:?}");
        assert!(matches!(runtime.status(), Status::Failed(_)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_reaches_a_new_scheduler_before_it_recovers_is_taken_once() {
        let model = SimulatedModel { step_time: Duration::from_millis(5), ..SimulatedModel::new(tokenizer()) };
        let runtime = Runtime::start(model, RuntimeOptions::default()).await.unwrap();
        runtime.wait_ready().await.ok().unwrap();
        let permit = runtime.try_permit(1).unwrap();
        let mut running = runtime.submit(&permit, request()).await.unwrap();
        // The scheduler has taken the request from its mailbox and finds it in the journal, too.
        runtime.replicas[0].state.send_to_scheduler(SchedulerMsg::Recover);
        running.next().await.unwrap();
        assert_eq!((runtime.snapshot().running, runtime.snapshot().waiting), (1, 0));
        assert!(matches!(read(running).await, (299, Event::Finished { .. })));
        assert_eq!((runtime.snapshot().running, runtime.snapshot().blocks_used), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_prompt_counts_in_the_load_of_its_replica_until_all_of_it_is_computed() {
        let step_time = Duration::from_millis(5);
        let mut model = SimulatedModel { step_time, ..SimulatedModel::new(tokenizer()) };
        (model.limits.context_tokens, model.limits.kv_blocks) = (4096, 512);
        let runtime = Runtime::start_replicas(vec![model.clone(), model], RuntimeOptions::default()).await.unwrap();
        runtime.wait_ready().await.ok().unwrap();
        let permit = runtime.try_permit(3).unwrap();
        let long = GenerationRequest { prompt: vec![97; 3000], reports_progress: true, ..request() };
        let mut long = runtime.submit(&permit, long).await.unwrap();
        let first = long.next().await.unwrap();
        assert!(matches!(&first, Event::Progress(progress) if progress.done_tokens < 3000), "{first:?}");
        let of = |token| GenerationRequest { prompt: vec![token], ..request() };
        let second = runtime.submit(&permit, of(98)).await.unwrap();
        let third = runtime.submit(&permit, of(99)).await.unwrap();
        let replicas = [&long, &second, &third].map(|generation| generation.ticket.replica());
        assert_eq!(replicas, [0, 1, 1], "the long prompt is not computed yet");
    }
}
