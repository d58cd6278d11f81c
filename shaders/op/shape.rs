//! The error of an op whose dimensions do not fit.

/// Why an op cannot be built or wired.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShapeError {
    /// A dimension differs from the one that the op needs.
    #[error("{op}: {what} is {found}, but must be {expected}")]
    Mismatch {
        /// The op that reports the error.
        op: &'static str,
        /// The dimension in words, with the tensor's name if there is one.
        what: String,
        /// The size found.
        found: usize,
        /// The required size or rule.
        expected: String,
    },
}

impl ShapeError {
    /// Checks `found == expected`.
    ///
    /// # Errors
    /// [`ShapeError::Mismatch`] when they differ.
    pub fn check(op: &'static str, what: impl Into<String>, found: usize, expected: usize) -> Result<(), ShapeError> {
        if found == expected {
            return Ok(());
        }
        Err(ShapeError::Mismatch { op, what: what.into(), found, expected: expected.to_string() })
    }
}
