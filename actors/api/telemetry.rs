//! What is recorded about every call: a request id that goes back to the client, a log line, and HTTP metrics.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use axum::middleware::Next;
use axum::response::Response;
use metrics::{counter, histogram};
use tracing::Instrument;

use crate::metrics::catalogue::{HTTP_REQUESTS, HTTP_RESPONSE_START};
use crate::trace::call::{Call, TraceParent};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

/// Gives the call its id, and records it once its response starts.
pub(super) async fn observe(request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request_id(request.headers());
    let method = request.method().clone();
    // The pattern, not the path: what clients invent must not become labels.
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).to_owned();
    let span = tracing::info_span!("http", request_id = id.to_str().unwrap_or_default(), %method, route);
    let parent = request.headers().get(TRACE_PARENT).and_then(|header| TraceParent::parse(header.to_str().ok()?));
    let call = Call::new(id.to_str().unwrap_or_default().to_owned(), operation(&route), parent);
    let mut response = Arc::new(call).serve(next.run(request).instrument(span.clone())).await;
    let (status, elapsed) = (response.status(), started.elapsed());
    span.in_scope(|| tracing::debug!(status = status.as_u16(), elapsed_ms = elapsed.as_millis() as u64, "answered"));
    let labels = [
        ("method", known_method(method.as_str()).to_owned()),
        ("route", route.clone()),
        ("status", status.as_u16().to_string()),
    ];
    counter!(HTTP_REQUESTS, &labels).increment(1);
    histogram!(HTTP_RESPONSE_START, "route" => route).record(elapsed);
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// What a route does, as GenAI conventions word it.
fn operation(route: &str) -> &'static str {
    match route {
        "/v1/chat/completions" => "chat",
        "/v1/completions" => "text_completion",
        _ => "other",
    }
}

/// A fresh id for the answer to the current call, like `chatcmpl-…`.
pub(super) fn response_id(prefix: &str) -> String {
    let id = format!("{prefix}-{}", uuid::Uuid::new_v4().simple());
    Call::answered_as(&id);
    id
}

/// The client's own id when it is short and plain, else a fresh one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    const LONGEST: usize = 128;
    let given = headers.get(REQUEST_ID).filter(|id| (1..=LONGEST).contains(&id.len()) && id.to_str().is_ok());
    given.cloned().unwrap_or_else(|| {
        let fresh = format!("req_{}", uuid::Uuid::new_v4().simple());
        HeaderValue::try_from(fresh).expect("letters, digits and an underscore are a header value")
    })
}

/// The method as a label; a client can invent methods without end.
fn known_method(method: &str) -> &str {
    match method {
        "GET" | "POST" | "HEAD" | "OPTIONS" | "PUT" | "DELETE" | "PATCH" => method,
        _ => "other",
    }
}
