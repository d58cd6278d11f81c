//! The Sampler turns logits into tokens and is the only one that speaks to clients.
//!
//! Hears from: the scheduler (`Begin`, `Started`, `Fail`, `Forget`), the executor (`Sample`), and itself about clients.
//! Says: events to each client's channel, `Sampled` and `Cancel` to the scheduler.
//!
//! Failure: unusable logits, or a panic while one sequence is sampled, fail that request alone. When the actor itself
//! dies, the supervisor restarts the cast; clients hear that their request failed, because their channels close.
//! A client that does not read is paused and, after a limit, cut off; nobody else notices.

pub(crate) mod sequence;
mod stop;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use cuelight_engine::engine::StepOutput;
use cuelight_engine::format::tokenizer::Tokenizer;
use cuelight_engine::sample::Chooser;
use ractor::{Actor, ActorProcessingErr, ActorRef};
use tokio::time::Instant;

use self::sequence::{Advance, SequenceSampler};
use crate::client::ClientSink;
use crate::metrics::RequestMetrics;
use crate::policy::{Outcome, SampleTask, Verdict};
use crate::request::{Event, FinishReason, GenerationError, GenerationRequest, RequestId};
use crate::scheduler::SchedulerMsg;

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
    Started(RequestId),
    /// The logits of a step.
    Sample {
        /// The step.
        output: StepOutput,
        /// Whose they are, in their order.
        tasks: Vec<SampleTask>,
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
    /// Tokens to text.
    pub tokenizer: Arc<Tokenizer>,
    /// Logits in a row.
    pub vocab_size: usize,
    /// How long a client may leave its channel full.
    pub client_stall_timeout: Duration,
}

/// The sampler's own.
pub struct SamplerState {
    arguments: SamplerArguments,
    /// Set by `Connect`: the scheduler is started after the sampler.
    scheduler: Option<ActorRef<SchedulerMsg>>,
    sequences: HashMap<RequestId, SequenceSampler>,
    chooser: Chooser,
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
        Ok(SamplerState {
            arguments,
            scheduler: None,
            sequences: HashMap::new(),
            chooser: Chooser::default(),
            metrics: RequestMetrics::new(),
        })
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
                let sequence = SequenceSampler::new(*request, context_tokens, sink, submitted);
                state.sequences.insert(id, sequence);
            }
            SamplerMsg::Started(id) => state.started(id),
            SamplerMsg::Sample { output, tasks } => state.sample(&me, &output, &tasks),
            SamplerMsg::Fail(id, error) => state.end(id, Event::Failed(error)),
            SamplerMsg::Forget(id) => state.forget(id),
            SamplerMsg::ClientReads(id) => state.tell_scheduler(SchedulerMsg::Resume(id)),
            SamplerMsg::ClientStalled(id) => state.cut_off(id),
        }
        Ok(())
    }
}

impl SamplerState {
    fn started(&mut self, id: RequestId) {
        if let Some(sequence) = self.sequences.get_mut(&id) {
            sequence.times.started = Some(Instant::now());
        }
    }

    /// Samples every task of a step and tells the scheduler what came of it.
    fn sample(&mut self, me: &ActorRef<SamplerMsg>, output: &StepOutput, tasks: &[SampleTask]) {
        let vocab_size = self.arguments.vocab_size;
        let mut rest = output.logits.as_slice();
        let mut outcomes = Vec::with_capacity(tasks.len());
        for task in tasks {
            // Too few rows are found out below: a share of the wrong length is no distribution.
            let (share, after) = rest.split_at(rest.len().min(task.rows * vocab_size));
            rest = after;
            if let Some(outcome) = self.sample_one(me, task, share) {
                outcomes.push(outcome);
            }
        }
        self.tell_scheduler(SchedulerMsg::Sampled { step: output.id, outcomes });
    }

    fn sample_one(&mut self, me: &ActorRef<SamplerMsg>, task: &SampleTask, logits: &[f32]) -> Option<Outcome> {
        let sequence = self.sequences.get_mut(&task.id)?;
        let (chooser, tokenizer) = (&mut self.chooser, &self.arguments.tokenizer);
        let previous_token = sequence.times.last_token;
        // Nothing of a sequence that panicked is used again, so its broken state harms nobody.
        let advance = catch_unwind(AssertUnwindSafe(|| sequence.advance(task, logits, chooser, tokenizer)));
        let Advance { verdict, end } = advance.unwrap_or_else(|_| {
            let error = GenerationError::Engine("sampling its next token panicked".into());
            Advance { verdict: Verdict::Ended, end: Some(Event::Failed(error)) }
        });
        self.metrics.token(previous_token, &sequence.times);
        let pause = end.is_none() && sequence.sink.is_full();
        if pause {
            let room = sequence.sink.room();
            let (me, id, limit) = (me.clone(), task.id, self.arguments.client_stall_timeout);
            tokio::spawn(async move {
                let read = tokio::time::timeout(limit, room).await.is_ok();
                let _ = me.cast(if read { SamplerMsg::ClientReads(id) } else { SamplerMsg::ClientStalled(id) });
            });
        }
        if let Some(end) = end {
            self.end(task.id, end);
        }
        Some(Outcome { id: task.id, verdict, pause })
    }

    fn end(&mut self, id: RequestId, end: Event) {
        let Some(sequence) = self.sequences.remove(&id) else { return };
        self.metrics.ended(&end, &sequence.usage());
        sequence.sink.finish(end);
    }

    /// The client is gone: there is nobody to tell.
    fn forget(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.remove(&id) else { return };
        let usage = sequence.usage();
        self.metrics.ended(&Event::Finished { reason: FinishReason::Cancelled, text: String::new(), usage }, &usage);
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
