//! Where bytes are hashed: a recurrent state is so large that hashing it would hold up the other tasks of an async worker.

use tokio::task::spawn_blocking;

/// The most bytes that are hashed on an async worker.
const INLINE_BYTES: usize = 2 << 20;

/// Runs work on a number of bytes, on a thread for blocking work if they are many. `None` when that work panicked, or the runtime
/// ends.
pub(super) async fn hash_aside<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    match bytes <= INLINE_BYTES {
        true => Some(work()),
        false => spawn_blocking(work).await.ok(),
    }
}
