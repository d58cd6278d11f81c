//! A handle on one replica: one copy of the model and the actors that run it.

use std::sync::Arc;
use std::time::Duration;

use ractor::{Actor, ActorCell};

use super::replica_set::ReplicaSet;
use super::replica_state::ReplicaState;
use crate::pipeline::messages::SupervisorMsg;
use crate::pipeline::model_source::ModelSource;
use crate::pipeline::options::RuntimeOptions;
use crate::pipeline::supervisor::{Supervisor, SupervisorArguments};

/// The actors of a model could not be started.
#[derive(Debug, thiserror::Error)]
#[error("the actors could not be started: {0}")]
pub struct StartError(#[from] ractor::SpawnErr);

/// One copy of the model with its actors. They stop at once when this is dropped.
pub(super) struct Replica {
    pub state: Arc<ReplicaState>,
    /// The supervisor, independent of its engine type.
    pub supervisor: ActorCell,
    drain: Box<dyn Fn(Duration) + Send + Sync>,
}

impl Replica {
    /// Starts the actors of replica number `index`, which begin to load the model.
    pub async fn start<S: ModelSource>(
        index: usize,
        source: S,
        mut options: RuntimeOptions,
        replica_set: &Arc<ReplicaSet>,
    ) -> Result<Self, StartError> {
        let number = (replica_set.replicas() > 1).then_some(index);
        options.tracer = options.tracer.for_replica(&options.model_id, number);
        let state = Arc::new(ReplicaState::new(index, &options, replica_set.clone()));
        let arguments = SupervisorArguments { source: Arc::new(source), options, replica: state.clone() };
        let (supervisor, _) = Actor::spawn(None, Supervisor::<S>::default(), arguments).await?;
        let cell = supervisor.get_cell();
        let drain = Box::new(move |limit| {
            let _ = supervisor.cast(SupervisorMsg::Drain(limit));
        });
        Ok(Replica { state, supervisor: cell, drain })
    }

    /// Lets running requests finish for at most `drain`, then stops the actors.
    pub async fn shutdown(&self, drain: Duration) {
        (self.drain)(drain);
        // Without a timeout the only error is that the supervisor has stopped already.
        let _ = self.supervisor.wait(None).await;
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.supervisor.stop(None);
    }
}
