//! The status of a running model or of one of its replicas.

use cuelight_engine::load::LoadProgress;

/// The status of a model.
#[derive(Debug, Clone, PartialEq)]
pub enum Status {
    /// The model is being loaded for the first time.
    Loading(LoadProgress),
    /// Requests run.
    Ready,
    /// The executor is being rebuilt. Requests wait.
    Recovering,
    /// No new requests are accepted. Running requests finish.
    Draining,
    /// The model could not be loaded or failed too often, with the reason.
    Failed(String),
    /// The model's file changed while it was loaded, so it must be loaded again by request. The text names the file.
    FileChanged(String),
}

impl Status {
    /// Every value that [`Self::word`] returns.
    pub const WORDS: [&str; 5] = ["loading", "ready", "recovering", "draining", "failed"];

    /// Why the model does not run and will not recover by itself; `None` while it may.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        match self {
            Status::Failed(reason) | Status::FileChanged(reason) => Some(reason),
            Status::Loading(_) | Status::Ready | Status::Recovering | Status::Draining => None,
        }
    }

    /// The status as one word, for metrics and traces.
    #[must_use]
    pub fn word(&self) -> &'static str {
        match self {
            Status::Loading(_) => "loading",
            Status::Ready => "ready",
            Status::Recovering => "recovering",
            Status::Draining => "draining",
            Status::Failed(_) | Status::FileChanged(_) => "failed",
        }
    }
}
