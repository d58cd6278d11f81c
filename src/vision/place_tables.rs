//! Tables of the positions of patches that are read on the host, because they depend on the size of a tile.

use std::sync::Arc;

/// What a tower adds to patches by their place in a tile, from the host.
#[derive(Debug, Clone)]
pub enum PlaceTable {
    /// A table of a square, and how it is fitted to the tile.
    Square(PositionTable, Fit),
    /// A table for columns and one for rows.
    ByAxis(AxisTables),
}

impl PlaceTable {
    /// The values for a patch at this column and row of a grid.
    #[must_use]
    pub fn row(&self, grid: [usize; 2], place: [usize; 2]) -> Vec<f32> {
        match self {
            PlaceTable::Square(table, fit) => table.fitted(*fit, grid, place),
            PlaceTable::ByAxis(tables) => tables.sum(place),
        }
    }

    /// Bytes in host memory.
    #[must_use]
    pub fn bytes(&self) -> usize {
        match self {
            PlaceTable::Square(table, _) => size_of_val(&*table.values),
            PlaceTable::ByAxis(tables) => tables.columns_and_rows.iter().map(|table| size_of_val(&**table)).sum(),
        }
    }
}

/// How the table of a square is fitted to a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fit {
    /// It is stretched so that the corners are the same.
    ///
    /// Source: transformers' `get_vision_interpolation_indices_and_weights` with aligned corners.
    Stretched,
    /// It is resized by a triangle filter that reaches further where the tile is smaller.
    ///
    /// Source: transformers' `resize_positional_embeddings` of SigLIP 2.
    Resized,
    /// It is read at the middle of each place between two lines. Outside of the table are the lines at its border.
    ///
    /// Source: `interpolate` of PyTorch, bilinear and without aligned corners.
    Linear,
    /// As [`Fit::Linear`], by a cubic filter over four lines. Files may lack the table.
    ///
    /// Source: `grid_sample` of PyTorch, bicubic and without aligned corners.
    Cubic,
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
    /// The row of a patch at this column and row of a grid, to which the table is fitted.
    #[must_use]
    pub fn fitted(&self, fit: Fit, [columns, rows]: [usize; 2], [column, row]: [usize; 2]) -> Vec<f32> {
        let [x, y] = [(column, columns), (row, rows)].map(|(at, count)| match fit {
            Fit::Stretched => self.between(at, count).to_vec(),
            Fit::Resized => self.around(at, count),
            Fit::Linear => self.linear(at, count).to_vec(),
            Fit::Cubic => self.cubic(at, count).to_vec(),
        });
        self.weighted(&x, &y)
    }

    /// Where the middle of number `at` of `count` lines is in the table.
    fn middle(&self, at: usize, count: usize) -> f32 {
        (at as f32 + 0.5) * self.side as f32 / count as f32 - 0.5
    }

    /// The two lines of the table around the middle of number `at` of `count` lines, and their weights.
    fn linear(&self, at: usize, count: usize) -> [(usize, f32); 2] {
        let middle = self.middle(at, count).max(0.0);
        let (before, part) = (middle as usize, middle.fract());
        [(before, 1.0 - part), ((before + 1).min(self.side - 1), part)]
    }

    /// The four lines of the table around the middle of number `at` of `count` lines, and their weights.
    fn cubic(&self, at: usize, count: usize) -> [(usize, f32); 4] {
        const SHARPNESS: f32 = -0.75;
        let middle = self.middle(at, count);
        let weight = |line: f32| match (line - middle).abs() {
            near if near <= 1.0 => ((SHARPNESS + 2.0) * near - (SHARPNESS + 3.0)) * near * near + 1.0,
            far => ((far - 5.0) * far + 8.0) * far * SHARPNESS - 4.0 * SHARPNESS,
        };
        let last = (self.side - 1) as f32;
        [-1.0, 0.0, 1.0, 2.0].map(|step| {
            let line = middle.floor() + step;
            (line.clamp(0.0, last) as usize, weight(line))
        })
    }

    /// The sum of the rows at these columns and rows of the table, each with its weight.
    fn weighted(&self, x: &[(usize, f32)], y: &[(usize, f32)]) -> Vec<f32> {
        let width = self.values.len() / (self.side * self.side);
        let mut sum = vec![0.0; width];
        for &(row, by_row) in y {
            for &(column, by_column) in x {
                let stored = &self.values[(row * self.side + column) * width..][..width];
                sum.iter_mut().zip(stored).for_each(|(sum, value)| *sum += by_row * by_column * value);
            }
        }
        sum
    }

    /// The lines of the table that make number `at` of `count` lines, and their weights.
    fn around(&self, at: usize, count: usize) -> Vec<(usize, f32)> {
        let scale = self.side as f32 / count as f32;
        let (center, reach) = ((at as f32 + 0.5) * scale - 0.5, scale.max(1.0));
        let weight = |line: usize| (line, 1.0 - (line as f32 - center).abs() / reach);
        let lines: Vec<(usize, f32)> = (0..self.side).map(weight).filter(|(_, weight)| *weight > 0.0).collect();
        let sum: f32 = lines.iter().map(|(_, weight)| weight).sum();
        lines.into_iter().map(|(line, weight)| (line, weight / sum)).collect()
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
    use proptest::prelude::*;

    use super::*;

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
    fn a_resized_table_is_that_of_an_image() {
        let table = PositionTable { values: [0.0, 1.0, 10.0, 11.0].into(), side: 2 };
        let at = |grid, place| table.fitted(Fit::Resized, grid, place)[0];
        assert_eq!((at([2, 2], [1, 0]), at([1, 1], [0, 0]), at([1, 2], [0, 1])), (1.0, 5.5, 10.5));
        assert_eq!([0, 1, 2, 3].map(|column| at([4, 2], [column, 0])), [0.0, 0.25, 0.75, 1.0]);
    }

    #[test]
    fn a_linear_table_is_read_between_two_lines() {
        let table = PositionTable { values: [0.0, 1.0, 10.0, 11.0].into(), side: 2 };
        let at = |grid, place| table.fitted(Fit::Linear, grid, place)[0];
        assert_eq!([0, 1, 2, 3].map(|column| at([4, 2], [column, 0])), [0.0, 0.25, 0.75, 1.0]);
        // A smaller grid reads the table at its middle, and no further around it.
        let line = PositionTable { values: (0..16).map(|index| (index % 4) as f32).collect(), side: 4 };
        assert_eq!([0, 1].map(|column| line.fitted(Fit::Linear, [2, 1], [column, 0])[0]), [0.5, 2.5]);
    }

    #[test]
    fn a_sampled_table_is_read_by_a_cubic_filter() {
        let table = PositionTable { values: [0.0, 1.0, 10.0, 11.0].into(), side: 2 };
        let at = |grid, place| table.fitted(Fit::Cubic, grid, place)[0];
        assert_eq!([[0, 0], [1, 0], [0, 1], [1, 1]].map(|place| at([2, 2], place)), [0.0, 1.0, 10.0, 11.0]);
        // A quarter before the first line: the weights of the lines at a distance of 0.25 and 1.25 before it count for it, too.
        let beyond = (at([4, 2], [0, 0]), at([4, 2], [3, 0]));
        assert!((beyond.0 + 0.105_468_75).abs() < 1e-6 && (beyond.1 - 1.0 - 0.105_468_75).abs() < 1e-6, "{beyond:?}");
    }

    #[test]
    fn a_stretched_table_keeps_its_corners() {
        let table = PositionTable { values: [0.0, 1.0, 10.0, 11.0].into(), side: 2 };
        let at = |grid, place| table.fitted(Fit::Stretched, grid, place)[0];
        assert_eq!([[0, 0], [2, 0], [0, 4], [2, 4]].map(|place| at([3, 5], place)), [0.0, 1.0, 10.0, 11.0]);
        assert_eq!((at([3, 5], [1, 2]), at([1, 1], [0, 0]), at([2, 2], [1, 0])), (5.5, 0.0, 1.0));
    }
}
