//! The Experts actor computes routed experts whose weights are on the host, while the device does other work.
//!
//! Receives `Computed` and `Lost` from its thread. Sends nothing: its thread replies directly to the jobs on the
//! [`ExpertJobQueue`].
//!
//! Computing blocks, so it runs on its own thread, which takes one job after another from the queue. A device waits for
//! each result, so neither this actor nor the executor is on the path between the two threads. Both are informed after a
//! job is done. The worker threads that the expert thread leads belong to the model, see
//! [`HostExperts`](cuelight_engine::experts::HostExperts).
//!
//! Faults: an error or a panic is sent as the result of the job, and the engine that submitted it is given up. When the
//! actor dies, the supervisor starts another one on the same queue. Jobs without a reply stay there, so no step is lost. A
//! thread that hangs stops the step of its device, which is given up after the step timeout. The supervisor then replaces this
//! actor, too.

mod answer;
mod job_queue;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use cuelight_engine::engine::ExpertJob;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::time::Instant;

pub use self::answer::{ExpertAnswer, ExpertsError, ReplyTo};
pub use self::job_queue::{ExpertJobQueue, SharedExperts};
use self::job_queue::{TakenJob, Worker, WorkerLease};
use super::executor::step_and_micro_batch;
use super::messages::ExpertsMsg;
use crate::core::panic_message::panic_message;
use crate::metrics::ExpertMetrics;
use crate::trace::Tracer;

/// Startup arguments of the experts actor.
pub struct ExpertsArguments {
    /// The name of the model, for metrics.
    pub model_id: Arc<str>,
    /// The queue of expert jobs.
    pub queue: ExpertJobQueue,
    /// Records the computed jobs.
    pub tracer: Tracer,
}

/// The state of the experts actor.
pub struct ExpertsState {
    /// Dropping it ends the thread.
    _lease: WorkerLease,
    metrics: ExpertMetrics,
    tracer: Tracer,
}

/// The experts actor.
pub struct Experts;

impl Actor for Experts {
    type Msg = ExpertsMsg;
    type State = ExpertsState;
    type Arguments = ExpertsArguments;

    async fn pre_start(
        &self,
        me: ActorRef<ExpertsMsg>,
        arguments: ExpertsArguments,
    ) -> Result<ExpertsState, ActorProcessingErr> {
        let ExpertsArguments { model_id, queue, tracer } = arguments;
        let lease = queue.lease();
        let worker = lease.worker();
        thread::Builder::new().name("cuelight-experts".into()).spawn(move || {
            let result = catch_unwind(AssertUnwindSafe(|| work(&worker, &me)));
            let reason = result.unwrap_or_else(|panic| Some(panic_message(panic.as_ref()).to_owned()));
            // Fails only when the actor is gone, and then the thread was expected to end.
            let _ = reason.map(|reason| me.cast(ExpertsMsg::Lost(reason)));
        })?;
        Ok(ExpertsState { _lease: lease, metrics: ExpertMetrics::new(&model_id), tracer })
    }

    async fn handle(
        &self,
        _me: ActorRef<ExpertsMsg>,
        message: ExpertsMsg,
        state: &mut ExpertsState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            ExpertsMsg::Computed { job, began, elapsed } => state.computed(&job, began, elapsed),
            ExpertsMsg::Lost(reason) => return Err(reason.into()),
        }
        Ok(())
    }
}

impl ExpertsState {
    fn computed(&self, job: &ExpertJob, began: Instant, elapsed: Duration) {
        self.metrics.job(job.n_routes, elapsed);
        self.tracer.experts_computed(step_and_micro_batch(job.step), (job.layer, job.n_routes), began, elapsed);
    }
}

/// Computes jobs until the lease is over. Returns the reason when the thread has to end early.
fn work(worker: &Worker, me: &ActorRef<ExpertsMsg>) -> Option<String> {
    while let Some(taken) = worker.next() {
        #[cfg(debug_assertions)]
        if let Err(fault) = super::faults::trigger_experts_fault() {
            return Some(fault.to_string());
        }
        let began = Instant::now();
        let answer = compute(&taken);
        let elapsed = began.elapsed();
        let job = Arc::clone(&taken.job);
        // The reply goes first because a device waits for it.
        worker.reply(taken, answer);
        let _ = me.cast(ExpertsMsg::Computed { job, began, elapsed });
    }
    None
}

fn compute(TakenJob { job, experts, yield_hint, .. }: &TakenJob) -> ExpertAnswer {
    // A poisoned lock is ignored: after a panic the engine is dropped and reloaded together with its experts.
    let mut experts = experts.lock().unwrap_or_else(PoisonError::into_inner);
    let result = catch_unwind(AssertUnwindSafe(|| experts.compute_yielding(job, yield_hint)));
    let panicked = |panic: Box<dyn std::any::Any + Send>| ExpertsError::Panic {
        layer: job.layer,
        message: panic_message(panic.as_ref()).to_owned(),
    };
    Ok(result.map_err(panicked)??)
}
