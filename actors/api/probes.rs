//! Routes for operators and load balancers, without a key: liveness, readiness, version, metrics, and a greeting.

use axum::Json;
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use cuelight_engine::load::LoadProgress;
use serde_json::{Value, json};

use super::openmetrics;
use super::server::SharedServer;
use crate::models::Readiness;
use crate::serving::error::ApiError;

/// What this server is and where its API is.
pub(super) const GREETING: &str = concat!(
    "Cuelight ",
    env!("CARGO_PKG_VERSION"),
    " is running.\nThe OpenAI API is under /v1: for example GET /v1/models and POST /v1/chat/completions.\n"
);

/// `/health`: is the process alive? 503 while the models named at the start are loaded for the first time, as in
/// llama-server, and when all of them have failed. Asks no actor, so that the answer never waits behind a step.
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

/// `/metrics`, in OpenMetrics when the `Accept` header names it, else in Prometheus' text format.
pub(super) async fn metrics(State(server): State<SharedServer>, headers: HeaderMap) -> Response {
    let options = server.options();
    let Some(exposition) = &options.metrics else {
        return ApiError::NotFound("/metrics here: this server records no metrics".to_owned()).into_response();
    };
    let text = exposition.render();
    if accepts_openmetrics(&headers) {
        return ([(header::CONTENT_TYPE, openmetrics::CONTENT_TYPE)], openmetrics::from_prometheus(&text))
            .into_response();
    }
    ([(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")], text).into_response()
}

fn accepts_openmetrics(headers: &HeaderMap) -> bool {
    let accepted = headers.get_all(header::ACCEPT).into_iter().filter_map(|value| value.to_str().ok());
    accepted.flat_map(|value| value.split(',')).any(|kind| kind.trim().starts_with("application/openmetrics-text"))
}
