//! Why a call does not get its model.

use std::time::Duration;

/// Why a call does not get its model.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum ModelsError {
    /// No model has this name.
    #[error("the model `{0}` does not exist here; GET /v1/models lists those that do")]
    Unknown(String),
    /// No name was given, and there is no default model.
    #[error("name a model in `model`; GET /v1/models lists those that are here")]
    Unnamed,
    /// The model is not loaded, and this call does not load it.
    #[error("the model `{0}` is not loaded, and this call does not load it: POST /models/load does, with this name")]
    NotLoaded(String),
    /// The model does not fit into memory.
    #[error("{0}")]
    TooLarge(String),
    /// The model could not be loaded or failed too often.
    #[error("the model `{id}` is not available: {reason}")]
    Failed {
        /// The name of the model.
        id: String,
        /// The reason, as a sentence.
        reason: String,
    },
    /// The model's file changed while it was loaded. It stays unusable until it is loaded by request.
    #[error("the model `{id}` is not available: {reason}")]
    FileChanged {
        /// The name of the model.
        id: String,
        /// The reason, as a sentence.
        reason: String,
    },
    /// The model is not available now.
    #[error("{reason}")]
    Unavailable {
        /// The reason, as a sentence.
        reason: String,
        /// When to try again.
        retry_after: Duration,
    },
    /// Too many calls wait for the model.
    #[error("{waiting} calls wait for the model `{id}` to be loaded; try again later")]
    Overloaded {
        /// The name of the model.
        id: String,
        /// Number of waiting calls.
        waiting: usize,
    },
    /// The model cannot be unloaded, because the broker did not load it.
    #[error("the model `{0}` is served for as long as this program runs; it cannot be unloaded")]
    Fixed(String),
}

impl ModelsError {
    pub(super) fn unavailable(reason: String, seconds: u64) -> Self {
        ModelsError::Unavailable { reason, retry_after: Duration::from_secs(seconds) }
    }

    pub(super) fn stopping() -> Self {
        Self::unavailable("the server is shutting down".to_owned(), 5)
    }
}
