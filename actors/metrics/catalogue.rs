//! The table of all metrics: name, type, labels, buckets and help text.
//!
//! The exporter, the tables in `docs/operations/`, and the tests of dashboards and alerts all use [`METRICS`].

use metrics::{describe_counter, describe_gauge, describe_histogram};

/// The Prometheus type of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// A value that only increases.
    Counter,
    /// A value that increases and decreases.
    Gauge,
    /// A distribution, with the upper bounds of its buckets.
    Histogram(&'static [f64]),
}

impl Kind {
    /// The name of the type, for documentation.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram(_) => "histogram",
        }
    }
}

/// A metric.
#[derive(Debug)]
pub struct Metric {
    /// The name as scraped. The lines of a histogram add `_bucket`, `_sum` and `_count`.
    pub name: &'static str,
    /// The type.
    pub kind: Kind,
    /// The names of its labels.
    pub labels: &'static [&'static str],
    /// The help text.
    pub help: &'static str,
}

/// Declares [`METRICS`] and a constant for the name of each metric.
macro_rules! catalogue {
    ($( #[doc = $help:literal] $constant:ident: $kind:expr, $name:literal $labels:expr; )+) => {
        $( #[doc = $help] pub(crate) const $constant: &str = $name; )+

        /// All metrics.
        pub const METRICS: &[Metric] = &[
            $( Metric { name: $name, kind: { use Kind::*; $kind }, labels: &$labels, help: $help }, )+
        ];
    };
}

/// Buckets for latencies, from a millisecond to the longest queue time.
const LATENCY_SECONDS: &[f64] = &[
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0,
    160.0, 640.0, 2560.0,
];
/// Buckets for the time of a single token or step. Small models need the first three.
const TOKEN_SECONDS: &[f64] = &[
    0.001, 0.002, 0.005, 0.01, 0.02, 0.025, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.0,
    5.0, 20.0,
];
/// Buckets for the time of whole requests.
const DURATION_SECONDS: &[f64] = &[
    0.05, 0.1, 0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0,
    960.0, 1920.0, 7680.0,
];
/// Buckets for the tokens of a request.
const TOKENS: &[f64] = &[
    1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, 20_000.0, 50_000.0,
    100_000.0, 200_000.0,
];
/// Buckets for the rows and sequences of a step.
const STEP_COUNTS: &[f64] =
    &[1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16_384.0];
/// Buckets for the sequences of a call.
const FEW: &[f64] = &[1.0, 2.0, 5.0, 10.0, 20.0];

catalogue! {
    // Request latencies.
    /// Time from submission to the first token.
    TIME_TO_FIRST_TOKEN: Histogram(LATENCY_SECONDS), "cuelight_time_to_first_token_seconds" ["model"];
    /// Time between two successive tokens of a request.
    INTER_TOKEN_LATENCY: Histogram(TOKEN_SECONDS), "cuelight_inter_token_latency_seconds" ["model"];
    /// Decode time of a completed request, divided by the number of its tokens after the first.
    TIME_PER_OUTPUT_TOKEN: Histogram(TOKEN_SECONDS), "cuelight_request_time_per_output_token_seconds" ["model"];
    /// Time from submission to the end of a completed request.
    REQUEST_DURATION: Histogram(DURATION_SECONDS), "cuelight_request_duration_seconds" ["model"];
    /// Time from submission to the first step of a request.
    QUEUE_TIME: Histogram(LATENCY_SECONDS), "cuelight_request_queue_time_seconds" ["model"];
    /// Time from a completed request's first step to its first token.
    PREFILL_TIME: Histogram(LATENCY_SECONDS), "cuelight_request_prefill_time_seconds" ["model"];
    /// Time from a completed request's first token to its last.
    DECODE_TIME: Histogram(DURATION_SECONDS), "cuelight_request_decode_time_seconds" ["model"];
    /// Time from a completed request's first step to its last token.
    INFERENCE_TIME: Histogram(DURATION_SECONDS), "cuelight_request_inference_time_seconds" ["model"];

    // Request sizes.
    /// Prompt tokens of a completed request.
    REQUEST_PROMPT_TOKENS: Histogram(TOKENS), "cuelight_request_prompt_tokens" ["model"];
    /// Generated tokens of a completed request; without embeddings.
    REQUEST_GENERATION_TOKENS: Histogram(TOKENS), "cuelight_request_generation_tokens" ["model"];
    /// Maximum number of tokens that a completed request was allowed to generate; without embeddings.
    REQUEST_MAX_TOKENS: Histogram(TOKENS), "cuelight_request_max_tokens" ["model"];
    /// Sequences of an accepted API call: its prompts times n.
    CALL_SEQUENCES: Histogram(FEW), "cuelight_call_sequences" ["model"];

    // Request counts.
    /// Sequences that hold KV blocks.
    REQUESTS_RUNNING: Gauge, "cuelight_requests_running" ["model", "replica"];
    /// Sequences that wait: for KV blocks or a slot (capacity), or for their client or the executor (deferred).
    REQUESTS_WAITING: Gauge, "cuelight_requests_waiting" ["model", "replica", "reason"];
    /// Sequences by adapter, an empty name for those without one, and by state: they hold KV blocks (running) or wait (waiting).
    ADAPTER_REQUESTS: Gauge, "cuelight_adapter_requests" ["model", "replica", "adapter", "state"];
    /// Adapters that may be in memory at the same time; 0 for a model without adapters.
    ADAPTER_SLOTS: Gauge, "cuelight_adapter_slots" ["model", "replica"];
    /// Prompt tokens of requests that have not taken part in a step yet.
    QUEUED_TOKENS: Gauge, "cuelight_queued_prompt_tokens" ["model", "replica"];
    /// Maximum number of sequences that run at once.
    SEQUENCES_CAPACITY: Gauge, "cuelight_sequences_capacity" ["model", "replica"];
    /// Requests that ended, by reason: stop_token, stop_string, length, embedded, cancelled, engine_error, shutting_down, stalled_client or constraint_failed.
    REQUESTS_FINISHED: Counter, "cuelight_requests_finished_total" ["model", "reason"];
    /// Refused requests, by reason: context_length_exceeded, invalid_prompt, too_many_sequences, queued_requests, queued_tokens, waiting_for_load or unavailable. Requests that are refused before their model is known count in cuelight_http_requests_total only.
    REJECTIONS: Counter, "cuelight_rejections_total" ["model", "reason"];
    /// Preemptions: a sequence lost its KV blocks to another one and is recomputed later.
    PREEMPTIONS: Counter, "cuelight_preemptions_total" ["model"];

    // Tokens.
    /// Tokens of completed prompts, by source: computed, or taken from the prefix cache (cached).
    PROMPT_TOKENS: Counter, "cuelight_prompt_tokens_total" ["model", "source"];
    /// Generated tokens.
    GENERATION_TOKENS: Counter, "cuelight_generation_tokens_total" ["model"];
    /// Generated tokens that a constraint forced, so that they were not sampled.
    FORCED_TOKENS: Counter, "cuelight_forced_tokens_total" ["model"];
    /// Blocks of tokens that were denoised.
    BLOCKS: Counter, "cuelight_blocks_total" ["model"];
    /// Tokens of blocks, each counted in every step of its block.
    DENOISED_ROWS: Counter, "cuelight_denoised_rows_total" ["model"];
    /// Drafts of several tokens that a step verified, by where their tokens came from: ngram, prediction, draft_model or recent_answer.
    DRAFTS: Counter, "cuelight_drafts_total" ["model", "source"];
    /// Tokens of these drafts.
    DRAFT_TOKENS: Counter, "cuelight_draft_tokens_total" ["model", "source"];
    /// Tokens of these drafts that were accepted, because the model generated the same.
    ACCEPTED_TOKENS: Counter, "cuelight_accepted_draft_tokens_total" ["model", "source"];

    // KV blocks and the prefix cache.
    /// KV blocks held by sequences.
    KV_BLOCKS_USED: Gauge, "cuelight_kv_blocks_used" ["model", "replica"];
    /// KV blocks that no sequence holds and whose content is kept in the prefix cache.
    KV_BLOCKS_CACHED: Gauge, "cuelight_kv_blocks_cached" ["model", "replica"];
    /// All KV blocks.
    KV_BLOCKS_TOTAL: Gauge, "cuelight_kv_blocks_total" ["model", "replica"];
    /// Fraction of the KV blocks that sequences hold, from 0 to 1.
    KV_USAGE: Gauge, "cuelight_kv_usage_ratio" ["model", "replica"];
    /// Evictions of cached KV blocks.
    KV_EVICTIONS: Counter, "cuelight_kv_evictions_total" ["model"];
    /// KV blocks that a lower tier holds: host memory (host) or the disk (disk).
    KV_TIER_BLOCKS: Gauge, "cuelight_kv_tier_blocks" ["model", "replica", "tier"];
    /// Recurrent states that a lower tier holds.
    KV_TIER_STATES: Gauge, "cuelight_kv_tier_states" ["model", "replica", "tier"];
    /// Bytes of the KV blocks and recurrent states that a lower tier holds.
    KV_TIER_BYTES: Gauge, "cuelight_kv_tier_bytes" ["model", "replica", "tier"];
    /// Bytes that a lower tier can hold. 0 for a tier that is not used, or not ready yet.
    KV_TIER_CAPACITY: Gauge, "cuelight_kv_tier_capacity_bytes" ["model", "replica", "tier"];
    /// KV blocks stored in a lower tier.
    KV_TIER_STORED: Counter, "cuelight_kv_tier_stored_blocks_total" ["model", "tier"];
    /// Recurrent states stored in a lower tier.
    KV_TIER_STORED_STATES: Counter, "cuelight_kv_tier_stored_states_total" ["model", "tier"];
    /// KV blocks loaded from a lower tier, or from another server (peer), instead of computed.
    KV_TIER_LOADED: Counter, "cuelight_kv_tier_loaded_blocks_total" ["model", "tier"];
    /// Recurrent states loaded from a lower tier, or from another server (peer), instead of computed.
    KV_TIER_LOADED_STATES: Counter, "cuelight_kv_tier_loaded_states_total" ["model", "tier"];
    /// KV blocks that a lower tier could not take in time or not write (store), or not read (load).
    KV_TIER_LOST: Counter, "cuelight_kv_tier_lost_blocks_total" ["model", "tier", "reason"];
    /// Recurrent states that a lower tier could not take in time or not write (store), or not read (load).
    KV_TIER_LOST_STATES: Counter, "cuelight_kv_tier_lost_states_total" ["model", "tier", "reason"];
    /// KV blocks of a lower tier that were computed all the same, because that was expected to be faster.
    KV_TIER_DECLINED: Counter, "cuelight_kv_tier_declined_blocks_total" ["model", "tier"];
    /// Recurrent states of a lower tier that were not loaded, because computing was expected to be faster.
    KV_TIER_DECLINED_STATES: Counter, "cuelight_kv_tier_declined_states_total" ["model", "tier"];
    /// Time to read some KV blocks, or a recurrent state, from a lower tier to host memory.
    KV_TIER_LOAD_TIME: Histogram(TOKEN_SECONDS), "cuelight_kv_tier_read_seconds" ["model", "tier"];
    /// Slots for recurrent state that hold the state of a sequence or a checkpoint.
    STATE_SLOTS_USED: Gauge, "cuelight_state_slots_used" ["model", "replica"];
    /// Slots for recurrent state that hold a checkpoint of the prefix cache.
    STATE_SLOTS_CACHED: Gauge, "cuelight_state_slots_cached" ["model", "replica"];
    /// All slots for recurrent state; 0 for a model without it.
    STATE_SLOTS: Gauge, "cuelight_state_slots" ["model", "replica"];
    /// Evictions of checkpoints of recurrent state.
    STATE_EVICTIONS: Counter, "cuelight_state_evictions_total" ["model"];
    /// KV blocks of layers with a window that sequences use.
    KV_WINDOW_BLOCKS_USED: Gauge, "cuelight_kv_window_blocks_used" ["model", "replica"];
    /// KV blocks of layers with a window that no sequence uses and whose content is kept for later prompts.
    KV_WINDOW_BLOCKS_KEPT: Gauge, "cuelight_kv_window_blocks_kept" ["model", "replica"];
    /// All KV blocks of layers with a window; 0 if these layers have as many as the others.
    KV_WINDOW_BLOCKS: Gauge, "cuelight_kv_window_blocks" ["model", "replica"];
    /// Evictions of kept KV blocks of layers with a window.
    KV_WINDOW_EVICTIONS: Counter, "cuelight_kv_window_evictions_total" ["model"];
    /// Prompt tokens looked up in the prefix cache.
    PREFIX_CACHE_QUERIES: Counter, "cuelight_prefix_cache_queries_total" ["model"];
    /// Prompt tokens found in the prefix cache.
    PREFIX_CACHE_HITS: Counter, "cuelight_prefix_cache_hits_total" ["model"];

    // Steps.
    /// Time that the device took for a step.
    STEP_TIME: Histogram(TOKEN_SECONDS), "cuelight_step_time_seconds" ["model"];
    /// Rows of a step. Each row computes one token.
    STEP_ROWS: Histogram(STEP_COUNTS), "cuelight_step_rows" ["model"];
    /// Prompt rows of a step. Steps without prompt rows count as 0.
    STEP_PREFILL_ROWS: Histogram(STEP_COUNTS), "cuelight_step_prefill_rows" ["model"];
    /// Sequences of a step.
    STEP_SEQUENCES: Histogram(STEP_COUNTS), "cuelight_step_sequences" ["model"];
    /// Bytes of logits copied to the sampler. Tokens that the engine samples need none.
    LOGITS_BYTES: Counter, "cuelight_logits_bytes_total" ["model"];

    // Media.
    /// Images whose rows were computed.
    IMAGES_ENCODED: Counter, "cuelight_images_encoded_total" ["model"];
    /// Images whose rows were kept from an earlier request, so that they were not computed again.
    IMAGE_CACHE_HITS: Counter, "cuelight_image_cache_hits_total" ["model"];
    /// Time to compute the rows of an image, without the images before it.
    IMAGE_ENCODE_TIME: Histogram(LATENCY_SECONDS), "cuelight_image_encode_seconds" ["model"];
    /// Windows of audio whose rows were computed.
    AUDIO_WINDOWS_ENCODED: Counter, "cuelight_audio_windows_encoded_total" ["model"];
    /// Audio clips whose rows were kept from an earlier request, so that they were not computed again.
    AUDIO_CACHE_HITS: Counter, "cuelight_audio_cache_hits_total" ["model"];
    /// Time to compute the rows of a window of audio, without what came before it.
    AUDIO_ENCODE_TIME: Histogram(LATENCY_SECONDS), "cuelight_audio_encode_seconds" ["model"];
    /// Windows of recordings that were decoded again at a higher temperature.
    TRANSCRIPTION_FALLBACKS: Counter, "cuelight_transcription_fallbacks_total" ["model"];
    /// Images and audio clips that wait for the encoder or are being computed.
    MEDIA_WAITING: Gauge, "cuelight_media_waiting" ["model"];
    /// Bytes of the rows of images and audio that are kept for later requests.
    MEDIA_CACHE_BYTES: Gauge, "cuelight_media_cache_bytes" ["model"];

    // Experts on the host.
    /// Routes (a row and one of its experts) computed by experts on the host.
    HOST_EXPERT_ROUTES: Counter, "cuelight_host_expert_routes_total" ["model"];
    /// Time that experts on the host took for one layer of a micro-batch.
    HOST_EXPERT_TIME: Histogram(TOKEN_SECONDS), "cuelight_host_expert_time_seconds" ["model"];
    /// Time that the device computed between two layers with experts on the host.
    DEVICE_SEGMENT_TIME: Histogram(TOKEN_SECONDS), "cuelight_device_piece_time_seconds" ["model"];
    /// Routes to host experts that were in the device's expert cache. Computed on the device and not counted above.
    CACHED_EXPERT_ROUTES: Counter, "cuelight_cached_expert_routes_total" ["model"];
    /// Routes to host experts that were streamed to the device for a long prompt. Computed there and not counted above.
    STREAMED_EXPERT_ROUTES: Counter, "cuelight_streamed_expert_routes_total" ["model"];
    /// Experts copied to the device, into its expert cache or for one step.
    EXPERT_UPLOADS: Counter, "cuelight_expert_cache_uploads_total" ["model"];
    /// Bytes of the experts copied to the device.
    EXPERT_UPLOADED_BYTES: Counter, "cuelight_expert_cache_uploaded_bytes_total" ["model"];

    // Actors and models.
    /// Restarts of actors after a fault: loader, sampler, scheduler, experts, drafter, media_encoder or executor.
    RESTARTS: Counter, "cuelight_actor_restarts_total" ["model", "actor"];
    /// 1 for the current state of the model, 0 for all other states: loading, ready, recovering, draining, failed and unloaded.
    MODEL_STATE: Gauge, "cuelight_model_state" ["model", "state"];
    /// 1 for a replica that is ready, 0 for one that is loading, recovering or failed.
    REPLICA_READY: Gauge, "cuelight_replica_ready" ["model", "replica"];
    /// Attempts to load the model, by outcome: loaded, failed, cancelled, or refused because memory is short (no_memory).
    MODEL_LOADS: Counter, "cuelight_model_loads_total" ["model", "outcome"];
    /// Unloads of the model, by reason: request, idle, memory, failed or file_changed.
    MODEL_UNLOADS: Counter, "cuelight_model_unloads_total" ["model", "reason"];
    /// Always 1. The labels describe the model and the device of the replica.
    MODEL_INFO: Gauge, "cuelight_model_info" ["model", "replica", "architecture", "quantization", "device"];
    /// Always 1. The labels are the tokens per KV block and the number of blocks.
    CACHE_CONFIG: Gauge, "cuelight_cache_config_info" ["model", "replica", "block_size", "blocks"];
    /// Planned memory of the model, all replicas together, by use: weights, kv, state, scratch, text, requests, draft, media, tiers or adapters.
    MODEL_MEMORY: Gauge, "cuelight_model_memory_bytes" ["model", "pool"];

    // HTTP.
    /// Answered HTTP requests.
    HTTP_REQUESTS: Counter, "cuelight_http_requests_total" ["method", "route", "status"];
    /// Time from receiving an HTTP request to the start of its response.
    HTTP_RESPONSE_START: Histogram(LATENCY_SECONDS), "cuelight_http_response_start_seconds" ["route"];

    /// Open connections of HTTP clients.
    CONNECTIONS_OPEN: Gauge, "cuelight_connections_open" [];
    /// Connections that were closed at once because all connections and the reserve for probes were in use.
    CONNECTIONS_REFUSED: Counter, "cuelight_connections_refused_total" [];
    /// Memory that is reserved for the bodies of requests and what is parsed from them, in bytes.
    REQUEST_MEMORY: Gauge, "cuelight_request_memory_bytes" [];
    /// Memory that all requests together may reserve, in bytes.
    REQUEST_MEMORY_LIMIT: Gauge, "cuelight_request_memory_limit_bytes" [];
    /// Memory of the responses that the Responses API keeps for its clients, in bytes.
    RESPONSE_STORE: Gauge, "cuelight_response_store_bytes" [];
    /// Batches of clients that are kept, by status, with the names of OpenAI's API.
    BATCHES: Gauge, "cuelight_batches" ["status"];
    /// Requests of batches that got their line in the answers, by outcome: succeeded, failed, expired or cancelled.
    BATCH_REQUESTS: Counter, "cuelight_batch_requests_total" ["outcome"];

    // The process.
    /// Log lines that could not be written, because standard error is closed, full or not read.
    LOG_LINES_LOST: Counter, "cuelight_log_lines_lost_total" [];
    /// Always 1. The label is the version of Cuelight.
    BUILD_INFO: Gauge, "cuelight_build_info" ["version"];
    /// Start time of the process, in seconds since the Unix epoch.
    PROCESS_START_TIME: Gauge, "process_start_time_seconds" [];
    /// Resident memory of the process, in bytes.
    PROCESS_RESIDENT_MEMORY: Gauge, "process_resident_memory_bytes" [];
}

/// Passes all help texts to the exporter.
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
