//! The one table of metrics: name, kind, labels, buckets and help text of everything that can be scraped.
//!
//! What the exporter is told, what `docs/operations/` lists, and what the tests hold dashboards and alerts to, all come
//! from [`METRICS`].

use metrics::{describe_counter, describe_gauge, describe_histogram};

/// What a metric is, as Prometheus sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Counts what was seen, by the upper edges of these buckets.
    Histogram(&'static [f64]),
}

impl Kind {
    /// The word for documents.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        }
    }
}

/// One row of the table.
#[derive(Debug)]
pub struct Metric {
    /// As scraped; a histogram's lines add `_bucket`, `_sum` and `_count`.
    pub name: &'static str,
    /// What it is.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// What it says, in a sentence.
    pub help: &'static str,
}

/// Declares a constant for each metric's name, and [`METRICS`].
macro_rules! catalogue {
    ($( #[doc = $help:literal] $constant:ident: $kind:expr, $name:literal $labels:expr; )+) => {
        $( #[doc = $help] pub(crate) const $constant: &str = $name; )+

        /// Every metric there is.
        pub const METRICS: &[Metric] = &[
            $( Metric { name: $name, kind: { use Kind::*; $kind }, labels: &$labels, help: $help }, )+
        ];
    };
}

/// From milliseconds to the longest queue.
const LATENCY_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
/// Times of a single token or step; a small model needs the first three.
const TOKEN_SECONDS: &[f64] = &[
    0.001, 0.002, 0.005, 0.01, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0,
    5.0, 20.0,
];
/// Times of whole requests.
const DURATION_SECONDS: &[f64] = &[
    0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
/// Tokens of a request.
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 50_000.0,
    100_000.0, 200_000.0,
];
/// What shares a step.
const STEP_COUNTS: &[f64] =
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0];
/// Sequences of one call.
const FEW: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

catalogue! {
    // Requests: how long they take.
    /// Time from submission to the first token.
    TIME_TO_FIRST_TOKEN: Histogram(LATENCY_SECONDS), "cuelight_time_to_first_token_seconds" ["model"];
    /// Time from one token of a request to its next.
    INTER_TOKEN_LATENCY: Histogram(TOKEN_SECONDS), "cuelight_inter_token_latency_seconds" ["model"];
    /// Decode time of a finished request divided by its tokens after the first.
    TIME_PER_OUTPUT_TOKEN: Histogram(TOKEN_SECONDS), "cuelight_request_time_per_output_token_seconds" ["model"];
    /// Time from submission to the end of a finished request.
    REQUEST_DURATION: Histogram(DURATION_SECONDS), "cuelight_request_duration_seconds" ["model"];
    /// Time from submission until a request first took part in a step.
    QUEUE_TIME: Histogram(LATENCY_SECONDS), "cuelight_request_queue_time_seconds" ["model"];
    /// Time from a finished request's first step to its first token.
    PREFILL_TIME: Histogram(LATENCY_SECONDS), "cuelight_request_prefill_time_seconds" ["model"];
    /// Time from a finished request's first token to its last.
    DECODE_TIME: Histogram(DURATION_SECONDS), "cuelight_request_decode_time_seconds" ["model"];
    /// Time from a finished request's first step to its last token.
    INFERENCE_TIME: Histogram(DURATION_SECONDS), "cuelight_request_inference_time_seconds" ["model"];

    // Requests: how large they are.
    /// Tokens in the prompt of a finished request.
    REQUEST_PROMPT_TOKENS: Histogram(TOKENS), "cuelight_request_prompt_tokens" ["model"];
    /// Tokens that a finished request generated.
    REQUEST_GENERATION_TOKENS: Histogram(TOKENS), "cuelight_request_generation_tokens" ["model"];
    /// Most tokens that a finished request asked for.
    REQUEST_MAX_TOKENS: Histogram(TOKENS), "cuelight_request_max_tokens" ["model"];
    /// Sequences that one accepted call asked for: its prompts times n.
    CALL_SEQUENCES: Histogram(FEW), "cuelight_call_sequences" ["model"];

    // Requests: how many there are.
    /// Sequences that hold KV blocks.
    REQUESTS_RUNNING: Gauge, "cuelight_requests_running" ["model", "replica"];
    /// Sequences that get no step: room is short (capacity), or the client or the executor must come back (deferred).
    REQUESTS_WAITING: Gauge, "cuelight_requests_waiting" ["model", "replica", "reason"];
    /// Prompt tokens of requests that no step has touched yet.
    QUEUED_TOKENS: Gauge, "cuelight_queued_prompt_tokens" ["model", "replica"];
    /// Most sequences that run at once.
    SEQUENCES_CAPACITY: Gauge, "cuelight_sequences_capacity" ["model", "replica"];
    /// Requests that ended, by reason.
    REQUESTS_FINISHED: Counter, "cuelight_requests_finished_total" ["model", "reason"];
    /// Requests that were not accepted, by reason.
    REJECTIONS: Counter, "cuelight_rejections_total" ["model", "reason"];
    /// Times that a sequence lost its KV blocks to others and has to be computed again.
    PREEMPTIONS: Counter, "cuelight_preemptions_total" ["model"];

    // Tokens.
    /// Prompt tokens that are ready to be continued: computed, or taken from the prefix cache (cached).
    PROMPT_TOKENS: Counter, "cuelight_prompt_tokens_total" ["model", "source"];
    /// Tokens generated.
    GENERATION_TOKENS: Counter, "cuelight_generation_tokens_total" ["model"];

    // KV blocks and the prefix cache.
    /// KV blocks that sequences hold.
    KV_BLOCKS_USED: Gauge, "cuelight_kv_blocks_used" ["model", "replica"];
    /// KV blocks that nobody holds and the prefix cache keeps.
    KV_BLOCKS_CACHED: Gauge, "cuelight_kv_blocks_cached" ["model", "replica"];
    /// KV blocks in all.
    KV_BLOCKS_TOTAL: Gauge, "cuelight_kv_blocks_total" ["model", "replica"];
    /// Share of the KV blocks that sequences hold, from 0 to 1.
    KV_USAGE: Gauge, "cuelight_kv_usage_ratio" ["model", "replica"];
    /// Cached KV blocks given up to make room.
    KV_EVICTIONS: Counter, "cuelight_kv_evictions_total" ["model"];
    /// Prompt tokens looked up in the prefix cache.
    PREFIX_CACHE_QUERIES: Counter, "cuelight_prefix_cache_queries_total" ["model"];
    /// Prompt tokens found in the prefix cache.
    PREFIX_CACHE_HITS: Counter, "cuelight_prefix_cache_hits_total" ["model"];

    // Steps.
    /// Time the device took for a step.
    STEP_TIME: Histogram(TOKEN_SECONDS), "cuelight_step_time_seconds" ["model"];
    /// Tokens computed in a step.
    STEP_ROWS: Histogram(STEP_COUNTS), "cuelight_step_rows" ["model"];
    /// Prompt tokens among those of a step; steps without any are counted as 0.
    STEP_PREFILL_ROWS: Histogram(STEP_COUNTS), "cuelight_step_prefill_rows" ["model"];
    /// Sequences that shared a step.
    STEP_SEQUENCES: Histogram(STEP_COUNTS), "cuelight_step_sequences" ["model"];
    /// Bytes of logits that steps brought to the sampler; a token that the engine chose needs none.
    LOGITS_BYTES: Counter, "cuelight_logits_bytes_total" ["model"];

    // Experts on the host.
    /// Routes, each of a row to one of its experts, that experts on the host computed.
    HOST_EXPERT_ROUTES: Counter, "cuelight_host_expert_routes_total" ["model"];
    /// Time that experts on the host took for one layer of a step, or of a half of one.
    HOST_EXPERT_TIME: Histogram(TOKEN_SECONDS), "cuelight_host_expert_time_seconds" ["model"];
    /// Time that the device took between two layers whose experts are on the host.
    DEVICE_PIECE_TIME: Histogram(TOKEN_SECONDS), "cuelight_device_piece_time_seconds" ["model"];
    /// Routes whose experts the host has, and the device's cache had too: computed there, and not counted above.
    CACHED_EXPERT_ROUTES: Counter, "cuelight_cached_expert_routes_total" ["model"];
    /// Routes whose experts came to the device for the step, a long prompt: computed there, and not counted above.
    STREAMED_EXPERT_ROUTES: Counter, "cuelight_streamed_expert_routes_total" ["model"];
    /// Experts that were brought to the device, to its cache or for a step.
    EXPERT_UPLOADS: Counter, "cuelight_expert_cache_uploads_total" ["model"];
    /// Their bytes.
    EXPERT_UPLOADED_BYTES: Counter, "cuelight_expert_cache_uploaded_bytes_total" ["model"];

    // Actors and models.
    /// Restarts after a fault, by actor.
    RESTARTS: Counter, "cuelight_actor_restarts_total" ["model", "actor"];
    /// 1 for the state that the model is in, 0 for the others.
    MODEL_STATE: Gauge, "cuelight_model_state" ["model", "state"];
    /// 1 for a replica of the model that runs, 0 for one that is being loaded, recovers or has failed.
    REPLICA_READY: Gauge, "cuelight_replica_ready" ["model", "replica"];
    /// Times that the model was loaded, or was not: it failed, or there was no room.
    MODEL_LOADS: Counter, "cuelight_model_loads_total" ["model", "outcome"];
    /// Times that the model was unloaded, by reason.
    MODEL_UNLOADS: Counter, "cuelight_model_unloads_total" ["model", "reason"];
    /// 1; its labels tell what the model is and where the replica runs.
    MODEL_INFO: Gauge, "cuelight_model_info" ["model", "replica", "architecture", "quantization", "device"];
    /// 1; its labels tell how the KV cache is cut: tokens in a block, and blocks.
    CACHE_CONFIG: Gauge, "cuelight_cache_config_info" ["model", "replica", "block_size", "blocks"];
    /// Memory that was planned for the model, all replicas together, by what it is for.
    MODEL_MEMORY: Gauge, "cuelight_model_memory_bytes" ["model", "pool"];

    // HTTP.
    /// HTTP requests answered, by method, route and status.
    HTTP_REQUESTS: Counter, "cuelight_http_requests_total" ["method", "route", "status"];
    /// Time from an HTTP request to the start of its response.
    HTTP_RESPONSE_START: Histogram(LATENCY_SECONDS), "cuelight_http_response_start_seconds" ["route"];

    // The process.
    /// 1; its label tells the version of Cuelight.
    BUILD_INFO: Gauge, "cuelight_build_info" ["version"];
    /// When the process started, in seconds of Unix time.
    PROCESS_START_TIME: Gauge, "process_start_time_seconds" [];
    /// Memory of the process that is in RAM.
    PROCESS_RESIDENT_MEMORY: Gauge, "process_resident_memory_bytes" [];
}

/// Gives the exporter every help text.
pub fn describe() {
    for metric in METRICS {
        let help = metric.help.trim();
        match metric.kind {
            Kind::Counter => describe_counter!(metric.name, help),
            Kind::Gauge => describe_gauge!(metric.name, help),
            Kind::Histogram(_) => describe_histogram!(metric.name, help),
        }
    }
}

/// All metrics as a Markdown table, for `docs/operations/`.
#[must_use]
pub fn markdown() -> String {
    let mut text = "| Metric | Kind | Labels | Meaning |\n| --- | --- | --- | --- |\n".to_owned();
    for Metric { name, kind, labels, help } in METRICS {
        let labels: Vec<String> = labels.iter().map(|label| format!("`{label}`")).collect();
        text.push_str(&format!("| `{name}` | {} | {} | {} |\n", kind.name(), labels.join(", "), help.trim()));
    }
    text
}
