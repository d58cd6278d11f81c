//! The log line of a request that has ended.

use std::time::Duration;

use crate::core::ended_request::EndedRequest;
use crate::core::request::Usage;

/// Writes the log line of a request. Every request has exactly one.
pub(crate) fn log_ended_request(request: &EndedRequest, model: &str) {
    let request_id = request.context.as_ref().map(|context| context.request_id.as_str());
    let Usage { prompt_tokens, cached_tokens, completion_tokens, .. } = request.usage;
    let times = &request.times;
    let queue_ms = times.started.map(|started| millis(started.duration_since(times.submitted)));
    let ttft_ms = times.first_token.map(|first| millis(first.duration_since(times.submitted)));
    let total_ms = millis(request.at.duration_since(times.submitted));
    macro_rules! line {
        ($level:ident, $message:literal $(, $field:ident)*) => {
            // Without a parent, so that the line does not carry the span of the actor that writes it.
            tracing::$level!(
                parent: None, request_id, request = request.id.0, model, reason = request.reason, prompt_tokens,
                cached_tokens, completion_tokens, queue_ms, ttft_ms, total_ms, $($field,)* $message
            )
        };
    }
    match &request.error {
        None => line!(info, "request ended"),
        Some(error) => line!(warn, "request failed", error),
    }
}

/// Milliseconds, rounded to a microsecond.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
