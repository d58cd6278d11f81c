//! Attention to relative positions, as attention with longer queries and keys.
//!
//! The score of a row at `i` for a key at `j`, up to `span - 1` positions before it, is `q[i]·k[j] + q[i]·r[i - j]`. Of the positions
//! that a row sees, no two have the same rest modulo `span`. So the key gets `span` more values, 1 at the rest of `j` and else 0, and
//! the query gets `q[i]·r[d]` at the rest of `i - d`. The rest of a row's position is its token.
//!
//! Source: Dai et al. 2019, "Transformer-XL".

use cuelight_shaders::embed::Embed;
use cuelight_shaders::glu::{Activation, Glu};
use cuelight_shaders::heads::JoinHeads;
use cuelight_shaders::matmul::Linear;
use cuelight_shaders::weight::Weight;

use crate::graph::{Graph, ValueId};
use crate::model::builder::BuildError;

/// The heads and positions of relative attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RelativePositions {
    /// The number of heads.
    pub heads: usize,
    /// Values of a head.
    pub length: usize,
    /// The positions that a row sees, its own included.
    pub span: usize,
}

impl RelativePositions {
    /// The query and the key with the values for relative positions. `relative` is the layer's name, and a key for each position before a
    /// row, from its own on: [span, heads * length].
    ///
    /// # Errors
    /// [`BuildError`] when queries and keys have other lengths.
    pub fn extend(
        self,
        graph: &mut Graph,
        (layer, relative): (&str, &[f32]),
        [query, key]: [ValueId; 2],
    ) -> Result<[ValueId; 2], BuildError> {
        let scores = Linear::new(vec![self.score_matrix(layer, relative)], vec![None])?;
        let scores = graph.push_one(scores, &[query])?;
        let turned = graph.push_one(Linear::new(vec![self.turn_matrix()], vec![None])?, &[scores])?;
        let mask = graph.push_one(Embed::new(self.turn_mask(), 1.0), &[])?;
        let own = graph.push_one(Glu::new(Activation::Bilinear), &[turned, mask])?;
        let by_rest = graph.push_one(Linear::new(vec![self.sum_matrix()], vec![None])?, &[own])?;
        let rests = graph.push_one(Embed::new(self.rest_table(), 1.0), &[])?;
        let join = || JoinHeads { first: self.length, second: self.span };
        Ok([graph.push_one(join(), &[query, by_rest])?, graph.push_one(join(), &[key, rests])?])
    }

    /// Scores of all relative positions in each head: from [heads * length] to [heads * span].
    fn score_matrix(self, layer: &str, relative: &[f32]) -> Weight {
        let width = self.heads * self.length;
        let mut values = vec![0.0; self.heads * self.span * width];
        for (index, row) in values.chunks_exact_mut(width).enumerate() {
            let (head, position) = (index / self.span, index % self.span);
            let columns = head * self.length..(head + 1) * self.length;
            row[columns.clone()].copy_from_slice(&relative[position * width..][columns]);
        }
        Weight::from_f32(&format!("{layer}.relative_scores"), self.heads * self.span, width, &values)
    }

    /// The scores of each head in the order of the keys' rests, for each rest of a row: from [heads * span] to
    /// [heads * span * span].
    fn turn_matrix(self) -> Weight {
        let Self { heads, span, .. } = self;
        let mut values = vec![0.0; heads * span * span * heads * span];
        for (index, row) in values.chunks_exact_mut(heads * span).enumerate() {
            let (head, key, own) = (index / (span * span), index / span % span, index % span);
            row[head * span + (own + span - key) % span] = 1.0;
        }
        Weight::from_f32("relative_turns", heads * span * span, heads * span, &values)
    }

    /// Which of the orders is that of a row, by its rest: [span, heads * span * span].
    fn turn_mask(self) -> Weight {
        let width = self.heads * self.span * self.span;
        let is_own = |rest: usize| (0..width).map(move |column| f32::from(column % self.span == rest));
        let values: Vec<f32> = (0..self.span).flat_map(is_own).collect();
        Weight::from_f32("relative_mask", self.span, width, &values)
    }

    /// The sum over all orders: from [heads * span * span] to [heads * span].
    fn sum_matrix(self) -> Weight {
        let (rows, span) = (self.heads * self.span, self.span);
        let of_row = |row: usize| (0..rows * span).map(move |column| f32::from(column / span == row));
        let values: Vec<f32> = (0..rows).flat_map(of_row).collect();
        Weight::from_f32("relative_sums", rows, rows * span, &values)
    }

    /// What a key gets, by its rest: [span, heads * span].
    fn rest_table(self) -> Weight {
        let of_rest =
            |rest: usize| (0..self.heads * self.span).map(move |column| f32::from(column % self.span == rest));
        let values: Vec<f32> = (0..self.span).flat_map(of_rest).collect();
        Weight::from_f32("relative_rests", self.span, self.heads * self.span, &values)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A row times the transpose of a matrix.
    fn product(matrix: &Weight, row: &[f32]) -> Vec<f32> {
        let values = matrix.to_f32();
        let sum = |weights: &[f32]| weights.iter().zip(row).map(|(weight, value)| weight * value).sum();
        values.chunks_exact(matrix.columns).map(sum).collect()
    }

    fn row_of(table: &Weight, row: usize) -> Vec<f32> {
        table.to_f32()[row * table.columns..][..table.columns].to_vec()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 60, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_longer_key_has_the_score_of_its_relative_position(
            heads in 1usize..4, length in 1usize..6, span in 1usize..7, row in 0usize..30, back in 0usize..7, seed in 0usize..1000,
        ) {
            let back = back.min(span - 1).min(row);
            let sizes = RelativePositions { heads, length, span };
            let number = |index: usize| ((index * 7919 + seed) % 201) as f32 / 64.0 - 1.5;
            let relative: Vec<f32> = (0..span * heads * length).map(number).collect();
            let query: Vec<f32> = (0..heads * length).map(|index| number(index + 77)).collect();
            let turned = product(&sizes.turn_matrix(), &product(&sizes.score_matrix("", &relative), &query));
            let mask = row_of(&sizes.turn_mask(), row % span);
            let own: Vec<f32> = turned.iter().zip(mask).map(|(value, mask)| value * mask).collect();
            let by_rest = product(&sizes.sum_matrix(), &own);
            let rests = row_of(&sizes.rest_table(), (row - back) % span);
            for head in 0..heads {
                let part = |values: &[f32], length: usize| values[head * length..(head + 1) * length].to_vec();
                let dot = |left: Vec<f32>, right: Vec<f32>| left.iter().zip(right).map(|(left, right)| left * right).sum::<f32>();
                let found = dot(part(&by_rest, span), part(&rests, span));
                let expected = dot(part(&query, length), part(&relative[back * heads * length..], length));
                prop_assert_eq!(found, expected);
            }
        }
    }
}
