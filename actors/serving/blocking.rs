//! Runs work that takes long on threads where it delays no connection.

use tokio::sync::oneshot;

use super::error::ApiError;

/// Runs `work` on this thread when it is small, else on a blocking thread.
///
/// # Errors
/// What `work` returns; [`ApiError::Internal`] when it panics.
pub(crate) async fn off_worker<T: Send + 'static>(
    bytes: usize,
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    /// This many bytes are parsed or tokenised in about a millisecond.
    const INLINE_BYTES: usize = 8 << 10;
    if bytes <= INLINE_BYTES {
        return work();
    }
    on_blocking_thread(work).await
}

/// Runs `work` on a blocking thread.
///
/// # Errors
/// What `work` returns; [`ApiError::Internal`] when it panics.
pub(crate) async fn on_blocking_thread<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, ApiError> + Send + 'static,
) -> Result<T, ApiError> {
    let (result, received) = oneshot::channel();
    run(Box::new(move || drop(result.send(work())))).await?;
    received.await.map_err(|_| ApiError::Internal)?
}

/// [`on_blocking_thread`] without type parameters: tokio's code of a task is compiled for each type of work.
async fn run(work: Box<dyn FnOnce() + Send>) -> Result<(), ApiError> {
    tokio::task::spawn_blocking(work).await.map_err(|panic| {
        tracing::error!(%panic, "work on a request failed");
        ApiError::Internal
    })
}
