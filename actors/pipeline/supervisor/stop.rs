//! Ends a replica: running requests may finish, then its actors stop.

use std::time::Duration;

use tokio::sync::oneshot;

use super::state::{ActorTree, Me, RequestActors, STOP_TIMEOUT, SupervisorState};
use crate::core::request::GenerationError;
use crate::core::status::Status;
use crate::pipeline::messages::{SchedulerMsg, SupervisorMsg};
use crate::pipeline::model_source::ModelSource;

impl<S: ModelSource> SupervisorState<S> {
    /// Lets running requests finish for at most `limit`, then stops.
    pub(super) fn drain(&mut self, me: &Me<S>, limit: Duration) {
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

    pub(super) async fn stop(&mut self, me: &Me<S>) {
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
}
