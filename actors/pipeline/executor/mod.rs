//! The Executor actor runs steps on one device.
//!
//! Receives `Run`, `Store`, `Write` and `Resync` from the scheduler, `Tokens` from the sampler, `Connect` from the supervisor, and
//! `Device` from its device. Sends logits to the sampler, `StepDone` and the hidden values for the drafter to the scheduler.
//!
//! The engine blocks, so it runs on its own thread and the actor only passes messages. The device thread submits expert
//! jobs to their queue directly and gets the results from there. The actor is informed afterwards.
//!
//! A step may arrive before the tokens of its rows are sampled. It starts as soon as the engine, where it samples itself,
//! or the sampler has named them. The sampler may still be sending the tokens of the previous step to clients then.
//!
//! When some experts of the model are on the host, a step may be split into two micro-batches: while one waits for the
//! experts, the device computes the other (`overlap`, `micro_batches`).
//!
//! Faults: when the engine panics, loses its device or exceeds the step timeout, the executor reports the failed step to
//! the scheduler and dies. The supervisor then loads a new engine and starts another executor. A step that the engine
//! refuses fails alone. The steps behind it depend on its success and are dropped. When scheduler and sampler are replaced,
//! the executor keeps its device, drops the steps of the previous ones, and ignores the result of the step on the device.

mod device;
mod hidden;
mod micro_batches;
mod overlap;
mod queue;

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::{Engine, SampledToken, StepId, StepOutput, TokenId};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::time::Instant;

use self::device::{Device, DeviceCommand};
use self::hidden::HiddenShares;
use self::micro_batches::MicroBatches;
pub(crate) use self::micro_batches::step_and_micro_batch;
pub use self::overlap::OverlapMode;
use self::overlap::{Overlap, StepClass};
use self::queue::StepQueue;
use super::experts::ExpertJobQueue;
use super::kv_store::KvStore;
use super::messages::{DeviceEvent, DeviceReport, ExecutorMsg, SamplerMsg, SchedulerMsg};
pub use super::model_source::EngineHost;
use super::policy::{PlannedStep, PolicyEvent, SampleTask};
use crate::core::request::RequestId;
use crate::metrics::{ExpertMetrics, StepMetrics};
use crate::trace::Tracer;

/// Startup arguments of the executor.
pub struct ExecutorArguments<E> {
    /// The name of the model, for metrics.
    pub model_id: Arc<str>,
    /// The engine that computes the steps.
    pub engine: E,
    /// Where the engine runs.
    pub host: EngineHost,
    /// How long a step may take before the device counts as lost.
    pub step_timeout: Duration,
    /// Receives the logits.
    pub sampler: ActorRef<SamplerMsg>,
    /// Receives the end of every step.
    pub scheduler: ActorRef<SchedulerMsg>,
    /// The queue for expert jobs on the host.
    pub expert_jobs: ExpertJobQueue,
    /// Receives copies of units, if there are lower tiers.
    pub kv_store: Option<KvStore>,
    /// Whether steps may be split so that the device works while the experts do.
    pub overlap: OverlapMode,
    /// Records the steps.
    pub tracer: Tracer,
}

/// The step on the device. Its rows have been moved there.
struct ActiveStep {
    id: StepId,
    begun: Instant,
    rows: usize,
    sequences: usize,
    class: StepClass,
    micro_batches: MicroBatches,
    tasks: Vec<SampleTask>,
    hidden: HiddenShares,
    /// Whether the scheduler that formed it was replaced.
    is_discarded: bool,
}

/// The state of the executor.
pub struct ExecutorState<E> {
    device: Device<E>,
    queue: StepQueue,
    active: Option<ActiveStep>,
    /// Copies of units that wait until a discarded step has ended.
    held_copies: Vec<DeviceCommand>,
    /// Hidden values of a row that are for the drafter alone.
    residuals: usize,
    step_timeout: Duration,
    sampler: ActorRef<SamplerMsg>,
    scheduler: ActorRef<SchedulerMsg>,
    overlap: Overlap,
    metrics: StepMetrics,
    expert_metrics: ExpertMetrics,
    tracer: Tracer,
}

/// The executor actor.
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
        let ExecutorArguments {
            model_id,
            engine,
            host,
            step_timeout,
            sampler,
            scheduler,
            expert_jobs,
            kv_store,
            overlap,
            tracer,
        } = arguments;
        let residuals = engine.limits().hidden.residuals;
        let device = Device::start(engine, host, expert_jobs, kv_store, me.clone())?;
        // A quarter of the timeout is precise enough to detect a device that hangs.
        me.send_interval((step_timeout / 4).max(Duration::from_millis(1)), || ExecutorMsg::Watch);
        let metrics = StepMetrics::new(&model_id);
        Ok(ExecutorState {
            device,
            queue: StepQueue::default(),
            active: None,
            held_copies: Vec::new(),
            residuals,
            step_timeout,
            sampler,
            scheduler,
            overlap: Overlap::new(overlap),
            metrics,
            expert_metrics: ExpertMetrics::new(&model_id),
            tracer,
        })
    }

    async fn handle(
        &self,
        me: ActorRef<ExecutorMsg>,
        message: ExecutorMsg,
        state: &mut ExecutorState<E>,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            ExecutorMsg::Run(step) => state.queue.push(step),
            ExecutorMsg::Store(copies) => state.copy(DeviceCommand::ReadUnits(copies), &me),
            ExecutorMsg::Write(contents) => state.copy(DeviceCommand::WriteUnits(contents), &me),
            ExecutorMsg::Resync => state.queue.resync(),
            ExecutorMsg::Connect { sampler, scheduler } => state.connect(sampler, scheduler),
            ExecutorMsg::Tokens { step, tokens } => state.queue.record_tokens(step, tokens),
            ExecutorMsg::Watch => state.watch()?,
            ExecutorMsg::Device(event) => state.device_event(&me, event)?,
            ExecutorMsg::Experts(answer) => state.device.send(DeviceCommand::Resume(answer), &me),
        }
        state.start_next(&me)
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
    /// Serves another scheduler and sampler. The blocks of the step on the device may be in use again before it ends. It writes to
    /// them before the next step does, because the device runs steps one after the other, and before the next copies.
    fn connect(&mut self, sampler: ActorRef<SamplerMsg>, scheduler: ActorRef<SchedulerMsg>) {
        self.sampler = sampler;
        self.scheduler = scheduler;
        self.queue = StepQueue::default();
        self.held_copies.clear();
        if let Some(active) = &mut self.active {
            active.is_discarded = true;
        }
    }

    /// Copies units. The device does that next: steps that were sent before do not change these units, unless the step
    /// on the device is that of a scheduler that was replaced. Where such a step waits for experts, it would go on after the copy.
    fn copy(&mut self, command: DeviceCommand, me: &ActorRef<ExecutorMsg>) {
        match self.active.as_ref().is_some_and(|active| active.is_discarded) {
            true => self.held_copies.push(command),
            false => self.device.send(command, me),
        }
    }

    /// Starts the next step when the device is idle and the step's tokens are known.
    fn start_next(&mut self, me: &ActorRef<ExecutorMsg>) -> Result<(), ActorProcessingErr> {
        while self.active.is_none() {
            self.held_copies.drain(..).for_each(|command| self.device.send(command, me));
            let Some(PlannedStep { step, ids, tasks, .. }) = self.queue.pop() else { return Ok(()) };
            let hidden = HiddenShares::of(&step, &ids, self.residuals);
            let (id, begun, rows, sequences) = (step.id, Instant::now(), step.rows(), step.sequences.len());
            let class = Overlap::class(&step);
            let (micro_batches, steps) = MicroBatches::split(step, self.overlap.micro_batches(class));
            let is_discarded = false;
            self.active =
                Some(ActiveStep { id, begun, rows, sequences, class, micro_batches, tasks, hidden, is_discarded });
            if rows > 0 {
                self.tracer.step_begun(id);
                for step in steps {
                    self.device.send(DeviceCommand::Begin(step), me);
                }
            } else {
                // All of its requests have ended. The scheduler and the sampler still wait for its end.
                self.done(me, StepOutput::empty(id))?;
            }
        }
        Ok(())
    }

    fn device_event(&mut self, me: &ActorRef<ExecutorMsg>, event: DeviceEvent) -> Result<(), ActorProcessingErr> {
        let DeviceEvent { report, from, elapsed } = event;
        match report {
            DeviceReport::Done(output) => {
                self.record_segment(output.id, from, elapsed);
                self.micro_batch_ended(me, output.id, Ok(*output))
            }
            DeviceReport::AwaitsExperts(micro_batch) => {
                self.overlap.experts_used();
                self.record_segment(micro_batch, from, elapsed);
                Ok(())
            }
            DeviceReport::RanOverlapped(micro_batch) => {
                self.record_segment(micro_batch, from, elapsed);
                Ok(())
            }
            DeviceReport::UnitsRead => Ok(()),
            DeviceReport::UnitsWritten(bytes) => {
                let _ = self.scheduler.cast(PolicyEvent::UnitsWritten { bytes, elapsed }.into());
                Ok(())
            }
            DeviceReport::Refused { step, reason } => self.micro_batch_ended(me, step, Err(reason)),
            DeviceReport::Lost(reason) => Err(self.lost(reason)),
        }
    }

    /// Records what the device computed between two expert jobs. Without expert jobs only whole steps are recorded.
    fn record_segment(&mut self, micro_batch: StepId, from: Instant, elapsed: Duration) {
        if self.overlap.uses_host_experts() {
            self.expert_metrics.segment(elapsed);
            self.tracer.segment_computed(step_and_micro_batch(micro_batch), from, elapsed);
        }
    }

    /// A micro-batch is computed or was refused. The step ends with its last micro-batch.
    fn micro_batch_ended(
        &mut self,
        me: &ActorRef<ExecutorMsg>,
        micro_batch: StepId,
        result: Result<StepOutput, String>,
    ) -> Result<(), ActorProcessingErr> {
        let Some(active) = &mut self.active else {
            return Err("the engine finished a step that was not started".into());
        };
        if !active.micro_batches.record(micro_batch, result) {
            let finished = step_and_micro_batch(micro_batch).0;
            return Err(format!("the engine finished {finished:?} instead of {:?}", active.id).into());
        }
        let count = active.micro_batches.count();
        let Some(result) = active.micro_batches.output(active.begun.elapsed()) else { return Ok(()) };
        match result {
            Ok(output) => {
                self.overlap.record(active.class, count, active.rows, output.elapsed);
                self.done(me, output)
            }
            Err(reason) => {
                self.refused(reason);
                Ok(())
            }
        }
    }

    fn done(&mut self, me: &ActorRef<ExecutorMsg>, mut output: StepOutput) -> Result<(), ActorProcessingErr> {
        let Some(active) = self.active.take() else {
            return Err("the engine finished a step that was not started".into());
        };
        let (elapsed, prefill_saturation_rows) = (output.elapsed, output.prefill_saturation_rows);
        if active.rows > 0 {
            self.metrics.step(elapsed, active.rows, active.sequences, &output.logits);
            self.expert_metrics.cache(output.experts);
            self.tracer.step_computed(output.id, elapsed, std::mem::take(&mut output.ops));
        }
        if active.is_discarded {
            return Ok(());
        }
        if let Some(tokens) = sampled_tokens(&active.tasks, &output.sampled) {
            self.queue.record_tokens(active.id, tokens);
        }
        let hidden = active.hidden.take(&mut output.hidden);
        if !hidden.is_empty() {
            let _ = self.scheduler.cast(SchedulerMsg::Hidden(hidden));
        }
        // Sent immediately and in this order, so that the drafter has the hidden values before it is asked, and a finished step is
        // always known before a lost executor. Fails only when the receiver is gone. Both are replaced then, and the sequences
        // are recomputed.
        let _ = self.scheduler.cast(PolicyEvent::StepDone { step: active.id, elapsed, prefill_saturation_rows }.into());
        let _ = self.sampler.cast(SamplerMsg::Sample { output, tasks: active.tasks, executor: me.clone() });
        Ok(())
    }

    fn refused(&mut self, reason: String) {
        if let Some(active) = self.active.take().filter(|active| !active.is_discarded) {
            self.queue.drop_until_resync();
            let _ = self.scheduler.cast(PolicyEvent::StepFailed { step: active.id, reason }.into());
        }
    }

    /// Gives up the device when its step exceeds the timeout.
    fn watch(&mut self) -> Result<(), ActorProcessingErr> {
        let Some(active) = self.active.as_ref().filter(|active| active.begun.elapsed() > self.step_timeout) else {
            return Ok(());
        };
        let (rows, sequences, limit) = (active.rows, active.sequences, self.step_timeout);
        let reason = format!("the device did not finish a step of {rows} rows of {sequences} sequences in {limit:?}");
        self.device.abandon();
        Err(self.lost(reason))
    }

    /// Reports the failed step to the scheduler and returns the error that this actor dies with.
    fn lost(&mut self, reason: String) -> ActorProcessingErr {
        let failed = self.active.take().map(|active| active.id);
        let _ = self.scheduler.cast(PolicyEvent::ExecutorLost { failed, reason: reason.clone() }.into());
        reason.into()
    }
}

/// The tokens that the engine sampled, if it sampled one for every task that needs one.
///
/// Then the next step does not wait for the sampler. The sampler may find that such a token is the last of its request.
/// Its row is then computed for nothing, into blocks that belong to the request until the step is done, and its result is
/// ignored. A request that ends by a stop string wastes a row in the same way.
fn sampled_tokens(tasks: &[SampleTask], sampled: &[Option<SampledToken>]) -> Option<Vec<(RequestId, TokenId)>> {
    let tasks: Vec<&SampleTask> = tasks.iter().filter(|task| task.rows > 0).collect();
    if sampled.len() != tasks.len() {
        return None;
    }
    let samples = tasks.iter().zip(sampled).filter(|(task, _)| task.samples);
    let tokens =
        samples.map(|(task, sampled)| sampled.map(|sampled| (task.id, sampled))).collect::<Option<Vec<_>>>()?;
    let usable = |(id, sampled)| match sampled {
        SampledToken::Token(token) => Some((id, token)),
        SampledToken::Nothing | SampledToken::NotFinite(_) => None,
    };
    Some(tokens.into_iter().filter_map(usable).collect())
}

#[cfg(test)]
mod tests;
