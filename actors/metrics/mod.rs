//! The metrics of the server.
//!
//! - [`catalogue`]: name, type, labels and help text of every metric
//! - this file, [`adapters`], [`media`] and [`tiers`]: the handles that actors record metrics with
//! - [`exposition`]: the Prometheus text format, and [`vllm`]: aliases with the names that vLLM uses
//!
//! Actors keep handles for frequent metrics, so that recording takes no lock and no lookup. The handles are created when
//! the actors start, so a recorder must be installed before. They are created for every possible label value: a reason
//! that has not occurred yet is scraped as 0, and its first occurrence is an increase.
//!
//! Counters are per model and add up all of its replicas. Gauges that describe one replica have a `replica` label.

pub mod adapters;
pub mod catalogue;
pub mod exposition;
pub mod media;
pub mod tiers;
pub mod vllm;

use std::sync::Arc;
use std::time::Duration;

use self::catalogue::*;
use crate::core::counts::Counts;
use crate::core::draft::DraftSource;
use crate::core::ended_request::{EndedRequest, RequestTimes};
use crate::core::prefill_rows::prefill_rows;
use crate::core::request::{Event, SubmitError, Usage};
use crate::core::status::Status;
use cuelight_engine::engine::{BLOCK_TOKENS, EngineLimits, ExpertCounts, Step};
use cuelight_engine::load::{MemoryBreakdown, ModelCard};
use metrics::{Counter, Gauge, Histogram, counter, gauge, histogram};

/// Creates a counter for each value of a metric's second label.
fn counters(name: &'static str, model_id: &str, label: &'static str, values: &[&'static str]) -> Counters {
    let handle =
        |&value: &&'static str| (value, counter!(name, &[("model", model_id.to_owned()), (label, value.to_owned())]));
    Counters(values.iter().map(handle).collect())
}

/// The counters of one metric, by label value.
struct Counters(Vec<(&'static str, Counter)>);

impl Counters {
    fn increment(&self, value: &str, by: u64) {
        // A linear search is faster than hashing for a few values.
        if let Some((_, counter)) = self.0.iter().find(|(name, _)| *name == value) {
            counter.increment(by);
        }
    }
}

/// Request metrics, recorded by the sampler.
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
    forced_tokens: Counter,
    denoised_rows: Counter,
    blocks: Counter,
    prefix_cache_queries: Counter,
    prefix_cache_hits: Counter,
    drafts: Counters,
    draft_tokens: Counters,
    accepted_tokens: Counters,
    finished: Counters,
}

/// The end reasons of requests that generated a text.
const GENERATED: [&str; 3] = ["stop_token", "stop_string", "length"];

/// The end reason of requests for an embedding.
const EMBEDDED: &str = "embedded";

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
            forced_tokens: counter(FORCED_TOKENS),
            denoised_rows: counter(DENOISED_ROWS),
            blocks: counter(BLOCKS),
            prefix_cache_queries: counter(PREFIX_CACHE_QUERIES),
            prefix_cache_hits: counter(PREFIX_CACHE_HITS),
            drafts: counters(DRAFTS, model_id, "source", &DraftSource::NAMES),
            draft_tokens: counters(DRAFT_TOKENS, model_id, "source", &DraftSource::NAMES),
            accepted_tokens: counters(ACCEPTED_TOKENS, model_id, "source", &DraftSource::NAMES),
            finished: counters(REQUESTS_FINISHED, model_id, "reason", &Event::END_REASONS),
        }
    }

    /// Records the `count` tokens that a step generated for a request. `usage` is called for the first token of a request.
    pub(crate) fn tokens(&self, count: usize, times: &RequestTimes, usage: impl FnOnce() -> Usage) {
        let Some(now) = times.last_token else { return };
        self.generation_tokens.increment(count as u64);
        match times.previous_token {
            // The time since the step before is divided among the tokens.
            Some(previous) => {
                let latency = now.duration_since(previous) / u32::try_from(count).unwrap_or(u32::MAX).max(1);
                self.inter_token_latency.record_many(latency, count);
            }
            None => {
                self.time_to_first_token.record(now.duration_since(times.submitted));
                self.prompt(&usage());
            }
        }
    }

    /// Records tokens that a constraint forced.
    pub(crate) fn forced(&self, count: usize) {
        self.forced_tokens.increment(count as u64);
    }

    /// Records a step of a block, and whether it was its last.
    pub(crate) fn denoised(&self, rows: usize, is_finished: bool) {
        self.denoised_rows.increment(rows as u64);
        self.blocks.increment(u64::from(is_finished));
    }

    /// Records a draft that was verified.
    pub(crate) fn draft(&self, source: &str, drafted: usize, accepted: usize) {
        self.drafts.increment(source, 1);
        self.draft_tokens.increment(source, drafted as u64);
        self.accepted_tokens.increment(source, accepted as u64);
    }

    /// Records the tokens of a prompt that is fully computed.
    fn prompt(&self, usage: &Usage) {
        let (prompt, cached) = (usage.prompt_tokens as u64, usage.cached_tokens as u64);
        self.prompt_tokens.increment("computed", prompt.saturating_sub(cached));
        self.prompt_tokens.increment("cached", cached);
        self.prefix_cache_queries.increment(prompt);
        self.prefix_cache_hits.increment(cached);
    }

    /// Records the end of a request. Latencies are recorded only for completed requests, because cancelled ones do not
    /// reflect the speed of the server.
    pub(crate) fn ended(&self, request: &EndedRequest) {
        let EndedRequest { reason, usage, times, at, max_tokens, .. } = request;
        self.finished.increment(reason, 1);
        if let Some(started) = times.started {
            self.queue_time.record(started.duration_since(times.submitted));
        }
        let has_generated = GENERATED.contains(reason);
        if !has_generated && *reason != EMBEDDED {
            return;
        }
        if times.first_token.is_none() {
            // The request asked only for its prompt, which is computed now.
            self.prompt(usage);
        }
        self.duration.record(at.duration_since(times.submitted));
        self.request_prompt_tokens.record(usage.prompt_tokens as f64);
        if !has_generated {
            return;
        }
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

/// Step metrics, recorded by the executor.
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

    /// Records a computed step.
    pub(crate) fn step(&self, elapsed: Duration, rows: usize, sequences: usize, logits: &[f32]) {
        self.logits_bytes.increment(size_of_val(logits) as u64);
        self.time.record(elapsed);
        self.rows.record(rows as f64);
        self.sequences.record(sequences as f64);
    }
}

/// Metrics of experts on the host and of the device between expert jobs.
pub struct ExpertMetrics {
    routes: Counter,
    job_time: Histogram,
    segment_time: Histogram,
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
            segment_time: histogram!(DEVICE_SEGMENT_TIME, &model),
            cached_routes: counter!(CACHED_EXPERT_ROUTES, &model),
            streamed_routes: counter!(STREAMED_EXPERT_ROUTES, &model),
            uploads: counter!(EXPERT_UPLOADS, &model),
            uploaded_bytes: counter!(EXPERT_UPLOADED_BYTES, &model),
        }
    }

    /// Records a computed expert job.
    pub(crate) fn job(&self, routes: usize, elapsed: Duration) {
        self.routes.increment(routes as u64);
        self.job_time.record(elapsed);
    }

    /// Records how a step used the device's expert cache.
    pub(crate) fn cache(&self, counts: ExpertCounts) {
        self.cached_routes.increment(counts.cached_routes);
        self.streamed_routes.increment(counts.streamed_routes);
        self.uploads.increment(counts.uploads);
        self.uploaded_bytes.increment(counts.uploaded_bytes);
    }

    /// Records a segment that the device computed between two expert jobs.
    pub(crate) fn segment(&self, elapsed: Duration) {
        self.segment_time.record(elapsed);
    }
}

/// Scheduler metrics, recorded by the scheduler.
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
    slots_used: Gauge,
    slots_cached: Gauge,
    slots: Gauge,
    slot_evictions: Counter,
    windows_used: Gauge,
    windows_kept: Gauge,
    windows: Gauge,
    window_evictions: Counter,
    preemptions: Counter,
    prefill_rows: Histogram,
    /// Evictions of blocks, of checkpoints and of window blocks of the policy at the last update.
    evicted: [u64; 3],
}

/// The values of the gauges.
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
    slots_used: usize,
    slots_cached: usize,
    slots_total: usize,
    windows_used: usize,
    windows_kept: usize,
    windows_total: usize,
    /// Evictions of blocks, of checkpoints and of window blocks since the policy was created or the executor was last rebuilt.
    evicted: [u64; 3],
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
            slots_used: counts.slots_used,
            slots_cached: counts.slots_cached,
            slots_total: counts.slots_total,
            windows_used: counts.windows_used,
            windows_kept: counts.windows_kept,
            windows_total: counts.windows_total,
            evicted: [counts.evictions, counts.slot_evictions, counts.window_evictions],
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
            slots_used: gauge(STATE_SLOTS_USED),
            slots_cached: gauge(STATE_SLOTS_CACHED),
            slots: gauge(STATE_SLOTS),
            slot_evictions: counter(STATE_EVICTIONS),
            windows_used: gauge(KV_WINDOW_BLOCKS_USED),
            windows_kept: gauge(KV_WINDOW_BLOCKS_KEPT),
            windows: gauge(KV_WINDOW_BLOCKS),
            window_evictions: counter(KV_WINDOW_EVICTIONS),
            preemptions: counter(PREEMPTIONS),
            prefill_rows: histogram!(STEP_PREFILL_ROWS, &[("model", model_id.to_string())]),
            evicted: [0; 3],
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
        self.slots_used.set(levels.slots_used as f64);
        self.slots_cached.set(levels.slots_cached as f64);
        self.slots.set(levels.slots_total as f64);
        self.windows_used.set(levels.windows_used as f64);
        self.windows_kept.set(levels.windows_kept as f64);
        self.windows.set(levels.windows_total as f64);
        let evictions = [&self.evictions, &self.slot_evictions, &self.window_evictions];
        for ((counter, now), before) in evictions.into_iter().zip(levels.evicted).zip(self.evicted) {
            counter.increment(now.saturating_sub(before));
        }
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
    /// Sets all gauges to 0, because a stopped scheduler holds nothing.
    fn drop(&mut self) {
        let evicted = self.evicted;
        self.set_levels(&Levels { evicted, ..Levels::default() });
    }
}

/// The values of the label `reason` of rejections.
const REJECTION_REASONS: [&str; 7] = [
    "context_length_exceeded",
    "invalid_prompt",
    "too_many_sequences",
    "queued_requests",
    "queued_tokens",
    "waiting_for_load",
    "unavailable",
];

/// Counts a refused request.
pub(crate) fn rejected(model_id: &Arc<str>, error: &SubmitError) {
    let reason = match error {
        SubmitError::ContextLengthExceeded { .. } => "context_length_exceeded",
        SubmitError::InvalidPrompt(_) => "invalid_prompt",
        SubmitError::TooManySequences { .. } => "too_many_sequences",
        SubmitError::Overloaded { .. } => "queued_requests",
        SubmitError::QueueFull { .. } => "queued_tokens",
        SubmitError::Unavailable { .. } => "unavailable",
    };
    count_rejection(model_id, reason);
}

/// Counts a request that was refused because too many wait for the model to be loaded.
pub(crate) fn rejected_before_load(model_id: &Arc<str>) {
    count_rejection(model_id, "waiting_for_load");
}

/// `reason` is one of [`REJECTION_REASONS`].
fn count_rejection(model_id: &Arc<str>, reason: &'static str) {
    counter!(REJECTIONS, "model" => model_id.to_string(), "reason" => reason).increment(1);
}

/// Records the number of sequences of an accepted call.
pub(crate) fn permitted(model_id: &Arc<str>, sequences: usize) {
    histogram!(CALL_SEQUENCES, "model" => model_id.to_string()).record(sequences as f64);
}

/// The actors that can be restarted.
const ACTORS: [&str; 7] = ["loader", "sampler", "scheduler", "experts", "drafter", "media_encoder", "executor"];

/// Counts the restart of an actor.
pub(crate) fn restarted(model_id: &Arc<str>, actor: &'static str) {
    counter!(RESTARTS, "model" => model_id.to_string(), "actor" => actor).increment(1);
}

/// Records the state of a model. Also creates the counters of rare events, so that they are scraped as 0.
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

/// The state of a model without actors.
const UNLOADED: &str = "unloaded";

/// The values of the label `outcome` of model loads.
const LOAD_OUTCOMES: [&str; 4] = ["loaded", "failed", "no_memory", "cancelled"];

/// The values of the label `reason` of model unloads.
const UNLOAD_REASONS: [&str; 5] = ["request", "idle", "memory", "failed", "file_changed"];

/// Counts an attempt to load a model. `outcome` is one of [`LOAD_OUTCOMES`].
pub(crate) fn load_ended(model_id: &Arc<str>, outcome: &'static str) {
    counter!(MODEL_LOADS, "model" => model_id.to_string(), "outcome" => outcome).increment(1);
    match outcome {
        "loaded" => {}
        "failed" => set_stopped(model_id, "failed"),
        _ => set_stopped(model_id, UNLOADED),
    }
}

/// Counts that a model was unloaded. `reason` is one of [`UNLOAD_REASONS`].
pub(crate) fn unloaded(model_id: &Arc<str>, reason: &'static str) {
    counter!(MODEL_UNLOADS, "model" => model_id.to_string(), "reason" => reason).increment(1);
    set_stopped(model_id, if matches!(reason, "failed" | "file_changed") { "failed" } else { UNLOADED });
}

/// Sets the state and the memory of a model whose actors have stopped.
fn set_stopped(model_id: &Arc<str>, now: &'static str) {
    let model = || model_id.to_string();
    for state in Status::WORDS.into_iter().chain([UNLOADED]) {
        let value = if state == now { 1.0 } else { 0.0 };
        gauge!(MODEL_STATE, "model" => model(), "state" => state).set(value);
    }
    model_memory(model_id, &MemoryBreakdown::default());
}

/// Records whether a replica is ready.
pub(crate) fn replica_ready(model_id: &Arc<str>, replica: usize, is_ready: bool) {
    let labels = [("model", model_id.to_string()), ("replica", replica.to_string())];
    gauge!(REPLICA_READY, &labels).set(if is_ready { 1.0 } else { 0.0 });
}

/// Records what a replica has loaded.
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
    let slots = gauge!(ADAPTER_SLOTS, &labels());
    slots.set(limits.adapters.slots as f64);
    let cache = [model, number, ("block_size", BLOCK_TOKENS.to_string()), ("blocks", limits.kv_blocks.to_string())];
    gauge!(CACHE_CONFIG, &cache).set(1.0);
}

/// Records the memory of a model, all replicas together.
pub(crate) fn model_memory(model_id: &Arc<str>, used: &MemoryBreakdown) {
    for (purpose, bytes) in used.by_purpose() {
        let labels = [("model", model_id.to_string()), ("pool", purpose.name().to_owned())];
        gauge!(MODEL_MEMORY, &labels).set(bytes as f64);
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::core::request::RequestId;
    use crate::metrics::exposition::{Compat, Exposition};

    /// Each policy counts its evictions from 0, but the scraped counter must never fall.
    #[test]
    fn after_a_scheduler_restart_evictions_keep_rising_and_gauges_are_reset() {
        let (recorder, exposition) = Exposition::new(Compat::None).expect("the buckets are valid");
        let value = |name: &str| {
            let text = exposition.render();
            let line = text.lines().find(|line| line.starts_with(&format!("{name}{{"))).map(str::to_owned);
            line.and_then(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        };
        metrics::with_local_recorder(&recorder, || {
            let mut first = SchedulerMetrics::new(&"m".into(), 0);
            first.set_levels(&Levels { evicted: [3, 0, 0], blocks_used: 5, blocks_total: 10, ..Levels::default() });
            first.set_levels(&Levels { evicted: [4, 0, 0], blocks_used: 5, blocks_total: 10, ..Levels::default() });
            assert_eq!((value(KV_EVICTIONS), value(KV_USAGE)), (Some(4.0), Some(0.5)));
            drop(first);
            assert_eq!((value(KV_EVICTIONS), value(KV_USAGE)), (Some(4.0), Some(0.0)));
            SchedulerMetrics::new(&"m".into(), 0).set_levels(&Levels { evicted: [2, 0, 0], ..Levels::default() });
            assert_eq!(value(KV_EVICTIONS), Some(6.0));
        });
    }
    #[test]
    fn an_embedding_counts_its_prompt_and_generates_nothing() {
        let (recorder, exposition) = Exposition::new(Compat::None).expect("the buckets are valid");
        let submitted = Instant::now();
        let times = RequestTimes {
            submitted,
            started: Some(submitted),
            first_token: None,
            last_token: None,
            previous_token: None,
        };
        let request = EndedRequest {
            id: RequestId(1),
            context: None,
            reason: "embedded",
            error: None,
            usage: Usage { prompt_tokens: 12, cached_tokens: 2, ..Usage::default() },
            times,
            at: submitted,
            max_tokens: 0,
            temperature: 0.0,
            top_p: 1.0,
            detokenise_time: None,
        };
        metrics::with_local_recorder(&recorder, || RequestMetrics::new(&"m".into()).ended(&request));
        let text = exposition.render();
        let has = |line: &str| assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        has("cuelight_prompt_tokens_total{model=\"m\",source=\"computed\"} 10");
        has("cuelight_prompt_tokens_total{model=\"m\",source=\"cached\"} 2");
        has("cuelight_request_prompt_tokens_count{model=\"m\"} 1");
        has("cuelight_requests_finished_total{model=\"m\",reason=\"embedded\"} 1");
        for generation in ["cuelight_request_generation_tokens", "cuelight_request_max_tokens"] {
            has(&format!("{generation}_count{{model=\"m\"}} 0"));
        }
    }

    #[test]
    fn restarts_of_each_actor_are_scraped_before_there_are_any() {
        let (recorder, exposition) = Exposition::new(Compat::None).expect("the buckets are valid");
        metrics::with_local_recorder(&recorder, || state(&"m".into(), &Status::Ready));
        let text = exposition.render();
        for actor in ACTORS {
            let line = format!("cuelight_actor_restarts_total{{model=\"m\",actor=\"{actor}\"}} 0");
            assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
        }
    }
}
