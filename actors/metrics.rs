//! What can be scraped: names, units, and who counts what.
//!
//! Actors hold the handles of what they count often, so that counting takes no lock and no look-up. Handles are made
//! when the cast starts: install a recorder before that.

use std::sync::Arc;
use std::time::Duration;

use metrics::{
    Counter, Gauge, Histogram, Unit, counter, describe_counter, describe_gauge, describe_histogram, gauge, histogram,
};

use crate::policy::Counts;
use crate::request::{Event, FinishReason, GenerationError, SubmitError, Usage};
use crate::sampler::sequence::Times;

const REQUESTS_RUNNING: &str = "cuelight_requests_running";
const REQUESTS_WAITING: &str = "cuelight_requests_waiting";
const KV_BLOCKS_USED: &str = "cuelight_kv_blocks_used";
const KV_BLOCKS_TOTAL: &str = "cuelight_kv_blocks_total";
const PROMPT_TOKENS: &str = "cuelight_prompt_tokens_total";
const GENERATION_TOKENS: &str = "cuelight_generation_tokens_total";
const PREEMPTIONS: &str = "cuelight_preemptions_total";
const REQUESTS_FINISHED: &str = "cuelight_requests_finished_total";
const REJECTIONS: &str = "cuelight_rejections_total";
const RESTARTS: &str = "cuelight_actor_restarts_total";
const TIME_TO_FIRST_TOKEN: &str = "cuelight_time_to_first_token_seconds";
const INTER_TOKEN_LATENCY: &str = "cuelight_inter_token_latency_seconds";
const REQUEST_DURATION: &str = "cuelight_request_duration_seconds";
const QUEUE_TIME: &str = "cuelight_request_queue_time_seconds";
const STEP_TIME: &str = "cuelight_step_time_seconds";
const STEP_ROWS: &str = "cuelight_step_rows";
const STEP_SEQUENCES: &str = "cuelight_step_sequences";

pub(crate) const HTTP_REQUESTS: &str = "cuelight_http_requests_total";
pub(crate) const HTTP_RESPONSE_START: &str = "cuelight_http_response_start_seconds";

const LATENCY_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
const TOKEN_SECONDS: &[f64] =
    &[0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5, 1.0, 2.0, 5.0];
const DURATION_SECONDS: &[f64] = &[
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0,
    1920.0, 7680.0,
];
const COUNTS: &[f64] = &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0];

/// The upper edges of each histogram's buckets, for the exporter.
#[must_use]
pub fn buckets() -> [(&'static str, &'static [f64]); 8] {
    [
        (TIME_TO_FIRST_TOKEN, LATENCY_SECONDS),
        (INTER_TOKEN_LATENCY, TOKEN_SECONDS),
        (REQUEST_DURATION, DURATION_SECONDS),
        (QUEUE_TIME, LATENCY_SECONDS),
        (STEP_TIME, TOKEN_SECONDS),
        (STEP_ROWS, COUNTS),
        (STEP_SEQUENCES, COUNTS),
        (HTTP_RESPONSE_START, LATENCY_SECONDS),
    ]
}

/// Gives every metric its unit and its help text.
pub fn describe() {
    describe_gauge!(REQUESTS_RUNNING, Unit::Count, "Sequences that hold KV blocks.");
    describe_gauge!(REQUESTS_WAITING, Unit::Count, "Sequences that wait to be admitted, or to be computed again.");
    describe_gauge!(KV_BLOCKS_USED, Unit::Count, "KV blocks in use.");
    describe_gauge!(KV_BLOCKS_TOTAL, Unit::Count, "KV blocks in all.");
    describe_counter!(PROMPT_TOKENS, Unit::Count, "Prompt tokens of requests that ended, by source.");
    describe_counter!(GENERATION_TOKENS, Unit::Count, "Tokens generated.");
    describe_counter!(PREEMPTIONS, Unit::Count, "Sequences that lost their KV blocks to others.");
    describe_counter!(REQUESTS_FINISHED, Unit::Count, "Requests that ended, by reason.");
    describe_counter!(REJECTIONS, Unit::Count, "Requests that were not accepted, by reason.");
    describe_counter!(RESTARTS, Unit::Count, "Restarts after a fault, by actor.");
    describe_counter!(HTTP_REQUESTS, Unit::Count, "HTTP requests answered, by method, route and status.");
    describe_histogram!(
        HTTP_RESPONSE_START,
        Unit::Seconds,
        "From an HTTP request to the start of its response, by route."
    );
    describe_histogram!(TIME_TO_FIRST_TOKEN, Unit::Seconds, "From submission to the first token.");
    describe_histogram!(INTER_TOKEN_LATENCY, Unit::Seconds, "From one token of a request to its next.");
    describe_histogram!(REQUEST_DURATION, Unit::Seconds, "From submission to the last token.");
    describe_histogram!(QUEUE_TIME, Unit::Seconds, "From submission until a request first ran.");
    describe_histogram!(STEP_TIME, Unit::Seconds, "Time the device took for a step.");
    describe_histogram!(STEP_ROWS, Unit::Count, "Tokens computed in a step.");
    describe_histogram!(STEP_SEQUENCES, Unit::Count, "Sequences that shared a step.");
}

/// What the sampler counts.
pub struct RequestMetrics {
    model_id: Arc<str>,
    inter_token_latency: Histogram,
    time_to_first_token: Histogram,
    request_duration: Histogram,
    queue_time: Histogram,
    prompt_tokens: Counter,
    generation_tokens: Counter,
}

impl RequestMetrics {
    pub(crate) fn new(model_id: &Arc<str>) -> Self {
        let model = || ("model", model_id.to_string());
        RequestMetrics {
            model_id: model_id.clone(),
            inter_token_latency: histogram!(INTER_TOKEN_LATENCY, &[model()]),
            time_to_first_token: histogram!(TIME_TO_FIRST_TOKEN, &[model()]),
            request_duration: histogram!(REQUEST_DURATION, &[model()]),
            queue_time: histogram!(QUEUE_TIME, &[model()]),
            prompt_tokens: counter!(PROMPT_TOKENS, &[model(), ("source", "computed".to_owned())]),
            generation_tokens: counter!(GENERATION_TOKENS, &[model()]),
        }
    }

    /// Counts a token that was generated just now.
    pub(crate) fn token(&self, times: &Times) {
        // A request that generates nothing, or whose logits were unusable, has none.
        let Some(now) = times.last_token else { return };
        self.generation_tokens.increment(1);
        match times.previous_token {
            Some(previous) => self.inter_token_latency.record(now.duration_since(previous)),
            None => self.time_to_first_token.record(now.duration_since(times.submitted)),
        }
    }

    pub(crate) fn ended(&self, end: &Event, usage: &Usage) {
        let reason = match end {
            Event::Finished { reason: FinishReason::StopToken(_), .. } => "stop_token",
            Event::Finished { reason: FinishReason::StopString(_), .. } => "stop_string",
            Event::Finished { reason: FinishReason::Length, .. } => "length",
            Event::Finished { reason: FinishReason::Cancelled, .. } => "cancelled",
            Event::Failed(GenerationError::Engine(_)) => "engine_error",
            Event::Failed(GenerationError::ShuttingDown) => "shutting_down",
            Event::Failed(GenerationError::StalledClient) => "stalled_client",
            Event::Prompt { .. } | Event::Token { .. } => "none",
        };
        counter!(REQUESTS_FINISHED, "model" => self.model_id.to_string(), "reason" => reason).increment(1);
        self.prompt_tokens.increment(usage.prompt_tokens as u64);
        self.queue_time.record(usage.queue_time);
        self.request_duration.record(usage.time_to_first_token + usage.generation_time);
    }
}

/// What the executor counts.
pub struct StepMetrics {
    time: Histogram,
    rows: Histogram,
    sequences: Histogram,
}

impl StepMetrics {
    pub(crate) fn new(model_id: &Arc<str>) -> Self {
        let model = || ("model", model_id.to_string());
        StepMetrics {
            time: histogram!(STEP_TIME, &[model()]),
            rows: histogram!(STEP_ROWS, &[model()]),
            sequences: histogram!(STEP_SEQUENCES, &[model()]),
        }
    }

    pub(crate) fn step(&self, elapsed: Duration, rows: usize, sequences: usize) {
        self.time.record(elapsed);
        self.rows.record(rows as f64);
        self.sequences.record(sequences as f64);
    }
}

/// What the scheduler counts.
pub struct SchedulerMetrics {
    running: Gauge,
    waiting: Gauge,
    blocks_used: Gauge,
    blocks_total: Gauge,
    preemptions: Counter,
}

impl SchedulerMetrics {
    pub(crate) fn new(model_id: &Arc<str>) -> Self {
        let model = || ("model", model_id.to_string());
        SchedulerMetrics {
            running: gauge!(REQUESTS_RUNNING, &[model()]),
            waiting: gauge!(REQUESTS_WAITING, &[model()]),
            blocks_used: gauge!(KV_BLOCKS_USED, &[model()]),
            blocks_total: gauge!(KV_BLOCKS_TOTAL, &[model()]),
            preemptions: counter!(PREEMPTIONS, &[model()]),
        }
    }

    pub(crate) fn set(&self, counts: &Counts) {
        self.running.set(counts.running as f64);
        self.waiting.set(counts.waiting as f64);
        self.blocks_used.set(counts.blocks_used as f64);
        self.blocks_total.set(counts.blocks_total as f64);
    }

    pub(crate) fn preempted(&self) {
        self.preemptions.increment(1);
    }
}

pub(crate) fn restarted(model_id: &Arc<str>, actor: &'static str) {
    counter!(RESTARTS, "model" => model_id.to_string(), "actor" => actor).increment(1);
}

pub(crate) fn rejected(model_id: &Arc<str>, error: &SubmitError) {
    let reason = match error {
        SubmitError::ContextLengthExceeded { .. } => "context_length_exceeded",
        SubmitError::InvalidPrompt(_) => "invalid_prompt",
        SubmitError::Overloaded { .. } => "queued_requests",
        SubmitError::QueueFull { .. } => "queued_tokens",
        SubmitError::Unavailable { .. } => "unavailable",
    };
    counter!(REJECTIONS, "model" => model_id.to_string(), "reason" => reason).increment(1);
}
