//! The result of an expert job.

use cuelight_engine::engine::ExpertResult;
use cuelight_engine::experts::ExpertJobError;

/// Why an expert job was not computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ExpertsError {
    /// The engine submitted a job, but the model was loaded without experts on the host.
    #[error("layer {layer} asks for experts on the host, but this model was loaded with none there")]
    NoHostExperts {
        /// The layer.
        layer: usize,
    },
    /// The job does not match the experts.
    #[error(transparent)]
    Job(#[from] ExpertJobError),
    /// The computation panicked.
    #[error("computing the host's experts of layer {layer} panicked: {message}")]
    Panic {
        /// The layer.
        layer: usize,
        /// The message of the panic.
        message: String,
    },
}

/// The result of an expert job, or why it was not computed.
pub type ExpertAnswer = Result<ExpertResult, ExpertsError>;

/// Receives the result of a job. Called once, on the thread that computed the job.
pub type ReplyTo = Box<dyn FnOnce(ExpertAnswer) + Send>;
