//! What can be scraped, and who counts what.
//!
//! - [`catalogue`]: every metric's name and meaning
//! - this file: the handles that actors count with
//! - [`exposition`]: Prometheus' text, and [`vllm`]: the same under the names that vLLM uses
//!
//! Actors hold the handles of what they count often, so that counting takes no lock and no look-up. Handles are made
//! when the cast starts: install a recorder before that. They are made for every label value that can be, so that a
//! reason that never occurred is scraped as 0, and its first occurrence is an increase.
//!
//! What is counted is counted for a model, whichever of its replicas does it; what can only be said of one replica, how full
//! it is and whether it runs, carries its number.

pub mod catalogue;
pub mod exposition;
pub mod vllm;

use std::sync::Arc;
use std::time::Duration;

use self::catalogue::*;
use crate::policy::Counts;
use crate::request::{Event, FinishReason, GenerationError, SubmitError, Usage};
use crate::runtime::Status;
use crate::sampler::sequence::Times;
use crate::trace::request::EndedRequest;
use cuelight_engine::engine::{BLOCK_TOKENS, EngineLimits, ExpertCounts, LogitsWanted, SequenceRows, Step};
use cuelight_engine::load::{MemoryPlan, ModelCard};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

/// Makes a counter for each value of a metric's second label.
fn counters(name: &'static str, model_id: &str, label: &'static str, values: &[&'static str]) -> Counters {
    let handle =
        |&value: &&'static str| (value, counter!(name, &[("model", model_id.to_owned()), (label, value.to_owned())]));
    Counters(values.iter().map(handle).collect())
}

/// The counters of one metric, by the value of its label.
struct Counters(Vec<(&'static str, Counter)>);

impl Counters {
    fn increment(&self, value: &str, by: u64) {
        // A handful of values: looking through them is cheaper than hashing.
        if let Some((_, counter)) = self.0.iter().find(|(name, _)| *name == value) {
            counter.increment(by);
        }
    }
}

/// What the sampler counts.
pub struct RequestMetrics {
    time_to_first_token: Histogram,
    inter_token_latency: Histogram,
    time_per_output_token: Histogram,
    duration: Histogram,
    queue_time: Histogram,
    prefill_time: Histogram,
    decode_time: Histogram,
    inference_time: Histogram,
    request_prompt_tokens: Histogram,
    request_generation_tokens: Histogram,
    request_max_tokens: Histogram,
    prompt_tokens: Counters,
    generation_tokens: Counter,
    prefix_cache_queries: Counter,
    prefix_cache_hits: Counter,
    finished: Counters,
}

/// Every word of [`end_reason`].
const END_REASONS: [&str; 7] =
    ["stop_token", "stop_string", "length", "cancelled", "engine_error", "shutting_down", "stalled_client"];

/// Those of requests that got all they asked for.
const FINISHED: [&str; 3] = ["stop_token", "stop_string", "length"];

/// How a request ended, in a word for labels and logs.
pub(crate) fn end_reason(end: &Event) -> &'static str {
    match end {
        Event::Finished { reason: FinishReason::StopToken(_), .. } => "stop_token",
        Event::Finished { reason: FinishReason::StopString(_), .. } => "stop_string",
        Event::Finished { reason: FinishReason::Length, .. } => "length",
        Event::Finished { reason: FinishReason::Cancelled, .. } => "cancelled",
        Event::Failed(GenerationError::Engine(_)) => "engine_error",
        Event::Failed(GenerationError::ShuttingDown) => "shutting_down",
        Event::Failed(GenerationError::StalledClient) => "stalled_client",
        Event::Prompt { .. } | Event::Token { .. } => "none",
    }
}

impl RequestMetrics {
    pub(crate) fn new(model_id: &Arc<str>) -> Self {
        let histogram = |name: &'static str| histogram!(name, &[("model", model_id.to_string())]);
        let counter = |name: &'static str| counter!(name, &[("model", model_id.to_string())]);
        RequestMetrics {
            time_to_first_token: histogram(TIME_TO_FIRST_TOKEN),
            inter_token_latency: histogram(INTER_TOKEN_LATENCY),
            time_per_output_token: histogram(TIME_PER_OUTPUT_TOKEN),
            duration: histogram(REQUEST_DURATION),
            queue_time: histogram(QUEUE_TIME),
            prefill_time: histogram(PREFILL_TIME),
            decode_time: histogram(DECODE_TIME),
            inference_time: histogram(INFERENCE_TIME),
            request_prompt_tokens: histogram(REQUEST_PROMPT_TOKENS),
            request_generation_tokens: histogram(REQUEST_GENERATION_TOKENS),
            request_max_tokens: histogram(REQUEST_MAX_TOKENS),
            prompt_tokens: counters(PROMPT_TOKENS, model_id, "source", &["computed", "cached"]),
            generation_tokens: counter(GENERATION_TOKENS),
            prefix_cache_queries: counter(PREFIX_CACHE_QUERIES),
            prefix_cache_hits: counter(PREFIX_CACHE_HITS),
            finished: counters(REQUESTS_FINISHED, model_id, "reason", &END_REASONS),
        }
    }

    /// Counts a token that was generated just now; `usage` is asked for at the first.
    pub(crate) fn token(&self, times: &Times, usage: impl FnOnce() -> Usage) {
        // A request that generates nothing, or whose logits were unusable, has none.
        let Some(now) = times.last_token else { return };
        self.generation_tokens.increment(1);
        match times.previous_token {
            Some(previous) => self.inter_token_latency.record(now.duration_since(previous)),
            None => {
                self.time_to_first_token.record(now.duration_since(times.submitted));
                self.prompt(&usage());
            }
        }
    }

    /// Counts the tokens of a prompt that is ready to be continued.
    fn prompt(&self, usage: &Usage) {
        let (prompt, cached) = (usage.prompt_tokens as u64, usage.cached_tokens as u64);
        self.prompt_tokens.increment("computed", prompt.saturating_sub(cached));
        self.prompt_tokens.increment("cached", cached);
        self.prefix_cache_queries.increment(prompt);
        self.prefix_cache_hits.increment(cached);
    }

    /// Counts the end of a request. Latencies are those of requests that finished: one that its client gave up says
    /// nothing about the server.
    pub(crate) fn ended(&self, request: &EndedRequest) {
        let EndedRequest { reason, usage, times, at, max_tokens, .. } = request;
        self.finished.increment(reason, 1);
        if let Some(started) = times.started {
            self.queue_time.record(started.duration_since(times.submitted));
        }
        if !FINISHED.contains(reason) {
            return;
        }
        if times.first_token.is_none() {
            // Only its prompt was wanted, and it is computed.
            self.prompt(usage);
        }
        self.duration.record(at.duration_since(times.submitted));
        self.request_prompt_tokens.record(usage.prompt_tokens as f64);
        self.request_generation_tokens.record(usage.completion_tokens as f64);
        self.request_max_tokens.record(*max_tokens as f64);
        let (Some(started), Some(first), Some(last)) = (times.started, times.first_token, times.last_token) else {
            return;
        };
        let decode = last.duration_since(first);
        self.prefill_time.record(first.duration_since(started));
        self.decode_time.record(decode);
        self.inference_time.record(last.duration_since(started));
        if let Some(after_first) = usage.completion_tokens.checked_sub(1).filter(|&tokens| tokens > 0) {
            self.time_per_output_token.record(decode.as_secs_f64() / after_first as f64);
        }
    }
}

/// What the executor counts.
pub struct StepMetrics {
    time: Histogram,
    rows: Histogram,
    sequences: Histogram,
    logits_bytes: Counter,
}

impl StepMetrics {
    pub(crate) fn new(model_id: &Arc<str>) -> Self {
        let histogram = |name: &'static str| histogram!(name, &[("model", model_id.to_string())]);
        StepMetrics {
            time: histogram(STEP_TIME),
            rows: histogram(STEP_ROWS),
            sequences: histogram(STEP_SEQUENCES),
            logits_bytes: counter!(LOGITS_BYTES, &[("model", model_id.to_string())]),
        }
    }

    /// Counts a step of so many rows and sequences that brought these logits.
    pub(crate) fn step(&self, elapsed: Duration, rows: usize, sequences: usize, logits: &[f32]) {
        self.logits_bytes.increment(size_of_val(logits) as u64);
        self.time.record(elapsed);
        self.rows.record(rows as f64);
        self.sequences.record(sequences as f64);
    }
}

/// What is counted of experts on the host, and of the device between them.
pub struct ExpertMetrics {
    routes: Counter,
    job_time: Histogram,
    piece_time: Histogram,
    cached_routes: Counter,
    streamed_routes: Counter,
    uploads: Counter,
    uploaded_bytes: Counter,
}

impl ExpertMetrics {
    pub(crate) fn new(model_id: &Arc<str>) -> Self {
        let model = [("model", model_id.to_string())];
        ExpertMetrics {
            routes: counter!(HOST_EXPERT_ROUTES, &model),
            job_time: histogram!(HOST_EXPERT_TIME, &model),
            piece_time: histogram!(DEVICE_PIECE_TIME, &model),
            cached_routes: counter!(CACHED_EXPERT_ROUTES, &model),
            streamed_routes: counter!(STREAMED_EXPERT_ROUTES, &model),
            uploads: counter!(EXPERT_UPLOADS, &model),
            uploaded_bytes: counter!(EXPERT_UPLOADED_BYTES, &model),
        }
    }

    /// The experts computed a job of so many routes.
    pub(crate) fn job(&self, routes: usize, elapsed: Duration) {
        self.routes.increment(routes as u64);
        self.job_time.record(elapsed);
    }

    /// What experts on the device that the host has did in a step.
    pub(crate) fn cache(&self, counts: ExpertCounts) {
        self.cached_routes.increment(counts.cached_routes);
        self.streamed_routes.increment(counts.streamed_routes);
        self.uploads.increment(counts.uploads);
        self.uploaded_bytes.increment(counts.uploaded_bytes);
    }

    /// The device computed a piece of a step.
    pub(crate) fn piece(&self, elapsed: Duration) {
        self.piece_time.record(elapsed);
    }
}

/// What the scheduler counts.
pub struct SchedulerMetrics {
    running: Gauge,
    waiting_capacity: Gauge,
    waiting_deferred: Gauge,
    queued_tokens: Gauge,
    capacity: Gauge,
    blocks_used: Gauge,
    blocks_cached: Gauge,
    blocks_total: Gauge,
    kv_usage: Gauge,
    evictions: Counter,
    preemptions: Counter,
    prefill_rows: Histogram,
    /// Evictions that the policy had counted when it was last asked.
    evicted: u64,
}

/// The scheduler's state in numbers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Levels {
    running: usize,
    waiting_capacity: usize,
    waiting_deferred: usize,
    queued_tokens: usize,
    capacity: usize,
    blocks_used: usize,
    blocks_cached: usize,
    blocks_total: usize,
    /// Since the policy began, or the executor was last rebuilt.
    evicted: u64,
}

impl From<&Counts> for Levels {
    fn from(counts: &Counts) -> Self {
        let (waiting_capacity, waiting_deferred) =
            if counts.executor_ready { (counts.waiting, counts.paused) } else { (0, counts.waiting) };
        Levels {
            running: counts.running,
            waiting_capacity,
            waiting_deferred,
            queued_tokens: counts.queued_tokens,
            capacity: counts.max_running,
            blocks_used: counts.blocks_used,
            blocks_cached: counts.blocks_cached,
            blocks_total: counts.blocks_total,
            evicted: counts.evictions,
        }
    }
}

impl SchedulerMetrics {
    pub(crate) fn new(model_id: &Arc<str>, replica: usize) -> Self {
        let replica = || ("replica", replica.to_string());
        let gauge = |name: &'static str| gauge!(name, &[("model", model_id.to_string()), replica()]);
        let counter = |name: &'static str| counter!(name, &[("model", model_id.to_string())]);
        let waiting = |reason: &str| {
            gauge!(REQUESTS_WAITING, &[("model", model_id.to_string()), replica(), ("reason", reason.to_owned())])
        };
        SchedulerMetrics {
            running: gauge(REQUESTS_RUNNING),
            waiting_capacity: waiting("capacity"),
            waiting_deferred: waiting("deferred"),
            queued_tokens: gauge(QUEUED_TOKENS),
            capacity: gauge(SEQUENCES_CAPACITY),
            blocks_used: gauge(KV_BLOCKS_USED),
            blocks_cached: gauge(KV_BLOCKS_CACHED),
            blocks_total: gauge(KV_BLOCKS_TOTAL),
            kv_usage: gauge(KV_USAGE),
            evictions: counter(KV_EVICTIONS),
            preemptions: counter(PREEMPTIONS),
            prefill_rows: histogram!(STEP_PREFILL_ROWS, &[("model", model_id.to_string())]),
            evicted: 0,
        }
    }

    pub(crate) fn set(&mut self, counts: &Counts) {
        self.set_levels(&counts.into());
    }

    fn set_levels(&mut self, levels: &Levels) {
        self.running.set(levels.running as f64);
        self.waiting_capacity.set(levels.waiting_capacity as f64);
        self.waiting_deferred.set(levels.waiting_deferred as f64);
        self.queued_tokens.set(levels.queued_tokens as f64);
        self.capacity.set(levels.capacity as f64);
        self.blocks_used.set(levels.blocks_used as f64);
        self.blocks_cached.set(levels.blocks_cached as f64);
        self.blocks_total.set(levels.blocks_total as f64);
        self.kv_usage.set(levels.blocks_used as f64 / levels.blocks_total.max(1) as f64);
        self.evictions.increment(levels.evicted.saturating_sub(self.evicted));
        self.evicted = levels.evicted;
    }

    pub(crate) fn formed(&self, step: &Step) {
        self.prefill_rows.record(prefill_rows(step) as f64);
    }

    pub(crate) fn preempted(&self) {
        self.preemptions.increment(1);
    }
}

impl Drop for SchedulerMetrics {
    /// A scheduler that is gone, with its model or to be restarted, holds nothing.
    fn drop(&mut self) {
        let evicted = self.evicted;
        self.set_levels(&Levels { evicted, ..Levels::default() });
    }
}

/// Whether a sequence's share of a step is a part of its prompt, or of what is computed again. A decode row is alone in
/// its share and asks for its logits; the last chunk of a prompt looks the same when it has one token, and is taken for
/// one.
pub(crate) fn is_prefill(share: &SequenceRows) -> bool {
    share.tokens.len() > 1 || share.logits == LogitsWanted::None
}

/// Rows of a step that belong to prompts.
pub(crate) fn prefill_rows(step: &Step) -> usize {
    step.sequences.iter().filter(|share| is_prefill(share)).map(|share| share.tokens.len()).sum()
}

/// Every reason of [`rejected`].
const REJECTION_REASONS: [&str; 6] = [
    "context_length_exceeded",
    "invalid_prompt",
    "too_many_sequences",
    "queued_requests",
    "queued_tokens",
    "unavailable",
];

/// Counts a request that was not accepted.
pub(crate) fn rejected(model_id: &Arc<str>, error: &SubmitError) {
    let reason = match error {
        SubmitError::ContextLengthExceeded { .. } => "context_length_exceeded",
        SubmitError::InvalidPrompt(_) => "invalid_prompt",
        SubmitError::TooManySequences { .. } => "too_many_sequences",
        SubmitError::Overloaded { .. } => "queued_requests",
        SubmitError::QueueFull { .. } => "queued_tokens",
        SubmitError::Unavailable { .. } => "unavailable",
    };
    counter!(REJECTIONS, "model" => model_id.to_string(), "reason" => reason).increment(1);
}

/// Counts a call that got room for so many sequences.
pub(crate) fn permitted(model_id: &Arc<str>, sequences: usize) {
    histogram!(CALL_SEQUENCES, "model" => model_id.to_string()).record(sequences as f64);
}

/// The actors that can be restarted.
const ACTORS: [&str; 5] = ["loader", "sampler", "scheduler", "experts", "executor"];

/// Counts a restart.
pub(crate) fn restarted(model_id: &Arc<str>, actor: &'static str) {
    counter!(RESTARTS, "model" => model_id.to_string(), "actor" => actor).increment(1);
}

/// Tells what state a model is in. The first call also makes the counters of what seldom happens.
pub(crate) fn state(model_id: &Arc<str>, status: &Status) {
    for state in Status::WORDS {
        let value = if state == status.word() { 1.0 } else { 0.0 };
        gauge!(MODEL_STATE, "model" => model_id.to_string(), "state" => state).set(value);
    }
    gauge!(MODEL_STATE, "model" => model_id.to_string(), "state" => UNLOADED).set(0.0);
    counters(RESTARTS, model_id, "actor", &ACTORS);
    counters(MODEL_LOADS, model_id, "outcome", &LOAD_OUTCOMES);
    counters(MODEL_UNLOADS, model_id, "reason", &UNLOAD_REASONS);
    counters(REJECTIONS, model_id, "reason", &REJECTION_REASONS);
}

/// The state of a model that has no cast.
const UNLOADED: &str = "unloaded";

/// How attempts to load a model end.
const LOAD_OUTCOMES: [&str; 3] = ["loaded", "failed", "no_room"];

/// Why models are unloaded.
const UNLOAD_REASONS: [&str; 4] = ["request", "idle", "room", "failed"];

/// Counts an attempt to load a model, one of [`LOAD_OUTCOMES`].
pub(crate) fn load_ended(model_id: &Arc<str>, outcome: &'static str) {
    counter!(MODEL_LOADS, "model" => model_id.to_string(), "outcome" => outcome).increment(1);
    match outcome {
        "loaded" => {}
        "failed" => gone(model_id, "failed"),
        _ => gone(model_id, UNLOADED),
    }
}

/// Counts that a model was unloaded, for one of [`UNLOAD_REASONS`].
pub(crate) fn unloaded(model_id: &Arc<str>, reason: &'static str) {
    counter!(MODEL_UNLOADS, "model" => model_id.to_string(), "reason" => reason).increment(1);
    gone(model_id, if reason == "failed" { reason } else { UNLOADED });
}

/// Tells that a model has no cast any more, which would have said so.
fn gone(model_id: &Arc<str>, now: &'static str) {
    let model = || model_id.to_string();
    for state in Status::WORDS.into_iter().chain([UNLOADED]) {
        let value = if state == now { 1.0 } else { 0.0 };
        gauge!(MODEL_STATE, "model" => model(), "state" => state).set(value);
    }
    for pool in ["weights", "kv", "scratch"] {
        gauge!(MODEL_MEMORY, "model" => model(), "pool" => pool).set(0.0);
    }
}

/// Tells whether a replica of a model runs.
pub(crate) fn replica_ready(model_id: &Arc<str>, replica: usize, is_ready: bool) {
    let labels = [("model", model_id.to_string()), ("replica", replica.to_string())];
    gauge!(REPLICA_READY, &labels).set(if is_ready { 1.0 } else { 0.0 });
}

/// Tells what a replica of a model has loaded.
pub(crate) fn replica_loaded(model_id: &Arc<str>, replica: usize, card: &ModelCard, limits: &EngineLimits) {
    let labels = || [("model", model_id.to_string()), ("replica", replica.to_string())];
    let [model, number] = labels();
    let info = [
        model,
        number,
        ("architecture", card.architecture.clone()),
        ("quantization", card.quantization.clone()),
        ("device", limits.device.clone()),
    ];
    gauge!(MODEL_INFO, &info).set(1.0);
    let [model, number] = labels();
    let cache = [model, number, ("block_size", BLOCK_TOKENS.to_string()), ("blocks", limits.kv_blocks.to_string())];
    gauge!(CACHE_CONFIG, &cache).set(1.0);
}

/// Tells what a model takes, all replicas together.
pub(crate) fn model_memory(model_id: &Arc<str>, memory: &MemoryPlan) {
    let pools = [("weights", memory.weights_bytes), ("kv", memory.kv_bytes), ("scratch", memory.scratch_bytes)];
    for (pool, bytes) in pools {
        gauge!(MODEL_MEMORY, &[("model", model_id.to_string()), ("pool", pool.to_owned())]).set(bytes as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::exposition::{Compat, Exposition};

    /// A policy counts from its own begin; what is scraped only rises, also when another takes over.
    #[test]
    fn evictions_go_on_rising_when_the_scheduler_is_restarted_and_gauges_fall() {
        let (recorder, exposition) = Exposition::new(Compat::None).expect("the buckets are right");
        let value = |name: &str| {
            let text = exposition.render();
            let line = text.lines().find(|line| line.starts_with(&format!("{name}{{"))).map(str::to_owned);
            line.and_then(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        };
        metrics::with_local_recorder(&recorder, || {
            let mut first = SchedulerMetrics::new(&"m".into(), 0);
            first.set_levels(&Levels { evicted: 3, blocks_used: 5, blocks_total: 10, ..Levels::default() });
            first.set_levels(&Levels { evicted: 4, blocks_used: 5, blocks_total: 10, ..Levels::default() });
            assert_eq!((value(KV_EVICTIONS), value(KV_USAGE)), (Some(4.0), Some(0.5)));
            drop(first);
            assert_eq!((value(KV_EVICTIONS), value(KV_USAGE)), (Some(4.0), Some(0.0)));
            SchedulerMetrics::new(&"m".into(), 0).set_levels(&Levels { evicted: 2, ..Levels::default() });
            assert_eq!(value(KV_EVICTIONS), Some(6.0));
        });
    }
}
