//! One copy of a model and the cast that runs it, as handles and actors see each other.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use cuelight_engine::load::LoadProgress;
use ractor::{Actor, ActorCell, ActorRef};
use tokio::sync::watch;

use super::front::Front;
use super::{Model, RuntimeOptions, StartError, Status};
use crate::loader::ModelSource;
use crate::metrics;
use crate::policy::Counts;
use crate::scheduler::SchedulerMsg;
use crate::supervisor::{Supervisor, SupervisorArguments, SupervisorMsg};
use crate::trace::Tracer;

/// A copy of the model with its cast, which stops at once when this is dropped.
pub(super) struct Replica {
    pub shared: Arc<Shared>,
    /// The supervisor, whatever its engine.
    pub cell: ActorCell,
    drain: Box<dyn Fn(Duration) + Send + Sync>,
}

impl Replica {
    /// Starts the cast number `index`, which begins to load.
    pub async fn start<S: ModelSource>(
        index: usize,
        source: S,
        mut options: RuntimeOptions,
        front: &Arc<Front>,
    ) -> Result<Self, StartError> {
        let number = (front.replicas() > 1).then_some(index);
        options.tracer = options.tracer.for_replica(&options.model_id, number);
        let shared = Arc::new(Shared::new(index, &options, front.clone()));
        let arguments = SupervisorArguments { source: Arc::new(source), options, shared: shared.clone() };
        let (supervisor, _) = Actor::spawn(None, Supervisor::<S>::default(), arguments).await?;
        let cell = supervisor.get_cell();
        let drain = Box::new(move |limit| {
            let _ = supervisor.cast(SupervisorMsg::Drain(limit));
        });
        Ok(Replica { shared, cell, drain })
    }

    /// Lets running requests finish for up to `drain`, then stops the cast.
    pub async fn shutdown(&self, drain: Duration) {
        (self.drain)(drain);
        // Without a limit the only error is that it has stopped already.
        let _ = self.cell.wait(None).await;
    }
}

impl Drop for Replica {
    fn drop(&mut self) {
        self.cell.stop(None);
    }
}

/// What handles, supervisor and scheduler of a replica see of each other.
pub struct Shared {
    /// The name of the model, for metrics.
    pub(crate) model_id: Arc<str>,
    /// Which of the model's replicas this is, from 0.
    pub(crate) replica: usize,
    /// Hears what happens when.
    pub(crate) tracer: Tracer,
    front: Arc<Front>,
    status: watch::Sender<Status>,
    scheduler: watch::Sender<Option<ActorRef<SchedulerMsg>>>,
    counts: Mutex<Counts>,
}

impl Shared {
    fn new(replica: usize, options: &RuntimeOptions, front: Arc<Front>) -> Self {
        let status = Status::Loading(LoadProgress { done_bytes: 0, total_bytes: 0 });
        metrics::replica_ready(&options.model_id, replica, false);
        options.tracer.status(&status);
        Shared {
            model_id: options.model_id.clone(),
            replica,
            tracer: options.tracer.clone(),
            front,
            status: watch::Sender::new(status),
            scheduler: watch::Sender::new(None),
            counts: Mutex::new(Counts::default()),
        }
    }

    pub(crate) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    pub(crate) fn set_status(&self, status: Status) {
        let before = self.status.send_replace(status.clone());
        if before.word() != status.word() {
            metrics::replica_ready(&self.model_id, self.replica, status == Status::Ready);
            self.tracer.status(&status);
        }
        self.front.set_status(self.replica, status);
    }

    pub(crate) fn set_model(&self, model: Arc<Model>) {
        self.front.set_model(self.replica, model);
    }

    pub(super) fn scheduler(&self) -> Option<ActorRef<SchedulerMsg>> {
        self.scheduler.borrow().clone()
    }

    pub(crate) fn set_scheduler(&self, scheduler: Option<ActorRef<SchedulerMsg>>) {
        self.scheduler.send_replace(scheduler);
    }

    pub(super) fn counts(&self) -> Counts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_counts(&self, counts: Counts) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}
