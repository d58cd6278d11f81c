//! What applies where a request says nothing: what the publisher of a model recommends, and what comes before it.

use crate::sample::{PartialSampling, RecommendedSampling};

/// What the publisher of a model recommends next to its file. The default is nothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Recommended {
    /// How to sample. It comes before what the file states.
    pub sampling: RecommendedSampling,
    /// Texts that end an answer, where a request names none.
    pub stop: Vec<String>,
    /// Instructions before a conversation that begins without any.
    pub system: Option<String>,
}

/// What applies where a request says nothing. The default is nothing.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct RequestDefaults {
    /// How to sample.
    pub sampling: PartialSampling,
    /// Instructions before a conversation that begins without any.
    pub system: Option<String>,
}

impl Recommended {
    /// The sampling, where the file itself states `sampling`.
    #[must_use]
    pub fn sampling_over(&self, sampling: RecommendedSampling) -> RecommendedSampling {
        let warnings = [sampling.warnings.clone(), self.sampling.warnings.clone()].concat();
        RecommendedSampling { stated: self.sampling.stated.or(sampling.stated), warnings, ..sampling }
    }
}
