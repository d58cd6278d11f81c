//! The combined state of a model's replicas: status, model, admission and routing.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuelight_engine::engine::EngineLimits;
use cuelight_engine::load::{LoadProgress, MemoryPlan};
use tokio::sync::watch;

use super::admission::AdmissionControl;
use super::router::{Availability, Prefix, Route, Router};
use crate::core::request::{GenerationRequest, RequestId};
use crate::core::status::Status;
use crate::metrics;
use crate::pipeline::media::ModelMedia;
use crate::pipeline::options::RuntimeOptions;
use crate::pipeline::served_model::ServedModel;

/// State that is shared by all replicas.
pub(super) struct ReplicaSet {
    /// The name of the model, for metrics.
    pub model_id: Arc<str>,
    /// Limits the requests to all replicas together.
    pub admission: Arc<AdmissionControl>,
    /// Number of events buffered for a client before its request is paused.
    pub client_buffer_events: usize,
    /// The media of the model; `None` for a model that takes none.
    pub media: Option<Arc<ModelMedia>>,
    caches_prefixes: bool,
    status: watch::Sender<Status>,
    model: watch::Sender<Option<Arc<ServedModel>>>,
    /// Number of replicas.
    replicas: usize,
    states: Mutex<ReplicaStates>,
    next_request: AtomicU64,
}

/// The state of each replica.
struct ReplicaStates {
    statuses: Statuses,
    models: Vec<Option<Arc<ServedModel>>>,
    router: Router,
}

impl ReplicaSet {
    pub fn new(replicas: usize, options: &RuntimeOptions, media: Option<Arc<ModelMedia>>) -> Self {
        let statuses = Statuses::new(replicas);
        let status = statuses.combined();
        metrics::state(&options.model_id, &status);
        ReplicaSet {
            model_id: options.model_id.clone(),
            admission: Arc::new(AdmissionControl::new(options.max_requests)),
            client_buffer_events: options.client_buffer_events,
            media,
            caches_prefixes: options.policy.prefix_cache,
            status: watch::Sender::new(status),
            model: watch::Sender::new(None),
            replicas,
            states: Mutex::new(ReplicaStates { statuses, models: vec![None; replicas], router: Router::new(replicas) }),
            next_request: AtomicU64::new(1),
        }
    }

    pub fn replicas(&self) -> usize {
        self.replicas
    }

    pub fn status(&self) -> Status {
        self.status.borrow().clone()
    }

    pub fn subscribe(&self) -> watch::Receiver<Status> {
        self.status.subscribe()
    }

    pub fn model(&self) -> Option<Arc<ServedModel>> {
        self.model.borrow().clone()
    }

    pub fn next_request(&self) -> RequestId {
        RequestId(self.next_request.fetch_add(1, Ordering::Relaxed))
    }

    /// Updates the status of a replica.
    pub fn set_status(&self, replica: usize, status: Status) {
        let mut states = self.states();
        states.router.set_availability(replica, availability(&status));
        states.statuses.set(replica, status);
        let status = states.statuses.combined();
        // Sent under the lock, so that updates are seen in the order in which they were made.
        self.status.send_if_modified(|before| {
            if before.word() != status.word() {
                metrics::state(&self.model_id, &status);
            }
            let has_changed = *before != status;
            *before = status;
            has_changed
        });
    }

    /// Records that a replica has loaded its copy of the model.
    pub fn set_model(&self, replica: usize, model: Arc<ServedModel>) {
        let mut states = self.states();
        let cached_blocks = if self.caches_prefixes { model.limits.kv_blocks } else { 0 };
        states.router.set_cache_blocks(replica, cached_blocks);
        states.models[replica] = Some(model);
        let models: Option<Vec<&Arc<ServedModel>>> = states.models.iter().map(Option::as_ref).collect();
        if let Some(model) = models.and_then(|models| combined(&models)) {
            metrics::model_memory(&self.model_id, &model.memory.used);
            self.model.send_replace(Some(model));
        }
    }

    /// The prefix of a request's prompt, for routing. Its blocks are hashed only when the router uses them.
    pub fn prefix_of(&self, request: &GenerationRequest) -> Prefix {
        if self.states().router.uses_prefixes() {
            Prefix::of(&request.prefix_scope(), &request.prompt, &request.media)
        } else {
            Prefix::unknown(request.prompt.len())
        }
    }

    /// Chooses a replica for a request, which counts in the replica's load until the ticket is dropped. `None` when every
    /// replica is closed or in `refused`.
    pub fn route(this: &Arc<Self>, prefix: &Prefix, refused: &[usize]) -> Option<Ticket> {
        let route = this.states().router.route(prefix, refused)?;
        Some(Ticket { replica_set: this.clone(), route })
    }

    fn states(&self) -> MutexGuard<'_, ReplicaStates> {
        self.states.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Counts a request in the load of its replica, until dropped.
pub(super) struct Ticket {
    replica_set: Arc<ReplicaSet>,
    route: Route,
}

impl Ticket {
    pub fn replica(&self) -> usize {
        self.route.replica
    }

    /// Records that the prompt of the request is computed.
    pub fn prompt_computed(&mut self) {
        let tokens = std::mem::take(&mut self.route.pending_tokens);
        if tokens > 0 {
            self.replica_set.states().router.computed(self.route.replica, tokens);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.replica_set.states().router.ended(self.route);
    }
}

fn availability(status: &Status) -> Availability {
    match status {
        Status::Ready => Availability::Ready,
        Status::Recovering => Availability::Recovering,
        Status::Loading(_) | Status::Draining | Status::Failed(_) | Status::FileChanged(_) => Availability::Closed,
    }
}

/// The statuses of the replicas and their combined status.
struct Statuses {
    each: Vec<Status>,
    /// Progress of the first load of each replica.
    progress: Vec<LoadProgress>,
    /// Whether all replicas have been ready once. From then on the model is ready while any replica is.
    was_ready: bool,
}

impl Statuses {
    fn new(replicas: usize) -> Self {
        let nothing = LoadProgress { done_bytes: 0, total_bytes: 0 };
        Statuses { each: vec![Status::Loading(nothing); replicas], progress: vec![nothing; replicas], was_ready: false }
    }

    fn set(&mut self, replica: usize, status: Status) {
        if let Status::Loading(progress) = status {
            self.progress[replica] = progress;
        }
        self.each[replica] = status;
        self.was_ready |= self.each.iter().all(|status| *status == Status::Ready);
    }

    /// The status of the model. Until all replicas have been ready once the slowest replica decides and one failed replica
    /// fails the model. Afterwards the best replica decides.
    fn combined(&self) -> Status {
        let find = |matches: fn(&Status) -> bool| self.each.iter().find(|status| matches(status)).cloned();
        let failed = || find(|status| status.failure().is_some());
        if let Some(draining) = find(|status| *status == Status::Draining) {
            return draining;
        }
        if self.was_ready {
            let best = find(|status| *status == Status::Ready).or_else(|| find(|status| *status == Status::Recovering));
            return best.or_else(failed).unwrap_or_else(|| self.loading());
        }
        failed().unwrap_or_else(|| self.loading())
    }

    fn loading(&self) -> Status {
        let sum = |bytes: fn(&LoadProgress) -> u64| self.progress.iter().map(bytes).sum();
        Status::Loading(LoadProgress {
            done_bytes: sum(|progress| progress.done_bytes),
            total_bytes: sum(|progress| progress.total_bytes),
        })
    }
}

/// The combined memory and limits of all replicas. `None` when there are none.
fn combined(models: &[&Arc<ServedModel>]) -> Option<Arc<ServedModel>> {
    let (first, others) = models.split_first()?;
    if others.is_empty() {
        return Some(Arc::clone(first));
    }
    let all_limits = || models.iter().map(|model| &model.limits);
    let limits = EngineLimits {
        // A request may be routed to any replica, so the smallest context counts.
        context_tokens: all_limits().map(|limits| limits.context_tokens).min()?,
        kv_blocks: all_limits().map(|limits| limits.kv_blocks).sum(),
        max_sequences: all_limits().map(|limits| limits.max_sequences).sum(),
        device: all_limits().map(|limits| limits.device.as_str()).collect::<Vec<_>>().join(", "),
        ..first.limits.clone()
    };
    Some(Arc::new(ServedModel {
        card: first.card.clone(),
        memory: MemoryPlan::of_replicas(models.iter().map(|model| &model.memory)),
        limits,
        tokenizer: first.tokenizer.clone(),
        chat_template: first.chat_template.clone(),
        rendering_slots: first.rendering_slots.clone(),
        constraints: first.constraints.clone(),
        adapters: first.adapters.clone(),
        media: first.media.clone(),
        content_form: first.content_form.clone(),
        stop: first.stop.clone(),
        output_rules: first.output_rules.clone(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loading(done_bytes: u64) -> Status {
        Status::Loading(LoadProgress { done_bytes, total_bytes: 100 })
    }

    #[test]
    fn a_model_is_ready_once_all_replicas_were_and_while_any_still_is() {
        let mut statuses = Statuses::new(2);
        statuses.set(0, loading(100));
        statuses.set(1, loading(10));
        statuses.set(0, Status::Ready);
        assert_eq!(statuses.combined(), Status::Loading(LoadProgress { done_bytes: 110, total_bytes: 200 }));
        statuses.set(1, Status::Ready);
        assert_eq!(statuses.combined(), Status::Ready);
        statuses.set(0, Status::Recovering);
        assert_eq!(statuses.combined(), Status::Ready);
        statuses.set(1, Status::Failed("why".into()));
        assert_eq!(statuses.combined(), Status::Recovering);
        statuses.set(0, Status::Failed("also".into()));
        assert_eq!(statuses.combined(), Status::Failed("also".into()));
        statuses.set(1, Status::Draining);
        assert_eq!(statuses.combined(), Status::Draining);
    }

    #[test]
    fn a_replica_that_never_loads_fails_the_model() {
        let mut statuses = Statuses::new(2);
        statuses.set(0, Status::Ready);
        statuses.set(1, Status::Failed("too large".into()));
        assert_eq!(statuses.combined(), Status::Failed("too large".into()));
    }
}
