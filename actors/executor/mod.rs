//! The Executor runs steps on one device.
//!
//! Hears from: the scheduler (`Run`), its device (`Device`), the experts (`Experts`).
//! Says: logits to the sampler, `StepDone` to the scheduler, jobs to the experts.
//!
//! The engine blocks, so it has a thread of its own; the actor itself only passes messages.
//!
//! Failure: when the engine panics or loses its device, the executor names the failed step to the scheduler and dies of
//! it; the supervisor rebuilds the engine and starts another executor. A step the engine refuses fails alone.

mod device;

use std::collections::VecDeque;
use std::sync::Arc;

use cuelight_engine::engine::{Engine, ExpertResult, Progress, Step, StepId, StepOutput};
use ractor::{Actor, ActorProcessingErr, ActorRef};

use self::device::{Device, DeviceCommand};
pub use self::device::{DeviceReport, EngineHost};
use crate::experts::{ExpertsError, ExpertsMsg};
use crate::metrics::StepMetrics;
use crate::policy::SampleTask;
use crate::sampler::SamplerMsg;
use crate::scheduler::SchedulerMsg;
use crate::trace::Tracer;

pub(crate) use self::device::panic_message;

/// What an executor hears.
pub enum ExecutorMsg {
    /// Compute a step, after those that came before.
    Run {
        /// The step.
        step: Step,
        /// What the sampler does with its logits.
        tasks: Vec<SampleTask>,
    },
    /// The engine got somewhere, or is lost.
    Device(DeviceReport),
    /// The experts finished the job of a step, or could not.
    Experts {
        /// The step that waits.
        step: StepId,
        /// Their answer.
        result: Result<ExpertResult, ExpertsError>,
    },
}

/// What an executor needs to start.
pub struct ExecutorArguments<E> {
    /// The name of the model, for metrics.
    pub model_id: Arc<str>,
    /// Computes.
    pub engine: E,
    /// Where.
    pub host: EngineHost,
    /// Gets the logits.
    pub sampler: ActorRef<SamplerMsg>,
    /// Hears how steps end.
    pub scheduler: ActorRef<SchedulerMsg>,
    /// Computes experts on the host.
    pub experts: ActorRef<ExpertsMsg>,
    /// Hears what happens when.
    pub tracer: Tracer,
}

/// A step and what its logits are for.
struct Job {
    step: Step,
    tasks: Vec<SampleTask>,
}

/// The step at the device; its rows went there.
struct Active {
    id: StepId,
    rows: usize,
    sequences: usize,
    tasks: Vec<SampleTask>,
}

/// The executor's own.
pub struct ExecutorState<E> {
    device: Device<E>,
    queue: VecDeque<Job>,
    active: Option<Active>,
    sampler: ActorRef<SamplerMsg>,
    scheduler: ActorRef<SchedulerMsg>,
    experts: ActorRef<ExpertsMsg>,
    metrics: StepMetrics,
    tracer: Tracer,
}

/// The actor; everything it knows is in [`ExecutorState`].
pub struct Executor<E>(std::marker::PhantomData<fn(E)>);

impl<E> Default for Executor<E> {
    fn default() -> Self {
        Executor(std::marker::PhantomData)
    }
}

impl<E: Engine> Actor for Executor<E> {
    type Msg = ExecutorMsg;
    type State = ExecutorState<E>;
    type Arguments = ExecutorArguments<E>;

    async fn pre_start(
        &self,
        me: ActorRef<ExecutorMsg>,
        arguments: ExecutorArguments<E>,
    ) -> Result<ExecutorState<E>, ActorProcessingErr> {
        let ExecutorArguments { model_id, engine, host, sampler, scheduler, experts, tracer } = arguments;
        let device = Device::start(engine, host, me)?;
        let metrics = StepMetrics::new(&model_id);
        Ok(ExecutorState { device, queue: VecDeque::new(), active: None, sampler, scheduler, experts, metrics, tracer })
    }

    async fn handle(
        &self,
        me: ActorRef<ExecutorMsg>,
        message: ExecutorMsg,
        state: &mut ExecutorState<E>,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            ExecutorMsg::Run { step, tasks } => state.queue.push_back(Job { step, tasks }),
            ExecutorMsg::Device(DeviceReport::Progress(Progress::Done(output))) => state.done(output)?,
            ExecutorMsg::Device(DeviceReport::Progress(Progress::AwaitExperts(job))) => {
                state.experts.cast(ExpertsMsg::Compute { job, reply_to: me.clone() })?;
            }
            ExecutorMsg::Device(DeviceReport::Refused(reason)) => state.refused(reason)?,
            ExecutorMsg::Device(DeviceReport::Lost(reason)) => return Err(state.lost(reason)),
            ExecutorMsg::Experts { result: Ok(result), .. } => state.device.ask(DeviceCommand::Resume(result), &me),
            // The engine still waits in the middle of the step; only a new one can go on.
            ExecutorMsg::Experts { result: Err(error), .. } => return Err(state.lost(error.to_string())),
        }
        state.start_next(&me);
        Ok(())
    }

    async fn post_stop(
        &self,
        _me: ActorRef<ExecutorMsg>,
        state: &mut ExecutorState<E>,
    ) -> Result<(), ActorProcessingErr> {
        state.device.stop().await;
        Ok(())
    }
}

impl<E: Engine> ExecutorState<E> {
    /// Gives the device its next step when it has none.
    fn start_next(&mut self, me: &ActorRef<ExecutorMsg>) {
        if self.active.is_some() {
            return;
        }
        let Some(Job { step, tasks }) = self.queue.pop_front() else { return };
        self.active = Some(Active { id: step.id, rows: step.rows(), sequences: step.sequences.len(), tasks });
        self.tracer.step_begun(step.id);
        self.device.ask(DeviceCommand::Begin(step), me);
    }

    fn done(&mut self, output: StepOutput) -> Result<(), ActorProcessingErr> {
        let Some(active) = self.active.take() else { return Err("the engine finished a step nobody began".into()) };
        if output.id != active.id {
            return Err(format!("the engine finished {:?} instead of {:?}", output.id, active.id).into());
        }
        self.metrics.step(output.elapsed, active.rows, active.sequences);
        self.tracer.step_computed(output.id);
        // In this order and at once: whoever hears of a lost executor has heard of its finished steps before.
        self.scheduler.cast(SchedulerMsg::StepDone(active.id))?;
        if !active.tasks.is_empty() {
            self.sampler.cast(SamplerMsg::Sample { output, tasks: active.tasks })?;
        }
        Ok(())
    }

    fn refused(&mut self, reason: String) -> Result<(), ActorProcessingErr> {
        if let Some(active) = self.active.take() {
            self.scheduler.cast(SchedulerMsg::StepFailed { step: active.id, reason })?;
        }
        Ok(())
    }

    /// Tells the scheduler which step took the device down, and gives the reason this actor dies of.
    fn lost(&mut self, reason: String) -> ActorProcessingErr {
        let failed = self.active.take().map(|active| active.id);
        let _ = self.scheduler.cast(SchedulerMsg::ExecutorLost { failed, reason: reason.clone() });
        reason.into()
    }
}
