//! The Sampler actor turns logits into tokens, unless the engine has sampled them, and sends the events of every request to
//! its client.
//!
//! Receives `Begin`, `Fail` and `Forget` from the scheduler, `Sample` from the executor, and messages about clients from its
//! own tasks. Sends tokens to the executor, events to the clients' channels, and `Sampled`, `Resume` and `Cancel` events to
//! the scheduler.
//!
//! All tokens of a step are sampled first. Then they are sent to the executor, so that the device continues while the
//! tokens are converted to text, searched for stop strings and sent to clients.
//!
//! Faults: unusable logits, or a panic while a sequence is sampled, fail that request alone. Every token that is sent is
//! written to the journal at the same moment. When the actor dies, the next sampler restores each sequence from its tokens
//! there and continues with the next one. A client that does not read is paused and, after a time limit, cut off. Other
//! requests are not affected.

mod constraint;
mod outcome;
mod reasoning;
mod sequence;
mod stop;
mod work;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::{SampledToken, StepOutput};
use cuelight_engine::format::tokenizer::Tokenizer;
use ractor::{Actor, ActorProcessingErr, ActorRef};

use self::sequence::SequenceSampler;
use self::work::{SampleJob, SampledRow, StepLogits};
use super::journal::{RequestJournal, RequestRecord};
use super::messages::{ExecutorMsg, SamplerMsg, SchedulerMsg};
use super::policy::{Outcome, PolicyEvent, SampleTask};
use crate::core::request::{Event, GenerationError, RequestId};
use crate::metrics::RequestMetrics;
use crate::trace::Tracer;

/// Startup arguments of the sampler.
pub struct SamplerArguments {
    /// The name of the model, for metrics.
    pub model_id: Arc<str>,
    /// Converts tokens to text.
    pub tokenizer: Arc<Tokenizer>,
    /// Number of logits per row.
    pub vocab_size: usize,
    /// Number of hidden values per row, also of canvases.
    pub hidden_width: usize,
    /// How long a client's channel may stay full before the client is cut off.
    pub client_stall_timeout: Duration,
    /// Receives the tokens and the end of every request.
    pub journal: Arc<RequestJournal>,
    /// Records the sampled steps.
    pub tracer: Tracer,
}

/// The state of the sampler.
pub struct SamplerState {
    arguments: SamplerArguments,
    /// Set by `Connect`, because the scheduler is started after the sampler.
    scheduler: Option<ActorRef<SchedulerMsg>>,
    sequences: HashMap<RequestId, Box<SequenceSampler>>,
    metrics: RequestMetrics,
}

/// The sampler actor.
pub struct Sampler;

impl Actor for Sampler {
    type Msg = SamplerMsg;
    type State = SamplerState;
    type Arguments = SamplerArguments;

    async fn pre_start(
        &self,
        _me: ActorRef<SamplerMsg>,
        arguments: SamplerArguments,
    ) -> Result<SamplerState, ActorProcessingErr> {
        let metrics = RequestMetrics::new(&arguments.model_id);
        Ok(SamplerState { arguments, scheduler: None, sequences: HashMap::new(), metrics })
    }

    async fn handle(
        &self,
        me: ActorRef<SamplerMsg>,
        message: SamplerMsg,
        state: &mut SamplerState,
    ) -> Result<(), ActorProcessingErr> {
        match message {
            SamplerMsg::Connect(scheduler) => state.scheduler = Some(scheduler),
            SamplerMsg::Begin { record, context_tokens, is_paused } => {
                state.begin(&me, record, context_tokens, is_paused);
            }
            SamplerMsg::Sample { output, tasks, executor } => state.sample(&me, output, tasks, &executor).await?,
            SamplerMsg::Fail(id, error) => state.end(id, Event::Failed(error)),
            SamplerMsg::Forget(id) => state.forget(id),
            SamplerMsg::ClientReads(id) => state.client_reads(id),
            SamplerMsg::ClientStalled(id) => state.cut_off(id),
        }
        Ok(())
    }
}

impl SamplerState {
    /// Adds a sequence, in the state after the tokens that its client has.
    fn begin(&mut self, me: &ActorRef<SamplerMsg>, record: Arc<RequestRecord>, context_tokens: usize, is_paused: bool) {
        let id = record.id;
        let mut sequence = match work::resume(record, context_tokens, &self.arguments.tokenizer) {
            Ok((sequence, None)) => sequence,
            Ok((sequence, Some(end))) => return self.end_early(id, Some(sequence.owner()), end),
            Err(error) => return self.end_early(id, None, Event::Failed(error)),
        };
        sequence.detokenise_time = self.arguments.tracer.is_on().then_some(Duration::ZERO);
        if is_paused {
            sequence.awaits_client = true;
            self.wait_for_client(me.clone(), id, sequence.record().has_capacity());
        }
        self.sequences.insert(id, sequence);
    }

    /// Ends a request that the scheduler still has.
    fn end_early(&mut self, id: RequestId, owner: Option<u32>, end: Event) {
        self.arguments.journal.end(id, owner, end);
        self.send_to_scheduler(PolicyEvent::Cancel(id));
    }

    /// Samples a token for every task of a step, then informs the executor, the clients and the scheduler, in this order.
    async fn sample(
        &mut self,
        me: &ActorRef<SamplerMsg>,
        output: StepOutput,
        tasks: Vec<SampleTask>,
        executor: &ActorRef<ExecutorMsg>,
    ) -> Result<(), ActorProcessingErr> {
        let from = self.arguments.tracer.now();
        let step = StepLogits {
            logits: Arc::new(output.logits),
            vocab_size: self.arguments.vocab_size,
            hidden: Arc::new(output.hidden),
            hidden_width: self.arguments.hidden_width,
            denoised: Arc::new(output.denoised),
            tokenizer: self.arguments.tokenizer.clone(),
        };
        let mut jobs = self.jobs(tasks, output.sampled);
        for job in &mut jobs {
            job.sequence.settle_constraint().await;
        }
        let sampled = work::sample_all(step, jobs).await?;
        let sampled_at = self.arguments.tracer.now();
        let tokens = sampled.iter().filter_map(SampledRow::next_token).collect();
        // Fails only when the executor is gone.
        let _ = executor.cast(ExecutorMsg::Tokens { step: output.id, tokens });
        // The executor was woken on this worker thread. Yielding lets it start the next step before clients are served.
        tokio::task::yield_now().await;
        let outcomes: Vec<_> = sampled.into_iter().map(|sampled| self.deliver(me, sampled)).collect();
        self.arguments.tracer.step_sampled(output.id, from, sampled_at, outcomes.len());
        self.send_to_scheduler(PolicyEvent::Sampled { step: output.id, outcomes });
        Ok(())
    }

    /// Takes the sequences of a step out of the map, each with the token that the engine sampled or the offset of its logits or
    /// hidden values. Requests that have ended are skipped.
    fn jobs(&mut self, tasks: Vec<SampleTask>, sampled: Vec<Option<SampledToken>>) -> Vec<SampleJob> {
        let (mut logits_offset, mut hidden_offset) = (0, 0);
        let mut sampled = sampled.into_iter();
        let mut jobs = Vec::with_capacity(tasks.len());
        for task in tasks {
            // There is an entry for each sequence that requests logits.
            let sampled = if task.rows > 0 { sampled.next().flatten() } else { None };
            let logits = if sampled.is_some() { 0 } else { task.rows * self.arguments.vocab_size };
            let hidden = task.hidden_rows * self.arguments.hidden_width;
            let offset = if task.hidden_rows > 0 { hidden_offset } else { logits_offset };
            if let Some(sequence) = self.sequences.remove(&task.id) {
                jobs.push(SampleJob { task, sequence, sampled, offset });
            }
            logits_offset += logits;
            hidden_offset += hidden;
        }
        jobs
    }

    /// Sends the result to the client and puts the sequence back unless it ended. Pauses it when its channel is full.
    fn deliver(&mut self, me: &ActorRef<SamplerMsg>, SampledRow { job, outcome }: SampledRow) -> Outcome {
        let (id, mut sequence) = (job.task.id, job.sequence);
        if let Some(draft) = &job.task.draft {
            self.metrics.draft(draft.source.name(), draft.tokens.len(), outcome.accepted());
        }
        if let Some(canvas) = &job.task.canvas {
            self.metrics.denoised(canvas.block.tokens.len(), outcome.is_block());
        }
        let advance = work::deliver(&mut sequence, outcome, &self.arguments.tokenizer);
        if advance.end.is_none() {
            sequence.precompute_mask();
        }
        #[cfg(debug_assertions)]
        super::faults::Fault::Sampler.panic_if_armed();
        if advance.tokens > 0 {
            let record = sequence.record();
            self.metrics.tokens(advance.tokens, &record.times(), || record.usage());
            self.metrics.forced(advance.forced);
        }
        if advance.end.is_none() && !sequence.awaits_client && sequence.record().is_full() {
            sequence.awaits_client = true;
            self.wait_for_client(me.clone(), id, sequence.record().has_capacity());
        }
        let pause = advance.end.is_none() && sequence.awaits_client;
        self.sequences.insert(id, sequence);
        if let Some(end) = advance.end {
            self.end(id, end);
        }
        Outcome { id, verdict: advance.verdict, forced: advance.forced, pause }
    }

    fn wait_for_client(
        &self,
        me: ActorRef<SamplerMsg>,
        id: RequestId,
        has_capacity: impl Future<Output = ()> + Send + 'static,
    ) {
        let limit = self.arguments.client_stall_timeout;
        tokio::spawn(async move {
            let read = tokio::time::timeout(limit, has_capacity).await.is_ok();
            let _ = me.cast(if read { SamplerMsg::ClientReads(id) } else { SamplerMsg::ClientStalled(id) });
        });
    }

    fn client_reads(&mut self, id: RequestId) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.awaits_client = false;
            self.send_to_scheduler(PolicyEvent::Resume(id));
        }
    }

    fn end(&mut self, id: RequestId, end: Event) {
        let owner = self.sequences.remove(&id).map(|sequence| sequence.owner());
        self.arguments.journal.end(id, owner, end);
    }

    /// Drops a request whose client is gone.
    fn forget(&mut self, id: RequestId) {
        self.sequences.remove(&id);
        self.arguments.journal.cancelled(id);
    }

    fn cut_off(&mut self, id: RequestId) {
        if self.sequences.contains_key(&id) {
            self.end(id, Event::Failed(GenerationError::StalledClient));
            self.send_to_scheduler(PolicyEvent::Cancel(id));
        }
    }

    fn send_to_scheduler(&self, event: PolicyEvent) {
        if let Some(scheduler) = &self.scheduler {
            // Fails only when the scheduler is gone. The supervisor then replaces the sampler, too.
            let _ = scheduler.cast(event.into());
        }
    }
}

#[cfg(test)]
mod tests;
