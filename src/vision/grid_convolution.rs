//! A convolution over the grid of a tile's patches, of each value by itself. It runs on the host, between two segments of a tower.

use std::sync::Arc;

use cuelight_shaders::op::ShapeError;

use crate::model::builder::BuildError;
use crate::model::weights::Weights;

/// A square kernel for each value of a row. Places outside the grid are zero.
#[derive(Debug, Clone, PartialEq)]
pub struct GridConvolution {
    /// [side * side, width]: the factors of all values for a place, line by line.
    taps: Arc<[f32]>,
    /// Places of a side, an odd number.
    side: usize,
    /// Values of a row.
    width: usize,
}

impl GridConvolution {
    /// The kernels that a tensor stores, one for each of `width` values.
    ///
    /// # Errors
    /// [`BuildError`] when the tensor is missing, or has kernels that are not squares around a place.
    pub fn read(weights: &mut Weights<'_>, name: &str, width: usize) -> Result<Self, BuildError> {
        let stored = weights.rows(name).unwrap_or(width) * weights.columns(name).unwrap_or(1);
        let places = (stored / width).max(1);
        let kernels = weights.flattened(name, width, places)?.to_f32();
        let side = places.isqrt();
        if side * side != places || side.is_multiple_of(2) {
            let what = format!("number of places of a kernel in {name}");
            let expected = "the square of an odd number".to_owned();
            return Err(ShapeError::Mismatch { op: "convolution", what, found: places, expected }.into());
        }
        let factors = (0..places).flat_map(|tap| (0..width).map(move |value| value * places + tap));
        Ok(GridConvolution { taps: factors.map(|index| kernels[index]).collect(), side, width })
    }

    /// The convolution of rows whose last ones are the patches at `places`, each with its column and row. Rows before these stay as
    /// they are.
    #[must_use]
    pub fn apply(&self, values: &[f32], grid: [usize; 2], places: &[[usize; 2]]) -> Vec<f32> {
        let first = values.len() - places.len() * self.width;
        let mut row_at = vec![0; grid[0] * grid[1]];
        places.iter().enumerate().for_each(|(row, [column, line])| row_at[line * grid[0] + column] = row);
        let mut convolved = vec![0.0; values.len()];
        convolved[..first].copy_from_slice(&values[..first]);
        for (place, sums) in places.iter().zip(convolved[first..].chunks_exact_mut(self.width)) {
            for (tap, factors) in self.taps.chunks_exact(self.width).enumerate() {
                let Some([column, line]) = self.neighbour(*place, tap, grid) else { continue };
                let row = &values[first + row_at[line * grid[0] + column] * self.width..][..self.width];
                sums.iter_mut().zip(factors).zip(row).for_each(|((sum, factor), value)| *sum += factor * value);
            }
        }
        convolved
    }

    /// The place that a tap reads, if it is in the grid.
    fn neighbour(&self, [column, line]: [usize; 2], tap: usize, grid: [usize; 2]) -> Option<[usize; 2]> {
        let before = self.side / 2;
        let column = (column + tap % self.side).checked_sub(before).filter(|column| *column < grid[0])?;
        let line = (line + tap / self.side).checked_sub(before).filter(|line| *line < grid[1])?;
        Some([column, line])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_on_the_grid_are_added_and_places_outside_are_zero() {
        let taps: Vec<f32> = (0..9).flat_map(|tap| [tap as f32, 1.0]).collect();
        let convolution = GridConvolution { taps: taps.into(), side: 3, width: 2 };
        // Two columns and two lines, in the order of columns, after a row of a class token.
        let places = [[0, 0], [0, 1], [1, 0], [1, 1]];
        let values = [7.0, 7.0, 1.0, 1.0, 3.0, 1.0, 2.0, 1.0, 4.0, 1.0];
        let convolved = convolution.apply(&values, [2, 2], &places);
        assert_eq!(convolved[..2], [7.0, 7.0]);
        let first: Vec<f32> = convolved[2..].iter().copied().step_by(2).collect();
        // The taps 4, 5, 7 and 8 read the places (0, 0), (1, 0), (0, 1) and (1, 1) from the first one.
        assert_eq!(first[0], 4.0 + 2.0 * 5.0 + 3.0 * 7.0 + 4.0 * 8.0);
        assert_eq!(first[3], 1.0 * 0.0 + 2.0 * 1.0 + 3.0 * 3.0 + 4.0 * 4.0);
        assert!(convolved[3..].iter().step_by(2).all(|sum| *sum == 4.0));
    }
}
