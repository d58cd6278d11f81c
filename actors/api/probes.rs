//! What operators and load balancers ask, without a key: is it alive, is it ready, what does it count.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use super::SharedServer;
use super::error::ApiError;
use crate::runtime::Status;

/// `/health`: alive? 503 while the model loads, as llama-server says it, and when it could not be loaded.
/// Asks nothing of the cast: a probe must not wait behind the work that it probes.
pub(super) async fn health(State(server): State<SharedServer>) -> Response {
    match server.runtime.status() {
        Status::Loading(_) => unhealthy("Loading model"),
        Status::Failed(reason) => unhealthy(&reason),
        Status::Ready | Status::Recovering | Status::Draining => Json(json!({ "status": "ok" })).into_response(),
    }
}

fn unhealthy(message: &str) -> Response {
    let body = json!({ "error": { "code": 503, "message": message, "type": "unavailable_error" } });
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

/// `/ready`: should requests be sent here now?
pub(super) async fn ready(State(server): State<SharedServer>) -> Response {
    let status = server.runtime.status();
    let code = if status == Status::Ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let mut body = json!({ "status": status.word() });
    match status {
        Status::Loading(progress) => {
            body["done_bytes"] = json!(progress.done_bytes);
            body["total_bytes"] = json!(progress.total_bytes);
        }
        Status::Failed(reason) => body["reason"] = json!(reason),
        Status::Ready | Status::Recovering | Status::Draining => {}
    }
    (code, Json(body)).into_response()
}

/// `/version`.
pub(super) async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// `/metrics`, in Prometheus' text format.
pub(super) async fn metrics(State(server): State<SharedServer>) -> Response {
    match &server.options.metrics {
        Some(exposition) => {
            ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], exposition.render()).into_response()
        }
        None => ApiError::NotFound("/metrics here: this server records none".to_owned()).into_response(),
    }
}
