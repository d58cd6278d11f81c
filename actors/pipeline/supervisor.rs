//! The Supervisor actor owns the actor tree of one replica, restarts actors that die, and reports the replica's status.
//!
//! ```text
//! Supervisor
//! ├─ Loader      loads the model, at startup and after a fault
//! ├─ Sampler     logits to tokens to clients
//! ├─ Scheduler   what runs next; the KV blocks
//! ├─ Experts     experts on the host
//! ├─ Drafter     the draft model, if there is one
//! └─ Executor    the device
//! ```
//!
//! Receives `LoadProgress` and `Loaded` from the loader, `FileChanged` from the watch of the model's file, `DrafterReady` from the
//! drafter, `Drain` from the runtime, the death of children from ractor, and the ends of its own pauses (`Reload`, `Reconnect`,
//! `RestartDrafter`, `Stop`). Sends `Load` to the loader, `Recover`, `ExecutorReady`, `ExecutorLost`, `DrafterReady`, `Drain` and
//! `EndAll` to the scheduler, and `Connect` to the executor.
//!
//! Faults:
//!
//! - The executor dies: the model is reloaded and its sequences are recomputed. Clients see a pause. If it waited for experts,
//!   the experts actor is replaced, because its thread may hang.
//! - The loader dies: it is restarted, and a load that was running starts again.
//! - The experts actor dies: it is restarted with the same weights and repeats the jobs without a reply.
//! - The drafter dies: it is restarted and loads the draft model again. Meanwhile, and after too many faults, steps have no
//!   drafts of it. Nothing else changes.
//! - The sampler or the scheduler dies: both are replaced, because they share the state of the requests. The executor keeps
//!   its engine. The new ones continue the requests of the [journal](super::journal). Clients see a pause.
//! - Faults come faster than [`RestartPolicy`] allows: the requests end and the status becomes [`Status::Failed`]. The
//!   owner of the runtime decides what follows.
//! - The model's file changes: another load would give another model, so the requests in flight fail and the status becomes
//!   [`Status::FileChanged`].

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cuelight_engine::engine::{CacheLayout, Engine as _, EngineLimits};
use cuelight_engine::load::{LoadProgress, LoadedModel, ModelFiles};
use cuelight_engine::memory::format_bytes;
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::drafter::{Drafter, DrafterArguments};
use super::executor::{Executor, ExecutorArguments};
use super::experts::{ExpertJobQueue, Experts, ExpertsArguments};
use super::file_watch::FileWatch;
use super::kv_store::{KvStore, ModelIdentity};
use super::loader::{Loader, LoaderArguments};
use super::messages::{DrafterMsg, ExecutorMsg, ExpertsMsg, LoaderMsg, SamplerMsg, SchedulerMsg, SupervisorMsg};
use super::model_source::{ModelSource, SourceError};
use super::options::RuntimeOptions;
use super::policy::{PolicyConfig, PolicyEvent};
use super::restart::RestartHistory;
pub use super::restart::RestartPolicy;
use super::runtime::ReplicaState;
use super::sampler::{Sampler, SamplerArguments};
use super::scheduler::{Scheduler, SchedulerArguments};
use crate::core::counts::Counts;
use crate::core::request::GenerationError;
use crate::core::status::Status;
use crate::metrics;
use crate::pipeline::served_model::ServedModel;

/// Startup arguments of the supervisor.
pub struct SupervisorArguments<S> {
    /// Loads the model.
    pub source: Arc<S>,
    /// Limits and timeouts.
    pub options: RuntimeOptions,
    /// The state that the runtime's handles read.
    pub replica: Arc<ReplicaState>,
}

/// The actors that know the requests. When one dies, both are replaced.
struct RequestActors {
    sampler: ActorRef<SamplerMsg>,
    scheduler: ActorRef<SchedulerMsg>,
}

/// The actor with the draft model.
struct DrafterChild {
    actor: ActorRef<DrafterMsg>,
    is_ready: bool,
}

/// The actors that exist once a model is loaded.
struct ActorTree {
    model: Arc<ServedModel>,
    /// `None` while they are being replaced.
    requests: Option<RequestActors>,
    experts: ActorRef<ExpertsMsg>,
    /// The queue of expert jobs. Jobs without a reply stay there when the experts actor is restarted.
    expert_jobs: ExpertJobQueue,
    /// Copies of KV blocks, which outlive the engine. `None` without lower tiers.
    kv_store: Option<KvStore>,
    /// The executor and the limits of its engine. `None` while it is being rebuilt.
    executor: Option<(ActorRef<ExecutorMsg>, EngineLimits)>,
    /// `None` without a draft model, and while it is being restarted.
    drafter: Option<DrafterChild>,
}

/// The state of the supervisor.
pub struct SupervisorState<S: ModelSource> {
    source: Arc<S>,
    options: RuntimeOptions,
    replica: Arc<ReplicaState>,
    loader: ActorRef<LoaderMsg>,
    actors: Option<ActorTree>,
    restarts: RestartHistory,
    /// Restarts of the drafter, which end with a model that runs without it.
    drafter_restarts: RestartHistory,
    /// Watches the files of the loaded model.
    file_watch: Option<FileWatch>,
    /// Whether a load is running or scheduled.
    loading: bool,
    stopping: bool,
}

/// The supervisor actor.
pub struct Supervisor<S>(std::marker::PhantomData<fn(S)>);

impl<S> Default for Supervisor<S> {
    fn default() -> Self {
        Supervisor(std::marker::PhantomData)
    }
}

type Me<S> = ActorRef<SupervisorMsg<<S as ModelSource>::Engine>>;

impl<S: ModelSource> Actor for Supervisor<S> {
    type Msg = SupervisorMsg<S::Engine>;
    type State = SupervisorState<S>;
    type Arguments = SupervisorArguments<S>;

    async fn pre_start(
        &self,
        me: Me<S>,
        arguments: SupervisorArguments<S>,
    ) -> Result<SupervisorState<S>, ActorProcessingErr> {
        let SupervisorArguments { source, options, replica } = arguments;
        let loader = spawn_loader(&source, &me).await?;
        loader.cast(LoaderMsg::Load)?;
        let (restarts, drafter_restarts) = Default::default();
        let (actors, file_watch, loading, stopping) = (None, None, true, false);
        Ok(SupervisorState {
            source,
            options,
            replica,
            loader,
            actors,
            restarts,
            drafter_restarts,
            file_watch,
            loading,
            stopping,
        })
    }

    async fn handle(
        &self,
        me: Me<S>,
        message: SupervisorMsg<S::Engine>,
        state: &mut SupervisorState<S>,
    ) -> Result<(), ActorProcessingErr> {
        let result = match message {
            SupervisorMsg::Loaded(Ok(model)) => state.loaded(&me, *model).await,
            SupervisorMsg::Reconnect => state.reconnect(&me).await,
            SupervisorMsg::RestartDrafter => {
                state.start_drafter(&me).await;
                Ok(())
            }
            message => {
                state.handle(&me, message).await;
                Ok(())
            }
        };
        state.give_up_after(result);
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        me: Me<S>,
        event: SupervisionEvent,
        state: &mut SupervisorState<S>,
    ) -> Result<(), ActorProcessingErr> {
        let result = match event {
            SupervisionEvent::ActorFailed(child, error) => state.child_died(&me, &child, &error.to_string()).await,
            SupervisionEvent::ActorTerminated(child, _, reason) => {
                let reason = reason.unwrap_or_else(|| "it stopped".into());
                state.child_died(&me, &child, &reason).await
            }
            _ => Ok(()),
        };
        state.give_up_after(result);
        Ok(())
    }
}

async fn spawn_loader<S: ModelSource>(source: &Arc<S>, me: &Me<S>) -> Result<ActorRef<LoaderMsg>, ActorProcessingErr> {
    let arguments = LoaderArguments { source: source.clone(), supervisor: me.clone() };
    let (loader, _) = Actor::spawn_linked(None, Loader::<S>::default(), arguments, me.get_cell()).await?;
    Ok(loader)
}

impl<S: ModelSource> SupervisorState<S> {
    /// Handles a message that starts no actor.
    async fn handle(&mut self, me: &Me<S>, message: SupervisorMsg<S::Engine>) {
        match message {
            SupervisorMsg::LoadProgress(progress) => self.load_progress(progress),
            SupervisorMsg::Loaded(Err(error)) => self.load_failed(me, error),
            SupervisorMsg::FileChanged(change) => self.give_up(Status::FileChanged(change.to_string())),
            SupervisorMsg::Reload if self.has_ended() || !self.loading => {}
            // A loader that died meanwhile is restarted, and told again, when its death is handled.
            SupervisorMsg::Reload => drop(self.loader.cast(LoaderMsg::Load)),
            SupervisorMsg::DrafterReady => self.drafter_ready(),
            SupervisorMsg::Drain(limit) => self.drain(me, limit),
            SupervisorMsg::Stop => self.stop(me).await,
            SupervisorMsg::Loaded(Ok(_)) | SupervisorMsg::Reconnect | SupervisorMsg::RestartDrafter => {}
        }
    }

    /// Without an actor that could not be started nothing runs. The supervisor stays alive to report that.
    fn give_up_after(&mut self, result: Result<(), ActorProcessingErr>) {
        if let Err(error) = result {
            tracing::error!(replica = self.replica.index, %error, "an actor could not be started");
            self.give_up(Status::Failed(format!("an actor could not be started: {error}")));
        }
    }

    fn load_progress(&mut self, progress: LoadProgress) {
        // Progress is shown only for the first load. Later loads keep the status `Recovering`.
        if self.loading && matches!(self.replica.status(), Status::Loading(_)) {
            self.set_status(Status::Loading(progress));
        }
    }

    /// Starts the actors for a loaded model, or only a new executor when the other actors run.
    async fn loaded(&mut self, me: &Me<S>, model: LoadedModel<S::Engine>) -> Result<(), ActorProcessingErr> {
        // A loader that died may have finished its load all the same.
        let is_second = !std::mem::replace(&mut self.loading, false);
        if is_second || self.has_ended() {
            return Ok(());
        }
        let LoadedModel { engine, experts, tokenizer, chat_template, card, memory, files, .. } = model;
        self.watch(me, &files);
        let limits = engine.limits().clone();
        metrics::replica_loaded(&self.options.model_id, self.replica.index, &card, &limits);
        if self.actors.is_none() {
            let model = ServedModel::new(card, memory, limits.clone(), tokenizer, chat_template);
            let model = model.with_adapters(self.source.adapters()).with_media(self.replica.media());
            let kv_store = self.start_kv_store((engine.cache_layout(), limits.context_tokens), &files);
            self.start_actors(me, Arc::new(model), kv_store).await?;
        }
        self.start_request_actors(me).await?;
        let Some(actors) = &mut self.actors else { return Ok(()) };
        let Some(requests) = &actors.requests else { return Ok(()) };
        actors.expert_jobs.set_experts(experts.map(|experts| Arc::new(Mutex::new(experts))));
        let arguments = ExecutorArguments {
            engine,
            model_id: self.options.model_id.clone(),
            host: self.source.host(),
            step_timeout: self.options.step_timeout,
            sampler: requests.sampler.clone(),
            scheduler: requests.scheduler.clone(),
            expert_jobs: actors.expert_jobs.clone(),
            kv_store: actors.kv_store.clone(),
            overlap: self.options.overlap,
            tracer: self.options.tracer.clone(),
        };
        let spawned = Actor::spawn_linked(None, Executor::<S::Engine>::default(), arguments, me.get_cell()).await;
        let executor = match spawned {
            Ok((executor, _)) => executor,
            Err(error) => {
                self.recover(me, "executor", &error.to_string());
                return Ok(());
            }
        };
        actors.executor = Some((executor.clone(), limits.clone()));
        // Fails only when the scheduler is gone. Its death is handled next.
        let _ = requests.scheduler.cast(SchedulerMsg::ExecutorReady { executor, limits: Box::new(limits) });
        self.set_status(Status::Ready);
        Ok(())
    }

    /// Starts the actors that live as long as the model.
    async fn start_actors(
        &mut self,
        me: &Me<S>,
        model: Arc<ServedModel>,
        kv_store: Option<KvStore>,
    ) -> Result<(), ActorProcessingErr> {
        let expert_jobs = ExpertJobQueue::default();
        let experts = self.spawn_experts(me, expert_jobs.clone()).await?;
        let (requests, executor, drafter) = (None, None, None);
        self.actors =
            Some(ActorTree { model: model.clone(), requests, experts, expert_jobs, kv_store, executor, drafter });
        self.replica.journal().open();
        self.replica.set_model(model);
        self.start_drafter(me).await;
        Ok(())
    }

    /// Starts the lower tiers of the KV cache, as far as the options ask for them and the model can have them. The model also runs
    /// without them.
    fn start_kv_store(
        &self,
        (layout, context_tokens): (Option<CacheLayout>, usize),
        files: &ModelFiles,
    ) -> Option<KvStore> {
        let mut options = self.options.kv_store.clone();
        if !options.is_used() {
            return None;
        }
        let model = &*self.options.model_id;
        let Some(layout) = layout else {
            tracing::warn!(model, "the KV cache has no lower tiers: its engine copies nothing");
            return None;
        };
        let (state_bytes, replicas) = (layout.bytes.state, self.replica.replicas());
        if options.is_too_small_for(state_bytes, replicas) {
            let needed = format_bytes(state_bytes as u64 * replicas as u64);
            tracing::warn!(model, needed, "the lower tiers of the KV cache are of no use: no recurrent state fits");
        }
        let identity = match files.is_empty() {
            false => Some(ModelIdentity::Files(files.clone())),
            true => self.source.content().map(ModelIdentity::Name),
        };
        if identity.is_none() && options.disk.take().is_some() {
            tracing::warn!(model, "the KV cache has no disk tier: the model has no files that identify its content");
        }
        if identity.is_none() && (options.shared.take().is_some() || !options.peers.allowed.is_empty()) {
            tracing::warn!(model, "no KV blocks are exchanged: the model has no files that identify its content");
            options.peers.allowed.clear();
        }
        let identity = identity.unwrap_or_else(|| ModelIdentity::Name(String::new()));
        let started = KvStore::start(&options, (layout, context_tokens), identity, (self.replica.index, replicas));
        started.map_err(|error| tracing::error!(model, %error, "the KV cache has no lower tiers")).ok()
    }

    /// Starts sampler and scheduler unless they run. They continue the requests of the journal.
    async fn start_request_actors(&mut self, me: &Me<S>) -> Result<(), ActorProcessingErr> {
        let Some(actors) = self.actors.as_mut().filter(|actors| actors.requests.is_none()) else { return Ok(()) };
        let arguments = SamplerArguments {
            tokenizer: actors.model.tokenizer.clone(),
            model_id: self.options.model_id.clone(),
            journal: self.replica.journal().clone(),
            tracer: self.options.tracer.clone(),
            vocab_size: actors.model.limits.vocab_size,
            hidden_width: actors.model.limits.hidden_width(),
            client_stall_timeout: self.options.client_stall_timeout,
        };
        let (sampler, _) = Actor::spawn_linked(None, Sampler, arguments, me.get_cell()).await?;
        let arguments = SchedulerArguments {
            policy: PolicyConfig { reports_cache: self.options.kv_events.is_on(), ..self.options.policy },
            limits: actors.model.limits.clone(),
            denoising: actors.model.card.denoising,
            sampler: sampler.clone(),
            replica: self.replica.clone(),
            kv_store: actors.kv_store.clone(),
            kv_events: self.options.kv_events.clone(),
        };
        let (scheduler, _) = Actor::spawn_linked(None, Scheduler, arguments, me.get_cell()).await?;
        // In this order, so that a client that leaves reaches the scheduler or is found in the journal.
        self.replica.set_scheduler(Some(scheduler.clone()));
        let _ = scheduler.cast(SchedulerMsg::Recover);
        if let Some(drafter) = actors.drafter.as_ref().filter(|drafter| drafter.is_ready) {
            let _ = scheduler.cast(SchedulerMsg::DrafterReady(drafter.actor.clone()));
        }
        actors.requests = Some(RequestActors { sampler, scheduler });
        Ok(())
    }

    /// Starts the drafter, if the model has a draft model. The model also runs without it.
    async fn start_drafter(&mut self, me: &Me<S>) {
        let Some(draft_model) = self.source.draft_model().filter(|_| !self.has_ended()) else { return };
        let Some(actors) = &mut self.actors else { return };
        let supervisor = me.clone();
        let arguments = DrafterArguments {
            model: draft_model,
            vocab_size: actors.model.limits.vocab_size,
            host: self.source.host(),
            step_timeout: self.options.step_timeout,
            on_ready: Box::new(move || drop(supervisor.cast(SupervisorMsg::DrafterReady))),
        };
        match Actor::spawn_linked(None, Drafter, arguments, me.get_cell()).await {
            Ok((actor, _)) => actors.drafter = Some(DrafterChild { actor, is_ready: false }),
            Err(error) => self.recover_drafter(me, &error.to_string()),
        }
    }

    fn drafter_ready(&mut self) {
        let Some(actors) = &mut self.actors else { return };
        let Some(drafter) = &mut actors.drafter else { return };
        drafter.is_ready = true;
        self.drafter_restarts.set_running(true, Instant::now());
        if let Some(requests) = &actors.requests {
            let _ = requests.scheduler.cast(SchedulerMsg::DrafterReady(drafter.actor.clone()));
        }
    }

    /// Starts the drafter again after a pause, unless there were too many restarts.
    fn recover_drafter(&mut self, me: &Me<S>, reason: &str) {
        if let Some(requests) = self.request_actors() {
            let _ = requests.scheduler.cast(PolicyEvent::DrafterLost.into());
        }
        if self.has_ended() {
            return;
        }
        let replica = self.replica.index;
        self.report_restart("drafter", reason);
        let now = Instant::now();
        self.drafter_restarts.set_running(false, now);
        match self.drafter_restarts.next(now, &self.options.restarts) {
            Some(pause) => {
                tracing::warn!(actor = "drafter", replica, reason, ?pause, "restarting after a fault");
                me.send_after(pause, || SupervisorMsg::RestartDrafter);
            }
            None => tracing::error!(replica, reason, "the draft model failed too often: continuing without it"),
        }
    }

    /// Starts sampler and scheduler after one of them died, and connects them with the executor, if there is one.
    async fn reconnect(&mut self, me: &Me<S>) -> Result<(), ActorProcessingErr> {
        let is_needed = self.actors.as_ref().is_some_and(|actors| actors.requests.is_none());
        if self.has_ended() || !is_needed {
            return Ok(());
        }
        self.start_request_actors(me).await?;
        let Some(ActorTree { requests: Some(requests), executor: Some((executor, limits)), .. }) = &self.actors else {
            return Ok(());
        };
        let RequestActors { sampler, scheduler } = requests;
        // An actor among them that has died already is handled next.
        let _ = executor.cast(ExecutorMsg::Connect { sampler: sampler.clone(), scheduler: scheduler.clone() });
        let _ = scheduler
            .cast(SchedulerMsg::ExecutorReady { executor: executor.clone(), limits: Box::new(limits.clone()) });
        self.set_status(Status::Ready);
        Ok(())
    }

    async fn spawn_experts(
        &self,
        me: &Me<S>,
        expert_jobs: ExpertJobQueue,
    ) -> Result<ActorRef<ExpertsMsg>, ActorProcessingErr> {
        let (model_id, tracer) = (self.options.model_id.clone(), self.options.tracer.clone());
        let arguments = ExpertsArguments { model_id, queue: expert_jobs, tracer };
        Ok(Actor::spawn_linked(None, Experts, arguments, me.get_cell()).await?.0)
    }

    /// Restarts the experts actor on the same job queue, so that no step is lost.
    async fn restart_experts(&mut self, me: &Me<S>, reason: &str) -> Result<(), ActorProcessingErr> {
        if self.record_restart("experts", reason).is_none() {
            return Ok(());
        }
        self.replace_experts(me, reason).await
    }

    /// Starts another experts actor on the same job queue. If the thread of the last one hangs, it is left behind.
    async fn replace_experts(&mut self, me: &Me<S>, reason: &str) -> Result<(), ActorProcessingErr> {
        tracing::warn!(actor = "experts", replica = self.replica.index, reason, "restarting after a fault");
        let Some(expert_jobs) = self.actors.as_ref().map(|actors| actors.expert_jobs.clone()) else { return Ok(()) };
        let experts = self.spawn_experts(me, expert_jobs).await?;
        if let Some(actors) = &mut self.actors {
            std::mem::replace(&mut actors.experts, experts).stop(None);
        }
        Ok(())
    }

    /// Watches the files of the loaded model instead of those of the model before.
    fn watch(&mut self, me: &Me<S>, files: &ModelFiles) {
        let me = me.clone();
        let changed = move |change| drop(me.cast(SupervisorMsg::FileChanged(change)));
        self.file_watch = FileWatch::start(files, self.options.model_id.clone(), changed);
    }

    fn load_failed(&mut self, me: &Me<S>, error: SourceError) {
        if matches!(error, SourceError::Cancelled) {
            // The loader stopped. Its death is handled on its own.
            return;
        }
        if !std::mem::replace(&mut self.loading, false) {
            return;
        }
        let reason = error.to_string();
        match error {
            // The model has never loaded, so a retry would only hide the reason.
            _ if matches!(self.replica.status(), Status::Loading(_)) => self.set_status(Status::Failed(reason)),
            SourceError::Changed(_) => self.give_up(Status::FileChanged(reason)),
            _ => self.recover(me, "loader", &reason),
        }
    }

    async fn child_died(&mut self, me: &Me<S>, child: &ActorCell, reason: &str) -> Result<(), ActorProcessingErr> {
        if self.stopping {
            return Ok(());
        }
        let id = child.get_id();
        if self.loader.get_id() == id {
            self.loader = spawn_loader(&self.source, me).await?;
            if self.loading {
                self.recover(me, "loader", reason);
            }
            return Ok(());
        }
        let Some(actors) = &mut self.actors else { return Ok(()) };
        if actors.executor.as_ref().is_some_and(|(executor, _)| executor.get_id() == id) {
            self.executor_died(me, reason).await?;
        } else if actors.drafter.as_ref().is_some_and(|drafter| drafter.actor.get_id() == id) {
            actors.drafter = None;
            self.recover_drafter(me, reason);
        } else if actors.experts.get_id() == id {
            self.restart_experts(me, reason).await?;
        } else if let Some(actor) = actors.requests.as_ref().and_then(|requests| requests.name_of(child)) {
            self.replace_request_actors(me, actor, reason).await;
        }
        Ok(())
    }

    async fn executor_died(&mut self, me: &Me<S>, reason: &str) -> Result<(), ActorProcessingErr> {
        let Some(actors) = &mut self.actors else { return Ok(()) };
        actors.executor = None;
        let awaited_experts = actors.expert_jobs.is_computing();
        // The experts are reloaded with the engine. Dropping them here avoids having two copies in memory.
        actors.expert_jobs.set_experts(None);
        if let Some(requests) = &actors.requests {
            let lost = PolicyEvent::ExecutorLost { failed: None, reason: reason.to_owned() };
            let _ = requests.scheduler.cast(lost.into());
        }
        self.recover(me, "executor", reason);
        if awaited_experts && !self.has_ended() {
            // A thread that hangs takes no job of the next engine. This belongs to the same fault, so it is not counted again.
            self.report_restart("experts", reason);
            self.replace_experts(me, reason).await?;
        }
        Ok(())
    }

    /// Stops the other one of sampler and scheduler, and starts both after a pause, unless there were too many restarts.
    async fn replace_request_actors(&mut self, me: &Me<S>, actor: &'static str, reason: &str) {
        self.replica.set_scheduler(None);
        if let Some(requests) = self.actors.as_mut().and_then(|actors| actors.requests.take()) {
            requests.stop_at_once().await;
        }
        self.replica.journal().actor_died();
        let Some(pause) = self.record_restart(actor, reason) else {
            // Those of the scheduler, which is not replaced.
            return self.replica.set_counts(Counts::default());
        };
        tracing::warn!(actor, replica = self.replica.index, reason, ?pause, "restarting after a fault");
        self.set_status(Status::Recovering);
        me.send_after(pause, || SupervisorMsg::Reconnect);
    }

    /// Reloads the model after a pause, unless there were too many restarts.
    fn recover(&mut self, me: &Me<S>, actor: &'static str, reason: &str) {
        if self.has_ended() {
            return;
        }
        if let Some(pause) = self.record_restart(actor, reason) {
            tracing::warn!(actor, replica = self.replica.index, reason, ?pause, "restarting after a fault");
            self.set_status(Status::Recovering);
            self.loading = true;
            me.send_after(pause, || SupervisorMsg::Reload);
        }
    }

    /// Whether nothing is restarted any more: the model stops, or its status is its last one.
    fn has_ended(&self) -> bool {
        self.stopping || self.replica.status().failure().is_some()
    }

    /// Reports a restart in metrics and trace.
    fn report_restart(&self, actor: &'static str, reason: &str) {
        metrics::restarted(&self.options.model_id, actor);
        self.options.tracer.restarted(actor, reason);
    }

    /// Counts a restart and returns the pause before it. After too many restarts it gives up and returns `None`.
    fn record_restart(&mut self, actor: &'static str, reason: &str) -> Option<Duration> {
        if self.has_ended() {
            return None;
        }
        let replica = self.replica.index;
        self.report_restart(actor, reason);
        let pause = self.restarts.next(Instant::now(), &self.options.restarts);
        if pause.is_none() {
            tracing::error!(actor, replica, reason, "giving up after too many faults");
            let reason = format!("the server failed too often and gave up; the last fault was: {reason}");
            self.give_up(Status::Failed(reason));
        }
        pause
    }

    /// Ends all requests with the reason of this last status. A second reason is ignored.
    fn give_up(&mut self, last: Status) {
        if self.has_ended() {
            return;
        }
        tracing::error!(replica = self.replica.index, reason = last.failure(), "the model does not run any more");
        self.file_watch = None;
        self.replica.set_scheduler(None);
        let error = GenerationError::Engine(last.failure().unwrap_or_default().to_owned());
        self.replica.journal().close(&error);
        match self.request_actors() {
            Some(_) => self.end_all(error),
            // Those of a scheduler that is not replaced.
            None => self.replica.set_counts(Counts::default()),
        }
        self.set_status(last);
    }

    fn end_all(&self, error: GenerationError) {
        if let Some(requests) = self.request_actors() {
            let _ = requests.scheduler.cast(PolicyEvent::EndAll(error).into());
        }
    }

    fn request_actors(&self) -> Option<&RequestActors> {
        self.actors.as_ref()?.requests.as_ref()
    }

    /// Lets running requests finish for at most `limit`, then stops.
    fn drain(&mut self, me: &Me<S>, limit: Duration) {
        if std::mem::replace(&mut self.stopping, true) {
            return;
        }
        self.set_status(Status::Draining);
        let (reply, drained) = oneshot::channel();
        // Without a scheduler the reply is dropped here and the wait below ends at once.
        if let Some(requests) = self.request_actors() {
            let _ = requests.scheduler.cast(SchedulerMsg::Drain { reply });
        } else {
            drop(reply);
        }
        let me = me.clone();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(limit, drained).await;
            let _ = me.cast(SupervisorMsg::Stop);
        });
    }

    async fn stop(&mut self, me: &Me<S>) {
        self.end_all(GenerationError::ShuttingDown);
        self.stop_actors().await;
        // Requests that had no scheduler are ended when this state is dropped.
        me.stop(None);
    }

    /// Stops the actors in the order in which messages flow, so that every client receives its last event.
    async fn stop_actors(&mut self) {
        self.replica.set_scheduler(None);
        let Some(ActorTree { requests, experts, executor, drafter, .. }) = self.actors.take() else { return };
        if let Some(RequestActors { sampler, scheduler }) = requests {
            // Errors are ignored: an actor that has died already cannot be drained.
            let _ = scheduler.drain_and_wait(Some(STOP_TIMEOUT)).await;
            let _ = sampler.drain_and_wait(Some(STOP_TIMEOUT)).await;
        }
        experts.stop(None);
        if let Some(drafter) = drafter {
            drafter.actor.stop(None);
        }
        if let Some((executor, _)) = executor {
            // Waits so that the memory is free when the next engine is loaded.
            let _ = executor.stop_and_wait(None, Some(STOP_TIMEOUT)).await;
        }
    }

    fn set_status(&mut self, status: Status) {
        self.restarts.set_running(status == Status::Ready, Instant::now());
        // `Draining` stays the status until the end.
        if !matches!(self.replica.status(), Status::Draining) {
            self.replica.set_status(status);
        }
    }
}

impl<S: ModelSource> Drop for SupervisorState<S> {
    /// Ends the requests that are left, however the supervisor ended.
    fn drop(&mut self) {
        self.replica.set_scheduler(None);
        self.replica.journal().close(&GenerationError::ShuttingDown);
    }
}

/// How long an actor may take to process its mailbox when the actors are stopped.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

impl RequestActors {
    fn name_of(&self, child: &ActorCell) -> Option<&'static str> {
        let id = child.get_id();
        let actors = [(self.sampler.get_id(), "sampler"), (self.scheduler.get_id(), "scheduler")];
        actors.into_iter().find(|&(actor, _)| actor == id).map(|(_, name)| name)
    }

    /// Stops both without the messages in their mailboxes, because the next ones start from the journal.
    async fn stop_at_once(&self) {
        for actor in [self.scheduler.get_cell(), self.sampler.get_cell()] {
            if actor.stop_and_wait(None, Some(STOP_TIMEOUT)).await.is_err() {
                actor.kill();
            }
        }
    }
}
