//! The routes of the API and the layers around them.

use std::any::Any;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::{HeaderName, HeaderValue, Method, Uri};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Extension, Router};
use tower_http::catch_panic::CatchPanicLayer;
use tower_http::cors::{AllowHeaders, AllowOrigin, CorsLayer};
use tower_http::decompression::RequestDecompressionLayer;

use super::auth;
use super::batch_worker;
use super::connections::BeyondLimit;
#[cfg(debug_assertions)]
use super::debug;
use super::guard::{self, Guard};
use super::kv_blocks;
use super::llama_cpp;
use super::lora;
use super::ollama;
use super::options::LiveOptions;
use super::ranking;
use super::server::{Server, SharedServer};
use super::{anthropic, models, openai, openapi, page, probes, telemetry, tokenize};
use crate::models::Models;
use crate::pipeline::kv_store::BLOCKS_PATH;
use crate::serving::error::{ApiError, clip};

/// An entry of [`super::ServerOptions::cors_origins`] that is not an origin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the CORS origin {0:?} is neither `*` nor like `https://example.org`")]
pub struct InvalidOrigin(pub String);

/// The whole API as a service. `is_loopback`: it is reached through a loopback address only.
///
/// # Errors
/// [`InvalidOrigin`] when a CORS origin is malformed.
pub(super) fn build(models: Models, live: LiveOptions, is_loopback: bool) -> Result<Router, InvalidOrigin> {
    let options = live.get();
    check_origins(&options.cors_origins)?;
    let guard = Arc::new(Guard::new(&options, is_loopback));
    let cors = cors_layer(guard.clone());
    let server = Arc::new(Server::new(models, live));
    let worker = batch_worker::start(options.batches.as_ref(), batch_routes(&server), options.max_body_bytes);
    let keyed = keyed_routes()
        .layer(middleware::from_fn_with_state(server.clone(), auth::require_key))
        .layer(middleware::from_fn(refuse_beyond_limit))
        // Batches are answered for as long as the routes are served.
        .layer(Extension(worker));
    let app = open_routes()
        .merge(keyed)
        .with_state(server)
        .layer(RequestDecompressionLayer::new().pass_through_unaccepted(true))
        .layer(CatchPanicLayer::custom(answer_panic));
    // Outside the keys, so that preflights need none; inside the telemetry, so that they are recorded.
    let app = app.layer(cors).layer(middleware::from_fn_with_state(guard, guard::check));
    // Outside everything that refuses, so that each protocol's clients understand every error.
    let app = app.layer(middleware::from_fn(ollama::errors::encode));
    let app = app.layer(middleware::from_fn(telemetry::observe));
    Ok(app.layer(middleware::from_fn(anthropic::errors::encode)))
}

/// The routes for requests of batches, which come with their caller instead of a key.
fn batch_routes(server: &Server) -> Router {
    keyed_routes()
        .with_state(Arc::new(server.for_batches()))
        .layer(CatchPanicLayer::custom(answer_panic))
        .layer(middleware::from_fn(telemetry::observe))
        .layer(middleware::from_fn(anthropic::errors::encode))
}

/// Routes that never require a key.
fn open_routes() -> Router<SharedServer> {
    let routes = Router::new()
        .route("/", get(page::index))
        .route("/page/{name}", get(page::asset))
        .route("/health", get(probes::health))
        .route("/ready", get(probes::ready))
        .route("/ping", get(probes::health))
        .route("/version", get(probes::version))
        .route("/openapi.json", get(openapi::document))
        .route("/metrics", get(probes::metrics));
    #[cfg(debug_assertions)]
    let routes = routes.route("/debug/fault", post(debug::fault));
    routes.method_not_allowed_fallback(method_not_allowed)
}

/// Routes that require a key when the server has keys.
fn keyed_routes() -> Router<SharedServer> {
    Router::new()
        .route("/v1/models", get(models::list))
        .route("/v1/models/", get(models::list))
        .route("/v1/models/{*id}", get(models::show))
        .route("/models/{*id}", get(models::show))
        .route("/models", get(models::report))
        .route("/models/load", post(models::load))
        .route("/models/unload", post(models::unload))
        .route("/v1/load_lora_adapter", post(lora::load))
        .route("/v1/unload_lora_adapter", post(lora::unload))
        .route("/lora-adapters", get(lora::list))
        .route(BLOCKS_PATH, post(kv_blocks::send))
        .route("/tokenize", post(tokenize::tokenize))
        .route("/detokenize", post(tokenize::detokenize))
        .route("/tokenizer_info", get(tokenize::info))
        .merge(openai::routes("/v1"))
        // For clients whose base URL lacks `/v1`.
        .merge(openai::routes(""))
        .merge(anthropic::routes())
        .merge(ollama::routes())
        .merge(llama_cpp::routes())
        .merge(ranking::routes())
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
}

/// Refuses requests on connections that are kept for probes.
async fn refuse_beyond_limit(request: Request, next: Next) -> Result<Response, ApiError> {
    if request.extensions().get::<BeyondLimit>().is_some() {
        return Err(ApiError::NoConnection);
    }
    Ok(next.run(request).await)
}

async fn not_found(uri: Uri) -> ApiError {
    ApiError::NotFound(clip(uri.path()))
}

async fn method_not_allowed(method: Method) -> ApiError {
    ApiError::MethodNotAllowed(clip(method.as_str()))
}

fn answer_panic(panic: Box<dyn Any + Send>) -> Response {
    let message = panic.downcast_ref::<String>().map(String::as_str).or(panic.downcast_ref::<&str>().copied());
    tracing::error!(panic = message.unwrap_or("of unknown type"), "a request handler panicked");
    ApiError::Internal.into_response()
}

fn check_origins(origins: &[String]) -> Result<(), InvalidOrigin> {
    let is_origin = |origin: &str| origin.contains("://") && HeaderValue::from_str(origin).is_ok();
    match origins.iter().find(|origin| *origin != "*" && !is_origin(origin)) {
        Some(origin) => Err(InvalidOrigin(origin.clone())),
        None => Ok(()),
    }
}

/// Tells browsers which pages may read answers: the same pages whose requests the guard accepts.
fn cors_layer(guard: Arc<Guard>) -> CorsLayer {
    let allowed = match guard.accepts_all_pages() {
        true => AllowOrigin::any(),
        false => {
            AllowOrigin::predicate(move |origin, _| origin.to_str().is_ok_and(|origin| guard.accepts_page(origin)))
        }
    };
    // Browsers do not accept `*` for the `authorization` header, so the requested headers are repeated.
    CorsLayer::new()
        .allow_origin(allowed)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers(AllowHeaders::mirror_request())
        .expose_headers(["x-request-id", "retry-after", "retry-after-ms"].map(HeaderName::from_static))
}
