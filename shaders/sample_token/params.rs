//! The sampling parameters of a row, and what sampling a row gives.

/// Sampling parameters that need no state beyond the row of logits.
///
/// The caller must ensure that the values are in their ranges.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RowSamplingParams {
    /// Divides the logits; 0 takes the most likely token.
    pub temperature: f32,
    /// Keep the k most likely tokens; 0 keeps all.
    pub top_k: u32,
    /// Keep the fewest most likely tokens whose probabilities sum to this; 1 keeps all.
    pub top_p: f32,
    /// Keep tokens at least this likely relative to the most likely; 0 keeps all.
    pub min_p: f32,
    /// The random number of this draw: 64 uniform bits.
    pub random: u64,
}

impl RowSamplingParams {
    /// Selects the most likely token.
    pub const GREEDY: RowSamplingParams =
        RowSamplingParams { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, random: 0 };

    /// Whether the result is the most likely token for every random number.
    #[must_use]
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0 || self.top_k == 1
    }
}

/// The result of sampling a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampledToken {
    /// This token.
    Token(u32),
    /// No token was requested, or no logit is above minus infinity.
    Nothing,
    /// The first token whose logit is NaN or plus infinity.
    NotFinite(u32),
}

impl SampledToken {
    /// Encodes the result as a float32: `token`, -1, or `-2 - token`.
    ///
    /// Float32 represents every token number of vocabularies up to [`LARGEST_VOCABULARY`] exactly.
    #[must_use]
    pub fn to_value(self) -> f32 {
        match self {
            SampledToken::Token(token) => token as f32,
            SampledToken::Nothing => -1.0,
            SampledToken::NotFinite(token) => -2.0 - token as f32,
        }
    }

    /// Decodes a value of [`SampledToken::to_value`].
    #[must_use]
    pub fn of_value(value: f32) -> Self {
        match value {
            value if value >= 0.0 => SampledToken::Token(value as u32),
            value if value <= -2.0 => SampledToken::NotFinite((-2.0 - value) as u32),
            _ => SampledToken::Nothing,
        }
    }
}

/// Float32 represents every token number of vocabularies up to this size, and their encodings.
pub const LARGEST_VOCABULARY: usize = 1 << 23;
