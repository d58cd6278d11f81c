//! The Sampler turns logits into tokens, unless the engine has chosen them already, and is the only one that speaks to clients.
//!
//! Hears from: the scheduler (`Begin`, `Started`, `Fail`, `Forget`), the executor (`Sample`), and itself about clients.
//! Says: tokens to the executor, whose next step may wait for them; events to each client's channel; `Sampled` and
//! `Cancel` to the scheduler.
//!
//! First all tokens of a step are chosen, and only then does anybody hear of them: the executor at once, so that the
//! device goes on while texts are made, searched for stop strings and sent.
//!
//! Failure: unusable logits, or a panic while one sequence is sampled, fail that request alone. When the actor itself
//! dies, the supervisor restarts the cast; clients hear that their request failed, because their channels close.
//! A client that does not read is paused and, after a limit, cut off; nobody else notices.

pub(crate) mod sequence;
mod stop;
#[cfg(test)]
mod tests;
mod work;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::{Chosen as ChosenByEngine, StepOutput};
use cuelight_engine::format::tokenizer::Tokenizer;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::time::Instant;

use self::sequence::SequenceSampler;
use self::work::{Chosen, Share, StepLogits};
use crate::client::ClientSink;
use crate::executor::ExecutorMsg;
use crate::metrics::RequestMetrics;
use crate::policy::{Outcome, SampleTask};
use crate::request::{Event, FinishReason, GenerationError, GenerationRequest, RequestId};
use crate::scheduler::SchedulerMsg;
use crate::trace::Tracer;
use crate::trace::request::EndedRequest;

/// What the sampler hears.
pub enum SamplerMsg {
    /// The scheduler that waits for what is sampled; sent once, before anything else.
    Connect(ActorRef<SchedulerMsg>),
    /// A request was taken in.
    Begin {
        /// The request.
        id: RequestId,
        /// What it asks for.
        request: Box<GenerationRequest>,
        /// Longest sequence, prompt and answer together.
        context_tokens: usize,
        /// Where its events go.
        sink: ClientSink,
        /// When it was submitted.
        submitted: Instant,
    },
    /// A request takes part in a step for the first time.
    Started {
        /// The request.
        id: RequestId,
        /// Tokens of its prompt that were found in the prefix cache.
        cached_tokens: usize,
    },
    /// The logits of a step, and the tokens that the engine chose.
    Sample {
        /// The step.
        output: StepOutput,
        /// Whose they are, in their order.
        tasks: Vec<SampleTask>,
        /// Who may wait for the tokens.
        executor: ActorRef<ExecutorMsg>,
    },
    /// A request ends with an error.
    Fail(RequestId, GenerationError),
    /// A request's client is gone.
    Forget(RequestId),
    /// A paused client has read.
    ClientReads(RequestId),
    /// A paused client has not read for too long.
    ClientStalled(RequestId),
}

/// What a sampler needs to start.
pub struct SamplerArguments {
    /// The name of the model, for metrics.
    pub model_id: Arc<str>,
    /// Tokens to text.
    pub tokenizer: Arc<Tokenizer>,
    /// Logits in a row.
    pub vocab_size: usize,
    /// How long a client may leave its channel full.
    pub client_stall_timeout: Duration,
    /// Hears what happens when.
    pub tracer: Tracer,
}

/// The sampler's own.
pub struct SamplerState {
    arguments: SamplerArguments,
    /// Set by `Connect`: the scheduler is started after the sampler.
    scheduler: Option<ActorRef<SchedulerMsg>>,
    sequences: HashMap<RequestId, Box<SequenceSampler>>,
    metrics: RequestMetrics,
}

/// The actor; everything it knows is in [`SamplerState`].
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
            SamplerMsg::Begin { id, request, context_tokens, sink, submitted } => {
                let mut sequence = SequenceSampler::new(*request, context_tokens, sink, submitted);
                sequence.detokenising = state.arguments.tracer.is_on().then_some(Duration::ZERO);
                state.sequences.insert(id, Box::new(sequence));
            }
            SamplerMsg::Started { id, cached_tokens } => state.started(id, cached_tokens),
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
    fn started(&mut self, id: RequestId, cached_tokens: usize) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.cached_tokens = cached_tokens;
            sequence.times.started = Some(Instant::now());
        }
    }

    /// Chooses a token for every task of a step, then tells executor, clients and scheduler, in this order.
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
            tokenizer: self.arguments.tokenizer.clone(),
        };
        let shares = self.shares(tasks, output.chosen);
        let chosen = work::choose(step, shares).await?;
        let chosen_at = self.arguments.tracer.now();
        let tokens = chosen.iter().filter_map(Chosen::next_token).collect();
        // An executor that is gone waits for nothing.
        let _ = executor.cast(ExecutorMsg::Tokens { step: output.id, tokens });
        // Whom a task wakes waits for it on the same worker. Let the device have its next step before clients are told.
        tokio::task::yield_now().await;
        let outcomes: Vec<_> = chosen.into_iter().map(|chosen| self.deliver(me, chosen)).collect();
        self.arguments.tracer.step_sampled(output.id, from, chosen_at, outcomes.len());
        self.tell_scheduler(SchedulerMsg::Sampled { step: output.id, outcomes });
        Ok(())
    }

    /// Takes the sequences of a step out, each with what was chosen for it or the place of its logits. Those whose client
    /// left are passed over.
    fn shares(&mut self, tasks: Vec<SampleTask>, chosen: Vec<Option<ChosenByEngine>>) -> Vec<Share> {
        let mut offset = 0;
        let mut shares = Vec::with_capacity(tasks.len());
        for (task, chosen) in tasks.into_iter().zip(chosen.into_iter().chain(std::iter::repeat(None))) {
            if let Some(sequence) = self.sequences.remove(&task.id) {
                shares.push(Share { task, sequence, chosen, offset });
            }
            offset += if chosen.is_some() { 0 } else { task.rows * self.arguments.vocab_size };
        }
        shares
    }

    /// Speaks to a client, puts its sequence back, unless it ended, and pauses it when its client does not keep up.
    fn deliver(&mut self, me: &ActorRef<SamplerMsg>, Chosen { share, choice }: Chosen) -> Outcome {
        let (id, mut sequence) = (share.task.id, share.sequence);
        let advance = work::deliver(&mut sequence, choice, &self.arguments.tokenizer);
        if share.task.samples {
            self.metrics.token(&sequence.times, || sequence.usage());
        }
        if advance.end.is_none() && !sequence.awaits_client && sequence.sink.is_full() {
            sequence.awaits_client = true;
            self.wait_for_client(me.clone(), id, sequence.sink.room());
        }
        let pause = advance.end.is_none() && sequence.awaits_client;
        self.sequences.insert(id, sequence);
        if let Some(end) = advance.end {
            self.end(id, end);
        }
        Outcome { id, verdict: advance.verdict, pause }
    }

    fn wait_for_client(
        &self,
        me: ActorRef<SamplerMsg>,
        id: RequestId,
        room: impl Future<Output = ()> + Send + 'static,
    ) {
        let limit = self.arguments.client_stall_timeout;
        tokio::spawn(async move {
            let read = tokio::time::timeout(limit, room).await.is_ok();
            let _ = me.cast(if read { SamplerMsg::ClientReads(id) } else { SamplerMsg::ClientStalled(id) });
        });
    }

    fn client_reads(&mut self, id: RequestId) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.awaits_client = false;
            self.tell_scheduler(SchedulerMsg::Resume(id));
        }
    }

    fn end(&mut self, id: RequestId, end: Event) {
        let Some(sequence) = self.sequences.remove(&id) else { return };
        self.ended(&sequence.ended(id, &end));
        sequence.sink.finish(end);
    }

    /// The client is gone: there is nobody to tell.
    fn forget(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.remove(&id) else { return };
        let usage = sequence.usage();
        let end = Event::Finished { reason: FinishReason::Cancelled, text: String::new(), usage };
        self.ended(&sequence.ended(id, &end));
    }

    /// Lets everybody know who wants to.
    fn ended(&self, request: &EndedRequest) {
        self.metrics.ended(request);
        request.log(&self.arguments.model_id);
        self.arguments.tracer.request_ended(request);
    }

    fn cut_off(&mut self, id: RequestId) {
        if self.sequences.contains_key(&id) {
            self.end(id, Event::Failed(GenerationError::StalledClient));
            self.tell_scheduler(SchedulerMsg::Cancel(id));
        }
    }

    fn tell_scheduler(&self, message: SchedulerMsg) {
        if let Some(scheduler) = &self.scheduler {
            // A scheduler that is gone takes the sampler with it: the supervisor restarts the cast.
            let _ = scheduler.cast(message);
        }
    }
}
