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
//!
//! Its parts: [`state`], what it knows; [`start`], the actors that it starts; [`recovery`], what follows a fault; [`stop`], its end.

mod recovery;
mod start;
mod state;
mod stop;

use std::sync::Arc;

use cuelight_engine::load::LoadProgress;
use ractor::{Actor, ActorProcessingErr, SupervisionEvent};

use super::messages::{LoaderMsg, SupervisorMsg};
use super::model_source::ModelSource;
use super::options::RuntimeOptions;
pub use super::restart::RestartPolicy;
use super::runtime::ReplicaState;
use crate::core::status::Status;
use start::spawn_loader;
use state::{Me, SupervisorState};

/// Startup arguments of the supervisor.
pub struct SupervisorArguments<S> {
    /// Loads the model.
    pub source: Arc<S>,
    /// Limits and timeouts.
    pub options: RuntimeOptions,
    /// The state that the runtime's handles read.
    pub replica: Arc<ReplicaState>,
}

/// The supervisor actor.
pub struct Supervisor<S>(std::marker::PhantomData<fn(S)>);

impl<S> Default for Supervisor<S> {
    fn default() -> Self {
        Supervisor(std::marker::PhantomData)
    }
}

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
        let result = state.handle(&me, message).await;
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

impl<S: ModelSource> SupervisorState<S> {
    async fn handle(&mut self, me: &Me<S>, message: SupervisorMsg<S::Engine>) -> Result<(), ActorProcessingErr> {
        match message {
            SupervisorMsg::LoadProgress(progress) => self.load_progress(progress),
            SupervisorMsg::Loaded(Ok(model)) => return self.loaded(me, *model).await,
            SupervisorMsg::Loaded(Err(error)) => self.load_failed(me, error),
            SupervisorMsg::FileChanged(change) => self.give_up(Status::FileChanged(change.to_string())),
            SupervisorMsg::Reload if self.has_ended() || !self.loading => {}
            // A loader that died meanwhile is restarted, and told again, when its death is handled.
            SupervisorMsg::Reload => drop(self.loader.cast(LoaderMsg::Load)),
            SupervisorMsg::Reconnect => return self.reconnect(me).await,
            SupervisorMsg::RestartDrafter => self.start_drafter(me).await,
            SupervisorMsg::DrafterReady => self.drafter_ready(),
            SupervisorMsg::Drain(limit) => self.drain(me, limit),
            SupervisorMsg::Stop => self.stop(me).await,
        }
        Ok(())
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
}
