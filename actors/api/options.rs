//! The options of the HTTP API.

use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::connections::ConnectionOptions;
use crate::metrics::exposition::Exposition;
use crate::pipeline::kv_store::SharedBlocks;
use crate::serving::batch::store::BatchStore;
use crate::serving::media_limits::MediaLimits;

/// How the API behaves. What the model can do is set by the runtime's options.
#[derive(Clone)]
pub struct ServerOptions {
    /// The name of the one model that [`router`](super::router) is given. With a registry each model has its own name.
    pub model_id: String,
    /// More names for that model.
    pub aliases: Vec<String>,
    /// Keys that are accepted on every route except the probes. Empty: no key is required.
    pub api_keys: Vec<ApiKey>,
    /// Origins whose web pages may call the API, or `*` for all. Empty: only pages of this server and of this machine.
    pub cors_origins: Vec<String>,
    /// Host names, other than those of this machine, that a server on a loopback address answers to, or `*` for all.
    pub allowed_hosts: Vec<String>,
    /// Longest request body in bytes, after decompression.
    pub max_body_bytes: usize,
    /// Time without data on a stream after which a comment is sent, so that proxies keep the connection open.
    pub sse_ping_interval: Duration,
    /// Memory for the bodies of all requests together, in bytes.
    pub request_memory_bytes: usize,
    /// Memory for the kept responses of the Responses API, in bytes. 0: none are kept.
    pub response_store_bytes: usize,
    /// Time without data after which the body of a request is given up.
    pub body_timeout: Duration,
    /// Limits of connections.
    pub connections: ConnectionOptions,
    /// Which requests belong to the same client.
    pub client_identity: ClientIdentity,
    /// The lowest value of `priority` that clients may use. Lower values run first.
    pub highest_priority: i32,
    /// Whether requests with different keys never share cached prefixes.
    pub tenant_isolation: bool,
    /// Whether clients may load and unload adapters.
    pub allow_lora_loading: bool,
    /// Longest time for one request. `None`: no limit.
    pub request_timeout: Option<Duration>,
    /// Limits of the media of a request.
    pub media: MediaLimits,
    /// How long the requests of a model that is being unloaded may continue.
    pub drain_timeout: Duration,
    /// Whether `/` shows a chat page to browsers.
    pub chat_page: bool,
    /// The KV blocks that other servers may load. `None`: they may load none.
    pub shared_blocks: Option<SharedBlocks>,
    /// Where files and batches of clients are kept, and answered. `None`: none are.
    pub batches: Option<BatchOptions>,
    /// What `/metrics` renders. `None`: the route answers 404.
    pub metrics: Option<Exposition>,
}

impl ServerOptions {
    /// Default of [`ServerOptions::max_body_bytes`].
    pub const MAX_BODY_BYTES: usize = 32 << 20;
    /// Default of [`ServerOptions::request_memory_bytes`].
    pub const REQUEST_MEMORY_BYTES: usize = 512 << 20;
    /// Default of [`ServerOptions::response_store_bytes`].
    pub const RESPONSE_STORE_BYTES: usize = 64 << 20;
    /// Default of [`ServerOptions::body_timeout`].
    pub const BODY_TIMEOUT: Duration = Duration::from_secs(30);
    /// Default of [`ServerOptions::drain_timeout`].
    pub const DRAIN_TIMEOUT: Duration = Duration::from_secs(30);

    /// The defaults, for one model served as `model_id`.
    #[must_use]
    pub fn new(model_id: impl Into<String>) -> Self {
        ServerOptions { model_id: model_id.into(), ..ServerOptions::default() }
    }
}

impl Default for ServerOptions {
    fn default() -> Self {
        ServerOptions {
            model_id: "default".to_owned(),
            aliases: Vec::new(),
            api_keys: Vec::new(),
            cors_origins: Vec::new(),
            allowed_hosts: Vec::new(),
            max_body_bytes: Self::MAX_BODY_BYTES,
            sse_ping_interval: Duration::from_secs(10),
            request_memory_bytes: Self::REQUEST_MEMORY_BYTES,
            response_store_bytes: Self::RESPONSE_STORE_BYTES,
            body_timeout: Self::BODY_TIMEOUT,
            connections: ConnectionOptions::default(),
            client_identity: ClientIdentity::default(),
            highest_priority: 0,
            tenant_isolation: false,
            allow_lora_loading: false,
            request_timeout: None,
            media: MediaLimits::default(),
            drain_timeout: Self::DRAIN_TIMEOUT,
            chat_page: true,
            shared_blocks: None,
            batches: None,
            metrics: None,
        }
    }
}

/// How batches of clients are answered.
#[derive(Debug, Clone)]
pub struct BatchOptions {
    /// The files and batches.
    pub store: Arc<BatchStore>,
    /// Most requests that all batches together have in flight.
    pub parallel: usize,
}

/// The digest of an API key, from which the key cannot be found.
#[derive(Clone, PartialEq, Eq)]
pub struct ApiKey([u8; 32]);

impl ApiKey {
    /// The digest of a key.
    #[must_use]
    pub fn of(key: impl AsRef<[u8]>) -> Self {
        ApiKey(Sha256::digest(key).into())
    }

    pub(super) fn digest(&self) -> &[u8; 32] {
        &self.0
    }
}

impl<T: AsRef<str>> From<T> for ApiKey {
    fn from(key: T) -> Self {
        ApiKey::of(key.as_ref())
    }
}

/// The options of a running server, which can be replaced.
#[derive(Clone)]
pub struct LiveOptions(Arc<RwLock<Arc<ServerOptions>>>);

impl LiveOptions {
    /// The options now.
    #[must_use]
    pub fn get(&self) -> Arc<ServerOptions> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Replaces the options for the requests that follow. Names, origins, hosts, batches and the limits of connections, of
    /// request memory and of kept responses stay as they were at the start.
    pub fn replace(&self, options: ServerOptions) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(options);
    }
}

impl From<ServerOptions> for LiveOptions {
    fn from(options: ServerOptions) -> Self {
        LiveOptions(Arc::new(RwLock::new(Arc::new(options))))
    }
}

/// Which requests belong to the same client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ClientIdentity {
    /// Those with the same API key; on a server without keys, those from the same address.
    #[default]
    Key,
    /// Those that also have the same `user` or `safety_identifier`, for a trusted program that calls for many users.
    User,
}
