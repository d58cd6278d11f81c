//! Starts the actors of a replica: those of a loaded model, and those that replace others.

use std::sync::{Arc, Mutex};

use cuelight_engine::engine::{CacheLayout, Engine as _};
use cuelight_engine::load::{LoadedModel, ModelFiles};
use cuelight_engine::memory::format_bytes;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::time::Instant;

use super::state::{ActorTree, DrafterChild, Me, RequestActors, SupervisorState};
use crate::core::status::Status;
use crate::metrics;
use crate::pipeline::drafter::{Drafter, DrafterArguments};
use crate::pipeline::executor::{Executor, ExecutorArguments};
use crate::pipeline::experts::{ExpertJobQueue, Experts, ExpertsArguments};
use crate::pipeline::file_watch::FileWatch;
use crate::pipeline::kv_store::{KvStore, ModelIdentity};
use crate::pipeline::loader::{Loader, LoaderArguments};
use crate::pipeline::messages::{ExecutorMsg, ExpertsMsg, LoaderMsg, SchedulerMsg, SupervisorMsg};
use crate::pipeline::model_source::ModelSource;
use crate::pipeline::policy::PolicyConfig;
use crate::pipeline::sampler::{Sampler, SamplerArguments};
use crate::pipeline::scheduler::{Scheduler, SchedulerArguments};
use crate::pipeline::served_model::ServedModel;

pub(super) async fn spawn_loader<S: ModelSource>(
    source: &Arc<S>,
    me: &Me<S>,
) -> Result<ActorRef<LoaderMsg>, ActorProcessingErr> {
    let arguments = LoaderArguments { source: source.clone(), supervisor: me.clone() };
    let (loader, _) = Actor::spawn_linked(None, Loader::<S>::default(), arguments, me.get_cell()).await?;
    Ok(loader)
}

impl<S: ModelSource> SupervisorState<S> {
    /// Starts the actors for a loaded model, or only a new executor when the other actors run.
    pub(super) async fn loaded(&mut self, me: &Me<S>, model: LoadedModel<S::Engine>) -> Result<(), ActorProcessingErr> {
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
    pub(super) async fn start_drafter(&mut self, me: &Me<S>) {
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

    pub(super) fn drafter_ready(&mut self) {
        let Some(actors) = &mut self.actors else { return };
        let Some(drafter) = &mut actors.drafter else { return };
        drafter.is_ready = true;
        self.drafter_restarts.set_running(true, Instant::now());
        if let Some(requests) = &actors.requests {
            let _ = requests.scheduler.cast(SchedulerMsg::DrafterReady(drafter.actor.clone()));
        }
    }

    /// Starts sampler and scheduler after one of them died, and connects them with the executor, if there is one.
    pub(super) async fn reconnect(&mut self, me: &Me<S>) -> Result<(), ActorProcessingErr> {
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

    pub(super) async fn spawn_experts(
        &self,
        me: &Me<S>,
        expert_jobs: ExpertJobQueue,
    ) -> Result<ActorRef<ExpertsMsg>, ActorProcessingErr> {
        let (model_id, tracer) = (self.options.model_id.clone(), self.options.tracer.clone());
        let arguments = ExpertsArguments { model_id, queue: expert_jobs, tracer };
        Ok(Actor::spawn_linked(None, Experts, arguments, me.get_cell()).await?.0)
    }

    /// Watches the files of the loaded model instead of those of the model before.
    fn watch(&mut self, me: &Me<S>, files: &ModelFiles) {
        let me = me.clone();
        let changed = move |change| drop(me.cast(SupervisorMsg::FileChanged(change)));
        self.file_watch = FileWatch::start(files, self.options.model_id.clone(), changed);
    }
}
