//! The limits of connections.

use std::time::Duration;

/// Time limits of connections, and how many there may be.
#[derive(Debug, Clone)]
pub struct ConnectionOptions {
    /// Maximum number of connections.
    pub max_connections: usize,
    /// How long a client may take to send the headers of a request.
    pub header_timeout: Duration,
    /// How long a connection without a request stays open.
    pub idle_timeout: Duration,
    /// How long a client may stop reading its response.
    pub stall_timeout: Duration,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        ConnectionOptions {
            max_connections: 4096,
            header_timeout: Duration::from_secs(10),
            idle_timeout: Duration::from_secs(75),
            stall_timeout: Duration::from_secs(30),
        }
    }
}
