//! How far a load is.

/// How far a load is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LoadProgress {
    /// Bytes loaded so far.
    pub done_bytes: u64,
    /// Bytes in total.
    pub total_bytes: u64,
}
