//! The Experts actor computes routed experts that a device leaves to the processor, while the device does something else.
//!
//! Hears from: executors (`Compute`), the supervisor (`Loaded`), its thread (`Computed`). Says, through its thread: `Experts` to
//! the executor that asked.
//!
//! Computing blocks, so it has a thread of its own, which takes one job after the other; the thread and the team that it leads
//! are the model's, see [`HostExperts`].
//!
//! Failure: an error or a panic answers the job, and the executor gives its engine up. When the actor itself dies, the
//! supervisor starts another over the same weights and tells the executor, which asks again for what was not answered: no step
//! is lost.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use cuelight_engine::engine::{ExpertJob, ExpertResult, StepId};
use cuelight_engine::experts::{ExpertJobError, HostExperts};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::time::Instant;

use crate::executor::{ExecutorMsg, panic_message, step_and_part};
use crate::metrics::ExpertMetrics;
use crate::trace::Tracer;

/// The experts of a loaded model, which outlive the actor that computes them.
pub type SharedExperts = Arc<Mutex<HostExperts>>;

/// What the experts hear.
pub enum ExpertsMsg {
    /// A model was loaded: from now on these are its experts on the host, or it has none.
    Loaded(Option<SharedExperts>),
    /// Compute one layer's routed rows.
    Compute {
        /// The rows and their routes.
        job: Arc<ExpertJob>,
        /// Who waits.
        reply_to: ActorRef<ExecutorMsg>,
    },
    /// The thread finished a job, and has answered it.
    Computed {
        /// The job.
        job: Arc<ExpertJob>,
        /// When it began.
        began: Instant,
        /// How long it took.
        elapsed: Duration,
    },
}

/// Why a job was not computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpertsError {
    /// The engine placed experts here, but the model was loaded without any on the host.
    #[error("layer {layer} asks for experts on the host, but this model was loaded with none there")]
    NoHostExperts {
        /// The layer.
        layer: usize,
    },
    /// The job does not fit the experts.
    #[error(transparent)]
    Job(#[from] ExpertJobError),
    /// Computing panicked.
    #[error("computing the host's experts of layer {layer} panicked: {message}")]
    Panic {
        /// The layer.
        layer: usize,
        /// The panic's text.
        message: String,
    },
}

/// What the actor needs to start.
pub struct ExpertsArguments {
    /// The name of the model, for metrics.
    pub model_id: Arc<str>,
    /// The model's experts on the host, if it has some.
    pub experts: Option<SharedExperts>,
    /// Hears what happens when.
    pub tracer: Tracer,
}

/// The actor's own.
pub struct ExpertsState {
    /// Jobs for the thread, which ends when this is dropped; `None` without experts on the host.
    jobs: Option<mpsc::Sender<Job>>,
    metrics: ExpertMetrics,
    tracer: Tracer,
}

type Job = (Arc<ExpertJob>, ActorRef<ExecutorMsg>);

/// The actor; everything it knows is in [`ExpertsState`].
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
        let ExpertsArguments { model_id, experts, tracer } = arguments;
        let metrics = ExpertMetrics::new(&model_id);
        Ok(ExpertsState { jobs: start_thread(experts, &me)?, metrics, tracer })
    }

    async fn handle(
        &self,
        me: ActorRef<ExpertsMsg>,
        message: ExpertsMsg,
        state: &mut ExpertsState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            ExpertsMsg::Loaded(experts) => state.jobs = start_thread(experts, &me)?,
            ExpertsMsg::Compute { job, reply_to } => {
                #[cfg(feature = "fault-injection")]
                crate::faults::strike_experts()?;
                state.compute(job, reply_to);
            }
            ExpertsMsg::Computed { job, began, elapsed } => state.computed(&job, began, elapsed),
        }
        Ok(())
    }
}

impl ExpertsState {
    fn compute(&self, job: Arc<ExpertJob>, reply_to: ActorRef<ExecutorMsg>) {
        match &self.jobs {
            // A thread that is gone has panicked outside of a job, which nothing can make it do.
            Some(jobs) => drop(jobs.send((job, reply_to))),
            None => answer(&reply_to, job.step, Err(ExpertsError::NoHostExperts { layer: job.layer })),
        }
    }

    fn computed(&self, job: &ExpertJob, began: Instant, elapsed: Duration) {
        self.metrics.job(job.n_routes, elapsed);
        self.tracer.experts_computed(step_and_part(job.step), (job.layer, job.n_routes), began, elapsed);
    }
}

fn answer(reply_to: &ActorRef<ExecutorMsg>, step: StepId, result: Result<ExpertResult, ExpertsError>) {
    // The executor may be gone by now; then nobody waits.
    let _ = reply_to.cast(ExecutorMsg::Experts { step, result });
}

/// The thread that computes, where there is something to compute.
fn start_thread(
    experts: Option<SharedExperts>,
    me: &ActorRef<ExpertsMsg>,
) -> std::io::Result<Option<mpsc::Sender<Job>>> {
    let Some(experts) = experts else { return Ok(None) };
    let (sender, jobs) = mpsc::channel::<Job>();
    let me = me.clone();
    thread::Builder::new().name("cuelight-experts".into()).spawn(move || {
        for (job, reply_to) in jobs {
            let began = Instant::now();
            let result = compute(&experts, &job);
            let elapsed = began.elapsed();
            // At once, since a device waits for it; the rest has time.
            answer(&reply_to, job.step, result);
            if me.cast(ExpertsMsg::Computed { job, began, elapsed }).is_err() {
                return;
            }
        }
    })?;
    Ok(Some(sender))
}

fn compute(experts: &SharedExperts, job: &ExpertJob) -> Result<ExpertResult, ExpertsError> {
    // After a panic the engine is given up and loaded anew, and its experts with it.
    let mut experts = experts.lock().unwrap_or_else(PoisonError::into_inner);
    let result = catch_unwind(AssertUnwindSafe(|| experts.compute(job)));
    let panicked = |panic: Box<dyn std::any::Any + Send>| ExpertsError::Panic {
        layer: job.layer,
        message: panic_message(panic.as_ref()).to_owned(),
    };
    Ok(result.map_err(panicked)??)
}
