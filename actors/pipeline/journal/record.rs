//! The record of one request: what its client asked for, and what it has received.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use cuelight_engine::engine::TokenId;
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::core::ended_request::{EndedRequest, RequestTimes};
use crate::core::request::{Event, GenerationRequest, PromptProgress, RequestId, SubmitError, Usage};
use crate::core::request_context::RequestContext;
use crate::pipeline::client::ClientSink;

/// The decision of the scheduler about a request.
pub type Decision = Result<(), SubmitError>;

/// A request that has not ended.
#[derive(Debug)]
pub struct RequestRecord {
    /// The id of the request.
    pub id: RequestId,
    /// The request. Its seed is fixed.
    pub request: GenerationRequest,
    /// The seed of its random draws.
    pub seed: u64,
    /// The HTTP call of the request. `None` when it did not arrive over HTTP.
    context: Option<Arc<RequestContext>>,
    is_cancelled: AtomicBool,
    progress: Mutex<Progress>,
}

/// What has happened to a request.
#[derive(Debug)]
struct Progress {
    /// Receives the events of the request. `None` once it ended.
    sink: Option<ClientSink>,
    /// Receives the scheduler's decision. `None` once it was sent.
    decision: Option<oneshot::Sender<Decision>>,
    /// Number of schedulers that have begun to decide.
    decisions_begun: u32,
    is_accepted: bool,
    /// The sampler that sends its events. A sampler that was replaced has a lower number.
    owner: u32,
    /// The tokens that were sent to the client.
    tokens: Vec<TokenId>,
    /// Whether the log-probabilities of the prompt were sent, or none are wanted.
    prompt_is_sent: bool,
    /// Tokens of the prompt that were found in the prefix cache.
    cached_tokens: usize,
    /// Tokens of the prompt of which the client knows that they are computed.
    reported_tokens: usize,
    /// Drafted tokens of the client's prediction that were accepted, and that were not.
    prediction: (usize, usize),
    /// Maximum number of tokens to generate.
    max_tokens: usize,
    times: RequestTimes,
    detokenise_time: Option<Duration>,
    /// Whether it took part in a step since its scheduler was started.
    took_part: bool,
    /// Deaths of the scheduler or the sampler since its last token, while it took part in steps.
    deaths: u32,
}

/// A copy of what is known about a request, for a new scheduler and a new sampler.
#[derive(Debug, Clone, Default)]
pub struct Committed {
    /// The tokens that were sent to the client.
    pub tokens: Vec<TokenId>,
    /// Whether the log-probabilities of the prompt need not be sent.
    pub prompt_is_sent: bool,
    /// Whether the client's channel is full.
    pub is_paused: bool,
    /// Whether no scheduler has decided about it.
    pub is_undecided: bool,
    /// Number of schedulers that have begun to decide about it.
    pub decisions_begun: u32,
    /// Whether the client is gone.
    pub is_abandoned: bool,
    /// Deaths of the scheduler or the sampler since its last token, while it took part in steps.
    pub deaths: u32,
}

impl RequestRecord {
    /// A request that was submitted now.
    #[must_use]
    pub fn new(id: RequestId, mut request: GenerationRequest, sink: ClientSink) -> Self {
        let submitted = Instant::now();
        let seed = request.fix_seed();
        let context = sink.context().cloned();
        let progress = Progress {
            decision: None,
            decisions_begun: 0,
            is_accepted: false,
            owner: 0,
            tokens: Vec::new(),
            prompt_is_sent: request.prompt_logprobs.is_none(),
            cached_tokens: 0,
            reported_tokens: 0,
            prediction: (0, 0),
            max_tokens: request.stop.max_tokens,
            times: RequestTimes { submitted, started: None, first_token: None, last_token: None, previous_token: None },
            detokenise_time: None,
            took_part: false,
            deaths: 0,
            sink: Some(sink),
        };
        let (is_cancelled, progress) = (AtomicBool::new(false), Mutex::new(progress));
        RequestRecord { id, request, seed, context, is_cancelled, progress }
    }

    fn progress(&self) -> MutexGuard<'_, Progress> {
        self.progress.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Records that the client is gone.
    pub fn cancel(&self) {
        self.is_cancelled.store(true, Ordering::Release);
    }

    pub(super) fn await_decision(&self, reply: oneshot::Sender<Decision>) {
        self.progress().decision = Some(reply);
    }

    /// Records that a scheduler begins to decide. Returns whether there is something to decide.
    pub(super) fn begin_decision(&self) -> bool {
        let mut progress = self.progress();
        progress.decisions_begun += 1;
        progress.decision.is_some()
    }

    /// Records the decision and sends it. Later decisions are ignored.
    pub(super) fn decide(&self, decision: Decision) {
        let mut progress = self.progress();
        if let Some(reply) = progress.decision.take() {
            progress.is_accepted = decision.is_ok();
            let _ = reply.send(decision);
        }
    }

    pub(super) fn started(&self, cached_tokens: usize) {
        let mut progress = self.progress();
        progress.took_part = true;
        if progress.times.started.is_none() {
            progress.times.started = Some(Instant::now());
            progress.cached_tokens = cached_tokens;
            self.report(&mut progress, cached_tokens);
        }
    }

    /// Reports that this number of tokens of the prompt are computed, unless that is known: a prompt that was preempted is computed
    /// again.
    pub(super) fn prompt_computed(&self, tokens: usize) {
        let mut progress = self.progress();
        if tokens > progress.reported_tokens {
            self.report(&mut progress, tokens);
        }
    }

    /// Sends the progress of the prompt, unless the client reads too slowly.
    fn report(&self, progress: &mut Progress, done_tokens: usize) {
        let (Some(sink), Some(started), None) = (&progress.sink, progress.times.started, progress.times.first_token)
        else {
            return;
        };
        if self.request.reports_progress && !sink.is_full() {
            sink.send(Event::Progress(PromptProgress {
                prompt_tokens: self.request.prompt.len(),
                cached_tokens: progress.cached_tokens,
                done_tokens,
                elapsed: started.elapsed(),
            }));
            progress.reported_tokens = done_tokens;
        }
    }

    /// Makes a sampler the only one that may send events. Returns its number.
    pub fn take_over(&self, max_tokens: usize) -> u32 {
        let mut progress = self.progress();
        progress.max_tokens = max_tokens;
        progress.owner += 1;
        progress.owner
    }

    /// Sends the log-probabilities of the prompt.
    pub fn commit_prompt(&self, owner: u32, event: Event) {
        let mut progress = self.progress();
        if progress.owner == owner && !std::mem::replace(&mut progress.prompt_is_sent, true) {
            progress.send(event);
        }
    }

    /// Records the tokens of a step, of which there is at least one, and sends their events. Does nothing for an owner that
    /// was replaced.
    pub fn commit_tokens(
        &self,
        owner: u32,
        events: impl IntoIterator<Item = Event>,
        detokenise_time: Option<Duration>,
    ) {
        let mut progress = self.progress();
        if progress.owner != owner {
            return;
        }
        // The scheduler may not have heard yet that the whole prompt is computed.
        let prompt_tokens = self.request.prompt.len();
        if progress.reported_tokens < prompt_tokens {
            self.report(&mut progress, prompt_tokens);
        }
        let now = Instant::now();
        progress.deaths = 0;
        progress.detokenise_time = detokenise_time;
        let times = &mut progress.times;
        times.first_token.get_or_insert(now);
        times.previous_token = times.last_token.replace(now);
        for event in events {
            match &event {
                Event::Token { token, .. } => progress.tokens.push(*token),
                Event::Block { tokens } => progress.tokens.extend(tokens.iter().map(|token| token.token)),
                _ => {}
            }
            progress.send(event);
        }
    }

    /// Adds to the counts of drafted tokens from the client's prediction.
    pub fn count_prediction(&self, accepted: usize, rejected: usize) {
        let mut progress = self.progress();
        progress.prediction.0 += accepted;
        progress.prediction.1 += rejected;
    }

    /// What is known about the request.
    #[must_use]
    pub fn committed(&self) -> Committed {
        let progress = self.progress();
        let sink = progress.sink.as_ref();
        Committed {
            tokens: progress.tokens.clone(),
            prompt_is_sent: progress.prompt_is_sent,
            is_paused: sink.is_some_and(ClientSink::is_full),
            is_undecided: progress.decision.is_some(),
            decisions_begun: progress.decisions_begun,
            is_abandoned: self.is_cancelled.load(Ordering::Acquire) || sink.is_none_or(ClientSink::is_abandoned),
            deaths: progress.deaths,
        }
    }

    /// Whether the client's channel is full.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.progress().sink.as_ref().is_some_and(ClientSink::is_full)
    }

    /// Resolves when the client has read half of its channel or is gone.
    pub fn has_capacity(&self) -> impl Future<Output = ()> + Send + use<> {
        let has_capacity = self.progress().sink.as_ref().map(ClientSink::has_capacity);
        async move {
            if let Some(has_capacity) = has_capacity {
                has_capacity.await;
            }
        }
    }

    /// The times of the request so far.
    #[must_use]
    pub fn times(&self) -> RequestTimes {
        self.progress().times
    }

    /// The tokens and times of the request so far.
    #[must_use]
    pub fn usage(&self) -> Usage {
        self.progress().usage(self.request.prompt.len())
    }

    pub(super) fn saw_a_death(&self) {
        let mut progress = self.progress();
        progress.deaths += u32::from(std::mem::take(&mut progress.took_part));
    }

    pub(super) fn caused_a_death(&self, deaths: u32) {
        self.progress().deaths = deaths;
    }

    /// Sends the last event. `None` when the request has ended already or the owner was replaced. The inner value is the
    /// record of the end, if the request was accepted.
    pub(super) fn finish(&self, owner: Option<u32>, end: Event) -> Option<Option<EndedRequest>> {
        let mut progress = self.progress();
        if owner.is_some_and(|owner| owner != progress.owner) {
            return None;
        }
        let sink = progress.sink.take()?;
        let ended = progress.is_accepted.then(|| self.ended(&progress, &end));
        progress.decision = None;
        drop(progress);
        sink.finish(end);
        Some(ended)
    }

    /// The record of the request after its last event `end`.
    fn ended(&self, progress: &Progress, end: &Event) -> EndedRequest {
        let error = match end {
            Event::Failed(error) => Some(error.to_string()),
            _ => None,
        };
        EndedRequest {
            id: self.id,
            context: self.context.clone(),
            reason: end.end_reason(),
            error,
            usage: progress.usage(self.request.prompt.len()),
            times: progress.times,
            at: Instant::now(),
            max_tokens: progress.max_tokens,
            temperature: self.request.sampling.temperature,
            top_p: self.request.sampling.top_p,
            detokenise_time: progress.detokenise_time,
        }
    }
}

impl Progress {
    fn send(&self, event: Event) {
        if let Some(sink) = &self.sink {
            sink.send(event);
        }
    }

    fn usage(&self, prompt_tokens: usize) -> Usage {
        let RequestTimes { submitted, started, first_token, last_token, .. } = self.times;
        let since = |end: Option<Instant>, start: Option<Instant>| match (end, start) {
            (Some(end), Some(start)) => end.saturating_duration_since(start),
            _ => Duration::ZERO,
        };
        Usage {
            prompt_tokens,
            cached_tokens: self.cached_tokens,
            completion_tokens: self.tokens.len(),
            accepted_prediction_tokens: self.prediction.0,
            rejected_prediction_tokens: self.prediction.1,
            queue_time: since(started, Some(submitted)),
            time_to_first_token: since(first_token, Some(submitted)),
            generation_time: since(last_token, first_token),
        }
    }
}
