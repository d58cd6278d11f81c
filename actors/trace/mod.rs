//! What happened when: the steps of each actor and the life of each request, for a file that shows them side by side
//! ([`chrome`]) and for a collector of spans ([`otlp`]).
//!
//! Actors hold a [`Tracer`] and say what happened, one call each. A record goes through a bounded channel to the thread
//! of each [`Sink`], which does all further work; when a thread cannot keep up, records are dropped and counted, and
//! nobody waits. With no sink a call is one branch.

pub mod call;
pub mod chrome;
pub mod otlp;
pub mod request;
mod steps;

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cuelight_engine::engine::{Step, StepId};
use cuelight_engine::profile::OpSpan;
use tokio::time::Instant;

use self::chrome::ChromeTrace;
use self::otlp::{CollectorError, SpanExport};
use self::request::EndedRequest;
use crate::metrics::is_prefill;
use crate::request::RequestId;
use crate::runtime::Status;

/// Why nothing is recorded.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be made.
    #[error("the trace file {} cannot be written", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Spans cannot go to the collector.
    #[error(transparent)]
    Collector(#[from] CollectorError),
    /// No thread.
    #[error("the thread that writes traces cannot be started")]
    Thread(#[from] io::Error),
}

/// Starts what the settings ask for; the tracer is off when that is nothing.
///
/// # Errors
/// [`TraceError`].
pub fn start(file: Option<&Path>, collector: Option<&str>) -> Result<Tracer, TraceError> {
    let mut sinks: Vec<Box<dyn Sink>> = Vec::new();
    if let Some(path) = file {
        let trace = ChromeTrace::create(path).map_err(|source| TraceError::File { path: path.to_owned(), source })?;
        sinks.push(Box::new(trace));
    }
    if let Some(url) = collector {
        sinks.push(Box::new(SpanExport::start(url)?));
    }
    Ok(Tracer::start(sinks)?)
}

/// Records that wait for a sink before more are dropped: some seconds of a busy server, a few megabytes.
const CHANNEL_RECORDS: usize = 1 << 14;

/// A cheap handle through which the actors of one cast say what happened.
#[derive(Clone, Default)]
pub struct Tracer {
    recording: Option<Arc<Recording>>,
    cast: CastId,
}

/// Whose actors say something.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
pub struct CastId {
    /// The model.
    pub model_id: Arc<str>,
    /// Which of its replicas, where there are several.
    pub replica: Option<usize>,
}

impl fmt::Display for CastId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.replica {
            Some(replica) => write!(f, "{}, replica {replica}", self.model_id),
            None => f.write_str(&self.model_id),
        }
    }
}

/// What all handles share.
struct Recording {
    sinks: Vec<SyncSender<Message>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    dropped: AtomicU64,
}

/// What a sink's thread hears.
enum Message {
    Record(Arc<Record>),
    /// Nothing more comes.
    Finish,
}

/// Something that happened in one cast.
pub struct Record {
    /// Where.
    pub cast: CastId,
    /// When it happened, or had happened.
    pub at: Instant,
    /// What.
    pub event: TraceEvent,
}

/// What happened.
pub enum TraceEvent {
    /// The scheduler formed a step.
    StepFormed {
        /// The step.
        step: StepId,
        /// When it began to.
        from: Instant,
        /// What the step consists of.
        shape: StepShape,
    },
    /// The device was given a step.
    StepBegun(StepId),
    /// The device finished a step.
    StepComputed {
        /// The step.
        step: StepId,
        /// How long it computed.
        elapsed: Duration,
        /// What each op took, where that is measured.
        ops: Vec<OpSpan>,
    },
    /// The device finished a piece of a step, after which the step waits for experts or is done.
    PieceComputed {
        /// The step.
        step: StepId,
        /// Which of the step's micro-batches.
        part: u64,
        /// When it began.
        from: Instant,
        /// How long it computed.
        elapsed: Duration,
    },
    /// The experts on the host finished a job.
    ExpertsComputed {
        /// The step.
        step: StepId,
        /// Which of the step's micro-batches.
        part: u64,
        /// The layer, counted among those with experts on the host.
        layer: usize,
        /// Routes of rows to experts.
        routes: usize,
        /// When it began.
        from: Instant,
        /// How long it computed.
        elapsed: Duration,
    },
    /// The sampler finished a step.
    StepSampled {
        /// The step.
        step: StepId,
        /// When it began to.
        from: Instant,
        /// When it had chosen the tokens, which the next step may wait for, and went on to tell the clients.
        chosen: Instant,
        /// Sequences that got a token, or ended.
        sequences: usize,
    },
    /// A sequence lost its KV blocks to others.
    Preempted(RequestId),
    /// The model's status changed: to this word.
    Status(&'static str),
    /// An actor is restarted after a fault.
    Restarted {
        /// Which.
        actor: &'static str,
        /// Why.
        reason: String,
    },
    /// A request ended.
    RequestEnded(Box<EndedRequest>),
}

/// What a step consists of.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepShape {
    /// Tokens in all.
    pub rows: usize,
    /// Sequences that share it.
    pub sequences: usize,
    /// The sequences with a part of their prompt, or of what is computed again, and how many tokens of it.
    pub prefills: Vec<(RequestId, usize)>,
}

impl StepShape {
    fn new(step: &Step, members: impl Iterator<Item = RequestId>) -> Self {
        let prefills = step.sequences.iter().zip(members).filter(|(share, _)| is_prefill(share));
        StepShape {
            rows: step.rows(),
            sequences: step.sequences.len(),
            prefills: prefills.map(|(share, request)| (request, share.tokens.len())).collect(),
        }
    }
}

/// Where records end up; it has a thread of its own.
pub trait Sink: Send + 'static {
    /// Takes a record. `false`: it wants no more.
    fn record(&mut self, record: &Record) -> bool;

    /// Makes what it has visible; called when nothing came for a while, and often enough otherwise.
    fn flush(&mut self);

    /// Ends: after the last record. So many were dropped on the way.
    fn finish(&mut self, dropped: u64);
}

/// Between two flushes of a sink.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

impl Tracer {
    /// Starts a thread for each sink. Without any, the tracer is off.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn start(sinks: Vec<Box<dyn Sink>>) -> io::Result<Self> {
        if sinks.is_empty() {
            return Ok(Tracer::default());
        }
        let mut senders = Vec::new();
        let mut receivers = Vec::new();
        for sink in sinks {
            let (sender, receiver) = sync_channel(CHANNEL_RECORDS);
            senders.push(sender);
            receivers.push((sink, receiver));
        }
        let recording = Arc::new(Recording { sinks: senders, threads: Mutex::default(), dropped: AtomicU64::new(0) });
        for (sink, receiver) in receivers {
            // Weak, or the channel would never close.
            let of = Arc::downgrade(&recording);
            let thread = thread::Builder::new().name("cuelight-trace".into()).spawn(move || {
                let dropped = || of.upgrade().map_or(0, |of| of.dropped.load(Ordering::Relaxed));
                serve(sink, &receiver, dropped);
            })?;
            recording.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(Tracer { recording: Some(recording), cast: CastId::default() })
    }

    /// The same, for another model's actors; of which replica, where it has several.
    #[must_use]
    pub fn for_replica(&self, model_id: &Arc<str>, replica: Option<usize>) -> Self {
        Tracer { recording: self.recording.clone(), cast: CastId { model_id: model_id.clone(), replica } }
    }

    /// Ends the recording: waits until the sinks have everything, and takes nothing more.
    pub fn finish(&self) {
        let Some(recording) = &self.recording else { return };
        let threads = std::mem::take(&mut *recording.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for sink in &recording.sinks {
            // A sink that is gone has finished.
            let _ = sink.send(Message::Finish);
        }
        for thread in threads {
            // It panicked, and said so.
            let _ = thread.join();
        }
    }

    /// Whether anybody wants to know.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.recording.is_some()
    }

    /// The time, when anybody wants to know: the begin of what a later call reports.
    #[must_use]
    pub fn now(&self) -> Option<Instant> {
        self.recording.is_some().then(Instant::now)
    }

    /// A step was formed since `from`; `members` are its requests, in its order.
    fn step_formed(&self, step: &Step, from: Option<Instant>, members: impl Iterator<Item = RequestId>) {
        self.record(|at| {
            let shape = StepShape::new(step, members);
            TraceEvent::StepFormed { step: step.id, from: from.unwrap_or(at), shape }
        });
    }

    /// The device was given a step.
    pub(crate) fn step_begun(&self, step: StepId) {
        self.record(|_| TraceEvent::StepBegun(step));
    }

    /// The device finished a step that took so long; `ops` are its parts, where they are measured.
    pub(crate) fn step_computed(&self, step: StepId, elapsed: Duration, ops: Vec<OpSpan>) {
        self.record(|_| TraceEvent::StepComputed { step, elapsed, ops });
    }

    /// The device computed a piece of a part of a step, from `from` on.
    pub(crate) fn piece_computed(&self, (step, part): (StepId, u64), from: Instant, elapsed: Duration) {
        self.record(|_| TraceEvent::PieceComputed { step, part, from, elapsed });
    }

    /// The experts computed a job of a part of a step, from `from` on.
    pub(crate) fn experts_computed(
        &self,
        (step, part): (StepId, u64),
        (layer, routes): (usize, usize),
        from: Instant,
        elapsed: Duration,
    ) {
        self.record(|_| TraceEvent::ExpertsComputed { step, part, layer, routes, from, elapsed });
    }

    /// The sampler finished a step that it began at `from`, and whose tokens it had at `chosen`.
    pub(crate) fn step_sampled(&self, step: StepId, from: Option<Instant>, chosen: Option<Instant>, sequences: usize) {
        self.record(|at| {
            let (from, chosen) = (from.unwrap_or(at), chosen.unwrap_or(at));
            TraceEvent::StepSampled { step, from, chosen, sequences }
        });
    }

    /// A sequence lost its KV blocks.
    pub(crate) fn preempted(&self, request: RequestId) {
        self.record(|_| TraceEvent::Preempted(request));
    }

    /// The model's status is another.
    pub(crate) fn status(&self, status: &Status) {
        self.record(|_| TraceEvent::Status(status.word()));
    }

    /// An actor is restarted.
    pub(crate) fn restarted(&self, actor: &'static str, reason: &str) {
        self.record(|_| TraceEvent::Restarted { actor, reason: reason.to_owned() });
    }

    /// A request ended.
    pub(crate) fn request_ended(&self, ended: &EndedRequest) {
        self.record(|_| TraceEvent::RequestEnded(Box::new(ended.clone())));
    }

    fn record(&self, event: impl FnOnce(Instant) -> TraceEvent) {
        let Some(recording) = &self.recording else { return };
        let at = Instant::now();
        let record = Arc::new(Record { cast: self.cast.clone(), at, event: event(at) });
        for sink in &recording.sinks {
            if sink.try_send(Message::Record(record.clone())).is_err() {
                recording.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// The scheduler's handling of one message, in which it may form steps.
pub(crate) struct Turn {
    tracer: Tracer,
    /// When it began, or formed the last step.
    from: Option<Instant>,
}

impl Turn {
    pub fn new(tracer: Tracer) -> Self {
        Turn { tracer, from: None }
    }

    /// The next message.
    pub fn begin(&mut self) {
        self.from = self.tracer.now();
    }

    /// A step was formed; `members` are its requests, in its order.
    pub fn step_formed(&mut self, step: &Step, members: impl Iterator<Item = RequestId>) {
        self.tracer.step_formed(step, self.from, members);
        self.begin();
    }
}

impl fmt::Debug for Tracer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tracer")
            .field("sinks", &self.recording.as_ref().map_or(0, |recording| recording.sinks.len()))
            .finish()
    }
}

impl PartialEq for Tracer {
    /// Whether both record to the same sinks.
    fn eq(&self, other: &Self) -> bool {
        self.recording.as_ref().map(Arc::as_ptr) == other.recording.as_ref().map(Arc::as_ptr)
    }
}

impl Eq for Tracer {}

/// A sink's thread: until it is told to finish, or nobody can tell it any more.
fn serve(mut sink: Box<dyn Sink>, messages: &Receiver<Message>, dropped: impl Fn() -> u64) {
    let mut flushed = Instant::now();
    loop {
        match messages.recv_timeout(FLUSH_INTERVAL) {
            Ok(Message::Record(record)) => {
                if !sink.record(&record) {
                    break;
                }
            }
            Err(RecvTimeoutError::Timeout) => {}
            Ok(Message::Finish) | Err(RecvTimeoutError::Disconnected) => break,
        }
        if flushed.elapsed() >= FLUSH_INTERVAL {
            sink.flush();
            flushed = Instant::now();
        }
    }
    sink.finish(dropped());
}
