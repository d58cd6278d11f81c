//! The state of a replica that its handles, its supervisor and its scheduler share.

use std::sync::{Arc, Mutex, PoisonError};

use cuelight_engine::load::LoadProgress;
use ractor::ActorRef;
use tokio::sync::watch;

use super::replica_set::ReplicaSet;
use crate::core::counts::Counts;
use crate::core::status::Status;
use crate::metrics;
use crate::pipeline::journal::RequestJournal;
use crate::pipeline::media::ModelMedia;
use crate::pipeline::messages::SchedulerMsg;
use crate::pipeline::options::RuntimeOptions;
use crate::pipeline::served_model::ServedModel;
use crate::trace::Tracer;

/// The shared state of a replica.
pub struct ReplicaState {
    /// The name of the model, for metrics.
    pub(crate) model_id: Arc<str>,
    /// Index of the replica, from 0.
    pub(crate) index: usize,
    /// Records what the actors do.
    pub(crate) tracer: Tracer,
    replica_set: Arc<ReplicaSet>,
    status: watch::Sender<Status>,
    scheduler: watch::Sender<Option<ActorRef<SchedulerMsg>>>,
    counts: Mutex<Counts>,
    journal: Arc<RequestJournal>,
}

impl ReplicaState {
    pub(super) fn new(index: usize, options: &RuntimeOptions, replica_set: Arc<ReplicaSet>) -> Self {
        let status = Status::Loading(LoadProgress { done_bytes: 0, total_bytes: 0 });
        metrics::replica_ready(&options.model_id, index, false);
        options.tracer.status(&status);
        ReplicaState {
            model_id: options.model_id.clone(),
            index,
            tracer: options.tracer.clone(),
            replica_set,
            status: watch::Sender::new(status),
            scheduler: watch::Sender::new(None),
            counts: Mutex::new(Counts::default()),
            journal: Arc::new(RequestJournal::new(options)),
        }
    }

    /// Number of replicas of the model.
    pub(crate) fn replicas(&self) -> usize {
        self.replica_set.replicas()
    }

    /// The media of the model.
    pub(crate) fn media(&self) -> Option<Arc<ModelMedia>> {
        self.replica_set.media.clone()
    }

    pub(crate) fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    pub(crate) fn set_status(&self, status: Status) {
        let before = self.status.send_replace(status.clone());
        if before.word() != status.word() {
            metrics::replica_ready(&self.model_id, self.index, status == Status::Ready);
            self.tracer.status(&status);
        }
        self.replica_set.set_status(self.index, status);
    }

    pub(crate) fn set_model(&self, model: Arc<ServedModel>) {
        self.replica_set.set_model(self.index, model);
    }

    /// Sends a message to the scheduler, unless it is being replaced.
    pub(super) fn send_to_scheduler(&self, message: SchedulerMsg) {
        let scheduler = self.scheduler.borrow().clone();
        // A scheduler that died is replaced by one that reads the journal.
        let _ = scheduler.map(|scheduler| scheduler.cast(message));
    }

    pub(crate) fn set_scheduler(&self, scheduler: Option<ActorRef<SchedulerMsg>>) {
        self.scheduler.send_replace(scheduler);
    }

    /// The requests that have not ended.
    pub(crate) fn journal(&self) -> &Arc<RequestJournal> {
        &self.journal
    }

    pub(super) fn counts(&self) -> Counts {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set_counts(&self, counts: Counts) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner) = counts;
    }
}
