//! Where an engine runs: on a thread of its own, or, without a device, on the clock of the runtime.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cuelight_engine::engine::{Engine, EngineError, ExpertJob, Progress, Step, StepId, StepOutput};
use cuelight_engine::threads::{RightOfWay, wake_promptly};
use ractor::ActorRef;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::ExecutorMsg;
use super::parts::step_and_part;
use crate::experts::{self, ExpertDesk, ReplyTo};

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
    /// The experts have answered what it asked.
    Resume(experts::Answer),
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
    /// The step is done.
    Done(Box<StepOutput>),
    /// The step, by the number that the engine knows it by, waits for experts, which were asked.
    AwaitsExperts(StepId),
    /// Something was done of a step that waits for experts.
    WorkedBeside(StepId),
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
        commands: Option<mpsc::UnboundedSender<DeviceCommand>>,
        way: Arc<RightOfWay>,
        /// Closed when the thread has dropped the engine.
        gone: oneshot::Receiver<()>,
    },
    Virtual {
        engine: Option<E>,
        desk: ExpertDesk,
    },
    Abandoned,
}

impl<E: Engine> Device<E> {
    /// Puts the engine in its place. Its reports go to the executor, what it wants of experts on the host to their desk.
    pub fn start(
        engine: E,
        host: EngineHost,
        desk: ExpertDesk,
        reports: ActorRef<ExecutorMsg>,
    ) -> std::io::Result<Self> {
        if host == EngineHost::VirtualTime {
            return Ok(Device::Virtual { engine: Some(engine), desk });
        }
        let (commands, receiver) = mpsc::unbounded_channel();
        let (alive, gone) = oneshot::channel();
        let way = Arc::<RightOfWay>::default();
        let resume = commands.downgrade();
        let thread = DeviceThread { engine: Some(engine), resume, way: Arc::clone(&way), desk, reports };
        thread::Builder::new().name("cuelight-device".into()).spawn(move || {
            thread.serve(receiver);
            drop(alive);
        })?;
        Ok(Device::Thread { commands: Some(commands), way, gone })
    }

    /// Asks for the next thing. A device that is gone has reported so already.
    pub fn ask(&mut self, command: DeviceCommand, reports: &ActorRef<ExecutorMsg>) {
        match self {
            Device::Thread { commands, way, .. } => {
                way.call();
                let _ = commands.as_ref().map(|commands| commands.send(command));
            }
            Device::Virtual { engine, desk } => ask_virtual(engine, command, desk, reports),
            Device::Abandoned => {}
        }
    }

    /// Leaves the device to itself: it does not answer, so nobody waits for its end.
    pub fn abandon(&mut self) {
        *self = Device::Abandoned;
    }

    /// Stops the device after the step it works on. When this resolves, the engine's memory is free.
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

/// What the device's thread has.
struct DeviceThread<E> {
    engine: Option<E>,
    /// Where the experts' answers go: to the thread itself, as long as the executor wants it.
    resume: mpsc::WeakUnboundedSender<DeviceCommand>,
    /// Experts on all cores make room when this thread has something to do.
    way: Arc<RightOfWay>,
    desk: ExpertDesk,
    reports: ActorRef<ExecutorMsg>,
}

impl<E: Engine> DeviceThread<E> {
    /// One command after the other until the executor or the engine is gone.
    fn serve(mut self, mut commands: mpsc::UnboundedReceiver<DeviceCommand>) {
        wake_promptly();
        let way = Arc::clone(&self.way);
        while let Some(command) = commands.blocking_recv() {
            way.take();
            let from = Instant::now();
            let result = way.while_at_work(|| run(&mut self.engine, command));
            let elapsed = from.elapsed();
            // First of all, so that the experts begin.
            let report = hand_out(result, |job| self.desk.ask(job, Arc::clone(&way), self.reply()));
            let waits = match report {
                DeviceReport::AwaitsExperts(step) => Some(step),
                _ => None,
            };
            let news = DeviceNews { report, from, elapsed };
            if self.reports.cast(ExecutorMsg::Device(news)).is_err() || self.engine.is_none() {
                return;
            }
            let Some(news) = waits.and_then(|step| way.while_at_work(|| work_beside(&mut self.engine, step))) else {
                continue;
            };
            if self.reports.cast(ExecutorMsg::Device(news)).is_err() || self.engine.is_none() {
                return;
            }
        }
    }

    fn reply(&self) -> ReplyTo {
        let (resume, way) = (self.resume.clone(), Arc::clone(&self.way));
        Box::new(move |answer| {
            way.call();
            let _ = resume.upgrade().map(|commands| commands.send(DeviceCommand::Resume(answer)));
        })
    }
}

/// Lets the engine do what it can of a step that waits for experts; `None` when there is nothing to do.
fn work_beside<E: Engine>(slot: &mut Option<E>, step: StepId) -> Option<DeviceNews> {
    let from = Instant::now();
    let report = match lose_if_broken(slot, |engine| engine.work_beside(step)) {
        Ok(false) => return None,
        Ok(true) => DeviceReport::WorkedBeside(step),
        Err(report) => report,
    };
    Some(DeviceNews { report, from, elapsed: from.elapsed() })
}

fn ask_virtual<E: Engine>(
    engine: &mut Option<E>,
    command: DeviceCommand,
    desk: &ExpertDesk,
    reports: &ActorRef<ExecutorMsg>,
) {
    let executor = reports.clone();
    let reply: ReplyTo = Box::new(move |answer| drop(executor.cast(ExecutorMsg::Experts(answer))));
    let report = hand_out(run(engine, command), |job| desk.ask(job, Arc::default(), reply));
    let elapsed = match &report {
        DeviceReport::Done(output) => output.elapsed,
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

/// What there is to report of a command; a job for the experts is asked before.
fn hand_out(result: Result<Progress, DeviceReport>, ask: impl FnOnce(ExpertJob)) -> DeviceReport {
    match result {
        Ok(Progress::Done(output)) => DeviceReport::Done(Box::new(output)),
        Ok(Progress::AwaitExperts(job)) => {
            let step = job.step;
            ask(job);
            DeviceReport::AwaitsExperts(step)
        }
        Err(report) => report,
    }
}

/// Runs one command.
fn run<E: Engine>(slot: &mut Option<E>, command: DeviceCommand) -> Result<Progress, DeviceReport> {
    match command {
        DeviceCommand::Begin(step) => lose_if_broken(slot, |engine| engine.begin(step)),
        DeviceCommand::Resume(Ok(result)) => lose_if_broken(slot, |engine| engine.resume(result)),
        // The engine still waits in the middle of the step; only a new one can go on.
        DeviceCommand::Resume(Err(error)) => Err(lose(slot, error.to_string())),
    }
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
    Err(lose(slot, reason))
}

fn lose<E>(slot: &mut Option<E>, reason: String) -> DeviceReport {
    // Dropping a broken engine may panic once more.
    let _ = catch_unwind(AssertUnwindSafe(|| drop(slot.take())));
    DeviceReport::Lost(reason)
}

/// The text of a panic, when it has one.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message")
}
