//! The record of a request that has ended. Its metrics, its log line and its spans are made from it.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::request::{RequestId, Usage};
use super::request_context::RequestContext;

/// A request that has ended.
#[derive(Debug, Clone)]
pub struct EndedRequest {
    /// The request.
    pub id: RequestId,
    /// The HTTP call that the request belongs to. `None` when it did not arrive over HTTP.
    pub context: Option<Arc<RequestContext>>,
    /// How it ended, as one of [`Event::END_REASONS`](super::request::Event::END_REASONS).
    pub reason: &'static str,
    /// The error message, when it failed.
    pub error: Option<String>,
    /// Its tokens and times.
    pub usage: Usage,
    /// When its phases began.
    pub times: RequestTimes,
    /// When it ended.
    pub at: Instant,
    /// Maximum number of tokens that it was allowed to generate.
    pub max_tokens: usize,
    /// Its sampling temperature.
    pub temperature: f32,
    /// Its nucleus sampling threshold.
    pub top_p: f32,
    /// Total time spent on converting its tokens to text. Measured only while tracing.
    pub detokenise_time: Option<Duration>,
}

/// When the phases of a request began.
#[derive(Debug, Clone, Copy)]
pub struct RequestTimes {
    /// When the request was submitted.
    pub submitted: Instant,
    /// When it first took part in a step.
    pub started: Option<Instant>,
    /// When its first token was sampled.
    pub first_token: Option<Instant>,
    /// When its latest token was sampled.
    pub last_token: Option<Instant>,
    /// When the token before the latest was sampled.
    pub previous_token: Option<Instant>,
}
