//! Embeddings: one vector for a text, made from the hidden values of its tokens. That of a reranker is how well two texts match,
//! and that of a model with an encoder how its tokens attend to the rows of the encoder.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::engine::HiddenRows;

/// How the hidden values of the tokens of a text become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pooling {
    /// Their mean.
    Mean,
    /// Those of the first token.
    First,
    /// Those of the last token.
    Last,
    /// Those of each token, one after the other.
    Each {
        /// The position of the first of these tokens. Tokens before it have no hidden values.
        from: usize,
    },
}

impl Pooling {
    /// The rows that it needs.
    #[must_use]
    pub fn rows(self) -> HiddenRows {
        match self {
            Pooling::Mean | Pooling::Each { .. } => HiddenRows::All,
            Pooling::First => HiddenRows::First,
            Pooling::Last => HiddenRows::Last,
        }
    }

    /// The position of the first token that may have hidden values.
    #[must_use]
    pub fn first_position(self) -> usize {
        match self {
            Pooling::Each { from } => from,
            Pooling::Mean | Pooling::First | Pooling::Last => 0,
        }
    }
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pooling::Mean => "mean",
            Pooling::First => "first token",
            Pooling::Last => "last token",
            Pooling::Each { .. } => "each token",
        })
    }
}

/// What a model's embeddings are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EmbeddingSpec {
    /// How a text becomes one vector.
    pub pooling: Pooling,
    /// Values of the vector.
    pub width: usize,
    /// Whether the model makes nothing else: it generates no text.
    pub is_only: bool,
    /// What the values are, if they rate how relevant a document is to a query. Then each text is a pair of both.
    pub relevance: Option<Relevance>,
    /// How the values become the scores of classes, if they are logits of classes.
    pub classes: Option<ClassScores>,
    /// What the hidden values of a token are, if they are weights of attention. Then there are no embeddings.
    pub attention: Option<AttentionShape>,
}

/// The weights of attention of a token: [heads, frames].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionShape {
    /// The heads that attend to the rows of the encoder where the token is spoken.
    pub heads: usize,
    /// The rows of the encoder. The weights of a head add up to 1.
    pub frames: usize,
}

impl AttentionShape {
    /// Weights of a token.
    #[must_use]
    pub fn values(self) -> usize {
        self.heads * self.frames
    }
}

impl EmbeddingSpec {
    /// Vectors of `width` values; `is_only` says that the model makes nothing else.
    #[must_use]
    pub fn of_vectors(pooling: Pooling, width: usize, is_only: bool) -> Self {
        EmbeddingSpec { pooling, width, is_only, relevance: None, classes: None, attention: None }
    }

    /// What the values are for. A reranker may tell classes as well.
    #[must_use]
    pub fn product(&self) -> Product {
        match (self.relevance, self.classes, self.attention) {
            (Some(_), ..) => Product::Relevance,
            (None, Some(_), _) => Product::Classes,
            (None, None, Some(_)) => Product::Alignment,
            (None, None, None) => Product::Vectors,
        }
    }

    /// Hidden values of a token that leave the engine.
    #[must_use]
    pub fn hidden_width(&self) -> usize {
        self.attention.map_or(self.width, AttentionShape::values)
    }
}

/// What a model makes of a text besides other texts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Product {
    /// A vector.
    Vectors,
    /// How relevant a document is to a query.
    Relevance,
    /// The scores of classes.
    Classes,
    /// When its tokens are spoken.
    Alignment,
}

/// How the logits of classes become scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClassScores {
    /// Probabilities of classes of which a text has one.
    Softmax,
    /// Probabilities of classes of which a text may have several.
    Sigmoid,
    /// The logits themselves, which are the values of a regression.
    Logits,
}

impl ClassScores {
    /// The scores of logits.
    #[must_use]
    pub fn of(self, logits: &[f32]) -> Vec<f32> {
        match self {
            ClassScores::Softmax => softmax(logits),
            ClassScores::Sigmoid => logits.iter().copied().map(sigmoid).collect(),
            ClassScores::Logits => logits.to_vec(),
        }
    }
}

/// The probabilities of logits, in float64 so that their sum is 1.
fn softmax(logits: &[f32]) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let weights: Vec<f64> = logits.iter().map(|logit| f64::from(logit - most).exp()).collect();
    let sum: f64 = weights.iter().sum();
    weights.into_iter().map(|weight| (weight / sum) as f32).collect()
}

/// The values with which a model rates how relevant a document is to a query.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Relevance {
    /// One logit.
    Logit,
    /// The logits of the answers yes and no.
    YesOrNo,
}

impl Relevance {
    /// The logit of relevance: its sigmoid is the score. Of two answers, that is the probability of yes among both. `values` has
    /// at least one value, and with [`Relevance::YesOrNo`] two.
    #[must_use]
    pub fn logit(self, values: &[f32]) -> f32 {
        match self {
            Relevance::Logit => values[0],
            Relevance::YesOrNo => values[0] - values[1],
        }
    }
}

/// The score of a logit, between 0 and 1.
#[must_use]
pub fn sigmoid(logit: f32) -> f32 {
    (1.0 / (1.0 + (-f64::from(logit)).exp())) as f32
}

/// The cosine of the angle between two vectors of the same length; 0 if one of them is zero.
#[must_use]
pub fn cosine(left: &[f32], right: &[f32]) -> f32 {
    let (left, right) = (normalized(left, None), normalized(right, None));
    left.iter().zip(&right).map(|(left, right)| f64::from(*left) * f64::from(*right)).sum::<f64>() as f32
}

/// Collects the hidden values of a text, in the order of its tokens.
///
/// The mean is summed in float64 one token after the other, so it does not depend on the steps that computed them.
#[derive(Debug, Clone)]
pub struct Pooler {
    pooling: Pooling,
    tokens: usize,
    /// Tokens whose values are known, or of which none is needed.
    known: usize,
    sums: Vec<f64>,
    /// The values of each token, where these are not summed.
    rows: Vec<f32>,
}

impl Pooler {
    /// A pooler for a text of `tokens` tokens, at least one.
    #[must_use]
    pub fn new(pooling: Pooling, tokens: usize) -> Self {
        let known = match pooling {
            Pooling::Mean | Pooling::First => 0,
            Pooling::Last => tokens - 1,
            Pooling::Each { from } => from.min(tokens),
        };
        Pooler { pooling, tokens, known, sums: Vec::new(), rows: Vec::new() }
    }

    /// Adds rows of `width` values, the first of which is that of the token at `position`. Tokens that are known or not needed
    /// are skipped.
    pub fn add(&mut self, position: usize, rows: &[f32], width: usize) {
        for (row, position) in rows.chunks_exact(width.max(1)).zip(position..) {
            if position == self.known && !self.is_complete() {
                self.add_row(row);
                self.known += 1;
            }
        }
    }

    fn add_row(&mut self, row: &[f32]) {
        if matches!(self.pooling, Pooling::Each { .. }) {
            self.rows.extend_from_slice(row);
            return;
        }
        self.sums.resize(row.len(), 0.0);
        self.sums.iter_mut().zip(row).for_each(|(sum, value)| *sum += f64::from(*value));
    }

    fn is_complete(&self) -> bool {
        self.known == if self.pooling == Pooling::First { 1 } else { self.tokens }
    }

    /// The vector, not normalized; `None` while values are missing.
    #[must_use]
    pub fn pooled(&self) -> Option<Vec<f32>> {
        if matches!(self.pooling, Pooling::Each { .. }) {
            return self.is_complete().then(|| self.rows.clone());
        }
        let count = if self.pooling == Pooling::Mean { self.tokens } else { 1 } as f64;
        self.is_complete().then(|| self.sums.iter().map(|sum| (sum / count) as f32).collect())
    }
}

/// The first `dimensions` values of a vector, scaled to length 1. A vector of zeros stays as it is.
#[must_use]
pub fn normalized(vector: &[f32], dimensions: Option<usize>) -> Vec<f32> {
    let kept = &vector[..dimensions.unwrap_or(vector.len()).min(vector.len())];
    let square: f64 = kept.iter().map(|value| f64::from(*value).powi(2)).sum();
    let factor = if square > 0.0 { 1.0 / square.sqrt() } else { 1.0 };
    kept.iter().map(|value| (f64::from(*value) * factor) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The vector of rows that arrive in chunks of these lengths, some of them twice.
    fn pooled(pooling: Pooling, rows: &[[f32; 2]], chunks: &[usize]) -> Option<Vec<f32>> {
        let mut pooler = Pooler::new(pooling, rows.len());
        let mut start = 0;
        for chunk in chunks {
            let end = rows.len().min(start + chunk);
            pooler.add(start, rows[start..end].as_flattened(), 2);
            pooler.add(start / 2, rows[start / 2..end].as_flattened(), 2);
            start = end;
        }
        pooler.pooled()
    }

    #[test]
    fn a_text_becomes_the_mean_the_first_or_the_last_token() {
        let rows = [[1.0, 2.0], [3.0, 5.0], [8.0, -1.0]];
        assert_eq!(pooled(Pooling::Mean, &rows, &[3]), Some(vec![4.0, 2.0]));
        assert_eq!(pooled(Pooling::First, &rows, &[3]), Some(vec![1.0, 2.0]));
        assert_eq!(pooled(Pooling::Last, &rows, &[3]), Some(vec![8.0, -1.0]));
        let each = Pooling::Each { from: 1 };
        assert_eq!(pooled(each, &rows, &[1, 2]), Some(vec![3.0, 5.0, 8.0, -1.0]));
        assert_eq!(pooled(each, &rows, &[2]), None);
        assert_eq!(pooled(Pooling::Mean, &rows, &[2]), None, "a token is missing");
        assert_eq!(pooled(Pooling::Last, &rows, &[2]), None);
    }

    proptest! {
        #[test]
        fn the_vector_does_not_depend_on_the_chunks(
            rows in prop::collection::vec(prop::array::uniform2(-1e3_f32..1e3), 1..40), first in 1_usize..40,
        ) {
            for pooling in [Pooling::Mean, Pooling::First, Pooling::Last] {
                let whole = pooled(pooling, &rows, &[rows.len()]);
                prop_assert!(whole.is_some());
                prop_assert_eq!(pooled(pooling, &rows, &[first, 3, rows.len()]), whole);
            }
        }

        #[test]
        fn normalized_vectors_have_length_1(vector in prop::collection::vec(-1e3_f32..1e3, 1..40), kept in 1_usize..50) {
            prop_assume!(vector[0].abs() > 1e-3);
            let found = normalized(&vector, Some(kept));
            prop_assert_eq!(found.len(), kept.min(vector.len()));
            let square: f64 = found.iter().map(|value| f64::from(*value).powi(2)).sum();
            prop_assert!((square - 1.0).abs() < 1e-6);
        }
    }

    #[test]
    fn a_vector_of_zeros_has_no_direction() {
        assert_eq!(normalized(&[0.0, 0.0], None), [0.0, 0.0]);
        assert_eq!(cosine(&[0.0, 0.0], &[1.0, 2.0]), 0.0);
        assert!((cosine(&[3.0, 4.0], &[4.0, 3.0]) - 0.96).abs() < 1e-6);
    }

    #[test]
    fn scores_of_classes_are_probabilities_or_logits() {
        let logits = [1.0, -2.0, 3.0];
        let exact: Vec<f32> =
            logits.iter().map(|logit: &f32| logit.exp() / (1.0f32.exp() + (-2.0f32).exp() + 3.0f32.exp())).collect();
        let found = ClassScores::Softmax.of(&logits);
        assert!(found.iter().zip(exact).all(|(found, exact)| (found - exact).abs() < 1e-6));
        assert_eq!(ClassScores::Softmax.of(&[1e38, 1e38]), [0.5, 0.5]);
        assert_eq!(ClassScores::Sigmoid.of(&logits), logits.map(sigmoid));
        assert_eq!(ClassScores::Logits.of(&logits), logits);
    }

    #[test]
    fn the_score_of_two_answers_is_the_probability_of_yes() {
        let logit = Relevance::YesOrNo.logit(&[2.0, -1.0]);
        let probability = 2.0f32.exp() / (2.0f32.exp() + (-1.0f32).exp());
        assert!((sigmoid(logit) - probability).abs() < 1e-6);
        assert_eq!(sigmoid(Relevance::Logit.logit(&[0.0])), 0.5);
        assert_eq!([sigmoid(f32::MIN), sigmoid(f32::MAX)], [0.0, 1.0]);
    }
}
