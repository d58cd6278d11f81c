//! The Executor runs steps on one device.
//!
//! Hears from: the scheduler (`Run`, `Resync`), the sampler (`Tokens`), its device (`Device`).
//! Says: logits to the sampler, `StepDone` to the scheduler.
//!
//! The engine blocks, so it has a thread of its own; the actor itself only passes messages. What the engine wants of the
//! host's experts its thread lays on their desk itself, and gets back from there; this actor hears of it afterwards. A step
//! may come before the tokens that it begins with are sampled: it starts as soon as the engine, where it chooses itself, or
//! the sampler names them, while the sampler still speaks to clients about the step before.
//!
//! A step of a model whose experts are partly on the host may be at the device in two parts (`overlap`, `parts`): while one
//! waits for the experts, the device computes the other.
//!
//! Failure: when the engine panics, loses its device or does not answer in time, the executor names the failed step to
//! the scheduler and dies of it; the supervisor rebuilds the engine and starts another executor. A step the engine
//! refuses fails alone; the steps behind it were formed on its success and are forgotten.

mod device;
mod overlap;
mod parts;
mod queue;

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::{Chosen, Engine, StepId, StepOutput, TokenId};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::time::Instant;

use self::device::{Device, DeviceCommand};
pub use self::device::{DeviceNews, DeviceReport, EngineHost};
pub use self::overlap::OverlapMode;
use self::overlap::{Kind, Overlap};
use self::parts::Parts;
pub(crate) use self::parts::step_and_part;
use self::queue::StepQueue;
use crate::experts::{self, ExpertDesk};
use crate::metrics::{ExpertMetrics, StepMetrics};
use crate::policy::{PlannedStep, SampleTask};
use crate::request::RequestId;
use crate::sampler::SamplerMsg;
use crate::scheduler::SchedulerMsg;
use crate::trace::Tracer;

pub(crate) use self::device::panic_message;

/// What an executor hears.
pub enum ExecutorMsg {
    /// Compute a step, after those that came before.
    Run(PlannedStep),
    /// The scheduler knows that a step was refused.
    Resync,
    /// What a step brought to those of its requests that go on.
    Tokens {
        /// The step.
        step: StepId,
        /// Their next tokens.
        tokens: Vec<(RequestId, TokenId)>,
    },
    /// Look whether the device is late.
    Watch,
    /// The engine got somewhere, or is lost.
    Device(DeviceNews),
    /// The experts answer an engine that has no thread.
    Experts(experts::Answer),
}

/// What an executor needs to start.
pub struct ExecutorArguments<E> {
    /// The name of the model, for metrics.
    pub model_id: Arc<str>,
    /// Computes.
    pub engine: E,
    /// Where.
    pub host: EngineHost,
    /// How long a step may take before the device counts as lost.
    pub step_timeout: Duration,
    /// Gets the logits.
    pub sampler: ActorRef<SamplerMsg>,
    /// Hears how steps end.
    pub scheduler: ActorRef<SchedulerMsg>,
    /// Where the engine's jobs for experts on the host are laid.
    pub desk: ExpertDesk,
    /// Whether steps may be divided, so that the device works while the experts do.
    pub overlap: OverlapMode,
    /// Hears what happens when.
    pub tracer: Tracer,
}

/// The step at the device; its rows went there.
struct Active {
    id: StepId,
    begun: Instant,
    rows: usize,
    sequences: usize,
    kind: Kind,
    parts: Parts,
    tasks: Vec<SampleTask>,
}

/// The executor's own.
pub struct ExecutorState<E> {
    device: Device<E>,
    queue: StepQueue,
    active: Option<Active>,
    step_timeout: Duration,
    sampler: ActorRef<SamplerMsg>,
    scheduler: ActorRef<SchedulerMsg>,
    overlap: Overlap,
    metrics: StepMetrics,
    expert_metrics: ExpertMetrics,
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
        let ExecutorArguments { model_id, engine, host, step_timeout, sampler, scheduler, desk, overlap, tracer } =
            arguments;
        let device = Device::start(engine, host, desk, me.clone())?;
        // Coarse, because it only has to tell seconds from for ever.
        me.send_interval((step_timeout / 4).max(Duration::from_millis(1)), || ExecutorMsg::Watch);
        let metrics = StepMetrics::new(&model_id);
        Ok(ExecutorState {
            device,
            queue: StepQueue::default(),
            active: None,
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
            ExecutorMsg::Resync => state.queue.resync(),
            ExecutorMsg::Tokens { step, tokens } => state.queue.bring(step, tokens),
            ExecutorMsg::Watch => state.watch()?,
            ExecutorMsg::Device(news) => state.device_says(&me, news)?,
            ExecutorMsg::Experts(answer) => state.device.ask(DeviceCommand::Resume(answer), &me),
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
    /// Gives the device its next step when it has none and the step's tokens are known.
    fn start_next(&mut self, me: &ActorRef<ExecutorMsg>) -> Result<(), ActorProcessingErr> {
        while self.active.is_none() {
            let Some(PlannedStep { step, tasks, .. }) = self.queue.pop() else { return Ok(()) };
            let (id, begun, rows, sequences) = (step.id, Instant::now(), step.rows(), step.sequences.len());
            let kind = Overlap::kind(&step);
            let (parts, steps) = Parts::divide(step, self.overlap.parts(kind));
            self.active = Some(Active { id, begun, rows, sequences, kind, parts, tasks });
            if rows > 0 {
                self.tracer.step_begun(id);
                for step in steps {
                    self.device.ask(DeviceCommand::Begin(step), me);
                }
            } else {
                // All its requests have ended; those who count on the step still have to hear of it.
                self.done(me, StepOutput::empty(id))?;
            }
        }
        Ok(())
    }

    fn device_says(&mut self, me: &ActorRef<ExecutorMsg>, news: DeviceNews) -> Result<(), ActorProcessingErr> {
        let DeviceNews { report, from, elapsed } = news;
        match report {
            DeviceReport::Done(output) => {
                self.note_piece(output.id, from, elapsed);
                self.part_ended(me, output.id, Ok(*output))
            }
            DeviceReport::AwaitsExperts(part) => {
                self.overlap.experts_asked();
                self.note_piece(part, from, elapsed);
                Ok(())
            }
            DeviceReport::WorkedBeside(part) => {
                self.note_piece(part, from, elapsed);
                Ok(())
            }
            DeviceReport::Refused { step, reason } => self.part_ended(me, step, Err(reason)),
            DeviceReport::Lost(reason) => Err(self.lost(reason)),
        }
    }

    /// Says what the device did between experts; a step that hands none out is one piece, and told as a whole.
    fn note_piece(&mut self, part: StepId, from: Instant, elapsed: Duration) {
        if self.overlap.hands_out() {
            self.expert_metrics.piece(elapsed);
            self.tracer.piece_computed(step_and_part(part), from, elapsed);
        }
    }

    /// A part of the step at the device is done, or was refused. The step is, when all its parts are.
    fn part_ended(
        &mut self,
        me: &ActorRef<ExecutorMsg>,
        part: StepId,
        outcome: Result<StepOutput, String>,
    ) -> Result<(), ActorProcessingErr> {
        let Some(active) = &mut self.active else { return Err("the engine finished a step nobody began".into()) };
        if !active.parts.end(part, outcome) {
            return Err(format!("the engine finished {:?} instead of {:?}", step_and_part(part).0, active.id).into());
        }
        let count = active.parts.count();
        let Some(outcome) = active.parts.outcome(active.begun.elapsed()) else { return Ok(()) };
        match outcome {
            Ok(output) => {
                self.overlap.took(active.kind, count, active.rows, output.elapsed);
                self.done(me, output)
            }
            Err(reason) => self.refused(reason),
        }
    }

    fn done(&mut self, me: &ActorRef<ExecutorMsg>, mut output: StepOutput) -> Result<(), ActorProcessingErr> {
        let Some(active) = self.active.take() else { return Err("the engine finished a step nobody began".into()) };
        let (elapsed, bulk_rows) = (output.elapsed, output.bulk_rows);
        if active.rows > 0 {
            self.metrics.step(elapsed, active.rows, active.sequences, &output.logits);
            self.expert_metrics.cache(output.experts);
            self.tracer.step_computed(output.id, elapsed, std::mem::take(&mut output.ops));
        }
        if let Some(tokens) = chosen_tokens(&active.tasks, &output.chosen) {
            self.queue.bring(active.id, tokens);
        }
        // In this order and at once: whoever hears of a lost executor has heard of its finished steps before.
        self.scheduler.cast(SchedulerMsg::StepDone { step: active.id, elapsed, bulk_rows })?;
        self.sampler.cast(SamplerMsg::Sample { output, tasks: active.tasks, executor: me.clone() })?;
        Ok(())
    }

    fn refused(&mut self, reason: String) -> Result<(), ActorProcessingErr> {
        if let Some(active) = self.active.take() {
            self.queue.fall_out_of_step();
            self.scheduler.cast(SchedulerMsg::StepFailed { step: active.id, reason })?;
        }
        Ok(())
    }

    /// Gives the device up when it is late.
    fn watch(&mut self) -> Result<(), ActorProcessingErr> {
        let Some(active) = self.active.as_ref().filter(|active| active.begun.elapsed() > self.step_timeout) else {
            return Ok(());
        };
        let (rows, sequences, limit) = (active.rows, active.sequences, self.step_timeout);
        let reason = format!("the device did not finish a step of {rows} rows of {sequences} sequences in {limit:?}");
        self.device.abandon();
        Err(self.lost(reason))
    }

    /// Tells the scheduler which step took the device down, and gives the reason this actor dies of.
    fn lost(&mut self, reason: String) -> ActorProcessingErr {
        let failed = self.active.take().map(|active| active.id);
        let _ = self.scheduler.cast(SchedulerMsg::ExecutorLost { failed, reason: reason.clone() });
        reason.into()
    }
}

/// The tokens that the engine chose, when it chose for all who need one.
///
/// The next step need not wait for the sampler then. The sampler may find that one of these tokens is the last of its
/// request: that row is computed for nothing, into blocks that stay the request's until the step is done, and who hears
/// of it passes it over. The same happens to a request that ends by a stop string.
fn chosen_tokens(tasks: &[SampleTask], chosen: &[Option<Chosen>]) -> Option<Vec<(RequestId, TokenId)>> {
    if chosen.len() != tasks.len() {
        return None;
    }
    let samples = tasks.iter().zip(chosen).filter(|(task, _)| task.samples);
    let tokens = samples.map(|(task, chosen)| chosen.map(|chosen| (task.id, chosen))).collect::<Option<Vec<_>>>()?;
    let usable = |(id, chosen)| match chosen {
        Chosen::Token(token) => Some((id, token)),
        Chosen::Nothing | Chosen::NotFinite(_) => None,
    };
    Some(tokens.into_iter().filter_map(usable).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_step_has_its_tokens_at_once_when_the_engine_chose_all_of_them() {
        let task =
            |id, samples| SampleTask { id: RequestId(id), rows: 1, first_position: 0, scores_prompt: false, samples };
        let tasks = [task(1, true), task(2, true), task(3, false)];
        let [some, faulty] = [Some(Chosen::Token(9)), Some(Chosen::NotFinite(4))];
        assert_eq!(chosen_tokens(&tasks, &[some, some, None]), Some(vec![(RequestId(1), 9), (RequestId(2), 9)]));
        assert_eq!(chosen_tokens(&tasks, &[faulty, some, None]), Some(vec![(RequestId(2), 9)]), "one has failed");
        assert_eq!(chosen_tokens(&tasks, &[some, None, None]), None, "the sampler has the logits of one");
        assert_eq!(chosen_tokens(&tasks, &[]), None, "an engine that does not choose");
    }
}
