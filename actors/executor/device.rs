//! Where an engine runs: on a thread of its own, or, without a device, on the clock of the runtime.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use cuelight_engine::engine::{Engine, EngineError, ExpertResult, Progress, Step, StepId};
use ractor::ActorRef;
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::ExecutorMsg;
use super::parts::step_and_part;

/// Where an engine runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EngineHost {
    /// On an OS thread of its own, which it may block.
    Thread,
    /// In the executor itself: for an engine that computes next to nothing and only says how long a step would take.
    /// That time passes on tokio's clock, so that a paused clock makes the whole run repeatable.
    VirtualTime,
}

/// What the engine is asked to do next.
pub(super) enum DeviceCommand {
    Begin(Step),
    Resume(ExpertResult),
}

/// What came of it, and when it was computed.
pub struct DeviceNews {
    /// What came of it.
    pub report: DeviceReport,
    /// When the device began.
    pub from: Instant,
    /// How long it computed.
    pub elapsed: Duration,
}

/// What came of it.
pub enum DeviceReport {
    /// The step is done or waits for experts.
    Progress(Progress),
    /// A step was refused; the engine is as before.
    Refused {
        /// The step, by the number that the engine knows it by.
        step: StepId,
        /// Why.
        reason: String,
    },
    /// The engine is gone.
    Lost(String),
}

/// An engine in its place.
pub(super) enum Device<E> {
    Thread {
        /// Dropped to stop the thread.
        commands: Option<mpsc::Sender<DeviceCommand>>,
        /// Closed when the thread has dropped the engine.
        gone: oneshot::Receiver<()>,
    },
    Virtual(Option<E>),
}

impl<E: Engine> Device<E> {
    /// Puts the engine in its place. Its reports go to the executor.
    pub fn start(engine: E, host: EngineHost, reports: ActorRef<ExecutorMsg>) -> std::io::Result<Self> {
        if host == EngineHost::VirtualTime {
            return Ok(Device::Virtual(Some(engine)));
        }
        let (commands, receiver) = mpsc::channel();
        let (alive, gone) = oneshot::channel();
        thread::Builder::new().name("cuelight-device".into()).spawn(move || {
            serve(engine, &receiver, &reports);
            drop(alive);
        })?;
        Ok(Device::Thread { commands: Some(commands), gone })
    }

    /// Asks for the next thing. A device that is gone has reported so already.
    pub fn ask(&mut self, command: DeviceCommand, reports: &ActorRef<ExecutorMsg>) {
        match self {
            Device::Thread { commands, .. } => {
                let _ = commands.as_ref().map(|commands| commands.send(command));
            }
            Device::Virtual(engine) => ask_virtual(engine, command, reports),
        }
    }

    /// Leaves the device to itself: it does not answer, so nobody waits for its end.
    pub fn abandon(&mut self) {
        *self = Device::Virtual(None);
    }

    /// Stops the device after the step it works on. When this resolves, the engine's memory is free.
    pub async fn stop(&mut self) {
        match self {
            Device::Thread { commands, gone } => {
                *commands = None;
                let _ = gone.await;
            }
            Device::Virtual(engine) => *engine = None,
        }
    }
}

/// The device thread: one command after the other until the executor or the engine is gone.
fn serve<E: Engine>(engine: E, commands: &mpsc::Receiver<DeviceCommand>, reports: &ActorRef<ExecutorMsg>) {
    let mut engine = Some(engine);
    while let Ok(command) = commands.recv() {
        let from = Instant::now();
        let report = run(&mut engine, command);
        let news = DeviceNews { report, from, elapsed: from.elapsed() };
        let waits = match &news.report {
            DeviceReport::Progress(Progress::AwaitExperts(job)) => Some(job.step),
            _ => None,
        };
        if reports.cast(ExecutorMsg::Device(news)).is_err() || engine.is_none() {
            return;
        }
        if let Some(lost) = waits.and_then(|step| work_beside(&mut engine, step)) {
            let _ = reports.cast(ExecutorMsg::Device(lost));
            return;
        }
    }
}

/// Lets the engine do what it can of a step that waits for experts; says so when it is lost by that.
fn work_beside<E: Engine>(slot: &mut Option<E>, step: StepId) -> Option<DeviceNews> {
    let from = Instant::now();
    let report = lose_if_broken(slot, |engine| engine.work_beside(step)).err()?;
    Some(DeviceNews { report, from, elapsed: from.elapsed() })
}

fn ask_virtual<E: Engine>(engine: &mut Option<E>, command: DeviceCommand, reports: &ActorRef<ExecutorMsg>) {
    let report = run(engine, command);
    let elapsed = match &report {
        DeviceReport::Progress(Progress::Done(output)) => output.elapsed,
        _ => Duration::ZERO,
    };
    let news = DeviceNews { report, from: Instant::now(), elapsed };
    if elapsed.is_zero() {
        let _ = reports.cast(ExecutorMsg::Device(news));
        return;
    }
    let reports = reports.clone();
    tokio::spawn(async move {
        tokio::time::sleep(elapsed).await;
        let _ = reports.cast(ExecutorMsg::Device(news));
    });
}

/// Runs one command.
fn run<E: Engine>(slot: &mut Option<E>, command: DeviceCommand) -> DeviceReport {
    let result = lose_if_broken(slot, |engine| match command {
        DeviceCommand::Begin(step) => engine.begin(step),
        DeviceCommand::Resume(result) => engine.resume(result),
    });
    result.map_or_else(|report| report, DeviceReport::Progress)
}

/// Lets the engine do something. One that panics or loses its device is dropped before anybody hears of it, so that its memory
/// is free when the next one is built.
fn lose_if_broken<E: Engine, T>(
    slot: &mut Option<E>,
    work: impl FnOnce(&mut E) -> Result<T, EngineError>,
) -> Result<T, DeviceReport> {
    let Some(engine) = slot else { return Err(DeviceReport::Lost("the engine is gone already".into())) };
    let reason = match catch_unwind(AssertUnwindSafe(|| work(engine))) {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(EngineError::InvalidStep { step, reason })) => {
            let error = EngineError::InvalidStep { step: step_and_part(step).0, reason };
            return Err(DeviceReport::Refused { step, reason: error.to_string() });
        }
        Ok(Err(error @ EngineError::DeviceLost(_))) => error.to_string(),
        Err(panic) => format!("the engine panicked: {}", panic_message(panic.as_ref())),
    };
    // Dropping a broken engine may panic once more.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(slot.take())));
    Err(DeviceReport::Lost(reason))
}

/// The text of a panic, when it has one.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
