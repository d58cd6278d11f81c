//! Sends requests to the routes of the API, in this process.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::sync::Semaphore;
use tokio::time::sleep;
use tower::ServiceExt;

use super::answer::{Answer, Response, new_id};
use super::requests::BatchRequest;
use crate::models::ModelsError;
use crate::serving::error::ApiError;

/// How long a request is repeated while its model cannot be used.
const LONGEST_REFUSAL: Duration = Duration::from_secs(5 * 60);

/// Sends requests to the routes of the API.
#[derive(Debug, Clone)]
pub struct Sender {
    /// The routes.
    pub router: Router,
    /// How many requests are in the routes at the same time.
    pub slots: Arc<Semaphore>,
    /// Whether a request waits for as long as the model has no room for it. Otherwise it waits for five minutes.
    pub is_patient: bool,
}

/// What a route has answered.
struct Answered {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
    /// Another time may do better.
    is_refused: bool,
    /// The model was not loaded, or failed.
    has_no_model: bool,
}

impl Sender {
    /// The answer to a request. While the queue is full or the model is restarted, the request is repeated.
    pub async fn answer(&self, request: BatchRequest) -> Answer {
        let BatchRequest { custom_id, url, body, .. } = request;
        let (body, began) = (Bytes::from(String::from(Box::<str>::from(body))), Instant::now());
        let answered = loop {
            let answered = self.send(&url, body.clone()).await;
            let is_limited = !self.is_patient || answered.has_no_model;
            if !answered.is_refused || is_limited && began.elapsed() > LONGEST_REFUSAL {
                break answered;
            }
            // Without a slot, so that requests for other models go on.
            sleep(retry_after(&answered.headers)).await;
        };
        Answer { id: new_id(), custom_id, response: Some(answered.response()), error: None }
    }

    async fn send(&self, url: &str, body: Bytes) -> Answered {
        // The semaphore is never closed.
        let _slot = self.slots.acquire().await;
        let request = Request::post(url).header(CONTENT_TYPE, "application/json").body(Body::from(body));
        let request = request.expect("the routes of a batch are valid addresses");
        let Ok(response) = self.router.clone().oneshot(request).await;
        let (parts, body) = response.into_parts();
        let is_refused = [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&parts.status);
        let has_no_model = parts.extensions.get::<ApiError>().is_some_and(has_no_model);
        let (status, body) = match body.collect().await {
            Ok(body) => (parts.status, body.to_bytes()),
            Err(error) => {
                let body = json!({ "error": { "message": format!("the answer was broken off: {error}") } });
                (StatusCode::INTERNAL_SERVER_ERROR, body.to_string().into())
            }
        };
        Answered { status, headers: parts.headers, body, is_refused, has_no_model }
    }
}

/// Whether the model of a request is of no use, and not only busy.
fn has_no_model(error: &ApiError) -> bool {
    use ModelsError::{Failed, FileChanged, NotLoaded};
    matches!(error, ApiError::Model(Failed { .. } | FileChanged { .. } | NotLoaded(_)))
}

impl Answered {
    fn response(self) -> Response {
        let request_id = self.headers.get("x-request-id").and_then(|id| id.to_str().ok()).unwrap_or_default();
        let text = || Value::String(String::from_utf8_lossy(&self.body).into_owned());
        Response {
            status_code: self.status.as_u16(),
            request_id: request_id.to_owned(),
            body: serde_json::from_slice(&self.body).unwrap_or_else(|_| text()),
        }
    }
}

/// The time after which a refused request is repeated.
fn retry_after(headers: &HeaderMap) -> Duration {
    let seconds = headers.get(RETRY_AFTER).and_then(|header| header.to_str().ok()?.parse().ok());
    Duration::from_secs(seconds.unwrap_or(1))
}
