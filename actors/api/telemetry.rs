//! Records every request: an id that is returned to the client, HTTP metrics, and log lines.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method};
use axum::middleware::Next;
use axum::response::Response;
use metrics::{counter, histogram};
use tracing::Instrument;

use crate::metrics::catalogue::{HTTP_REQUESTS, HTTP_RESPONSE_START};
use crate::serving::error::ApiError;
use crate::trace::request_context::{RequestContext, TraceParent};

const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
const TRACE_PARENT: HeaderName = HeaderName::from_static("traceparent");

/// Gives the request its id, and records it when its response starts.
pub(super) async fn observe(request: Request, next: Next) -> Response {
    let started = Instant::now();
    let id = request_id(request.headers());
    let method = request.method().clone();
    // The pattern and not the path: a label must not have values that clients invent.
    let route = request.extensions().get::<MatchedPath>().map_or("unmatched", MatchedPath::as_str).to_owned();
    let span = tracing::info_span!("http", request_id = id.to_str().unwrap_or_default(), %method, route);
    let parent = request.headers().get(TRACE_PARENT).and_then(|header| TraceParent::parse(header.to_str().ok()?));
    let context = RequestContext::new(id.to_str().unwrap_or_default().to_owned(), operation(&route), parent);
    let mut response = Arc::new(context).serve(next.run(request).instrument(span.clone())).await;
    let elapsed = started.elapsed();
    let asked = Asked { request_id: id.to_str().unwrap_or_default(), method: &method, route: &route };
    span.in_scope(|| log(&asked, &response, elapsed.as_millis() as u64));
    let labels = [
        ("method", known_method(method.as_str()).to_owned()),
        ("route", route.clone()),
        ("status", response.status().as_u16().to_string()),
    ];
    counter!(HTTP_REQUESTS, &labels).increment(1);
    histogram!(HTTP_RESPONSE_START, "route" => route).record(elapsed);
    response.headers_mut().insert(REQUEST_ID, id);
    response
}

/// A request in the log.
struct Asked<'a> {
    request_id: &'a str,
    method: &'a Method,
    route: &'a str,
}

/// One line for each request. A refused request has an error code and is visible at the default log level. It has its request
/// id where the line of a request that ended has it, and not only in its span.
fn log(asked: &Asked<'_>, response: &Response, elapsed_ms: u64) {
    let status = response.status().as_u16();
    let Asked { request_id, method, route } = asked;
    match response.extensions().get::<ApiError>() {
        Some(error) => {
            let code = error.code();
            tracing::info!(request_id, %method, route, status, code, elapsed_ms, "request refused");
        }
        None => tracing::debug!(status, elapsed_ms, "request answered"),
    }
}

/// The operation of a route, as the OpenTelemetry conventions for generative AI name it.
fn operation(route: &str) -> &'static str {
    match route {
        "/v1/chat/completions"
        | "/chat/completions"
        | "/v1/responses"
        | "/responses"
        | "/v1/messages"
        | "/api/chat"
        | "/api/generate" => "chat",
        "/v1/completions" | "/completions" | "/completion" | "/infill" => "text_completion",
        _ => "other",
    }
}

/// A fresh id for the response to the current request, like `chatcmpl-…`.
pub(super) fn response_id(prefix: &str) -> String {
    let id = format!("{prefix}{}", uuid::Uuid::new_v4().simple());
    RequestContext::answered_as(&id);
    id
}

/// The client's own id when it is short and plain text, else a fresh one.
fn request_id(headers: &HeaderMap) -> HeaderValue {
    const LONGEST: usize = 128;
    let given = headers.get(REQUEST_ID).filter(|id| (1..=LONGEST).contains(&id.len()) && id.to_str().is_ok());
    given.cloned().unwrap_or_else(|| {
        let fresh = format!("req_{}", uuid::Uuid::new_v4().simple());
        HeaderValue::try_from(fresh).expect("letters, digits and an underscore are a header value")
    })
}

/// The method as a label. Clients can invent any number of methods.
fn known_method(method: &str) -> &str {
    match method {
        "GET" | "POST" | "HEAD" | "OPTIONS" | "PUT" | "DELETE" | "PATCH" => method,
        _ => "other",
    }
}
