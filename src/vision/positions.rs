//! What tells a tower where the patches of a tile are: a row of a table for each, a rotation of queries and keys, or both.

use std::sync::Arc;

use cuelight_shaders::op::ShapeError;
use cuelight_shaders::rope::{Rope, RopeAxes, RopePairs};

/// How a tower encodes positions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Encoding {
    /// By a stored table with a row for each patch of a square tile, after that of a class token.
    Table,
    /// By a rotation of queries and keys.
    Rotation(Turns),
    /// By a stored table for a square, which is stretched to the tile, and a rotation.
    TableAndRotation(Turns),
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
            Encoding::Rotation(turns) | Encoding::TableAndRotation(turns) => Some(turns),
            Encoding::Axes(turns) => turns,
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
            Turns::Alike => (RopePairs::Halves, |pair, _| 2 * pair),
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
            Turns::ByHalf => 100.0,
        }
    }

    /// The positions by which a patch at this column and row is rotated.
    #[must_use]
    pub fn positions(self, [column, row]: [usize; 2]) -> [u32; 3] {
        let [first, second] = match self {
            Turns::Alternating | Turns::Alike => [row, column],
            Turns::ByHalf => [column, row],
        };
        [0, first as u32, second as u32]
    }
}

/// What a tower adds to patches by their place in a tile, from the host.
#[derive(Debug, Clone)]
pub enum PlaceTable {
    /// A table of a square that is stretched to the tile.
    Stretched(PositionTable),
    /// A table for columns and one for rows.
    ByAxis(AxisTables),
}

impl PlaceTable {
    /// The values for a patch at this column and row of a grid.
    #[must_use]
    pub fn row(&self, grid: [usize; 2], place: [usize; 2]) -> Vec<f32> {
        match self {
            PlaceTable::Stretched(table) => table.stretched(grid, place),
            PlaceTable::ByAxis(tables) => tables.sum(place),
        }
    }

    /// Bytes in host memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            PlaceTable::Stretched(table) => size_of_val(&*table.values),
            PlaceTable::ByAxis(tables) => tables.columns_and_rows.iter().map(|table| size_of_val(&**table)).sum(),
        }
    }
}

/// A table for columns and one for rows, each [places, width].
#[derive(Debug, Clone)]
pub struct AxisTables {
    /// Both tables.
    pub columns_and_rows: [Arc<[f32]>; 2],
    /// Values of a row.
    pub width: usize,
}

impl AxisTables {
    /// The sum of the rows for this column and this row.
    #[must_use]
    pub fn sum(&self, [column, row]: [usize; 2]) -> Vec<f32> {
        let [columns, rows] = &self.columns_and_rows;
        let of = |table: &Arc<[f32]>, place: usize| table[place * self.width..][..self.width].to_vec();
        let mut sum = of(columns, column);
        sum.iter_mut().zip(of(rows, row)).for_each(|(sum, value)| *sum += value);
        sum
    }
}

/// The table of positions of a square of patches, [side * side, width].
#[derive(Debug, Clone)]
pub struct PositionTable {
    /// The rows.
    pub values: Arc<[f32]>,
    /// Patches of a side.
    pub side: usize,
}

impl PositionTable {
    /// The row of a patch at this column and row of a grid, to which the table is stretched so that the corners are the same.
    ///
    /// Source: transformers' `get_vision_interpolation_indices_and_weights` with aligned corners.
    #[must_use]
    pub fn stretched(&self, [columns, rows]: [usize; 2], [column, row]: [usize; 2]) -> Vec<f32> {
        let width = self.values.len() / (self.side * self.side);
        let [x, y] = [(column, columns), (row, rows)].map(|(at, count)| self.between(at, count));
        let mut sum = vec![0.0; width];
        for (row, by_row) in y {
            for (column, by_column) in x {
                let stored = &self.values[(row * self.side + column) * width..][..width];
                sum.iter_mut().zip(stored).for_each(|(sum, value)| *sum += by_row * by_column * value);
            }
        }
        sum
    }

    /// The two lines of the table around number `at` of `count` lines, and their weights.
    fn between(&self, at: usize, count: usize) -> [(usize, f32); 2] {
        let last = self.side - 1;
        let position = if count > 1 { at as f32 * (last as f32 / (count - 1) as f32) } else { 0.0 };
        let (before, part) = ((position as usize).min(last), position.fract());
        [(before, 1.0 - part), ((before + 1).min(last), part)]
    }
}

#[cfg(test)]
mod tests {
    use cuelight_shaders::rope::reference;
    use proptest::prelude::*;

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

    proptest! {
        #[test]
        fn tables_of_axes_are_added(columns in 1usize..9, rows in 1usize..9, width in 1usize..5) {
            let tables = AxisTables {
                columns_and_rows: [
                    (0..columns * width).map(|index| index as f32).collect(),
                    (0..rows * width).map(|index| 1000.0 * index as f32).collect(),
                ],
                width,
            };
            for place @ [column, row] in (0..rows).flat_map(|row| (0..columns).map(move |column| [column, row])) {
                let of_value = |value| (column * width + value) as f32 + 1000.0 * (row * width + value) as f32;
                prop_assert_eq!(tables.sum(place), (0..width).map(of_value).collect::<Vec<_>>());
            }
        }
    }

    #[test]
    fn a_stretched_table_keeps_its_corners() {
        let table = PositionTable { values: [0.0, 1.0, 10.0, 11.0].into(), side: 2 };
        let at = |grid, place| table.stretched(grid, place)[0];
        assert_eq!([[0, 0], [2, 0], [0, 4], [2, 4]].map(|place| at([3, 5], place)), [0.0, 1.0, 10.0, 11.0]);
        assert_eq!((at([3, 5], [1, 2]), at([1, 1], [0, 0]), at([2, 2], [1, 0])), (5.5, 0.0, 1.0));
    }
}
