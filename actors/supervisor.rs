//! The Supervisor owns the tree of actors, restarts what dies, and says what the whole is doing: for one replica of a model.
//!
//! ```text
//! Supervisor
//! ├─ Loader      builds the model, at start and after a fault
//! ├─ Sampler     logits to tokens to clients
//! ├─ Scheduler   what runs next; the KV blocks
//! ├─ Experts     experts on the host
//! └─ Executor    the device
//! ```
//!
//! Hears from: the loader (`LoadProgress`, `Loaded`), the runtime (`Drain`), ractor (which child died of what).
//! Says: `Load` to the loader; `ExecutorReady`, `ExecutorLost`, `Drain`, `EndAll` to the scheduler; the status to all.
//!
//! Failure story:
//!
//! - The executor dies: the model is loaded anew and its sequences are computed again. Clients see a pause.
//! - The loader dies: another takes its place, and its work.
//! - The experts die: others take their place over the same weights, and are asked again for what was not answered.
//! - The sampler or the scheduler die, which nothing but a bug can cause: what they knew of requests is gone, so the requests
//!   in the house fail, and all of them start anew.
//! - Faults come faster than [`RestartPolicy`] allows: the status becomes [`Status::Failed`]. The process lives.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use cuelight_engine::engine::Engine;
use cuelight_engine::load::{LoadProgress, LoadedModel};
use ractor::{Actor, ActorCell, ActorProcessingErr, ActorRef, SupervisionEvent};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::executor::{Executor, ExecutorArguments, ExecutorMsg};
use crate::experts::{ExpertDesk, Experts, ExpertsArguments, ExpertsMsg};
use crate::loader::{Loader, LoaderArguments, LoaderMsg, ModelSource};
use crate::metrics;
use crate::request::GenerationError;
use crate::runtime::{Model, RuntimeOptions, Shared, Status};
use crate::sampler::{Sampler, SamplerArguments, SamplerMsg};
use crate::scheduler::{Scheduler, SchedulerArguments, SchedulerMsg};

/// How long to go on after faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Most restarts within the window; one more is the end.
    pub max_restarts: usize,
    /// The window.
    pub window: Duration,
    /// Pause before a restart that follows a quiet window; it doubles with each further restart.
    pub first_backoff: Duration,
    /// Longest pause.
    pub max_backoff: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        RestartPolicy {
            max_restarts: 10,
            window: Duration::from_secs(60),
            first_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(5),
        }
    }
}

/// The restarts of the last window.
#[derive(Debug, Default)]
struct RestartHistory(VecDeque<Instant>);

impl RestartHistory {
    /// Counts a restart. How long to wait before it, or `None` when there were too many.
    fn next(&mut self, now: Instant, policy: &RestartPolicy) -> Option<Duration> {
        self.0.retain(|&at| now.duration_since(at) < policy.window);
        let before = self.0.len();
        if before >= policy.max_restarts {
            return None;
        }
        self.0.push_back(now);
        let factor = 1u32 << before.min(20);
        Some(policy.first_backoff.saturating_mul(factor).min(policy.max_backoff))
    }
}

/// What the supervisor hears.
pub enum SupervisorMsg<E: Engine> {
    /// How far loading is.
    LoadProgress(LoadProgress),
    /// The model is loaded, or cannot be.
    Loaded(Result<Box<LoadedModel<E>>, String>),
    /// The pause before a restart is over.
    Reload,
    /// Stop: no new requests, and the running ones have this long.
    Drain(Duration),
    /// The time to drain is over, or nothing is left.
    Stop,
}

/// What a supervisor needs to start.
pub struct SupervisorArguments<S> {
    /// Where the model comes from.
    pub source: Arc<S>,
    /// Limits and times.
    pub options: RuntimeOptions,
    /// What the runtime's handles see.
    pub shared: Arc<Shared>,
}

/// The actors that exist once a model is loaded.
struct Cast {
    sampler: ActorRef<SamplerMsg>,
    scheduler: ActorRef<SchedulerMsg>,
    experts: ActorRef<ExpertsMsg>,
    /// Where they are asked; what was not answered lies there for those that take their place.
    desk: ExpertDesk,
    /// `None` while it is being rebuilt.
    executor: Option<ActorRef<ExecutorMsg>>,
}

/// The supervisor's own.
pub struct SupervisorState<S: ModelSource> {
    source: Arc<S>,
    options: RuntimeOptions,
    shared: Arc<Shared>,
    loader: ActorRef<LoaderMsg>,
    cast: Option<Cast>,
    restarts: RestartHistory,
    /// A load is under way or about to be.
    loading: bool,
    stopping: bool,
}

/// The actor; everything it knows is in [`SupervisorState`].
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
        let SupervisorArguments { source, options, shared } = arguments;
        let loader = spawn_loader(&source, &me).await?;
        loader.cast(LoaderMsg::Load)?;
        let restarts = RestartHistory::default();
        Ok(SupervisorState { source, options, shared, loader, cast: None, restarts, loading: true, stopping: false })
    }

    async fn handle(
        &self,
        me: Me<S>,
        message: SupervisorMsg<S::Engine>,
        state: &mut SupervisorState<S>,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SupervisorMsg::LoadProgress(progress) => state.load_progress(progress),
            SupervisorMsg::Loaded(Ok(model)) => state.loaded(&me, *model).await?,
            SupervisorMsg::Loaded(Err(reason)) => state.load_failed(&me, reason),
            SupervisorMsg::Reload => state.loader.cast(LoaderMsg::Load)?,
            SupervisorMsg::Drain(limit) => state.drain(&me, limit),
            SupervisorMsg::Stop => state.stop(&me).await,
        }
        Ok(())
    }

    async fn handle_supervisor_evt(
        &self,
        me: Me<S>,
        event: SupervisionEvent,
        state: &mut SupervisorState<S>,
    ) -> Result<(), ActorProcessingErr> {
        match event {
            SupervisionEvent::ActorFailed(child, error) => state.child_died(&me, &child, &error.to_string()).await?,
            SupervisionEvent::ActorTerminated(child, _, reason) => {
                let reason = reason.unwrap_or_else(|| "it stopped".into());
                state.child_died(&me, &child, &reason).await?;
            }
            _ => {}
        }
        Ok(())
    }
}

async fn spawn_loader<S: ModelSource>(source: &Arc<S>, me: &Me<S>) -> Result<ActorRef<LoaderMsg>, ActorProcessingErr> {
    let arguments = LoaderArguments { source: source.clone(), supervisor: me.clone() };
    let (loader, _) = Actor::spawn_linked(None, Loader::<S>::default(), arguments, me.get_cell()).await?;
    Ok(loader)
}

impl<S: ModelSource> SupervisorState<S> {
    fn load_progress(&self, progress: LoadProgress) {
        // Only the first load is shown as one; afterwards clients are told that the server recovers.
        if self.loading && matches!(self.shared.status(), Status::Loading(_)) {
            self.set_status(Status::Loading(progress));
        }
    }

    /// A model is ready: start the cast, or give the cast its new executor.
    async fn loaded(&mut self, me: &Me<S>, model: LoadedModel<S::Engine>) -> Result<(), ActorProcessingErr> {
        self.loading = false;
        if self.stopping {
            return Ok(());
        }
        let LoadedModel { engine, experts, tokenizer, chat_template, card, memory } = model;
        let limits = engine.limits().clone();
        metrics::replica_loaded(&self.options.model_id, self.shared.replica, &card, &limits);
        if self.cast.is_none() {
            let model = Model { card, memory, limits: limits.clone(), tokenizer, chat_template };
            self.start_cast(me, Arc::new(model)).await?;
        }
        let Some(cast) = &mut self.cast else { return Ok(()) };
        cast.desk.set_experts(experts.map(|experts| Arc::new(Mutex::new(experts))));
        let arguments = ExecutorArguments {
            engine,
            model_id: self.options.model_id.clone(),
            host: self.source.host(),
            step_timeout: self.options.step_timeout,
            sampler: cast.sampler.clone(),
            scheduler: cast.scheduler.clone(),
            desk: cast.desk.clone(),
            overlap: self.options.overlap,
            tracer: self.options.tracer.clone(),
        };
        let (executor, _) =
            Actor::spawn_linked(None, Executor::<S::Engine>::default(), arguments, me.get_cell()).await?;
        cast.executor = Some(executor.clone());
        cast.scheduler.cast(SchedulerMsg::ExecutorReady { executor, limits })?;
        self.shared.set_scheduler(Some(cast.scheduler.clone()));
        self.set_status(Status::Ready);
        Ok(())
    }

    /// Starts everything but the executor.
    async fn start_cast(&mut self, me: &Me<S>, model: Arc<Model>) -> Result<(), ActorProcessingErr> {
        let arguments = SamplerArguments {
            tokenizer: model.tokenizer.clone(),
            model_id: self.options.model_id.clone(),
            tracer: self.options.tracer.clone(),
            vocab_size: model.limits.vocab_size,
            client_stall_timeout: self.options.client_stall_timeout,
        };
        let (sampler, _) = Actor::spawn_linked(None, Sampler, arguments, me.get_cell()).await?;
        let arguments = SchedulerArguments {
            policy: self.options.policy,
            limits: model.limits.clone(),
            sampler: sampler.clone(),
            shared: self.shared.clone(),
        };
        let (scheduler, _) = Actor::spawn_linked(None, Scheduler, arguments, me.get_cell()).await?;
        let desk = ExpertDesk::default();
        let experts = self.spawn_experts(me, desk.clone()).await?;
        self.cast = Some(Cast { sampler, scheduler, experts, desk, executor: None });
        self.shared.set_model(model);
        Ok(())
    }

    async fn spawn_experts(&self, me: &Me<S>, desk: ExpertDesk) -> Result<ActorRef<ExpertsMsg>, ActorProcessingErr> {
        let (model_id, tracer) = (self.options.model_id.clone(), self.options.tracer.clone());
        let arguments = ExpertsArguments { model_id, desk, tracer };
        Ok(Actor::spawn_linked(None, Experts, arguments, me.get_cell()).await?.0)
    }

    /// Puts others in the place of the experts that died: at the same desk, so that no step is lost.
    async fn replace_experts(&mut self, me: &Me<S>, reason: &str) -> Result<(), ActorProcessingErr> {
        let replica = self.shared.replica;
        metrics::restarted(&self.options.model_id, "experts");
        self.options.tracer.restarted("experts", reason);
        if self.restarts.next(Instant::now(), &self.options.restarts).is_none() {
            tracing::error!(actor = "experts", replica, reason, "giving up after too many faults");
            self.give_up(format!("the server failed too often and gave up; the last fault was: {reason}"));
            return Ok(());
        }
        tracing::warn!(actor = "experts", replica, reason, "restarting after a fault");
        let Some(desk) = self.cast.as_ref().map(|cast| cast.desk.clone()) else { return Ok(()) };
        let experts = self.spawn_experts(me, desk).await?;
        if let Some(cast) = &mut self.cast {
            cast.experts = experts;
        }
        Ok(())
    }

    fn load_failed(&mut self, me: &Me<S>, reason: String) {
        self.loading = false;
        if matches!(self.shared.status(), Status::Loading(_)) {
            // It never worked: trying again would only hide the reason.
            self.set_status(Status::Failed(reason));
        } else {
            self.recover(me, "loader", reason);
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
                self.recover(me, "loader", reason.to_owned());
            }
            return Ok(());
        }
        let Some(cast) = &mut self.cast else { return Ok(()) };
        if cast.executor.as_ref().is_some_and(|executor| executor.get_id() == id) {
            cast.executor = None;
            // They are loaded anew with the engine, and should not be there twice.
            cast.desk.set_experts(None);
            let reason = reason.to_owned();
            cast.scheduler.cast(SchedulerMsg::ExecutorLost { failed: None, reason: reason.clone() })?;
            self.recover(me, "executor", reason);
        } else if cast.experts.get_id() == id {
            self.replace_experts(me, reason).await?;
        } else if let Some(actor) = cast.name_of(child) {
            self.stop_cast().await;
            self.recover(me, actor, reason.to_owned());
        }
        Ok(())
    }

    /// Loads the model anew after a pause, unless faults come too fast.
    fn recover(&mut self, me: &Me<S>, actor: &'static str, reason: String) {
        if self.stopping {
            return;
        }
        let replica = self.shared.replica;
        metrics::restarted(&self.options.model_id, actor);
        self.options.tracer.restarted(actor, &reason);
        match self.restarts.next(Instant::now(), &self.options.restarts) {
            Some(pause) => {
                tracing::warn!(actor, replica, reason, ?pause, "restarting after a fault");
                self.set_status(Status::Recovering);
                self.loading = true;
                me.send_after(pause, || SupervisorMsg::Reload);
            }
            None => {
                tracing::error!(actor, replica, reason, "giving up after too many faults");
                self.give_up(format!("the server failed too often and gave up; the last fault was: {reason}"));
            }
        }
    }

    fn give_up(&mut self, reason: String) {
        self.shared.set_scheduler(None);
        if let Some(cast) = &self.cast {
            let _ = cast.scheduler.cast(SchedulerMsg::EndAll(GenerationError::Engine(reason.clone())));
        }
        self.set_status(Status::Failed(reason));
    }

    /// Lets requests end for at most `limit`, then stops.
    fn drain(&mut self, me: &Me<S>, limit: Duration) {
        if std::mem::replace(&mut self.stopping, true) {
            return;
        }
        self.set_status(Status::Draining);
        let (reply, drained) = oneshot::channel();
        // Without a cast the reply is dropped here, and nobody has to be waited for.
        if let Some(cast) = &self.cast {
            let _ = cast.scheduler.cast(SchedulerMsg::Drain { reply });
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
        if let Some(cast) = &self.cast {
            let _ = cast.scheduler.cast(SchedulerMsg::EndAll(GenerationError::ShuttingDown));
        }
        self.stop_cast().await;
        me.stop(None);
    }

    /// Stops the cast in the order of its messages, so that every client hears its end.
    async fn stop_cast(&mut self) {
        self.shared.set_scheduler(None);
        let Some(Cast { sampler, scheduler, experts, executor, .. }) = self.cast.take() else { return };
        // An actor that died already is waited for in vain; there is nothing to do about it.
        let _ = scheduler.drain_and_wait(Some(STOP_TIMEOUT)).await;
        let _ = sampler.drain_and_wait(Some(STOP_TIMEOUT)).await;
        experts.stop(None);
        if let Some(executor) = executor {
            // So that the next engine finds the memory free.
            let _ = executor.stop_and_wait(None, Some(STOP_TIMEOUT)).await;
        }
    }

    fn set_status(&self, status: Status) {
        // A server that drains says so until it is gone.
        if !matches!(self.shared.status(), Status::Draining) {
            self.shared.set_status(status);
        }
    }
}

/// How long an actor may take to work off its mailbox when the cast stops.
const STOP_TIMEOUT: Duration = Duration::from_secs(5);

impl Cast {
    fn name_of(&self, child: &ActorCell) -> Option<&'static str> {
        let id = child.get_id();
        let actors = [(self.sampler.get_id(), "sampler"), (self.scheduler.get_id(), "scheduler")];
        actors.into_iter().find(|&(actor, _)| actor == id).map(|(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn pauses_double_and_a_quiet_window_forgives() {
        let second = Duration::from_secs(1);
        let policy =
            RestartPolicy { max_restarts: 3, window: 60 * second, first_backoff: second, max_backoff: 3 * second };
        let mut history = RestartHistory::default();
        let now = Instant::now();
        let pauses: Vec<_> = (0..4).map(|_| history.next(now, &policy)).collect();
        assert_eq!(pauses, [Some(second), Some(2 * second), Some(3 * second), None]);
        assert_eq!(history.next(now + 61 * second, &policy), Some(second));
    }
}
