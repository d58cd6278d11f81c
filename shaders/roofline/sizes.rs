//! How much work one call does.

/// The number of times that one call uses each register: some tens of microseconds.
pub(super) const ROUNDS: u64 = 1 << 14;

/// Bytes that one round of [`read`](super::read) reads.
pub(super) const READ_BYTES: usize = 512;
