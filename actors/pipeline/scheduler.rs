//! The Scheduler actor decides what runs next. It is the only owner of the KV blocks.
//!
//! Receives `Submit` from the runtime, events for the policy from the runtime, the executor, the sampler, the drafter and
//! the supervisor, and `Recover`, `ExecutorReady`, `DrafterReady` and `Drain` from the supervisor. Sends steps to the
//! executor, requests for drafts to the drafter, and the beginning and end of requests to the sampler.
//!
//! The actor only passes messages. All decisions are made by [`Policy`].
//!
//! Faults: when it dies, the supervisor starts another one, which takes the requests from the journal and recomputes them
//! from their tokens.

use std::sync::Arc;

use cuelight_engine::embedding::Pooling;
use cuelight_engine::engine::EngineLimits;
use cuelight_engine::host_memory::HostCopy;
use cuelight_engine::sample::{Denoising, DenoisingRule, Draw};
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::sync::oneshot;

use super::journal::{Committed, Recovery, RequestJournal, RequestRecord};
use super::kv_store::{Fetched, KvStore};
use super::messages::{DrafterMsg, ExecutorMsg, SamplerMsg, SchedulerMsg};
use super::policy::{Effect, EngineSampling, Policy, PolicyConfig, PolicyEvent, Progress, Submission, TierEffect};
use super::runtime::ReplicaState;
use crate::core::cache_change::CacheChange;
use crate::core::request::{GenerationRequest, RequestId};
use crate::core::tier::FetchId;
use crate::kv_events::KvEvents;
use crate::metrics::SchedulerMetrics;
use crate::metrics::adapters::AdapterMetrics;
use crate::metrics::tiers::TierMetrics;
use crate::trace::SchedulerTrace;

/// Startup arguments of the scheduler.
pub struct SchedulerArguments {
    /// How steps are formed.
    pub policy: PolicyConfig,
    /// The limits of the engine.
    pub limits: EngineLimits,
    /// How the model denoises blocks of tokens, if it generates these.
    pub denoising: Option<DenoisingRule>,
    /// Receives the beginning and end of requests.
    pub sampler: ActorRef<SamplerMsg>,
    /// Receives the counts for gauges. Its journal has the requests.
    pub replica: Arc<ReplicaState>,
    /// The lower tiers, if there are any.
    pub kv_store: Option<KvStore>,
    /// Publishes the changes of the prefix cache.
    pub kv_events: KvEvents,
}

/// The state of the scheduler.
pub struct SchedulerState {
    policy: Policy,
    denoising: Option<BlockModel>,
    sampler: ActorRef<SamplerMsg>,
    /// `None` while it is being rebuilt.
    executor: Option<ActorRef<ExecutorMsg>>,
    /// `None` without a draft model, and while it is loaded.
    drafter: Option<ActorRef<DrafterMsg>>,
    me: ActorRef<SchedulerMsg>,
    replica: Arc<ReplicaState>,
    journal: Arc<RequestJournal>,
    drained: Option<oneshot::Sender<()>>,
    kv_store: Option<KvStore>,
    kv_events: KvEvents,
    /// The units of the read that is being handled.
    fetched: Option<(FetchId, Vec<Arc<HostCopy>>)>,
    metrics: SchedulerMetrics,
    tier_metrics: TierMetrics,
    adapter_metrics: AdapterMetrics,
    /// Times the handling of the current message.
    trace: SchedulerTrace,
}

/// The scheduler actor.
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
        let SchedulerArguments { policy, limits, denoising, sampler, replica, kv_store, kv_events } = arguments;
        let denoising = denoising.map(|rule| BlockModel { rule, vocab_size: limits.vocab_size });
        sampler.cast(SamplerMsg::Connect(me.clone()))?;
        if let Some(kv_store) = &kv_store {
            kv_store.connect(me.clone());
        }
        let journal = replica.journal().clone();
        let policy = Policy::starting_at(journal.next_step(), policy, limits);
        let metrics = SchedulerMetrics::new(&replica.model_id, replica.index);
        let adapter_metrics = AdapterMetrics::new(&replica.model_id, replica.index);
        let tier_metrics = TierMetrics::new(&replica.model_id, replica.index);
        let trace = SchedulerTrace::new(replica.tracer.clone());
        let (executor, drafter, drained, fetched) = Default::default();
        Ok(SchedulerState {
            policy,
            denoising,
            sampler,
            executor,
            drafter,
            me,
            replica,
            journal,
            drained,
            kv_store,
            kv_events,
            fetched,
            metrics,
            tier_metrics,
            adapter_metrics,
            trace,
        })
    }

    async fn handle(
        &self,
        _me: ActorRef<SchedulerMsg>,
        message: SchedulerMsg,
        state: &mut SchedulerState,
    ) -> Result<(), ActorProcessingErr> {
        state.trace.begin();
        match message {
            SchedulerMsg::Submit(id) => state.submit(id),
            SchedulerMsg::Recover => state.recover(),
            SchedulerMsg::Event(event) => {
                // Both the executor and the supervisor report a lost executor. Only the first report counts.
                if matches!(event, PolicyEvent::ExecutorLost { .. }) && state.executor.take().is_none() {
                    return Ok(());
                }
                state.apply(event);
            }
            SchedulerMsg::ExecutorReady { executor, limits } => {
                state.executor = Some(executor);
                state.apply(PolicyEvent::ExecutorReady(limits));
            }
            SchedulerMsg::DrafterReady(drafter) => {
                state.drafter = Some(drafter);
                state.apply(PolicyEvent::DrafterReady);
            }
            SchedulerMsg::Hidden(shares) => state.send_to_drafter(DrafterMsg::Hidden(shares)),
            SchedulerMsg::Fetched(fetched) => state.fetched(fetched),
            SchedulerMsg::Drain { reply } => {
                state.drained = Some(reply);
                state.apply(PolicyEvent::Drain);
            }
        }
        Ok(())
    }

    /// The KV cache of a model that is unloaded is gone.
    async fn post_stop(
        &self,
        _me: ActorRef<SchedulerMsg>,
        state: &mut SchedulerState,
    ) -> Result<(), ActorProcessingErr> {
        let SchedulerState { replica, kv_events, .. } = state;
        kv_events.publish(&replica.model_id, replica.index, vec![CacheChange::Cleared]);
        Ok(())
    }
}

impl SchedulerState {
    /// Accepts or refuses a request, unless that was done already: after a restart it may be in both journal and mailbox.
    fn submit(&mut self, id: RequestId) {
        let Some(record) = self.journal.undecided(id) else { return };
        match self.policy.submit(submission(&record, self.denoising)) {
            Ok(effects) => {
                // First, so that a request whose steps kill this scheduler is continued by the next one.
                self.journal.decide(&record, Ok(()));
                // Sent before any step, so that the sampler knows the request when its first logits arrive.
                self.begin(record, false);
                self.perform(effects);
            }
            Err(error) => self.journal.decide(&record, Err(error)),
        }
    }

    /// Continues the requests of the journal.
    fn recover(&mut self) {
        for recovery in self.journal.recover() {
            match recovery {
                Recovery::Submit(record) => self.submit(record.id),
                // Its message came before the one that asks for the recovery.
                Recovery::Continue(record, _) if self.policy.has(record.id) => {}
                Recovery::Continue(record, committed) => self.resume(record, committed),
            }
        }
        self.publish_counts();
    }

    fn resume(&mut self, record: Arc<RequestRecord>, committed: Committed) {
        let is_paused = committed.is_paused;
        let journal = self.journal.clone();
        journal.recovering(record.id, || {
            let progress = Progress {
                is_suspect: committed.is_suspect(),
                is_scored: committed.prompt_is_sent,
                tokens: committed.tokens,
                is_paused,
            };
            self.policy.resume(submission(&record, self.denoising), progress);
        });
        self.begin(record, is_paused);
    }

    fn begin(&self, record: Arc<RequestRecord>, is_paused: bool) {
        let context_tokens = self.policy.context_tokens_after(record.request.prompt.len());
        self.send_to_sampler(SamplerMsg::Begin { record, context_tokens, is_paused });
    }

    fn apply(&mut self, event: PolicyEvent) {
        let effects = self.policy.on(event);
        self.perform(effects);
    }

    /// Units were read from a lower tier.
    fn fetched(&mut self, fetched: Fetched) {
        let (found, Fetched { fetch, tier, units, elapsed, .. }) = (fetched.found(), fetched);
        self.tier_metrics.read(tier, elapsed);
        self.fetched = Some((fetch, units));
        self.apply(PolicyEvent::Fetched { fetch, found, elapsed });
        self.fetched = None;
    }

    /// Copies, moves, reads and removes units of lower tiers.
    fn perform_in_tiers(&mut self, effect: TierEffect) {
        let Some(kv_store) = &self.kv_store else { return };
        match effect {
            TierEffect::Store(copies) => self.send_to_executor(ExecutorMsg::Store(copies)),
            TierEffect::Demote(id) => kv_store.demote(id),
            TierEffect::Discard(tier, id) => kv_store.discard(tier, id),
            TierEffect::Fetch { fetch, tier, peer, units, time_limit } => {
                kv_store.fetch(fetch, (tier, peer), (units, time_limit), self.me.clone());
                self.me.send_after(time_limit, move || PolicyEvent::FetchTimedOut(fetch).into());
            }
            TierEffect::Write { fetch, units } => {
                if let Some((_, contents)) = self.fetched.take().filter(|(fetched, _)| *fetched == fetch) {
                    self.send_to_executor(ExecutorMsg::Write(units.into_iter().zip(contents).collect()));
                }
            }
        }
    }

    fn perform(&mut self, effects: Vec<Effect>) {
        #[cfg(debug_assertions)]
        super::faults::Fault::Scheduler.panic_if_armed();
        for effect in effects {
            match effect {
                Effect::Run(planned) => {
                    self.journal.step_formed(planned.step.id);
                    self.metrics.formed(&planned.step);
                    self.trace.step_formed(&planned.step, self.policy.members(planned.step.id));
                    self.send_to_executor(ExecutorMsg::Run(planned));
                }
                Effect::Draft(request) => {
                    let scheduler = self.me.clone();
                    self.send_to_drafter(DrafterMsg::Draft { request, scheduler });
                }
                Effect::CacheChanged(changes) => {
                    self.kv_events.publish(&self.replica.model_id, self.replica.index, changes);
                }
                Effect::Resync => self.send_to_executor(ExecutorMsg::Resync),
                Effect::Started { id, cached_tokens } => self.journal.started(id, cached_tokens),
                Effect::PromptComputed { id, tokens } => self.journal.prompt_computed(id, tokens),
                Effect::Preempted(id) => {
                    self.metrics.preempted();
                    self.replica.tracer.preempted(id);
                }
                Effect::Cancelled(id) => self.send_to_sampler(SamplerMsg::Forget(id)),
                Effect::Failed(id, error) => self.send_to_sampler(SamplerMsg::Fail(id, error)),
                Effect::Tier(effect) => self.perform_in_tiers(effect),
            }
        }
        self.publish_counts();
        if self.policy.is_drained()
            && let Some(drained) = self.drained.take()
        {
            let _ = drained.send(());
        }
    }

    fn publish_counts(&mut self) {
        let counts = self.policy.counts();
        self.metrics.set(&counts);
        self.adapter_metrics.set(&self.policy.adapter_counts());
        self.tier_metrics.set(&counts);
        self.replica.set_counts(counts);
    }

    fn send_to_sampler(&self, message: SamplerMsg) {
        // Fails only when the sampler is gone. The supervisor then replaces the scheduler, too.
        let _ = self.sampler.cast(message);
    }

    fn send_to_drafter(&self, message: DrafterMsg) {
        if let Some(drafter) = &self.drafter {
            // When the drafter is gone the supervisor reports it, and the policy then waits for no draft.
            let _ = drafter.cast(message);
        }
    }

    fn send_to_executor(&self, message: ExecutorMsg) {
        if let Some(executor) = &self.executor {
            // When the executor is gone the supervisor reports it, and the policy then takes its steps back.
            let _ = executor.cast(message);
        }
    }
}

/// What blocks follow from, in addition to the request.
#[derive(Debug, Clone, Copy)]
struct BlockModel {
    rule: DenoisingRule,
    vocab_size: usize,
}

impl BlockModel {
    fn denoising(self, request: &GenerationRequest, seed: u64) -> Denoising {
        let BlockModel { rule, vocab_size } = self;
        Denoising { rule, sampling: request.sampling.of_row(Draw { seed, position: 0 }), seed, vocab_size }
    }
}

/// The parts of a request that matter for scheduling.
fn submission(record: &RequestRecord, denoising: Option<BlockModel>) -> Submission {
    let RequestRecord { id, request, seed, .. } = record;
    Submission {
        id: *id,
        prompt: request.prompt.clone(),
        media: request.media.clone(),
        priority: request.priority,
        max_tokens: request.stop.max_tokens,
        client: request.client.clone(),
        scope: request.prefix_scope(),
        adapter: request.adapter.clone(),
        scores_prompt: request.prompt_logprobs.is_some(),
        reports_progress: request.reports_progress,
        hidden: request.embedding.map(Pooling::rows),
        hidden_from: request.embedding.map_or(0, Pooling::first_position),
        second_text: request.second_text.and_then(|start| u32::try_from(start).ok()),
        engine_sampling: engine_sampling(request, *seed),
        draft_sampling: draft_sampling(request, *seed),
        speculation: request.speculation.clone(),
        denoising: denoising.map(|model| model.denoising(request, *seed)),
        kv_transfer: request.kv_transfer.clone(),
    }
}

/// How the engine may sample the request's tokens, with the seed that the sampler uses. `None` unless sampling needs only
/// the row of logits, and there are no log-probabilities, no constraint and no budget.
fn engine_sampling(request: &GenerationRequest, seed: u64) -> Option<EngineSampling> {
    let has_budget = request.reasoning.as_ref().is_some_and(|reasoning| reasoning.budget.is_some());
    let needs_logits = request.logprobs.is_some() || request.constraint.is_some() || has_budget;
    let params = request.sampling.of_row_alone(Draw { seed, position: 0 }).filter(|_| !needs_logits);
    // Some tokens are forbidden for the first `min_tokens`, so the sampler samples those.
    params.map(|params| EngineSampling { params, seed, from: request.prompt.len() + request.stop.min_tokens })
}

/// How the draft model samples: as the sampler does, except for penalties, biases and constraints.
fn draft_sampling(request: &GenerationRequest, seed: u64) -> EngineSampling {
    EngineSampling { params: request.sampling.of_row(Draw { seed, position: 0 }), seed, from: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::request::SamplingParams;
    use crate::pipeline::client::channel;

    #[test]
    fn the_engine_samples_when_only_the_row_of_logits_matters() {
        let may = |change: fn(&mut GenerationRequest)| {
            let mut request = GenerationRequest::default();
            change(&mut request);
            engine_sampling(&request, 7).is_some()
        };
        assert!(may(|_| {}));
        assert!(may(
            |request| request.sampling = SamplingParams { top_k: 9, top_p: 0.5, min_p: 0.1, ..Default::default() }
        ));
        assert!(may(|request| request.prompt_logprobs = Some(3)), "only the prompt's logits are copied to the host");
        assert!(!may(|request| request.logprobs = Some(0)));
        assert!(!may(|request| request.sampling.frequency_penalty = 0.1));
        assert!(!may(|request| request.sampling.logit_bias = vec![(1, 1.0)]));
        assert!(!may(|request| request.sampling.typical_p = 0.9));
    }

    #[test]
    fn scheduler_and_sampler_draw_with_the_same_seed() {
        let mut request = GenerationRequest { prompt: vec![1, 2], ..GenerationRequest::default() };
        request.stop.min_tokens = 3;
        let record = RequestRecord::new(RequestId(1), request, channel(1).0);
        let engine = submission(&record, None).engine_sampling;
        assert_eq!(
            engine.map(|engine| (engine.seed, engine.from)),
            Some((record.seed, 5)),
            "two of the prompt come first"
        );
        assert_eq!(record.request.sampling.seed, Some(record.seed));
        let draft = submission(&record, None).draft_sampling;
        assert_eq!(draft.of_token(6), engine.and_then(|engine| engine.of_token(6)));
    }
}
