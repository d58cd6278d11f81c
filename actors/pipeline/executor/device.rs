//! Runs an engine on its own thread, or without a device on the clock of the tokio runtime.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cuelight_engine::engine::{CacheUnit, Engine, EngineError, ExpertJob, Progress, Step, StepId};
use cuelight_engine::heap::release_freed;
use cuelight_engine::host_memory::HostCopy;
use cuelight_engine::threads::{YieldHint, wake_promptly};
use ractor::ActorRef;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::micro_batches::step_and_micro_batch;
use crate::core::panic_message::panic_message;
use crate::pipeline::experts::{ExpertAnswer, ExpertJobQueue, ReplyTo};
use crate::pipeline::kv_store::KvStore;
use crate::pipeline::messages::{DeviceEvent, DeviceReport, ExecutorMsg};
use crate::pipeline::model_source::EngineHost;
use crate::pipeline::policy::UnitCopy;

/// A command to the engine.
pub(super) enum DeviceCommand {
    Begin(Step),
    /// Copies units to the store.
    ReadUnits(Vec<UnitCopy>),
    /// Writes these contents to units.
    WriteUnits(Vec<(CacheUnit, Arc<HostCopy>)>),
    /// The result of the expert job that the engine waits for.
    Resume(ExpertAnswer),
}

/// A running engine.
pub(super) enum Device<E> {
    Thread {
        /// Dropped to stop the thread.
        commands: Option<mpsc::UnboundedSender<DeviceCommand>>,
        yield_hint: Arc<YieldHint>,
        /// Closed when the thread has dropped the engine.
        gone: oneshot::Receiver<()>,
    },
    Virtual {
        engine: Option<E>,
        expert_jobs: ExpertJobQueue,
        kv_store: Option<KvStore>,
    },
    Abandoned,
}

impl<E: Engine> Device<E> {
    /// Starts the engine. It sends its reports to the executor, its expert jobs to the queue and copies of units to the store.
    pub fn start(
        engine: E,
        host: EngineHost,
        expert_jobs: ExpertJobQueue,
        kv_store: Option<KvStore>,
        reports: ActorRef<ExecutorMsg>,
    ) -> std::io::Result<Self> {
        if host == EngineHost::VirtualTime {
            return Ok(Device::Virtual { engine: Some(engine), expert_jobs, kv_store });
        }
        let (commands, receiver) = mpsc::unbounded_channel();
        let (alive, gone) = oneshot::channel();
        let yield_hint = Arc::<YieldHint>::default();
        let resume = commands.downgrade();
        let (engine, hint) = (Some(engine), Arc::clone(&yield_hint));
        let thread = DeviceThread { engine, resume, yield_hint: hint, expert_jobs, kv_store, reports };
        thread::Builder::new().name("cuelight-device".into()).spawn(move || {
            thread.run(receiver);
            // An ended thread's freed memory would otherwise stay with the process, once per restart of the engine.
            release_freed();
            drop(alive);
        })?;
        Ok(Device::Thread { commands: Some(commands), yield_hint, gone })
    }

    /// Sends the next command. A device that is gone has reported that already, so the command is dropped.
    pub fn send(&mut self, command: DeviceCommand, reports: &ActorRef<ExecutorMsg>) {
        match self {
            Device::Thread { commands, yield_hint, .. } => {
                yield_hint.request();
                let _ = commands.as_ref().map(|commands| commands.send(command));
            }
            Device::Virtual { engine, expert_jobs, kv_store } => {
                run_virtual(engine, command, (expert_jobs, kv_store.as_ref()), reports);
            }
            Device::Abandoned => {}
        }
    }

    /// Gives up a device that does not respond, without waiting for its thread.
    pub fn abandon(&mut self) {
        *self = Device::Abandoned;
    }

    /// Stops the device after its current step. The engine's memory is free when this resolves.
    pub async fn stop(&mut self) {
        match self {
            Device::Thread { commands, gone, .. } => {
                *commands = None;
                let _ = gone.await;
            }
            Device::Virtual { engine, .. } => *engine = None,
            Device::Abandoned => {}
        }
    }
}

/// The state of a device thread.
struct DeviceThread<E> {
    engine: Option<E>,
    /// Sends the results of expert jobs back to this thread. Weak, so that the thread ends with the executor.
    resume: mpsc::WeakUnboundedSender<DeviceCommand>,
    /// Asks the expert threads, which use all cores, to yield when this thread has work.
    yield_hint: Arc<YieldHint>,
    expert_jobs: ExpertJobQueue,
    kv_store: Option<KvStore>,
    reports: ActorRef<ExecutorMsg>,
}

impl<E: Engine> DeviceThread<E> {
    /// Runs commands until the executor or the engine is gone.
    fn run(mut self, mut commands: mpsc::UnboundedReceiver<DeviceCommand>) {
        wake_promptly();
        let yield_hint = Arc::clone(&self.yield_hint);
        while let Some(command) = commands.blocking_recv() {
            yield_hint.accept();
            let from = Instant::now();
            let kv_store = self.kv_store.as_ref();
            let result = yield_hint.while_working(|| run_command(&mut self.engine, command, kv_store));
            let elapsed = from.elapsed();
            // The expert job is submitted before anything is reported, so that the experts start at once.
            let report =
                submit_job(result, |job| self.expert_jobs.submit(job, Arc::clone(&yield_hint), self.reply_to()));
            let waiting = match report {
                DeviceReport::AwaitsExperts(step) => Some(step),
                _ => None,
            };
            let event = DeviceEvent { report, from, elapsed };
            if self.reports.cast(ExecutorMsg::Device(event)).is_err() || self.engine.is_none() {
                return;
            }
            let Some(event) =
                waiting.and_then(|step| yield_hint.while_working(|| run_overlapped(&mut self.engine, step)))
            else {
                continue;
            };
            if self.reports.cast(ExecutorMsg::Device(event)).is_err() || self.engine.is_none() {
                return;
            }
        }
    }

    fn reply_to(&self) -> ReplyTo {
        let (resume, yield_hint) = (self.resume.clone(), Arc::clone(&self.yield_hint));
        Box::new(move |answer| {
            yield_hint.request();
            let _ = resume.upgrade().map(|commands| commands.send(DeviceCommand::Resume(answer)));
        })
    }
}

/// Lets the engine do other work for a step that waits for experts. `None` when there is none.
fn run_overlapped<E: Engine>(slot: &mut Option<E>, step: StepId) -> Option<DeviceEvent> {
    let from = Instant::now();
    let report = match call_engine(slot, |engine| engine.run_overlapped(step)) {
        Ok(false) => return None,
        Ok(true) => DeviceReport::RanOverlapped(step),
        Err(report) => report,
    };
    Some(DeviceEvent { report, from, elapsed: from.elapsed() })
}

fn run_virtual<E: Engine>(
    engine: &mut Option<E>,
    command: DeviceCommand,
    (expert_jobs, kv_store): (&ExpertJobQueue, Option<&KvStore>),
    reports: &ActorRef<ExecutorMsg>,
) {
    let executor = reports.clone();
    let reply_to: ReplyTo = Box::new(move |answer| drop(executor.cast(ExecutorMsg::Experts(answer))));
    let report =
        submit_job(run_command(engine, command, kv_store), |job| expert_jobs.submit(job, Arc::default(), reply_to));
    let elapsed = match &report {
        DeviceReport::Done(output) => output.elapsed,
        _ => Duration::ZERO,
    };
    let event = DeviceEvent { report, from: Instant::now(), elapsed };
    if elapsed.is_zero() {
        let _ = reports.cast(ExecutorMsg::Device(event));
        return;
    }
    let reports = reports.clone();
    tokio::spawn(async move {
        tokio::time::sleep(elapsed).await;
        let _ = reports.cast(ExecutorMsg::Device(event));
    });
}

/// The report of a command. An expert job is submitted first.
fn submit_job(result: Result<Progress, DeviceReport>, submit: impl FnOnce(ExpertJob)) -> DeviceReport {
    match result {
        Ok(Progress::Done(output)) => DeviceReport::Done(Box::new(output)),
        Ok(Progress::AwaitExperts(job)) => {
            let step = job.step;
            submit(job);
            DeviceReport::AwaitsExperts(step)
        }
        Err(report) => report,
    }
}

/// Runs a command. A copy of units ends with a report of its own.
fn run_command<E: Engine>(
    slot: &mut Option<E>,
    command: DeviceCommand,
    kv_store: Option<&KvStore>,
) -> Result<Progress, DeviceReport> {
    match command {
        DeviceCommand::Begin(step) => call_engine(slot, |engine| engine.begin(step)),
        DeviceCommand::Resume(Ok(result)) => call_engine(slot, |engine| engine.resume(result)),
        // The engine is in the middle of the step and cannot continue, so a new one has to be loaded.
        DeviceCommand::Resume(Err(error)) => Err(drop_engine(slot, error.to_string())),
        DeviceCommand::ReadUnits(copies) => Err(read_units(slot, copies, kv_store)),
        DeviceCommand::WriteUnits(contents) => Err(write_units(slot, &contents)),
    }
}

/// Copies units to the store.
fn read_units<E: Engine>(slot: &mut Option<E>, copies: Vec<UnitCopy>, kv_store: Option<&KvStore>) -> DeviceReport {
    let Some(store) = kv_store else { return DeviceReport::UnitsRead };
    let mut memory: Vec<Option<HostCopy>> = copies.iter().map(|copy| store.take_memory(copy.unit.kind())).collect();
    let to_read = copies.iter().zip(&mut memory);
    let mut to_read: Vec<(CacheUnit, &mut [u8])> =
        to_read.filter_map(|(copy, memory)| Some((copy.unit, &mut **memory.as_mut()?))).collect();
    if let Err(report) = call_engine(slot, |engine| engine.read_units(&mut to_read)) {
        return report;
    }
    for (copy, memory) in copies.into_iter().zip(memory) {
        store.put(copy.content, copy.to, memory);
    }
    DeviceReport::UnitsRead
}

fn write_units<E: Engine>(slot: &mut Option<E>, contents: &[(CacheUnit, Arc<HostCopy>)]) -> DeviceReport {
    let contents: Vec<(CacheUnit, &[u8])> = contents.iter().map(|(unit, content)| (*unit, &***content)).collect();
    match call_engine(slot, |engine| engine.write_units(&contents)) {
        Ok(()) => DeviceReport::UnitsWritten(contents.iter().map(|(_, content)| content.len() as u64).sum()),
        Err(report) => report,
    }
}

/// Calls the engine. An engine that panics or loses its device is dropped before that is reported, so that its memory is
/// free when the next engine is built.
fn call_engine<E: Engine, T>(
    slot: &mut Option<E>,
    call: impl FnOnce(&mut E) -> Result<T, EngineError>,
) -> Result<T, DeviceReport> {
    let Some(engine) = slot else { return Err(DeviceReport::Lost("the engine is gone already".into())) };
    let reason = match catch_unwind(AssertUnwindSafe(|| call(engine))) {
        Ok(Ok(value)) => return Ok(value),
        Ok(Err(EngineError::InvalidStep { step, reason })) => {
            let error = EngineError::InvalidStep { step: step_and_micro_batch(step).0, reason };
            return Err(DeviceReport::Refused { step, reason: error.to_string() });
        }
        Ok(Err(error @ (EngineError::DeviceLost(_) | EngineError::FileChanged(_) | EngineError::Cancelled))) => {
            error.to_string()
        }
        Err(panic) => format!("the engine panicked: {}", panic_message(panic.as_ref())),
    };
    Err(drop_engine(slot, reason))
}

fn drop_engine<E>(slot: &mut Option<E>, reason: String) -> DeviceReport {
    // Dropping a broken engine may panic again.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(slot.take())));
    DeviceReport::Lost(reason)
}
