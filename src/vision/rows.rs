//! The rows of a tile in a tower: their order, and which of them see each other.

use std::ops::Range;

/// The patches of a tile as rows: squares of patches that become one embedding row, one after the other.
///
/// In a tower with windows the squares of a window are consecutive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TileRows {
    /// The squares in the order of the tower, numbered line by line.
    squares: Vec<usize>,
    /// Squares of a line.
    columns: usize,
    /// Patches of a side of a square.
    merge: usize,
    /// The squares of each window; one range of all squares without windows.
    windows: Vec<Range<usize>>,
}

impl TileRows {
    /// The rows of a grid of `[columns, rows]` patches, in windows of `window` squares a side if there are any.
    #[must_use]
    pub fn new(grid: [usize; 2], merge: usize, window: Option<usize>) -> Self {
        let [columns, rows] = grid.map(|length| length / merge);
        let side = window.unwrap_or(columns.max(rows)).max(1);
        let (mut squares, mut windows) = (Vec::with_capacity(columns * rows), Vec::new());
        for top in (0..rows).step_by(side) {
            for left in (0..columns).step_by(side) {
                let first = squares.len();
                for row in top..rows.min(top + side) {
                    squares.extend((left..columns.min(left + side)).map(|column| row * columns + column));
                }
                windows.push(first..squares.len());
            }
        }
        TileRows { squares, columns, merge, windows }
    }

    /// Column and row of the patch of each row.
    pub fn patches(&self) -> impl Iterator<Item = [usize; 2]> {
        let (columns, merge) = (self.columns, self.merge);
        self.squares.iter().flat_map(move |square| {
            let [x, y] = [square % columns * merge, square / columns * merge];
            (0..merge * merge).map(move |within| [x + within % merge, y + within / merge])
        })
    }

    /// The number of squares.
    #[must_use]
    pub fn squares(&self) -> usize {
        self.squares.len()
    }

    /// The rows of each window.
    pub fn windows(&self) -> impl Iterator<Item = Range<usize>> {
        let patches = self.merge * self.merge;
        self.windows.iter().map(move |squares| squares.start * patches..squares.end * patches)
    }

    /// Values of squares that are numbered line by line, in the order of the tower.
    #[must_use]
    pub fn arranged(&self, values: &[f32]) -> Vec<f32> {
        let of_square = values.len() / self.squares.len().max(1);
        self.squares.iter().flat_map(|square| &values[square * of_square..][..of_square]).copied().collect()
    }

    /// Values of squares in the order of the tower, line by line.
    #[must_use]
    pub fn line_by_line(&self, values: &[f32]) -> Vec<f32> {
        let of_square = values.len() / self.squares.len().max(1);
        let mut lines = vec![0.0; values.len()];
        for (square, values) in self.squares.iter().zip(values.chunks_exact(of_square.max(1))) {
            lines[square * of_square..][..of_square].copy_from_slice(values);
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_without_windows_are_squares_line_by_line() {
        let rows = TileRows::new([4, 2], 2, None);
        let patches: Vec<_> = rows.patches().collect();
        assert_eq!(patches, [[0, 0], [1, 0], [0, 1], [1, 1], [2, 0], [3, 0], [2, 1], [3, 1]]);
        assert!(rows.windows().eq(std::iter::once(0..8)));
        assert_eq!(rows.arranged(&[1.0, 2.0]), [1.0, 2.0]);
    }

    #[test]
    fn the_squares_of_a_window_are_consecutive() {
        let rows = TileRows::new([3, 3], 1, Some(2));
        assert_eq!(rows.windows().collect::<Vec<_>>(), [0..4, 4..6, 6..8, 8..9]);
        let values: Vec<f32> = (0..9).map(|value| value as f32).collect();
        let arranged = rows.arranged(&values);
        assert_eq!(arranged, [0.0, 1.0, 3.0, 4.0, 2.0, 5.0, 6.0, 7.0, 8.0]);
        assert_eq!(rows.line_by_line(&arranged), values);
    }
}
