//! The Scheduler decides what runs next, and is the only owner of KV blocks.
//!
//! Hears from: the runtime (`Submit`, `Cancel`), the executor (`StepDone`, `StepFailed`, `ExecutorLost`), the sampler
//! (`Sampled`, `Resume`, `Cancel`), the supervisor (`ExecutorReady`, `ExecutorLost`, `Drain`, `EndAll`).
//! Says: steps to the executor; to the sampler, whose requests begin and end.
//!
//! It only carries: the thinking is in [`Policy`].
//!
//! Failure: should it panic, the supervisor restarts the cast, and the requests in the house fail with a clear error.

use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::{EngineLimits, StepId};
use cuelight_engine::sample::Draw;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::client::ClientSink;
use crate::executor::ExecutorMsg;
use crate::metrics::SchedulerMetrics;
use crate::policy::{Effect, EngineChoice, Outcome, Policy, PolicyConfig, PolicyEvent, Submission};
use crate::request::{GenerationError, GenerationRequest, RequestId, SubmitError};
use crate::runtime::Shared;
use crate::sampler::SamplerMsg;
use crate::trace::Turn;

/// What the scheduler hears.
pub enum SchedulerMsg {
    /// Admit a request, or refuse it now.
    Submit {
        /// The request's number.
        id: RequestId,
        /// What it asks for.
        request: Box<GenerationRequest>,
        /// Where its events go.
        sink: ClientSink,
        /// When it came.
        submitted: Instant,
        /// The answer.
        reply: oneshot::Sender<Result<(), SubmitError>>,
    },
    /// The client does not want the request any more.
    Cancel(RequestId),
    /// The client of a paused request reads again.
    Resume(RequestId),
    /// The device finished a step; the sampler has its logits.
    StepDone {
        /// The step.
        step: StepId,
        /// Time the device took.
        elapsed: Duration,
        /// From how many rows on a step takes hardly longer for more of them, as far as the engine knows.
        bulk_rows: Option<usize>,
    },
    /// A step failed, but the executor lives; it has forgotten the steps behind it.
    StepFailed {
        /// The step.
        step: StepId,
        /// Why.
        reason: String,
    },
    /// The sampler finished a step.
    Sampled {
        /// The step.
        step: StepId,
        /// What became of each of its sequences.
        outcomes: Vec<Outcome>,
    },
    /// An executor is ready, its KV blocks empty.
    ExecutorReady {
        /// Where steps go.
        executor: ActorRef<ExecutorMsg>,
        /// What it can take.
        limits: EngineLimits,
    },
    /// The executor is gone. Heard twice, of the executor and of the supervisor, when both saw it.
    ExecutorLost {
        /// The step that took it down, when known.
        failed: Option<StepId>,
        /// Why.
        reason: String,
    },
    /// Take no new requests; answer when the last has ended.
    Drain {
        /// The answer.
        reply: oneshot::Sender<()>,
    },
    /// End every request with this error.
    EndAll(GenerationError),
}

/// What a scheduler needs to start.
pub struct SchedulerArguments {
    /// How steps are formed.
    pub policy: PolicyConfig,
    /// What the engine can take.
    pub limits: EngineLimits,
    /// Hears of requests and speaks to clients.
    pub sampler: ActorRef<SamplerMsg>,
    /// Where gauges are kept.
    pub shared: Arc<Shared>,
}

/// The scheduler's own.
pub struct SchedulerState {
    policy: Policy,
    sampler: ActorRef<SamplerMsg>,
    /// `None` while it is being rebuilt.
    executor: Option<ActorRef<ExecutorMsg>>,
    shared: Arc<Shared>,
    drained: Option<oneshot::Sender<()>>,
    metrics: SchedulerMetrics,
    /// The handling of the current message.
    turn: Turn,
}

/// The actor; everything it knows is in [`SchedulerState`].
pub struct Scheduler;

impl Actor for Scheduler {
    type Msg = SchedulerMsg;
    type State = SchedulerState;
    type Arguments = SchedulerArguments;

    async fn pre_start(
        &self,
        me: ActorRef<SchedulerMsg>,
        arguments: SchedulerArguments,
    ) -> Result<SchedulerState, ActorProcessingErr> {
        let SchedulerArguments { policy, limits, sampler, shared } = arguments;
        sampler.cast(SamplerMsg::Connect(me))?;
        let policy = Policy::new(policy, limits);
        let metrics = SchedulerMetrics::new(&shared.model_id, shared.replica);
        let turn = Turn::new(shared.tracer.clone());
        Ok(SchedulerState { policy, sampler, executor: None, shared, drained: None, metrics, turn })
    }

    async fn handle(
        &self,
        _me: ActorRef<SchedulerMsg>,
        message: SchedulerMsg,
        state: &mut SchedulerState,
    ) -> Result<(), ActorProcessingErr> {
        state.turn.begin();
        match message {
            SchedulerMsg::Submit { id, request, sink, submitted, reply } => {
                let _ = reply.send(state.submit(id, request, sink, submitted)?);
            }
            SchedulerMsg::Cancel(id) => state.apply(PolicyEvent::Cancel(id))?,
            SchedulerMsg::Resume(id) => state.apply(PolicyEvent::Resume(id))?,
            SchedulerMsg::StepDone { step, elapsed, bulk_rows } => {
                state.apply(PolicyEvent::StepDone { step, elapsed, bulk_rows })?;
            }
            SchedulerMsg::StepFailed { step, reason } => state.apply(PolicyEvent::StepFailed { step, reason })?,
            SchedulerMsg::Sampled { step, outcomes } => state.apply(PolicyEvent::Sampled { step, outcomes })?,
            SchedulerMsg::ExecutorReady { executor, limits } => {
                state.executor = Some(executor);
                state.apply(PolicyEvent::ExecutorReady(limits))?;
            }
            SchedulerMsg::ExecutorLost { failed, reason } => {
                if state.executor.take().is_some() {
                    state.apply(PolicyEvent::ExecutorLost { failed, reason })?;
                }
            }
            SchedulerMsg::Drain { reply } => {
                state.drained = Some(reply);
                state.apply(PolicyEvent::Drain)?;
            }
            SchedulerMsg::EndAll(error) => state.apply(PolicyEvent::EndAll(error))?,
        }
        Ok(())
    }
}

impl SchedulerState {
    /// The outer error is the scheduler's, the inner one the request's.
    fn submit(
        &mut self,
        id: RequestId,
        mut request: Box<GenerationRequest>,
        sink: ClientSink,
        submitted: Instant,
    ) -> Result<Result<(), SubmitError>, ActorProcessingErr> {
        let engine_choice = engine_choice(&mut request);
        let submission = Submission {
            id,
            prompt: request.prompt.clone(),
            priority: request.priority,
            max_tokens: request.stop.max_tokens,
            client: request.client.clone(),
            cache_salt: request.cache_salt.clone(),
            scores_prompt: request.prompt_logprobs.is_some(),
            engine_choice,
        };
        let effects = match self.policy.submit(submission) {
            Ok(effects) => effects,
            Err(error) => return Ok(Err(error)),
        };
        let context_tokens = self.policy.context_tokens();
        // Before any effect, so that the sampler knows the request when its first logits come.
        self.sampler.cast(SamplerMsg::Begin { id, request, context_tokens, sink, submitted })?;
        self.perform(effects)?;
        Ok(Ok(()))
    }

    fn apply(&mut self, event: PolicyEvent) -> Result<(), ActorProcessingErr> {
        let effects = self.policy.on(event);
        self.perform(effects)
    }

    fn perform(&mut self, effects: Vec<Effect>) -> Result<(), ActorProcessingErr> {
        for effect in effects {
            match effect {
                Effect::Run(planned) => {
                    self.metrics.formed(&planned.step);
                    self.turn.step_formed(&planned.step, self.policy.members(planned.step.id));
                    self.tell_executor(ExecutorMsg::Run(planned));
                }
                Effect::Resync => self.tell_executor(ExecutorMsg::Resync),
                Effect::Started { id, cached_tokens } => {
                    self.sampler.cast(SamplerMsg::Started { id, cached_tokens })?;
                }
                Effect::Preempted(id) => {
                    self.metrics.preempted();
                    self.shared.tracer.preempted(id);
                }
                Effect::Cancelled(id) => self.sampler.cast(SamplerMsg::Forget(id))?,
                Effect::Failed(id, error) => self.sampler.cast(SamplerMsg::Fail(id, error))?,
            }
        }
        let counts = self.policy.counts();
        self.metrics.set(&counts);
        self.shared.set_counts(counts);
        if self.policy.is_empty()
            && let Some(drained) = self.drained.take()
        {
            let _ = drained.send(());
        }
        Ok(())
    }

    fn tell_executor(&self, message: ExecutorMsg) {
        if let Some(executor) = &self.executor {
            // An executor that is gone is reported by the supervisor, and its steps are taken back then.
            let _ = executor.cast(message);
        }
    }
}

/// How the engine may choose the request's tokens: where nothing but a row of logits counts, and nobody wants to see it.
fn engine_choice(request: &mut GenerationRequest) -> Option<EngineChoice> {
    // The sampler, which has the request from here on, draws by the same seed.
    let seed = request.fix_seed();
    let choice = request.sampling.of_row_alone(Draw { seed, index: 0 }).filter(|_| request.logprobs.is_none());
    // Before that some tokens are forbidden.
    choice.map(|choice| EngineChoice { choice, seed, from: request.stop.min_tokens })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::SamplingParams;

    #[test]
    fn the_engine_may_choose_where_nothing_but_the_row_counts() {
        let may = |change: fn(&mut GenerationRequest)| {
            let mut request = GenerationRequest::default();
            change(&mut request);
            engine_choice(&mut request).is_some()
        };
        assert!(may(|_| {}));
        assert!(may(
            |request| request.sampling = SamplingParams { top_k: 9, top_p: 0.5, min_p: 0.1, ..Default::default() }
        ));
        assert!(
            may(|request| request.prompt_logprobs = Some(3)),
            "the prompt's rows come to the host, the others need not"
        );
        assert!(!may(|request| request.logprobs = Some(0)));
        assert!(!may(|request| request.sampling.frequency_penalty = 0.1));
        assert!(!may(|request| request.sampling.logit_bias = vec![(1, 1.0)]));
        assert!(!may(|request| request.sampling.typical_p = 0.9));
    }

    #[test]
    fn scheduler_and_sampler_draw_by_one_seed() {
        let mut request = GenerationRequest::default();
        let seed = engine_choice(&mut request).map(|engine| engine.seed);
        assert_eq!(seed, Some(request.fix_seed()));
        request.sampling.seed = Some(7);
        request.stop.min_tokens = 3;
        let engine = engine_choice(&mut request);
        assert_eq!(engine.map(|engine| (engine.seed, engine.from)), Some((7, 3)));
    }
}
