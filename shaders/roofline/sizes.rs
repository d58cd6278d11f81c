//! How much work one call does.

/// The number of times that one call uses each register: some tens of microseconds.
pub(super) const ROUNDS: u64 = 1 << 14;

/// How far ahead memory is prefetched, in bytes, as in the kernels of [`matmul`](crate::matmul).
pub(super) const PREFETCH_AHEAD: usize = 8 * 1024;

/// Bytes that one round of [`read`](super::read) reads.
pub(super) const READ_BYTES: usize = 512;
