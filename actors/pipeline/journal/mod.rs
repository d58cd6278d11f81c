//! The journal of a replica's requests: what is needed to continue them after the scheduler or the sampler died.
//!
//! Every actor that changes a request writes the change here at the moment when it takes effect: the runtime when a client
//! submits or cancels, the scheduler when it accepts, the sampler when it sends a token. A new scheduler and a new sampler
//! read the journal and continue from there ([`RequestJournal::recover`]), so a client receives each token and the end of
//! its request exactly once.
//!
//! Locks are held for a few instructions and never across an `await`.

mod record;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use cuelight_engine::engine::StepId;
use tokio::sync::oneshot;

pub use self::record::{Committed, Decision, RequestRecord};
use crate::core::ended_request::EndedRequest;
use crate::core::request::{Event, FinishReason, GenerationError, RequestId, SubmitError, Usage};
use crate::metrics::RequestMetrics;
use crate::pipeline::options::RuntimeOptions;
use crate::recording::Recorder;
use crate::trace::{Tracer, log_ended_request};

/// Number of times in a row that the scheduler or the sampler may die while a request takes part in steps and gets no
/// token, or while the scheduler decides about it. Then the request fails.
const MAX_DEATHS: u32 = 4;

/// Number of such deaths from which on a request runs alone, to find out whether it is the cause.
const SUSPECT_DEATHS: u32 = 2;

/// The requests of a replica that have not ended.
pub struct RequestJournal {
    model_id: Arc<str>,
    tracer: Tracer,
    recorder: Recorder,
    /// Created with the first end, when the recorder is installed.
    metrics: OnceLock<RequestMetrics>,
    /// Step ids below this one may be in use.
    next_step: AtomicU64,
    requests: Mutex<Requests>,
}

#[derive(Debug, Default)]
struct Requests {
    /// Whether there is a scheduler, or will be one after a restart.
    is_open: bool,
    records: BTreeMap<RequestId, Arc<RequestRecord>>,
    /// The request that the scheduler is taking over. It is the cause if the scheduler dies now.
    recovering: Option<RequestId>,
}

/// How a new scheduler continues a request.
#[derive(Debug)]
pub enum Recovery {
    /// No scheduler has decided about it.
    Submit(Arc<RequestRecord>),
    /// It was accepted.
    Continue(Arc<RequestRecord>, Committed),
}

impl RequestJournal {
    /// A journal that accepts requests once it is [opened](Self::open).
    #[must_use]
    pub fn new(options: &RuntimeOptions) -> Self {
        RequestJournal {
            model_id: options.model_id.clone(),
            tracer: options.tracer.clone(),
            recorder: options.recorder.clone(),
            metrics: OnceLock::new(),
            next_step: AtomicU64::new(0),
            requests: Mutex::default(),
        }
    }

    fn requests(&self) -> MutexGuard<'_, Requests> {
        self.requests.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Accepts requests from now on.
    pub fn open(&self) {
        self.requests().is_open = true;
    }

    /// Accepts no more requests and ends all that are left.
    pub fn close(&self, error: &GenerationError) {
        let mut requests = self.requests();
        requests.is_open = false;
        let records = std::mem::take(&mut requests.records);
        drop(requests);
        for record in records.values() {
            self.finish(record, None, Event::Failed(error.clone()));
        }
    }

    /// Adds a request. Returns the receiver of the scheduler's decision, or `None` when no scheduler will decide.
    pub fn submit(&self, record: &Arc<RequestRecord>) -> Option<oneshot::Receiver<Decision>> {
        let (reply, decision) = oneshot::channel();
        record.await_decision(reply);
        let mut requests = self.requests();
        let is_open = requests.is_open;
        if is_open {
            requests.records.insert(record.id, Arc::clone(record));
        }
        is_open.then_some(decision)
    }

    /// A request about which a scheduler begins to decide. `None` when another one has decided.
    pub fn undecided(&self, id: RequestId) -> Option<Arc<RequestRecord>> {
        self.record(id).filter(|record| record.begin_decision())
    }

    /// Records a scheduler's decision and sends it to the client. A request that is refused leaves the journal.
    pub fn decide(&self, record: &RequestRecord, decision: Decision) {
        if decision.is_err() {
            self.requests().records.remove(&record.id);
        }
        record.decide(decision);
    }

    /// Records that a request takes part in a step for the first time under this scheduler.
    pub fn started(&self, id: RequestId, cached_tokens: usize) {
        if let Some(record) = self.record(id) {
            record.started(cached_tokens);
        }
    }

    /// Records that this number of tokens of a request's prompt are computed.
    pub fn prompt_computed(&self, id: RequestId, tokens: usize) {
        if let Some(record) = self.record(id) {
            record.prompt_computed(tokens);
        }
    }

    /// Ends a request, and records its end, unless it has ended. An owner that was replaced cannot end it.
    pub fn end(&self, id: RequestId, owner: Option<u32>, end: Event) {
        let Some(record) = self.record(id) else { return };
        if self.finish(&record, owner, end) {
            self.requests().records.remove(&id);
        }
    }

    /// Ends a request whose client is gone.
    pub fn cancelled(&self, id: RequestId) {
        self.end(id, None, cancelled());
    }

    fn finish(&self, record: &RequestRecord, owner: Option<u32>, end: Event) -> bool {
        let Some(ended) = record.finish(owner, end) else { return false };
        if let Some(ended) = ended {
            self.record_end(&ended);
            self.recorder.ended(&self.model_id, &record.request, &ended, || record.committed().tokens);
        }
        true
    }

    /// Records the end of a request in metrics, log and trace.
    fn record_end(&self, request: &EndedRequest) {
        self.metrics.get_or_init(|| RequestMetrics::new(&self.model_id)).ended(request);
        log_ended_request(request, &self.model_id);
        self.tracer.request_ended(request);
    }

    fn record(&self, id: RequestId) -> Option<Arc<RequestRecord>> {
        self.requests().records.get(&id).cloned()
    }

    /// The first id for the steps of a new scheduler.
    pub fn next_step(&self) -> StepId {
        StepId(self.next_step.load(Ordering::Acquire))
    }

    /// Records that a step was formed.
    pub fn step_formed(&self, step: StepId) {
        self.next_step.store(step.0 + 1, Ordering::Release);
    }

    /// Records that the scheduler or the sampler died, which counts against the requests that may have caused it.
    pub fn actor_died(&self) {
        let mut requests = self.requests();
        let recovering = requests.recovering.take();
        for record in requests.records.values() {
            match recovering {
                Some(id) if id == record.id => record.caused_a_death(MAX_DEATHS),
                Some(_) => {}
                None => record.saw_a_death(),
            }
        }
    }

    /// The requests for a new scheduler, in the order in which they were submitted. Ends those that do not continue.
    pub fn recover(&self) -> Vec<Recovery> {
        let records: Vec<_> = self.requests().records.values().cloned().collect();
        records.into_iter().filter_map(|record| self.recovery_of(record)).collect()
    }

    fn recovery_of(&self, record: Arc<RequestRecord>) -> Option<Recovery> {
        let committed = record.committed();
        if committed.is_undecided {
            if committed.is_abandoned || committed.decisions_begun >= MAX_DEATHS {
                self.decide(&record, Err(no_scheduler()));
                return None;
            }
            return Some(Recovery::Submit(record));
        }
        if committed.is_abandoned {
            self.cancelled(record.id);
            return None;
        }
        if committed.deaths >= MAX_DEATHS {
            let reason = format!("the scheduler or the sampler failed {MAX_DEATHS} times in a row while it ran");
            self.end(record.id, None, Event::Failed(GenerationError::Engine(reason)));
            return None;
        }
        Some(Recovery::Continue(record, committed))
    }

    /// Runs a part of the recovery that handles this request alone, so that a panic is attributed to it.
    pub fn recovering<T>(&self, id: RequestId, run: impl FnOnce() -> T) -> T {
        self.requests().recovering = Some(id);
        let result = run();
        self.requests().recovering = None;
        result
    }
}

impl Committed {
    /// Whether the request has to run alone, to find out whether it causes deaths.
    #[must_use]
    pub fn is_suspect(&self) -> bool {
        self.deaths >= SUSPECT_DEATHS
    }
}

/// The end of a request whose client is gone. Only metrics, log and trace see it.
fn cancelled() -> Event {
    Event::Finished { reason: FinishReason::Cancelled, text: String::new(), usage: Usage::default() }
}

/// The error of a request that arrives while there is no scheduler.
#[must_use]
pub fn no_scheduler() -> SubmitError {
    let reason = "the server is restarting after a fault".to_owned();
    SubmitError::Unavailable { reason, retry_after: Duration::from_secs(1) }
}

#[cfg(test)]
mod tests;
