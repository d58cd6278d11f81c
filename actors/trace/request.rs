//! What is known of a request when it ends: the source of its metrics, its log line and its spans.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::call::Call;
use crate::request::{RequestId, Usage};
use crate::sampler::sequence::Times;

/// A request that ended.
#[derive(Debug, Clone)]
pub struct EndedRequest {
    /// The request.
    pub id: RequestId,
    /// The call it came with, if it came over HTTP.
    pub call: Option<Arc<Call>>,
    /// How it ended, in a word.
    pub reason: &'static str,
    /// Why it failed.
    pub error: Option<String>,
    /// What was counted.
    pub usage: Usage,
    pub(crate) times: Times,
    /// When it ended.
    pub at: Instant,
    /// Most tokens that it might generate.
    pub max_tokens: usize,
    /// How its tokens were chosen.
    pub temperature: f32,
    /// The same.
    pub top_p: f32,
    /// Time that turning its tokens into text took in all, when it was measured.
    pub detokenising: Option<Duration>,
}

impl EndedRequest {
    /// Writes the one log line that every request leaves.
    pub(crate) fn log(&self, model: &str) {
        let request_id = self.call.as_ref().map(|call| call.request_id.as_str());
        let Usage { prompt_tokens, cached_tokens, completion_tokens, .. } = self.usage;
        let queue_ms = self.times.started.map(|started| millis(started.duration_since(self.times.submitted)));
        let ttft_ms = self.times.first_token.map(|first| millis(first.duration_since(self.times.submitted)));
        let total_ms = millis(self.at.duration_since(self.times.submitted));
        macro_rules! line {
            ($level:ident, $message:literal $(, $field:ident)*) => {
                // Without the span of the actor that happens to write it.
                tracing::$level!(
                    parent: None, request_id, request = self.id.0, model, reason = self.reason, prompt_tokens, cached_tokens,
                    completion_tokens, queue_ms, ttft_ms, total_ms, $($field,)* $message
                )
            };
        }
        match &self.error {
            None => line!(info, "request ended"),
            Some(error) => line!(warn, "request failed", error),
        }
    }
}

/// Milliseconds to the microsecond.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
