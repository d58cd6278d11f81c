//! What a step of denoising needs of the logits of a canvas: a few numbers of each row, and the embedding that it expects.
//!
//! - this file: the formula and the results
//! - `op`: the `impl Op`
//! - `gpu`: the passes on a GPU
//! - [`mod@reference`]: the formula in float64
//! - `cases`: expected results

mod cases;
mod gpu;
mod op;
pub mod reference;
#[cfg(test)]
mod tests;

pub use cases::cases;

use crate::op::ShapeError;
use crate::sample_token::{LARGEST_VOCABULARY, SampledToken};
use crate::weight::Weight;

/// Values that encode a [`DenoisedRow`].
pub const STATISTICS: usize = 3;

/// The statistics of each row of logits, and the mean of all embeddings, weighed by the probabilities of their tokens.
///
/// For a row with the parameters [`DenoiseParams`](crate::op::DenoiseParams) and temperature `t`:
/// `p = softmax(logits / t)`, `entropy = -sum_v p[v] ln p[v]`, `mean = scale * sum_v p[v] table[v]`.
///
/// - logits: [rows, vocabulary] f32; table: [vocabulary, hidden] in any format
/// - outputs: mean [rows, hidden] f32; statistics [rows, [`STATISTICS`]] f32, encoded by [`DenoisedRow`]
/// - Probabilities below [`NEGLIGIBLE`] over the size of the vocabulary are left out of the mean: together they are less than the
///   rounding of its other terms
/// - A row whose logits are not finite has a mean of 0 and says so in its sampled token
/// - Source: transformers' `DiffusionGemmaForBlockDiffusion`
#[derive(Debug)]
pub struct Denoise {
    table: Weight,
    scale: f32,
}

/// Half a unit in the last place of 1.
pub const NEGLIGIBLE: f32 = 1.0 / (1 << 24) as f32;

impl Denoise {
    /// The op over the table of embeddings, whose values are multiplied by `scale`.
    ///
    /// # Errors
    /// [`ShapeError`] when the vocabulary is too large for the encoding of tokens.
    pub fn new(table: Weight, scale: f32) -> Result<Self, ShapeError> {
        match table.rows {
            1..=LARGEST_VOCABULARY => Ok(Denoise { table, scale }),
            found => Err(ShapeError::Mismatch {
                op: "denoise",
                what: "vocabulary".to_owned(),
                found,
                expected: format!("from 1 to {LARGEST_VOCABULARY}"),
            }),
        }
    }

    /// Probabilities below it are left out of the mean.
    fn least_probability(&self) -> f32 {
        NEGLIGIBLE / self.table.rows as f32
    }
}

/// The statistics of a row of a canvas.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DenoisedRow {
    /// The most likely token; of equal ones the first.
    pub best: u32,
    /// The token that was drawn.
    pub sampled: SampledToken,
    /// The entropy of the row in nats.
    pub entropy: f32,
}

impl DenoisedRow {
    /// The values that encode it.
    #[must_use]
    pub fn to_values(self) -> [f32; STATISTICS] {
        [self.best as f32, self.sampled.to_value(), self.entropy]
    }

    /// Decodes values of [`DenoisedRow::to_values`].
    #[must_use]
    pub fn of_values([best, sampled, entropy]: [f32; STATISTICS]) -> Self {
        DenoisedRow { best: best as u32, sampled: SampledToken::of_value(sampled), entropy }
    }
}
