//! The Experts actor computes routed experts whose weights live on the host.
//!
//! Hears from: executors (`Compute`). Says: `Experts` to the executor that asked.
//!
//! Failure: an error answers the job; the executor treats its step as failed.

use cuelight_engine::engine::{ExpertJob, ExpertResult};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use crate::executor::ExecutorMsg;

/// What the experts hear.
pub enum ExpertsMsg {
    /// Compute one layer's routed rows.
    Compute {
        /// The rows and their routes.
        job: ExpertJob,
        /// Who waits.
        reply_to: ActorRef<ExecutorMsg>,
    },
}

/// Why a job was not computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpertsError {
    /// The engine placed experts here, but the model was loaded without any on the host.
    #[error("layer {layer} asks for experts on the host, but this model was loaded with none there")]
    NoHostExperts {
        /// The layer.
        layer: u32,
    },
}

/// The actor. No model places experts on the host yet, so it holds no weights.
pub struct Experts;

impl Actor for Experts {
    type Msg = ExpertsMsg;
    type State = ();
    type Arguments = ();

    async fn pre_start(&self, _me: ActorRef<ExpertsMsg>, _arguments: ()) -> Result<(), ActorProcessingErr> {
        Ok(())
    }

    async fn handle(
        &self,
        _me: ActorRef<ExpertsMsg>,
        message: ExpertsMsg,
        _state: &mut (),
    ) -> Result<(), ActorProcessingErr> {
        match message {
            ExpertsMsg::Compute { job, reply_to } => {
                // The executor may be gone by now; then nobody waits.
                let _ = reply_to.cast(ExecutorMsg::Experts { step: job.step, result: compute(&job) });
            }
        }
        Ok(())
    }
}

fn compute(job: &ExpertJob) -> Result<ExpertResult, ExpertsError> {
    Err(ExpertsError::NoHostExperts { layer: job.layer })
}
