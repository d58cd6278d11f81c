//! The call that a request came with: its ids, and whose trace it is a part of.
//!
//! The call is known to the task that serves it, so that nobody between the HTTP layer and the end of a request has to
//! pass it on but with the request itself.

use std::sync::{Arc, OnceLock};

tokio::task_local! {
    static CURRENT: Arc<Call>;
}

/// One call of a client.
#[derive(Debug, Default)]
pub struct Call {
    /// `x-request-id`.
    pub request_id: String,
    /// What it does, as GenAI conventions word it: "chat" or "text_completion".
    pub operation: &'static str,
    /// The client's span, from the header `traceparent`.
    pub parent: Option<TraceParent>,
    response_id: OnceLock<String>,
}

impl Call {
    /// A call that has no answer yet.
    #[must_use]
    pub fn new(request_id: String, operation: &'static str, parent: Option<TraceParent>) -> Self {
        Call { request_id, operation, parent, response_id: OnceLock::new() }
    }

    /// Runs what serves the call.
    pub async fn serve<F: Future>(self: Arc<Self>, service: F) -> F::Output {
        CURRENT.scope(self, service).await
    }

    /// The call that this task serves.
    #[must_use]
    pub fn current() -> Option<Arc<Call>> {
        CURRENT.try_with(Arc::clone).ok()
    }

    /// Notes the id of the answer to the call that this task serves, if it serves one.
    pub fn answered_as(response_id: &str) {
        // The first answer stands; there is only one.
        let _ = CURRENT.try_with(|call| call.response_id.set(response_id.to_owned()));
    }

    /// The id of its answer, once it has one.
    #[must_use]
    pub fn response_id(&self) -> Option<&str> {
        self.response_id.get().map(String::as_str)
    }
}

/// A span of a caller, as W3C Trace Context writes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceParent {
    /// The trace.
    pub trace_id: u128,
    /// The span in it.
    pub span_id: u64,
    /// Whether the caller records it; then so do we, else nobody does.
    pub is_sampled: bool,
}

impl TraceParent {
    /// Reads `00-<32 hex digits>-<16 hex digits>-<2 hex digits>`. A later version may have more after that.
    #[must_use]
    pub fn parse(header: &str) -> Option<Self> {
        let mut parts = header.trim().split('-');
        let mut hex = |digits: usize| {
            let part = parts.next()?;
            let is_hex = part.len() == digits && part.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
            is_hex.then(|| u128::from_str_radix(part, 16).ok()).flatten()
        };
        let (version, trace_id, span_id, flags) = (hex(2)?, hex(32)?, hex(16)?, hex(2)?);
        let is_over = parts.next().is_none();
        if version == 0xff || (version == 0 && !is_over) || trace_id == 0 || span_id == 0 {
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
    fn a_trace_parent_is_read_as_the_standard_says() {
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
    async fn a_call_is_known_where_it_is_served_and_nowhere_else() {
        let call = Arc::new(Call::new("req_1".into(), "chat", None));
        call.clone()
            .serve(async {
                assert_eq!(Call::current().unwrap().request_id, "req_1");
                Call::answered_as("chatcmpl-1");
            })
            .await;
        assert_eq!(call.response_id(), Some("chatcmpl-1"));
        assert!(Call::current().is_none());
        Call::answered_as("nobody's");
    }
}
