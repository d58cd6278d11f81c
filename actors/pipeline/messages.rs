//! The messages that the actors of a pipeline exchange.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::{CacheUnit, Engine, EngineLimits, ExpertJob, StepId, StepOutput, TokenId};
use cuelight_engine::host_memory::HostCopy;
use cuelight_engine::load::{FileChange, LoadCancel, LoadProgress, LoadedModel};
use cuelight_engine::projector::PreparedMedia;
use ractor::ActorRef;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::experts::ExpertAnswer;
use super::journal::RequestRecord;
use super::kv_store::Fetched;
use super::model_source::SourceError;
use super::policy::{PlannedStep, PolicyEvent, SampleTask, UnitCopy};
use crate::core::draft::{DraftRequest, HiddenShare};
use crate::core::request::{GenerationError, RequestId};

/// Messages to the supervisor.
pub enum SupervisorMsg<E: Engine> {
    /// Progress of the current load.
    LoadProgress(LoadProgress),
    /// The model is loaded, or cannot be loaded.
    Loaded(Result<Box<LoadedModel<E>>, SourceError>),
    /// The file of the loaded model changed.
    FileChanged(FileChange),
    /// The backoff before a restart of the loader is over.
    Reload,
    /// The backoff before a restart of the scheduler and the sampler is over.
    Reconnect,
    /// The draft model is loaded.
    DrafterReady,
    /// The backoff before a restart of the drafter is over.
    RestartDrafter,
    /// Accept no new requests and stop after running requests have finished, or after this time.
    Drain(Duration),
    /// The drain is complete or its time is over.
    Stop,
}

/// Messages to the loader.
pub enum LoaderMsg {
    /// Load the model.
    Load,
}

/// Messages to the scheduler.
pub enum SchedulerMsg {
    /// Accept or refuse a request of the journal.
    Submit(RequestId),
    /// Continue the requests of the journal, after the previous scheduler or its sampler died. Sent once.
    Recover,
    /// An event for the scheduling policy.
    ///
    /// A lost executor is reported twice when both the executor and the supervisor notice it.
    Event(PolicyEvent),
    /// A new executor is ready. Its KV blocks are empty.
    ExecutorReady {
        /// Receives the steps.
        executor: ActorRef<ExecutorMsg>,
        /// The limits of its engine.
        limits: Box<EngineLimits>,
    },
    /// The draft model can be asked for drafts.
    DrafterReady(ActorRef<DrafterMsg>),
    /// The hidden values of a step, for the drafter. Sent before the step is reported as done.
    Hidden(Vec<HiddenShare>),
    /// Units were read from a lower tier.
    Fetched(Fetched),
    /// Accept no new requests, and reply when the last request has ended.
    Drain {
        /// Receives the reply.
        reply: oneshot::Sender<()>,
    },
}

impl From<PolicyEvent> for SchedulerMsg {
    fn from(event: PolicyEvent) -> Self {
        SchedulerMsg::Event(event)
    }
}

/// Messages to the sampler.
pub enum SamplerMsg {
    /// The scheduler that receives sampled tokens. Sent once, before any other message.
    Connect(ActorRef<SchedulerMsg>),
    /// A request was accepted, or continues after a restart.
    Begin {
        /// The request.
        record: Arc<RequestRecord>,
        /// Maximum length of prompt and answer together, in tokens.
        context_tokens: usize,
        /// Whether the scheduler waits until the client has read.
        is_paused: bool,
    },
    /// The logits of a step, and the tokens that the engine sampled.
    Sample {
        /// The output of the step.
        output: StepOutput,
        /// The sampling tasks, in the order of the logits.
        tasks: Vec<SampleTask>,
        /// Receives the sampled tokens.
        executor: ActorRef<ExecutorMsg>,
    },
    /// End a request with an error.
    Fail(RequestId, GenerationError),
    /// Drop a request whose client is gone.
    Forget(RequestId),
    /// A paused client has read.
    ClientReads(RequestId),
    /// A paused client has not read within the time limit.
    ClientStalled(RequestId),
}

/// Messages to the executor.
pub enum ExecutorMsg {
    /// Compute a step after the steps that were sent before it.
    Run(PlannedStep),
    /// The scheduler has handled a refused step. Later steps are valid again.
    Resync,
    /// Take steps from another scheduler and send logits to another sampler. Steps of the previous one are dropped, also
    /// the result of the step that is being computed.
    Connect {
        /// Receives the logits.
        sampler: ActorRef<SamplerMsg>,
        /// Receives the end of every step.
        scheduler: ActorRef<SchedulerMsg>,
    },
    /// Copy units to a lower tier before the steps that are sent later.
    Store(Vec<UnitCopy>),
    /// Write these contents to units before the steps that are sent later.
    Write(Vec<(CacheUnit, Arc<HostCopy>)>),
    /// The tokens that a step produced for the requests that continue.
    Tokens {
        /// The step.
        step: StepId,
        /// The next token of each request.
        tokens: Vec<(RequestId, TokenId)>,
    },
    /// Check whether the device exceeds the step timeout.
    Watch,
    /// The device made progress or is lost.
    Device(DeviceEvent),
    /// The result of an expert job, for an engine without a thread of its own.
    Experts(ExpertAnswer),
}

/// An event of a device and when it happened.
pub struct DeviceEvent {
    /// What happened.
    pub report: DeviceReport,
    /// When the device began to compute.
    pub from: Instant,
    /// How long it computed.
    pub elapsed: Duration,
}

/// The result of a command to a device.
///
/// Step ids are those of micro-batches: see [`step_and_micro_batch`](super::executor::step_and_micro_batch).
pub enum DeviceReport {
    /// The step is computed.
    Done(Box<StepOutput>),
    /// The step waits for a submitted expert job.
    AwaitsExperts(StepId),
    /// Overlapped work was done for a step that waits for experts.
    RanOverlapped(StepId),
    /// Units were copied to host memory.
    UnitsRead,
    /// Units were written from host memory: their bytes.
    UnitsWritten(u64),
    /// The engine refused a step. Its state is unchanged.
    Refused {
        /// The step.
        step: StepId,
        /// Why it was refused.
        reason: String,
    },
    /// The engine is gone, with the reason.
    Lost(String),
}

/// Messages to the experts actor.
pub enum ExpertsMsg {
    /// The expert thread computed a job and has replied to its sender.
    Computed {
        /// The job.
        job: Arc<ExpertJob>,
        /// When the computation began.
        began: Instant,
        /// How long it took.
        elapsed: Duration,
    },
    /// The expert thread ended, with the reason.
    Lost(String),
}

/// Messages to the drafter.
pub enum DrafterMsg {
    /// Generate a draft.
    Draft {
        /// What to continue.
        request: DraftRequest,
        /// Receives the reply.
        scheduler: ActorRef<SchedulerMsg>,
    },
    /// The hidden values of a step of the model, which come before the drafts that need them are requested.
    Hidden(Vec<HiddenShare>),
    /// The draft model is loaded, with these limits.
    Loaded(EngineLimits),
    /// Look whether the thread is stuck in a step.
    Check,
    /// The thread ended, with the reason.
    Lost(String),
}

/// Messages to the media encoder.
pub enum EncoderMsg {
    /// Compute the rows of a media item, after those of the media that were sent before it.
    Encode(EncodeJob),
    /// The encoder is loaded.
    Loaded,
    /// Look whether the thread is stuck in a media item.
    Check,
    /// The thread ended, with the reason.
    Lost(String),
}

/// A media item whose rows are wanted.
pub struct EncodeJob {
    /// The media item.
    pub media: Arc<PreparedMedia>,
    /// Set when the rows are no longer wanted.
    pub cancel: LoadCancel,
    /// Receives the rows, [rows, width]. Dropped without a reply when the encoder is lost.
    pub reply: oneshot::Sender<Result<Vec<f32>, EncodeError>>,
}

/// Why a media item has no rows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EncodeError {
    /// The encoder failed.
    #[error("the media item could not be encoded: {0}")]
    Failed(String),
    /// The model is being unloaded, or its encoder cannot be used any more.
    #[error("the model takes no media now: {0}")]
    Unavailable(String),
}
