//! How long a model stays loaded without calls.

use std::time::Duration;

/// How long a model stays loaded without calls.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepAlive {
    /// For this time. Zero unloads it after its last call.
    For(Duration),
    /// Until its memory is needed.
    Forever,
}

impl KeepAlive {
    /// The keep-alive time. `None` when there is no limit.
    pub(super) fn limit(self) -> Option<Duration> {
        match self {
            KeepAlive::For(limit) => Some(limit),
            KeepAlive::Forever => None,
        }
    }
}
