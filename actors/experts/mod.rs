//! The Experts actor computes routed experts that a device leaves to the processor, while the device does something else.
//!
//! Hears from: its thread (`Computed`, `Lost`). Says: nothing; its thread answers those who laid jobs on the [`ExpertDesk`].
//!
//! Computing blocks, so it has a thread of its own, which takes one job after the other from the desk. A device waits for each
//! of them, so neither this actor nor the executor stands between its thread and the device's: both hear of a job when it is
//! done. The team that the thread leads is the model's, see [`HostExperts`](cuelight_engine::experts::HostExperts).
//!
//! Failure: an error or a panic answers the job, and the device's engine is given up. When the actor itself dies, the supervisor
//! starts another at the same desk, where the jobs lie that were not answered: no step is lost.

mod desk;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, PoisonError};
use std::thread;
use std::time::Duration;

use cuelight_engine::engine::ExpertJob;
use cuelight_engine::experts::ExpertJobError;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::time::Instant;

pub use self::desk::{Answer, ExpertDesk, ReplyTo, SharedExperts};
use self::desk::{Clerk, Place, TakenJob};
use crate::executor::{panic_message, step_and_part};
use crate::metrics::ExpertMetrics;
use crate::trace::Tracer;

/// What the experts hear.
pub enum ExpertsMsg {
    /// The thread finished a job, and has answered it.
    Computed {
        /// The job.
        job: Arc<ExpertJob>,
        /// When it began.
        began: Instant,
        /// How long it took.
        elapsed: Duration,
    },
    /// The thread ended, for this reason.
    Lost(String),
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
    /// Where jobs are laid.
    pub desk: ExpertDesk,
    /// Hears what happens when.
    pub tracer: Tracer,
}

/// The actor's own.
pub struct ExpertsState {
    /// The thread ends when this is dropped.
    _place: Place,
    metrics: ExpertMetrics,
    tracer: Tracer,
}

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
        let ExpertsArguments { model_id, desk, tracer } = arguments;
        let place = desk.serve();
        let clerk = place.clerk();
        thread::Builder::new().name("cuelight-experts".into()).spawn(move || {
            let served = catch_unwind(AssertUnwindSafe(|| serve(&clerk, &me)));
            let reason = served.unwrap_or_else(|panic| Some(panic_message(panic.as_ref()).to_owned()));
            // An actor that is gone has left its place, and knows.
            let _ = reason.map(|reason| me.cast(ExpertsMsg::Lost(reason)));
        })?;
        Ok(ExpertsState { _place: place, metrics: ExpertMetrics::new(&model_id), tracer })
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
        self.tracer.experts_computed(step_and_part(job.step), (job.layer, job.n_routes), began, elapsed);
    }
}

/// The thread: one job after the other, until the actor has left its place. Why, if it ends by itself.
fn serve(clerk: &Clerk, me: &ActorRef<ExpertsMsg>) -> Option<String> {
    while let Some(taken) = clerk.next() {
        #[cfg(feature = "fault-injection")]
        if let Err(fault) = crate::faults::strike_experts() {
            return Some(fault.to_string());
        }
        let began = Instant::now();
        let answer = compute(&taken);
        let elapsed = began.elapsed();
        let job = Arc::clone(&taken.job);
        // At once, since a device waits for it; the rest has time.
        clerk.answer(taken, answer);
        let _ = me.cast(ExpertsMsg::Computed { job, began, elapsed });
    }
    None
}

fn compute(TakenJob { job, experts, way, .. }: &TakenJob) -> Answer {
    // After a panic the engine is given up and loaded anew, and its experts with it.
    let mut experts = experts.lock().unwrap_or_else(PoisonError::into_inner);
    let result = catch_unwind(AssertUnwindSafe(|| experts.compute_giving_way(job, way)));
    let panicked = |panic: Box<dyn std::any::Any + Send>| ExpertsError::Panic {
        layer: job.layer,
        message: panic_message(panic.as_ref()).to_owned(),
    };
    Ok(result.map_err(panicked)??)
}
