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
    /// The model takes less at once.
    #[error("the audio has {samples} samples at 16 kHz, but this model takes at most {most} ({} s)", most / crate::audio::SAMPLE_RATE)]
    TooLong {
        /// Its samples.
        samples: usize,
        /// The most that it takes.
        most: usize,
    },
}
