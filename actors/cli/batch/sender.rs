//! Sends requests to the routes of the API, in this process.

use std::time::{Duration, Instant};

use axum::Router;
use axum::body::{Body, Bytes};
use axum::http::header::{CONTENT_TYPE, RETRY_AFTER};
use axum::http::{HeaderMap, Request, StatusCode};
use http_body_util::BodyExt;
use serde_json::{Value, json};
use tokio::time::sleep;
use tower::ServiceExt;

use super::answers::{Answer, Response};
use super::requests::BatchRequest;

/// How long a request is repeated while the model takes no requests.
const LONGEST_REFUSAL: Duration = Duration::from_secs(5 * 60);

/// Sends requests to the routes of the API.
pub struct Sender {
    /// The routes.
    pub router: Router,
}

/// What a route has answered.
struct Answered {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl Sender {
    /// The answer to a request. While the queue is full or the model is restarted, the request is repeated.
    pub async fn answer(&self, request: BatchRequest) -> Answer {
        let BatchRequest { custom_id, url, body, .. } = request;
        let (body, began) = (Bytes::from(Value::Object(body).to_string()), Instant::now());
        let answered = loop {
            let answered = self.send(&url, body.clone()).await;
            let is_refused =
                [StatusCode::TOO_MANY_REQUESTS, StatusCode::SERVICE_UNAVAILABLE].contains(&answered.status);
            if !is_refused || began.elapsed() > LONGEST_REFUSAL {
                break answered;
            }
            sleep(retry_after(&answered.headers)).await;
        };
        let id = format!("batch_req_{}", uuid::Uuid::new_v4().simple());
        Answer { id, custom_id, response: answered.response(), error: None }
    }

    async fn send(&self, url: &str, body: Bytes) -> Answered {
        let request = Request::post(url).header(CONTENT_TYPE, "application/json").body(Body::from(body));
        let request = request.expect("the routes of a batch are valid addresses");
        let Ok(response) = self.router.clone().oneshot(request).await;
        let (parts, body) = response.into_parts();
        match body.collect().await {
            Ok(body) => Answered { status: parts.status, headers: parts.headers, body: body.to_bytes() },
            Err(error) => {
                let body = json!({ "error": { "message": format!("the answer was broken off: {error}") } });
                let status = StatusCode::INTERNAL_SERVER_ERROR;
                Answered { status, headers: parts.headers, body: body.to_string().into() }
            }
        }
    }
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
