//! Why a job of a comparison gave no figures.

use std::time::Duration;

use super::child::ChildError;
use crate::cli::bench::serve::client::ServerError;
use crate::cli::bench::serve::record::Failure;

/// Why a job gave no figures, or only some.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// A child process failed.
    #[error(transparent)]
    Child(#[from] ChildError),
    /// The engine benchmark printed unusable results.
    #[error(transparent)]
    Engine(#[from] ResultsError),
    /// The server failed.
    #[error(transparent)]
    Serving(#[from] ServingError),
}

/// Why the output of an engine benchmark cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ResultsError {
    /// The output is not a list of results.
    #[error("the output is not llama-bench's JSON: {0}")]
    NotJson(serde_json::Error),
    /// A row is missing.
    #[error("the output has no result for {0}")]
    Missing(String),
}

/// Why a server gave no figures, or only some.
#[derive(Debug, thiserror::Error)]
pub enum ServingError {
    /// No port is free.
    #[error("no free port on 127.0.0.1")]
    NoPort(#[source] std::io::Error),
    /// The server did not become ready.
    #[error("the server answered no request within {} s: {failure}", .timeout.as_secs())]
    NotReady {
        /// How long the client waited.
        timeout: Duration,
        /// The failure of the last request.
        failure: Failure,
    },
    /// The first request failed.
    #[error("the first request to the server failed: {0}")]
    First(Failure),
    /// The server cannot be measured.
    #[error(transparent)]
    Server(#[from] ServerError),
    /// Some requests were not answered.
    #[error("{failed} of {requests} requests of {clients} clients failed: {example}")]
    Failed {
        /// Number of clients.
        clients: usize,
        /// Failed requests.
        failed: usize,
        /// All requests.
        requests: usize,
        /// The message of one of them.
        example: String,
    },
}
