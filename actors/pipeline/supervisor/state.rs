//! What the supervisor knows: its actors, the history of faults, and the status of the replica.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::EngineLimits;
use ractor::{ActorCell, ActorRef};
use tokio::time::Instant;

use crate::core::counts::Counts;
use crate::core::request::GenerationError;
use crate::core::status::Status;
use crate::pipeline::experts::ExpertJobQueue;
use crate::pipeline::file_watch::FileWatch;
use crate::pipeline::kv_store::KvStore;
use crate::pipeline::messages::{
    DrafterMsg, ExecutorMsg, ExpertsMsg, LoaderMsg, SamplerMsg, SchedulerMsg, SupervisorMsg,
};
use crate::pipeline::model_source::ModelSource;
use crate::pipeline::options::RuntimeOptions;
use crate::pipeline::policy::PolicyEvent;
use crate::pipeline::restart::RestartHistory;
use crate::pipeline::runtime::ReplicaState;
use crate::pipeline::served_model::ServedModel;

pub(super) type Me<S> = ActorRef<SupervisorMsg<<S as ModelSource>::Engine>>;

/// How long an actor may take to process its mailbox when the actors are stopped.
pub(super) const STOP_TIMEOUT: Duration = Duration::from_secs(5);

/// The actors that know the requests. When one dies, both are replaced.
pub(super) struct RequestActors {
    pub(super) sampler: ActorRef<SamplerMsg>,
    pub(super) scheduler: ActorRef<SchedulerMsg>,
}

/// The actor with the draft model.
pub(super) struct DrafterChild {
    pub(super) actor: ActorRef<DrafterMsg>,
    pub(super) is_ready: bool,
}

/// The actors that exist once a model is loaded.
pub(super) struct ActorTree {
    pub(super) model: Arc<ServedModel>,
    /// `None` while they are being replaced.
    pub(super) requests: Option<RequestActors>,
    pub(super) experts: ActorRef<ExpertsMsg>,
    /// The queue of expert jobs. Jobs without a reply stay there when the experts actor is restarted.
    pub(super) expert_jobs: ExpertJobQueue,
    /// Copies of KV blocks, which outlive the engine. `None` without lower tiers.
    pub(super) kv_store: Option<KvStore>,
    /// The executor and the limits of its engine. `None` while it is being rebuilt.
    pub(super) executor: Option<(ActorRef<ExecutorMsg>, EngineLimits)>,
    /// `None` without a draft model, and while it is being restarted.
    pub(super) drafter: Option<DrafterChild>,
}

/// The state of the supervisor.
pub struct SupervisorState<S: ModelSource> {
    pub(super) source: Arc<S>,
    pub(super) options: RuntimeOptions,
    pub(super) replica: Arc<ReplicaState>,
    pub(super) loader: ActorRef<LoaderMsg>,
    pub(super) actors: Option<ActorTree>,
    pub(super) restarts: RestartHistory,
    /// Restarts of the drafter, which end with a model that runs without it.
    pub(super) drafter_restarts: RestartHistory,
    /// Watches the files of the loaded model.
    pub(super) file_watch: Option<FileWatch>,
    /// Whether a load is running or scheduled.
    pub(super) loading: bool,
    pub(super) stopping: bool,
}

impl<S: ModelSource> SupervisorState<S> {
    /// Whether nothing is restarted any more: the model stops, or its status is its last one.
    pub(super) fn has_ended(&self) -> bool {
        self.stopping || self.replica.status().failure().is_some()
    }

    pub(super) fn request_actors(&self) -> Option<&RequestActors> {
        self.actors.as_ref()?.requests.as_ref()
    }

    pub(super) fn set_status(&mut self, status: Status) {
        self.restarts.set_running(status == Status::Ready, Instant::now());
        // `Draining` stays the status until the end.
        if !matches!(self.replica.status(), Status::Draining) {
            self.replica.set_status(status);
        }
    }

    /// Ends all requests with the reason of this last status. A second reason is ignored.
    pub(super) fn give_up(&mut self, last: Status) {
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

    pub(super) fn end_all(&self, error: GenerationError) {
        if let Some(requests) = self.request_actors() {
            let _ = requests.scheduler.cast(PolicyEvent::EndAll(error).into());
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

impl RequestActors {
    pub(super) fn name_of(&self, child: &ActorCell) -> Option<&'static str> {
        let id = child.get_id();
        let actors = [(self.sampler.get_id(), "sampler"), (self.scheduler.get_id(), "scheduler")];
        actors.into_iter().find(|&(actor, _)| actor == id).map(|(_, name)| name)
    }

    /// Stops both without the messages in their mailboxes, because the next ones start from the journal.
    pub(super) async fn stop_at_once(&self) {
        for actor in [self.scheduler.get_cell(), self.sampler.get_cell()] {
            if actor.stop_and_wait(None, Some(STOP_TIMEOUT)).await.is_err() {
                actor.kill();
            }
        }
    }
}
