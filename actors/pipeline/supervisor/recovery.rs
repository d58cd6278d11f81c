//! What follows the death of an actor or a failed load: restarts, as far as the policy allows them.

use std::time::Duration;

use ractor::{ActorCell, ActorProcessingErr};
use tokio::time::Instant;

use super::start::spawn_loader;
use super::state::{Me, SupervisorState};
use crate::core::counts::Counts;
use crate::core::status::Status;
use crate::metrics;
use crate::pipeline::messages::SupervisorMsg;
use crate::pipeline::model_source::{ModelSource, SourceError};
use crate::pipeline::policy::PolicyEvent;

impl<S: ModelSource> SupervisorState<S> {
    pub(super) async fn child_died(
        &mut self,
        me: &Me<S>,
        child: &ActorCell,
        reason: &str,
    ) -> Result<(), ActorProcessingErr> {
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

    /// Starts the drafter again after a pause, unless there were too many restarts.
    pub(super) fn recover_drafter(&mut self, me: &Me<S>, reason: &str) {
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

    pub(super) fn load_failed(&mut self, me: &Me<S>, error: SourceError) {
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

    /// Reloads the model after a pause, unless there were too many restarts.
    pub(super) fn recover(&mut self, me: &Me<S>, actor: &'static str, reason: &str) {
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
}
