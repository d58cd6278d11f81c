//! Why audio cannot be prepared.

/// Why audio cannot be prepared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AudioError {
    /// It gives no row.
    #[error("the audio has {samples} samples at 16 kHz, too few for this model")]
    TooShort {
        /// Its samples.
        samples: usize,
    },
}
