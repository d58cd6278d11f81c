//! The HTTP call that a request belongs to: its ids and its parent span.
//!
//! The context is a task-local of the task that serves the call, so the layers between the HTTP handler and the pipeline
//! do not pass it along.

use std::sync::{Arc, OnceLock};

tokio::task_local! {
    static CURRENT: Arc<RequestContext>;
}

/// One HTTP call of a client.
#[derive(Debug, Default)]
pub struct RequestContext {
    /// The value of the `x-request-id` header.
    pub request_id: String,
    /// The operation in the terms of the OpenTelemetry GenAI conventions: "chat" or "text_completion".
    pub operation: &'static str,
    /// The client's span, from the `traceparent` header.
    pub parent: Option<TraceParent>,
    response_id: OnceLock<String>,
}

impl RequestContext {
    /// A call that has no response yet.
    #[must_use]
    pub fn new(request_id: String, operation: &'static str, parent: Option<TraceParent>) -> Self {
        RequestContext { request_id, operation, parent, response_id: OnceLock::new() }
    }

    /// Runs a future with this context as the current one.
    pub async fn serve<F: Future>(self: Arc<Self>, service: F) -> F::Output {
        CURRENT.scope(self, service).await
    }

    /// The context of the call that the current task serves.
    #[must_use]
    pub fn current() -> Option<Arc<RequestContext>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Sets the response id of the call that the current task serves, if any.
    pub fn answered_as(response_id: &str) {
        // A call has one response, so a second id is ignored.
        let _ = CURRENT.try_with(|context| context.response_id.set(response_id.to_owned()));
    }

    /// The id of the response, once there is one.
    #[must_use]
    pub fn response_id(&self) -> Option<&str> {
        self.response_id.get().map(String::as_str)
    }
}

/// A span of the caller, in W3C Trace Context format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// Id of the trace.
    pub trace_id: u128,
    /// Id of the span within the trace.
    pub span_id: u64,
    /// Whether the caller samples the trace. The server records its spans only when this is set.
    pub is_sampled: bool,
}

impl TraceParent {
    /// Parses `00-<32 hex digits>-<16 hex digits>-<2 hex digits>`. Later versions may append more fields.
    #[must_use]
    pub fn parse(header: &str) -> Option<Self> {
        let mut parts = header.trim().split('-');
        let mut hex = |digits: usize| {
            let part = parts.next()?;
            let is_hex = part.len() == digits && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            is_hex.then(|| u128::from_str_radix(part, 16).ok()).flatten()
        };
        let (version, trace_id, span_id, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        let is_complete = parts.next().is_none();
        if version == 0xff || (version == 0 && !is_complete) || trace_id == 0 || span_id == 0 {
            return None;
        }
        Some(TraceParent { trace_id, span_id: u64::try_from(span_id).ok()?, is_sampled: flags & 1 == 1 })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn trace_parents_are_parsed_as_the_standard_says() {
        let parent = TraceParent::parse("00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01").unwrap();
        assert_eq!(parent.trace_id, 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736);
        assert_eq!((parent.span_id, parent.is_sampled), (0x00f0_67aa_0ba9_02b7, true));
        let later = TraceParent::parse("cc-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00-more").unwrap();
        assert!(!later.is_sampled);
        for wrong in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-more",
            "ff-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473é-00f067aa0ba902b7-01",
        ] {
            assert_eq!(TraceParent::parse(wrong), None, "{wrong}");
        }
    }

    #[tokio::test]
    async fn the_context_is_visible_only_inside_the_task_that_serves_the_call() {
        let context = Arc::new(RequestContext::new("req_1".into(), "chat", None));
        context
            .clone()
            .serve(async {
                assert_eq!(RequestContext::current().unwrap().request_id, "req_1");
                RequestContext::answered_as("chatcmpl-1");
            })
            .await;
        assert_eq!(context.response_id(), Some("chatcmpl-1"));
        assert!(RequestContext::current().is_none());
        RequestContext::answered_as("ignored");
    }
}
