//! How a tower is told where the patches of a tile are: by a row of a table for each, by a rotation of queries and keys, or both.

use cuelight_shaders::op::ShapeError;
use cuelight_shaders::rope::{Rope, RopeAxes, RopePairs};

use super::place_tables::Fit;

/// How a tower encodes positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// By a stored table with a row for each patch of a square tile, after that of a class token.
    Table,
    /// By a rotation of queries and keys.
    Rotation(Turns),
    /// By a stored table for a square, which is fitted to the tile, and a rotation if it turns.
    Fitted(Fit, Option<Turns>),
    /// By the sum of a row of a stored table for the column and one of another table for the row, and a rotation if there are layers.
    Axes(Option<Turns>),
}

/// How the pairs of a head turn: one half with the row of a patch, the other half with its column.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Turns {
    /// The first half turns with the row. Neighbours are pairs. Rows and columns have every other frequency.
    /// Source: Agrawal et al. 2024, "Pixtral 12B".
    Alternating,
    /// The first half turns with the row. The halves of a head are pairs. Rows and columns have the same frequencies.
    /// Source: Wang et al. 2024, "Qwen2-VL".
    Alike,
    /// As [`Turns::Alike`], with frequencies that differ more. Source: transformers' `Lfm3VlVisionRotaryEmbedding`.
    Slower,
    /// The first half of a head turns with the column. The halves of each half are pairs. Rows and columns have the same
    /// frequencies, which differ less. Source: transformers' `apply_multidimensional_rope` of Gemma 4.
    ByHalf,
}

impl Encoding {
    /// The rotation, if there is one.
    #[must_use]
    pub fn turns(self) -> Option<Turns> {
        match self {
            Encoding::Table => None,
            Encoding::Rotation(turns) => Some(turns),
            Encoding::Fitted(_, turns) | Encoding::Axes(turns) => turns,
        }
    }

    /// Whether all tiles are squares of one size.
    #[must_use]
    pub fn has_squares(self) -> bool {
        self == Encoding::Table
    }
}

impl Turns {
    /// The op that rotates heads of `head_dim` values, a multiple of four.
    ///
    /// # Errors
    /// [`ShapeError`] when the length is not one of heads.
    pub fn op(self, head_dim: usize) -> Result<Rope, ShapeError> {
        let half = head_dim / 4;
        let step = |index: usize| self.base().powf(-((2 * index) as f32) / head_dim as f32);
        let (pairs, index): (_, fn(usize, usize) -> usize) = match self {
            Turns::Alternating => (RopePairs::Interleaved, |pair, is_column| 2 * pair + is_column),
            Turns::Alike | Turns::Slower => (RopePairs::Halves, |pair, _| 2 * pair),
            Turns::ByHalf => (RopePairs::Quarters, |pair, _| 2 * pair),
        };
        let frequencies = (0..2 * half).map(|pair| step(index(pair % half, pair / half)));
        let rope = Rope::new(head_dim, pairs, frequencies.collect(), 1.0)?;
        Ok(rope.with_axes(RopeAxes::Runs([0, half as u32, half as u32])))
    }

    /// The base of the frequencies.
    fn base(self) -> f32 {
        match self {
            Turns::Alternating | Turns::Alike => 10_000.0,
            Turns::Slower => 1_000_000.0,
            Turns::ByHalf => 100.0,
        }
    }

    /// The positions by which a patch at this column and row is rotated.
    #[must_use]
    pub fn positions(self, [column, row]: [usize; 2]) -> [u32; 3] {
        let [first, second] = match self {
            Turns::Alternating | Turns::Alike | Turns::Slower => [row, column],
            Turns::ByHalf => [column, row],
        };
        [0, first as u32, second as u32]
    }
}

#[cfg(test)]
mod tests {
    use cuelight_shaders::rope::reference;

    use super::*;

    #[test]
    fn the_first_half_of_the_pairs_turns_with_the_row_and_the_second_with_the_column() {
        let x = [1.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0, 0.0];
        let slow = 10_000.0_f64.powf(-0.25);
        let turned = reference(&Turns::Alternating.op(8).unwrap(), [0, 1, 2], &x);
        let angles = [1.0, 0.01, 2.0 * slow, 2.0 * slow * 0.01];
        for (pair, angle) in turned.chunks(2).zip(angles) {
            let angle: f64 = angle;
            assert!((pair[0] - angle.cos()).abs() < 1e-6 && (pair[1] - angle.sin()).abs() < 1e-6);
        }
        let turned = reference(&Turns::Alike.op(8).unwrap(), [0, 1, 2], &[1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0]);
        for (index, angle) in [1.0_f64, 0.01, 2.0, 0.02].into_iter().enumerate() {
            assert!((turned[index] - angle.cos()).abs() < 1e-6 && (turned[index + 4] - angle.sin()).abs() < 1e-6);
        }
    }

    #[test]
    fn each_half_of_a_head_turns_with_one_axis() {
        let rope = Turns::ByHalf.op(8).unwrap();
        let turned = reference(&rope, Turns::ByHalf.positions([2, 1]), &[1.0, 1.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0]);
        // The column is 2, the row 1; the frequencies are 1 and 0.1.
        for ((first, second), angle) in [(0, 2), (1, 3), (4, 6), (5, 7)].into_iter().zip([2.0_f64, 0.2, 1.0, 0.1]) {
            assert!((turned[first] - angle.cos()).abs() < 1e-6 && (turned[second] - angle.sin()).abs() < 1e-6);
        }
        assert_eq!(Turns::Alike.positions([2, 1]), [0, 1, 2]);
    }
}
