//! The memory of a request, as far as serving it needs more than its body.

use super::error::ApiError;

/// Memory that is reserved for a request and given back when this is dropped.
pub(crate) trait RequestBudget: Send + Sync + 'static {
    /// Reserves `bytes` more.
    ///
    /// # Errors
    /// [`ApiError::RequestTooComplex`] and [`ApiError::OutOfRequestMemory`].
    fn grow(&mut self, bytes: usize) -> Result<(), ApiError>;

    /// Gives back all but `bytes`.
    fn shrink_to(&mut self, bytes: usize);

    /// Bytes that are reserved.
    fn held(&self) -> usize;
}

/// No limit, for a program that has only its own requests.
impl RequestBudget for () {
    fn grow(&mut self, _bytes: usize) -> Result<(), ApiError> {
        Ok(())
    }

    fn shrink_to(&mut self, _bytes: usize) {}

    fn held(&self) -> usize {
        0
    }
}
