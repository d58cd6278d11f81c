//! Limits, timeouts and settings of a model's pipelines.

use std::sync::Arc;
use std::time::Duration;

use super::executor::OverlapMode;
use super::kv_store::KvStoreOptions;
use super::policy::PolicyConfig;
use super::restart::RestartPolicy;
use crate::kv_events::KvEvents;
use crate::recording::Recorder;
use crate::trace::Tracer;

/// Settings of a [`Runtime`](super::runtime::Runtime).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RuntimeOptions {
    /// The name of the model, used as a label of every metric.
    pub model_id: Arc<str>,
    /// Maximum number of requests, running and waiting, of all replicas together.
    pub max_requests: usize,
    /// How steps are formed.
    pub policy: PolicyConfig,
    /// Number of events buffered for a client before its request is paused.
    pub client_buffer_events: usize,
    /// How long a client's buffer may stay full before the client is cut off.
    pub client_stall_timeout: Duration,
    /// How long a step may take before its device counts as lost.
    pub step_timeout: Duration,
    /// Whether steps may be split into micro-batches, so that the device works while experts run on the host.
    pub overlap: OverlapMode,
    /// The lower tiers of the KV cache, for each model.
    pub kv_store: KvStoreOptions,
    /// Most bytes of the rows of media that are kept for later requests with the same media.
    pub media_cache_bytes: usize,
    /// Publishes what the KV cache holds.
    pub kv_events: KvEvents,
    /// How often actors are restarted after faults.
    pub restarts: RestartPolicy,
    /// Records what the actors do.
    pub tracer: Tracer,
    /// Records the requests that have ended.
    pub recorder: Recorder,
}

impl RuntimeOptions {
    /// Default of [`RuntimeOptions::media_cache_bytes`].
    pub const MEDIA_CACHE_BYTES: usize = 256 << 20;
}

impl Default for RuntimeOptions {
    fn default() -> Self {
        RuntimeOptions {
            model_id: "default".into(),
            max_requests: 1024,
            policy: PolicyConfig::default(),
            client_buffer_events: 64,
            client_stall_timeout: Duration::from_secs(30),
            step_timeout: Duration::from_secs(120),
            overlap: OverlapMode::Auto,
            kv_store: KvStoreOptions::default(),
            media_cache_bytes: Self::MEDIA_CACHE_BYTES,
            kv_events: KvEvents::default(),
            restarts: RestartPolicy::default(),
            tracer: Tracer::default(),
            recorder: Recorder::default(),
        }
    }
}
