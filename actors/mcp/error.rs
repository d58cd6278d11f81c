//! Why a server or a call failed.

use std::time::Duration;

/// Why a server is not ready.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// Its program cannot be started.
    #[error("the MCP server {name} cannot be started: {reason}")]
    NotStarted {
        /// The server.
        name: String,
        /// The cause.
        reason: String,
    },
    /// It ended, or answered with something else than what the protocol asks for.
    #[error("the MCP server {name} did not start: {reason}{}", after(lines))]
    Failed {
        /// The server.
        name: String,
        /// The cause.
        reason: String,
        /// The last lines of its standard error.
        lines: Vec<String>,
    },
    /// It took too long.
    #[error("the MCP server {name} did not answer within {} s{}{}", limit.as_secs_f64(), instead(stray), after(lines))]
    Silent {
        /// The server.
        name: String,
        /// How long it had.
        limit: Duration,
        /// What it wrote first, if that is no message.
        stray: Option<String>,
        /// The last lines of its standard error.
        lines: Vec<String>,
    },
}

/// What a server wrote instead of messages, for the middle of a sentence.
fn instead(stray: &Option<String>) -> String {
    let line = stray.as_ref().map(|line| format!("; its standard output begins with {line:?}, which is no message"));
    line.unwrap_or_default()
}

/// The last lines of standard error, for the end of a sentence.
fn after(lines: &[String]) -> String {
    if lines.is_empty() {
        return String::new();
    }
    format!("; the end of its standard error:\n  {}", lines.join("\n  "))
}

/// Why a call has no result.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// It took too long and was cancelled.
    #[error("the tool did not answer within {} s, and the call was cancelled", .0.as_secs_f64())]
    TimedOut(Duration),
    /// The server has ended, or cannot be reached.
    #[error("the server of the tool has ended; it is started again before the next question")]
    ServerEnded,
    /// The server refused the call, or answered with something else than a result.
    #[error("the call failed: {0}")]
    Failed(String),
}
