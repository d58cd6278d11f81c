//! Drafts: tokens that are verified several at a time.

/// Where the tokens of a draft come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DraftSource {
    /// An earlier part of the prompt or the answer.
    Lookup,
    /// The answer that the client expects.
    Prediction,
    /// A constraint that allows nothing else.
    Constraint,
}

impl DraftSource {
    /// The names of all sources, in the order of the variants.
    pub const NAMES: [&str; 3] = ["ngram", "prediction", "constraint"];

    /// Its name in metrics.
    #[must_use]
    pub fn name(self) -> &'static str {
        Self::NAMES[self as usize]
    }
}
