//! What the replicas of a model have in common, and what they are as one: a status, a model, a router.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use cuelight_engine::engine::EngineLimits;
use cuelight_engine::load::{LoadProgress, MemoryPlan};
use tokio::sync::watch;

use super::admission::Admission;
use super::router::{Openness, Prefix, Route, Router};
use super::{Model, RuntimeOptions, Status};
use crate::metrics;
use crate::request::{GenerationRequest, RequestId};

/// What is not any replica's own.
pub(super) struct Front {
    /// The name of the model, for metrics.
    pub model_id: Arc<str>,
    /// Of requests to all replicas.
    pub admission: Arc<Admission>,
    /// Events that wait for a client before its request pauses.
    pub client_buffer_events: usize,
    caches_prefixes: bool,
    status: watch::Sender<Status>,
    model: watch::Sender<Option<Arc<Model>>>,
    /// How many there are.
    replicas: usize,
    house: Mutex<House>,
    next_request: AtomicU64,
}

/// What is known of each replica.
struct House {
    statuses: Statuses,
    models: Vec<Option<Arc<Model>>>,
    router: Router,
}

impl Front {
    pub fn new(replicas: usize, options: &RuntimeOptions) -> Self {
        let statuses = Statuses::new(replicas);
        let status = statuses.together();
        metrics::state(&options.model_id, &status);
        Front {
            model_id: options.model_id.clone(),
            admission: Arc::new(Admission::new(options.max_requests)),
            client_buffer_events: options.client_buffer_events,
            caches_prefixes: options.policy.prefix_cache,
            status: watch::Sender::new(status),
            model: watch::Sender::new(None),
            replicas,
            house: Mutex::new(House { statuses, models: vec![None; replicas], router: Router::new(replicas) }),
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

    pub fn model(&self) -> Option<Arc<Model>> {
        self.model.borrow().clone()
    }

    pub fn next_request(&self) -> RequestId {
        RequestId(self.next_request.fetch_add(1, Ordering::Relaxed))
    }

    /// A replica's status is another.
    pub fn set_status(&self, replica: usize, status: Status) {
        let mut house = self.house();
        house.router.set_openness(replica, openness(&status));
        house.statuses.set(replica, status);
        let status = house.statuses.together();
        // Under the lock, so that the last to change it is the last to be seen.
        self.status.send_if_modified(|before| {
            if before.word() != status.word() {
                metrics::state(&self.model_id, &status);
            }
            let is_another = *before != status;
            *before = status;
            is_another
        });
    }

    /// A replica has loaded its copy.
    pub fn set_model(&self, replica: usize, model: Arc<Model>) {
        let mut house = self.house();
        let cached_blocks = if self.caches_prefixes { model.limits.kv_blocks } else { 0 };
        house.router.set_cache_blocks(replica, cached_blocks);
        house.models[replica] = Some(model);
        let models: Option<Vec<&Arc<Model>>> = house.models.iter().map(Option::as_ref).collect();
        if let Some(model) = models.and_then(|models| together(&models)) {
            metrics::model_memory(&self.model_id, &model.memory);
            self.model.send_replace(Some(model));
        }
    }

    /// What a request's prompt begins with, as far as that matters.
    pub fn prefix_of(&self, request: &GenerationRequest) -> Prefix {
        if self.house().router.looks_at_prefixes() {
            Prefix::of(request.cache_salt.as_deref(), &request.prompt)
        } else {
            Prefix::unknown(request.prompt.len())
        }
    }

    /// Chooses a replica for a request, which counts there for as long as the ticket lives. `None`: all are closed, or among
    /// those that have `refused` it.
    pub fn route(this: &Arc<Self>, prefix: &Prefix, refused: &[usize]) -> Option<Ticket> {
        let route = this.house().router.route(prefix, refused)?;
        Some(Ticket { front: this.clone(), route })
    }

    fn house(&self) -> MutexGuard<'_, House> {
        self.house.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request's share of the load of its replica, until dropped.
pub(super) struct Ticket {
    front: Arc<Front>,
    route: Route,
}

impl Ticket {
    pub fn replica(&self) -> usize {
        self.route.replica
    }

    /// The request's prompt is computed.
    pub fn prompt_computed(&mut self) {
        let tokens = std::mem::take(&mut self.route.pending_tokens);
        if tokens > 0 {
            self.front.house().router.computed(self.route.replica, tokens);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.front.house().router.ended(self.route);
    }
}

fn openness(status: &Status) -> Openness {
    match status {
        Status::Ready => Openness::Ready,
        Status::Recovering => Openness::Recovering,
        Status::Loading(_) | Status::Draining | Status::Failed(_) => Openness::Closed,
    }
}

/// The replicas' statuses, and what they come to.
struct Statuses {
    each: Vec<Status>,
    /// How far each is, or was, with its first load.
    progress: Vec<LoadProgress>,
    /// All were ready once: from then on the model is ready for as long as one of them is.
    opened: bool,
}

impl Statuses {
    fn new(replicas: usize) -> Self {
        let nothing = LoadProgress { done_bytes: 0, total_bytes: 0 };
        Statuses { each: vec![Status::Loading(nothing); replicas], progress: vec![nothing; replicas], opened: false }
    }

    fn set(&mut self, replica: usize, status: Status) {
        if let Status::Loading(progress) = status {
            self.progress[replica] = progress;
        }
        self.each[replica] = status;
        self.opened |= self.each.iter().all(|status| *status == Status::Ready);
    }

    /// What the model as a whole is doing. Before it is opened the slowest replica decides, and one that fails is a failure of
    /// all: so many were asked for. Afterwards the best one does.
    fn together(&self) -> Status {
        let find = |is_it: fn(&Status) -> bool| self.each.iter().find(|status| is_it(status)).cloned();
        let failed = || find(|status| matches!(status, Status::Failed(_)));
        if let Some(draining) = find(|status| *status == Status::Draining) {
            return draining;
        }
        if self.opened {
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

/// What all replicas of a model take and can; `None` when there are none.
fn together(models: &[&Arc<Model>]) -> Option<Arc<Model>> {
    let (first, others) = models.split_first()?;
    if others.is_empty() {
        return Some(Arc::clone(first));
    }
    let of_all = || models.iter().map(|model| &model.limits);
    let limits = EngineLimits {
        // A request may go to any of them.
        context_tokens: of_all().map(|limits| limits.context_tokens).min()?,
        kv_blocks: of_all().map(|limits| limits.kv_blocks).sum(),
        max_sequences: of_all().map(|limits| limits.max_sequences).sum(),
        device: of_all().map(|limits| limits.device.as_str()).collect::<Vec<_>>().join(", "),
        ..first.limits.clone()
    };
    Some(Arc::new(Model {
        card: first.card.clone(),
        memory: MemoryPlan::of_replicas(models.iter().map(|model| &model.memory)),
        limits,
        tokenizer: first.tokenizer.clone(),
        chat_template: first.chat_template.clone(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loading(done_bytes: u64) -> Status {
        Status::Loading(LoadProgress { done_bytes, total_bytes: 100 })
    }

    #[test]
    fn a_model_is_ready_when_all_replicas_were_and_stays_so_while_one_is() {
        let mut statuses = Statuses::new(2);
        statuses.set(0, loading(100));
        statuses.set(1, loading(10));
        statuses.set(0, Status::Ready);
        assert_eq!(statuses.together(), Status::Loading(LoadProgress { done_bytes: 110, total_bytes: 200 }));
        statuses.set(1, Status::Ready);
        assert_eq!(statuses.together(), Status::Ready);
        statuses.set(0, Status::Recovering);
        assert_eq!(statuses.together(), Status::Ready);
        statuses.set(1, Status::Failed("why".into()));
        assert_eq!(statuses.together(), Status::Recovering);
        statuses.set(0, Status::Failed("also".into()));
        assert_eq!(statuses.together(), Status::Failed("also".into()));
        statuses.set(1, Status::Draining);
        assert_eq!(statuses.together(), Status::Draining);
    }

    #[test]
    fn a_replica_that_never_loads_is_the_models_failure() {
        let mut statuses = Statuses::new(2);
        statuses.set(0, Status::Ready);
        statuses.set(1, Status::Failed("too large".into()));
        assert_eq!(statuses.together(), Status::Failed("too large".into()));
    }
}
