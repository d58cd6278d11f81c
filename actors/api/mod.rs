//! The HTTP API over the models of a server.
//!
//! A connection is accepted within limits of number and time ([`connections`]). A request passes through, in this order: a request
//! id, metrics and a log line ([`telemetry`]), its origin and host name ([`guard`]), its key ([`auth`]), its body as JSON
//! ([`extract`]), its fields ([`fields`]), and the protocol that its route belongs to ([`openai`], [`anthropic`], [`ollama`],
//! [`llama_cpp`], [`ranking`]), which answers whole or as a stream ([`sse`]), with what else the client wants to know
//! ([`reports`]). The routes that belong to no protocol are in [`models`], [`kv_blocks`], [`page`], [`probes`] and [`tokenize`];
//! [`routes`] lists them all.
//!
//! Between requests nothing is kept but the responses of the Responses API, in a store of limited size, and the files and batches
//! of clients, on the disk where the operator wants it ([`batch_worker`]). When a connection closes,
//! its handler or response body is dropped, which drops its [`crate::pipeline::runtime::Generation`]s and so cancels them.

mod anthropic;
mod auth;
mod batch_worker;
mod caller;
mod connections;
mod content;
#[cfg(debug_assertions)]
mod debug;
mod extra_samplers;
mod extract;
mod fields;
mod form;
mod guard;
mod json_size;
mod kv_blocks;
mod listing;
mod llama_cpp;
mod llama_sampling;
mod lora;
mod lora_choice;
mod models;
mod ollama;
mod openai;
mod openapi;
mod openmetrics;
mod options;
mod page;
mod probes;
mod ranking;
mod reports;
mod request_memory;
mod routes;
mod server;
mod sse;
mod stop_strings;
mod telemetry;
mod tokenize;
mod truncation;

use std::future::Future;
use std::io;

use axum::Router;
use tokio::net::TcpListener;

pub use self::connections::{ConnectionOptions, RESERVED_CONNECTIONS};
pub use self::options::{ApiKey, BatchOptions, ClientIdentity, LiveOptions, ServerOptions};
pub use self::routes::InvalidOrigin;
use crate::models::Models;
use crate::pipeline::runtime::Runtime;
pub use crate::serving::error::ApiError;

/// Answers connections until `shutdown` resolves, then waits for the requests in flight.
///
/// This function does not end requests that run for too long: shut the models down with a limit at the same time.
///
/// # Errors
/// As [`serve_models`].
pub async fn serve(
    listener: TcpListener,
    runtime: Runtime,
    options: ServerOptions,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    serve_models(listener, fixed(runtime, &options), options, shutdown).await
}

/// As [`serve`], for models that are loaded and unloaded.
///
/// On a loopback address, requests with the `Host` of another machine are refused.
///
/// # Errors
/// An invalid CORS origin, or a listener without an address.
pub async fn serve_models(
    listener: TcpListener,
    models: Models,
    options: impl Into<LiveOptions>,
    shutdown: impl Future<Output = ()> + Send + 'static,
) -> io::Result<()> {
    let options = options.into();
    let is_loopback = listener.local_addr()?.ip().to_canonical().is_loopback();
    let limits = options.get().connections.clone();
    let app = routes::build(models, options, is_loopback)
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?;
    connections::serve(listener, app, limits, shutdown).await;
    Ok(())
}

/// The API over one model as a service, for tests and for embedding.
///
/// # Errors
/// [`InvalidOrigin`] when a CORS origin is malformed.
pub fn router(runtime: Runtime, options: ServerOptions) -> Result<Router, InvalidOrigin> {
    models_router(fixed(runtime, &options), options)
}

/// The API over models that are loaded and unloaded, as a service.
///
/// # Errors
/// [`InvalidOrigin`] when a CORS origin is malformed.
pub fn models_router(models: Models, options: ServerOptions) -> Result<Router, InvalidOrigin> {
    routes::build(models, options.into(), false)
}

fn fixed(runtime: Runtime, options: &ServerOptions) -> Models {
    Models::fixed(runtime, &options.model_id, options.aliases.clone())
}
