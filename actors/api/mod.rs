//! The HTTP API: OpenAI's protocol over the cast.
//!
//! A call passes, in this order: a request id and its metrics ([`telemetry`]), the key ([`auth`]), its body as JSON
//! ([`extract`]), its fields ([`fields`], [`sampling`], [`prompt`], [`messages`], [`unsupported`]), a permit, the
//! tokenizer, the cast ([`generation`]), and goes back as one answer or as a stream ([`sse`]) in the words of its
//! protocol ([`chat`], [`completions`]).
//!
//! Nothing is kept between calls. A connection that goes away drops the handler or the body, and with it the
//! [`crate::runtime::Generation`]s, which cancels them.

mod auth;
mod caller;
mod chat;
mod completions;
#[cfg(feature = "fault-injection")]
mod debug;
mod error;
mod extract;
mod fields;
mod generation;
mod logprobs;
mod messages;
mod models;
mod probes;
mod prompt;
mod sampling;
mod sse;
mod telemetry;
mod tokenize;
mod unsupported;

use std::any::Any;
use std::future::Future;
use std::io;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Router;
use axum::extract::DefaultBodyLimit;
use axum::http::{HeaderName, HeaderValue, Method, Uri};
use axum::middleware;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::serve::ListenerExt;
use tokio::net::TcpListener;
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};

pub use self::error::ApiError;
use crate::metrics::exposition::Exposition;
use crate::models::{Call, Models};
use crate::request::SubmitError;
use crate::runtime::{Model, Runtime};

/// How the API answers; what the model can do is the runtime's business.
#[derive(Clone)]
pub struct ServerOptions {
    /// The name of the one model that [`router`] is given; a registry brings its own names.
    pub model_id: String,
    /// More names for that model.
    pub aliases: Vec<String>,
    /// Keys that open every route but the probes; none: no key is asked for.
    pub api_keys: Vec<String>,
    /// Origins whose pages may call, or `*`; none: no page of another origin may.
    pub cors_origins: Vec<String>,
    /// Longest request body.
    pub max_body_bytes: usize,
    /// Silence on a stream after which a comment is sent, so that proxies keep it open.
    pub sse_ping_interval: Duration,
    /// Whether callers with different keys never share cached prefixes.
    pub tenant_isolation: bool,
    /// Longest time for one request; `None`: no limit.
    pub request_timeout: Option<Duration>,
    /// How long the calls of a model that is to be unloaded may go on.
    pub drain_timeout: Duration,
    /// What `/metrics` renders; `None`: there is no such route.
    pub metrics: Option<Exposition>,
}

impl ServerOptions {
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
            max_body_bytes: 32 << 20,
            sse_ping_interval: Duration::from_secs(10),
            tenant_isolation: false,
            request_timeout: None,
            drain_timeout: Duration::from_secs(30),
            metrics: None,
        }
    }
}

/// An entry of [`ServerOptions::cors_origins`] that is no origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the CORS origin {0:?} is neither `*` nor like `https://example.org`")]
pub struct InvalidOrigin(pub String);

/// Answers connections until `shutdown` resolves, then lets the requests that run finish.
///
/// Requests that run for too long are the models' to end: shut them down with a limit at the same time.
///
/// # Errors
/// An invalid CORS origin.
pub async fn serve(
    listener: TcpListener,
    runtime: Runtime,
    options: ServerOptions,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    serve_models(listener, fixed(runtime, &options), options, shutdown).await
}

/// As [`serve`], for models that come and go.
///
/// # Errors
/// An invalid CORS origin.
pub async fn serve_models(
    listener: TcpListener,
    models: Models,
    options: ServerOptions,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let app = models_router(models, options).map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    // A token is a small packet, and the next is not there yet to share one with: never hold it back.
    let listener = listener.tap_io(|connection| {
        if let Err(error) = connection.set_nodelay(true) {
            tracing::debug!(%error, "TCP_NODELAY could not be set");
        }
    });
    axum::serve(listener, app).with_graceful_shutdown(shutdown).await
}

/// The API over one model as a service, for tests and for embedding.
///
/// # Errors
/// [`InvalidOrigin`] when a CORS origin is none.
pub fn router(runtime: Runtime, options: ServerOptions) -> Result<Router, InvalidOrigin> {
    models_router(fixed(runtime, &options), options)
}

fn fixed(runtime: Runtime, options: &ServerOptions) -> Models {
    Models::fixed(runtime, &options.model_id, options.aliases.clone())
}

/// The API over models that come and go.
///
/// # Errors
/// [`InvalidOrigin`] when a CORS origin is none.
pub fn models_router(models: Models, options: ServerOptions) -> Result<Router, InvalidOrigin> {
    let cors = cors_layer(&options.cors_origins)?;
    let server = Arc::new(Server::new(models, options));
    let probes = Router::new()
        .route("/health", get(probes::health))
        .route("/ready", get(probes::ready))
        .route("/ping", get(probes::health))
        .route("/version", get(probes::version))
        .route("/metrics", get(probes::metrics))
        .method_not_allowed_fallback(method_not_allowed);
    let keyed = Router::new()
        .route("/v1/chat/completions", post(chat::create))
        .route("/v1/completions", post(completions::create))
        .route("/v1/models", get(models::list))
        .route("/v1/models/{*id}", get(models::show))
        .route("/models", get(models::report))
        .route("/models/load", post(models::load))
        .route("/models/unload", post(models::unload))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .layer(middleware::from_fn_with_state(server.clone(), auth::require_key));
    #[cfg(feature = "fault-injection")]
    let probes = probes.route("/debug/fault", post(debug::fault));
    let app = probes
        .merge(keyed)
        .layer(DefaultBodyLimit::max(server.options.max_body_bytes))
        .with_state(server)
        .layer(CatchPanicLayer::custom(answer_panic));
    // Outside the keys, so that preflights need none; inside the telemetry, so that they are seen.
    let app = match cors {
        Some(cors) => app.layer(cors),
        None => app,
    };
    Ok(app.layer(middleware::from_fn(telemetry::observe)))
}

/// What every handler shares.
struct Server {
    models: Models,
    options: ServerOptions,
    keys: auth::Keys,
    /// Start of the server, in seconds of Unix time.
    started: u64,
}

type SharedServer = Arc<Server>;

impl Server {
    fn new(models: Models, options: ServerOptions) -> Self {
        Server { keys: auth::Keys::new(&options.api_keys), started: unix_seconds(), models, options }
    }

    /// Gets hold of the model that a request names, which may have to be loaded for it.
    async fn served(&self, name: Option<&str>) -> Result<Served, ApiError> {
        let call = self.models.call(name).await?;
        Ok(Served { id: call.id().to_owned(), runtime: call.runtime().clone(), _call: Arc::new(call) })
    }
}

/// A model that a call is made to; it stays loaded while any clone of this exists.
#[derive(Clone)]
struct Served {
    /// The name that answers carry.
    id: String,
    runtime: Runtime,
    _call: Arc<Call>,
}

impl Served {
    /// The model; an answer of "not yet" while there is none.
    fn model(&self) -> Result<Arc<Model>, ApiError> {
        self.runtime.model().ok_or_else(|| {
            let reason = "the model is still loading".to_owned();
            SubmitError::Unavailable { reason, retry_after: Duration::from_secs(1) }.into()
        })
    }
}

fn unix_seconds() -> u64 {
    // A clock before 1970 is no reason to stop serving.
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

async fn not_found(uri: Uri) -> ApiError {
    ApiError::NotFound(error::clip(uri.path()))
}

async fn method_not_allowed(method: Method) -> ApiError {
    ApiError::MethodNotAllowed(error::clip(method.as_str()))
}

fn answer_panic(panic: Box<dyn Any + Send>) -> Response {
    let what = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    tracing::error!(panic = what.unwrap_or("of unknown kind"), "a request handler panicked");
    ApiError::Internal.into_response()
}

fn cors_layer(origins: &[String]) -> Result<Option<CorsLayer>, InvalidOrigin> {
    let allowed = match origins {
        [] => return Ok(None),
        origins if origins.iter().any(|origin| origin == "*") => AllowOrigin::any(),
        origins => {
            let parse = |origin: &String| match HeaderValue::from_str(origin) {
                Ok(value) if origin.contains("://") => Ok(value),
                _ => Err(InvalidOrigin(origin.clone())),
            };
            AllowOrigin::list(origins.iter().map(parse).collect::<Result<Vec<_>, _>>()?)
        }
    };
    // Browsers do not count `authorization` under `*`, so the headers they ask for are named back to them.
    let layer = CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(["x-request-id", "retry-after", "retry-after-ms"].map(HeaderName::from_static));
    Ok(Some(layer))
}
