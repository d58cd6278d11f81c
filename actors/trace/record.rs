//! Trace records, and the sinks that receive them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::{Step, StepId};
use cuelight_engine::profile::OpSpan;
use tokio::time::Instant;

use crate::core::ended_request::EndedRequest;
use crate::core::prefill_rows::is_prefill;
use crate::core::request::RequestId;

/// The pipeline that a record comes from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct PipelineId {
    /// The name of the model.
    pub model_id: Arc<str>,
    /// Index of the replica. `None` when the model has only one.
    pub replica: Option<usize>,
}

impl fmt::Display for PipelineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.replica {
            Some(replica) => write!(f, "{}, replica {replica}", self.model_id),
            None => f.write_str(&self.model_id),
        }
    }
}

/// Something that happened in a pipeline.
pub struct Record {
    /// The pipeline.
    pub pipeline: PipelineId,
    /// When it happened, or ended.
    pub at: Instant,
    /// What happened.
    pub event: TraceEvent,
}

/// An event of a pipeline.
pub enum TraceEvent {
    /// The scheduler formed a step.
    StepFormed {
        /// The step.
        step: StepId,
        /// When forming it began.
        from: Instant,
        /// Size and prompt rows of the step.
        shape: StepShape,
    },
    /// A step was sent to the device.
    StepBegun(StepId),
    /// The device finished a step.
    StepComputed {
        /// The step.
        step: StepId,
        /// How long the computation took.
        elapsed: Duration,
        /// The time of each op, when measured.
        ops: Vec<OpSpan>,
    },
    /// The device computed a segment of a step. Afterwards the step waits for experts or is done.
    SegmentComputed {
        /// The step.
        step: StepId,
        /// Index of the micro-batch within the step.
        micro_batch: u64,
        /// When the computation began.
        from: Instant,
        /// How long the computation took.
        elapsed: Duration,
    },
    /// The experts on the host computed a job.
    ExpertsComputed {
        /// The step.
        step: StepId,
        /// Index of the micro-batch within the step.
        micro_batch: u64,
        /// Index of the layer among those with experts on the host.
        layer: usize,
        /// Number of routes of rows to experts.
        routes: usize,
        /// When the computation began.
        from: Instant,
        /// How long the computation took.
        elapsed: Duration,
    },
    /// The sampler finished a step.
    StepSampled {
        /// The step.
        step: StepId,
        /// When sampling began.
        from: Instant,
        /// When all tokens were sampled. Afterwards they are sent to the clients.
        sampled: Instant,
        /// Number of sequences that got a token or ended.
        sequences: usize,
    },
    /// A sequence was preempted: it lost its KV blocks.
    Preempted(RequestId),
    /// The status of the model changed to this [`Status::word`](crate::core::status::Status::word).
    Status(&'static str),
    /// An actor is restarted after a fault.
    Restarted {
        /// The name of the actor.
        actor: &'static str,
        /// The error message.
        reason: String,
    },
    /// A request ended.
    RequestEnded(Box<EndedRequest>),
}

/// The size of a step and its prompt rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepShape {
    /// Number of rows.
    pub rows: usize,
    /// Number of sequences.
    pub sequences: usize,
    /// The sequences with prompt rows or recomputed rows, and the number of these rows.
    pub prefills: Vec<(RequestId, usize)>,
}

impl StepShape {
    pub(super) fn new(step: &Step, members: impl Iterator<Item = RequestId>) -> Self {
        let prefills = step.sequences.iter().zip(members).filter(|(rows, _)| is_prefill(rows));
        StepShape {
            rows: step.rows(),
            sequences: step.sequences.len(),
            prefills: prefills.map(|(rows, request)| (request, rows.tokens.len())).collect(),
        }
    }
}

/// Receives records, on its own thread.
pub trait Sink: Send + 'static {
    /// Handles a record. `false` when it accepts no further records.
    fn record(&mut self, record: &Record) -> bool;

    /// Writes buffered records. Called about once a second.
    fn flush(&mut self);

    /// Ends after the last record. `dropped` records were lost because the channel was full.
    fn finish(&mut self, dropped: u64);
}
