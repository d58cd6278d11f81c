//! What operators and load balancers ask, without a key: is it alive, is it ready, what does it count.

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use cuelight_engine::load::LoadProgress;
use serde_json::{Value, json};

use super::SharedServer;
use super::error::ApiError;
use crate::models::Readiness;

/// `/health`: alive? 503 while the models named at the start are loaded for the first time, as llama-server says it, and
/// when none of them is left. Asks nothing of an actor: a probe must not wait behind the work that it probes.
pub(super) async fn health(State(server): State<SharedServer>) -> Response {
    match server.models.readiness() {
        Readiness::Loading(_) => unhealthy("Loading model"),
        Readiness::Failed { reason, all: true } => unhealthy(&reason),
        Readiness::Ready | Readiness::Recovering | Readiness::Draining | Readiness::Failed { all: false, .. } => {
            Json(json!({ "status": "ok" })).into_response()
        }
    }
}

fn unhealthy(message: &str) -> Response {
    let body = json!({ "error": { "code": 503, "message": message, "type": "unavailable_error" } });
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
}

/// `/ready`: should requests be sent here now?
pub(super) async fn ready(State(server): State<SharedServer>) -> Response {
    let body = match server.models.readiness() {
        Readiness::Ready => return Json(json!({ "status": "ready" })).into_response(),
        Readiness::Loading(LoadProgress { done_bytes, total_bytes }) => {
            json!({ "status": "loading", "done_bytes": done_bytes, "total_bytes": total_bytes })
        }
        Readiness::Recovering => json!({ "status": "recovering" }),
        Readiness::Draining => json!({ "status": "draining" }),
        Readiness::Failed { reason, .. } => json!({ "status": "failed", "reason": reason }),
    };
    (StatusCode::SERVICE_UNAVAILABLE, Json(body)).into_response()
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
