//! The handle through which actors record what they do.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cuelight_engine::engine::{Step, StepId};
use cuelight_engine::profile::OpSpan;
use tokio::time::Instant;

use super::record::{PipelineId, Record, Sink, StepShape, TraceEvent};
use crate::core::ended_request::EndedRequest;
use crate::core::request::RequestId;
use crate::core::status::Status;

/// Number of records buffered for a sink before more are dropped: a few seconds of a busy server, a few megabytes.
const CHANNEL_RECORDS: usize = 1 << 14;

/// A cheap handle through which the actors of one pipeline record events.
#[derive(Clone, Default)]
pub struct Tracer {
    recording: Option<Arc<Recording>>,
    pipeline: PipelineId,
}

/// State shared by all handles.
struct Recording {
    sinks: Vec<SyncSender<Message>>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    dropped: AtomicU64,
}

/// Messages to the thread of a sink.
enum Message {
    Record(Arc<Record>),
    /// No further records follow.
    Finish,
}

/// Interval between two flushes of a sink.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

impl Tracer {
    /// Starts a thread for each sink. Without a sink the tracer is off.
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
            // Weak, because the channel would never close otherwise.
            let weak = Arc::downgrade(&recording);
            let thread = thread::Builder::new().name("cuelight-trace".into()).spawn(move || {
                let dropped = || weak.upgrade().map_or(0, |recording| recording.dropped.load(Ordering::Relaxed));
                serve(sink, &receiver, dropped);
            })?;
            recording.threads.lock().unwrap_or_else(PoisonError::into_inner).push(thread);
        }
        Ok(Tracer { recording: Some(recording), pipeline: PipelineId::default() })
    }

    /// A handle on the same recording for another pipeline. `replica` is `None` when the model has only one.
    #[must_use]
    pub fn for_replica(&self, model_id: &Arc<str>, replica: Option<usize>) -> Self {
        Tracer { recording: self.recording.clone(), pipeline: PipelineId { model_id: model_id.clone(), replica } }
    }

    /// Ends the recording and waits until the sinks have handled all records.
    pub fn finish(&self) {
        let Some(recording) = &self.recording else { return };
        let threads = std::mem::take(&mut *recording.threads.lock().unwrap_or_else(PoisonError::into_inner));
        for sink in &recording.sinks {
            // Fails only when the sink has finished already.
            let _ = sink.send(Message::Finish);
        }
        for thread in threads {
            // An error means that the thread panicked, which the panic hook has reported.
            let _ = thread.join();
        }
    }

    /// Whether events are recorded.
    #[must_use]
    pub fn is_on(&self) -> bool {
        self.recording.is_some()
    }

    /// The current time, if events are recorded. Used as the start time of a later event.
    #[must_use]
    pub fn now(&self) -> Option<Instant> {
        self.recording.is_some().then(Instant::now)
    }

    /// Records a formed step. `members` are its requests, in the order of its sequences.
    fn step_formed(&self, step: &Step, from: Option<Instant>, members: impl Iterator<Item = RequestId>) {
        self.record(|at| {
            let shape = StepShape::new(step, members);
            TraceEvent::StepFormed { step: step.id, from: from.unwrap_or(at), shape }
        });
    }

    /// Records that a step was sent to the device.
    pub(crate) fn step_begun(&self, step: StepId) {
        self.record(|_| TraceEvent::StepBegun(step));
    }

    /// Records that the device finished a step. `ops` are its measured ops, if any.
    pub(crate) fn step_computed(&self, step: StepId, elapsed: Duration, ops: Vec<OpSpan>) {
        self.record(|_| TraceEvent::StepComputed { step, elapsed, ops });
    }

    /// Records that the device computed a segment of a micro-batch.
    pub(crate) fn segment_computed(&self, (step, micro_batch): (StepId, u64), from: Instant, elapsed: Duration) {
        self.record(|_| TraceEvent::SegmentComputed { step, micro_batch, from, elapsed });
    }

    /// Records that the experts computed a job of a micro-batch.
    pub(crate) fn experts_computed(
        &self,
        (step, micro_batch): (StepId, u64),
        (layer, routes): (usize, usize),
        from: Instant,
        elapsed: Duration,
    ) {
        self.record(|_| TraceEvent::ExpertsComputed { step, micro_batch, layer, routes, from, elapsed });
    }

    /// Records that the sampler finished a step. It began at `from` and had all tokens at `sampled`.
    pub(crate) fn step_sampled(&self, step: StepId, from: Option<Instant>, sampled: Option<Instant>, sequences: usize) {
        self.record(|at| {
            let (from, sampled) = (from.unwrap_or(at), sampled.unwrap_or(at));
            TraceEvent::StepSampled { step, from, sampled, sequences }
        });
    }

    /// Records that a sequence was preempted.
    pub(crate) fn preempted(&self, request: RequestId) {
        self.record(|_| TraceEvent::Preempted(request));
    }

    /// Records a new status of the model.
    pub(crate) fn status(&self, status: &Status) {
        self.record(|_| TraceEvent::Status(status.word()));
    }

    /// Records the restart of an actor.
    pub(crate) fn restarted(&self, actor: &'static str, reason: &str) {
        self.record(|_| TraceEvent::Restarted { actor, reason: reason.to_owned() });
    }

    /// Records the end of a request.
    pub(crate) fn request_ended(&self, ended: &EndedRequest) {
        self.record(|_| TraceEvent::RequestEnded(Box::new(ended.clone())));
    }

    fn record(&self, event: impl FnOnce(Instant) -> TraceEvent) {
        let Some(recording) = &self.recording else { return };
        let at = Instant::now();
        let record = Arc::new(Record { pipeline: self.pipeline.clone(), at, event: event(at) });
        for sink in &recording.sinks {
            if sink.try_send(Message::Record(record.clone())).is_err() {
                recording.dropped.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
}

/// Times the forming of steps while the scheduler handles a message.
pub(crate) struct SchedulerTrace {
    tracer: Tracer,
    /// When handling the message began, or the previous step was formed.
    from: Option<Instant>,
}

impl SchedulerTrace {
    pub fn new(tracer: Tracer) -> Self {
        SchedulerTrace { tracer, from: None }
    }

    /// Starts the handling of a message.
    pub fn begin(&mut self) {
        self.from = self.tracer.now();
    }

    /// Records a formed step. `members` are its requests, in the order of its sequences.
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

/// Runs a sink until it is told to finish, accepts no more records, or all handles are dropped.
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
