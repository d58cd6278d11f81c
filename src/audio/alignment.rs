//! When tokens are spoken, by the weights with which a model attends to the rows of an audio encoder.
//!
//! Source: `timing.py` of Whisper's own program (github.com/openai/whisper).

use std::collections::VecDeque;
use std::ops::Range;

use crate::embedding::AttentionShape;

/// Rows over which the median filter reaches.
const MEDIAN_WIDTH: usize = 7;

/// The frame at which a model begins to attend to the audio of each of these positions. At a position it hears the token that comes
/// next.
///
/// `weights` is [positions, heads, frames], with the heads and frames of `shape`, and the first `frames` of these count. The
/// weights of a head at a position are scaled to a sum of 1, those of a frame to a mean of 0 and a variance of 1 over all
/// positions, and then smoothed over neighbouring frames. Along the mean of all heads runs the path of dynamic time warping.
/// Without such positions there are no frames.
#[must_use]
pub fn token_frames(weights: &[f32], shape: AttentionShape, positions: Range<usize>, frames: usize) -> Vec<usize> {
    let frames = frames.clamp(1, shape.frames.max(1));
    let similarity = similarity(weights, shape, frames);
    let of_positions = similarity.get(positions.start * frames..positions.end * frames).unwrap_or_default();
    let costs: Vec<f64> = of_positions.iter().map(|similarity| -similarity).collect();
    let mut starts: Vec<usize> = Vec::with_capacity(costs.len() / frames);
    for (token, frame) in warp(&costs, frames) {
        if token == starts.len() {
            starts.push(frame);
        }
    }
    starts
}

/// How alike tokens and frames are, [tokens, frames]: the mean of all heads.
fn similarity(weights: &[f32], shape: AttentionShape, frames: usize) -> Vec<f64> {
    let tokens = weights.len() / shape.values().max(1);
    let mut sums = vec![0.0; tokens * frames];
    for head in 0..shape.heads {
        let mut of_head = Vec::with_capacity(sums.len());
        for token in weights.chunks_exact(shape.values()) {
            let row = &token[head * shape.frames..][..frames];
            let sum: f64 = row.iter().map(|weight| f64::from(*weight)).sum();
            let factor = if sum > 0.0 { 1.0 / sum } else { 0.0 };
            of_head.extend(row.iter().map(|weight| f64::from(*weight) * factor));
        }
        normalize_columns(&mut of_head, frames);
        let rows = sums.chunks_exact_mut(frames).zip(of_head.chunks_exact(frames));
        rows.for_each(|(sums, row)| sums.iter_mut().zip(median_filtered(row)).for_each(|(sum, value)| *sum += value));
    }
    sums.iter_mut().for_each(|sum| *sum /= shape.heads as f64);
    sums
}

/// Scales each column to a mean of 0 and a variance of 1. A column of equal values becomes 0.
fn normalize_columns(values: &mut [f64], columns: usize) {
    let rows = (values.len() / columns) as f64;
    for column in 0..columns {
        let of_column = || values.iter().skip(column).step_by(columns);
        let mean = of_column().sum::<f64>() / rows;
        let variance = of_column().map(|value| (value - mean).powi(2)).sum::<f64>() / rows;
        let factor = if variance > 0.0 { 1.0 / variance.sqrt() } else { 0.0 };
        values.iter_mut().skip(column).step_by(columns).for_each(|value| *value = (*value - mean) * factor);
    }
}

/// The median of each value and its neighbours, of which there are as many on both sides. Beyond its ends the row is mirrored,
/// without the values at the ends. A row without neighbours for this stays as it is.
#[must_use]
pub fn median_filtered(row: &[f64]) -> Vec<f64> {
    const REACH: usize = MEDIAN_WIDTH / 2;
    if row.len() <= REACH {
        return row.to_vec();
    }
    let last = row.len() - 1;
    let at = |index: usize| {
        // `index` counts from `REACH` before the row.
        let mirrored = index.abs_diff(REACH);
        row[if mirrored > last { 2 * last - mirrored } else { mirrored }]
    };
    let median = |start: usize| {
        let mut window: [f64; MEDIAN_WIDTH] = std::array::from_fn(|offset| at(start + offset));
        *window.select_nth_unstable_by(REACH, f64::total_cmp).1
    };
    (0..row.len()).map(median).collect()
}

/// The step with which a path reaches a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Move {
    Both,
    Row,
    Column,
}

/// The path of least cost from the first to the last cell of a matrix with this many columns, as rows and columns. Each step goes
/// to the next row, the next column, or both.
#[must_use]
pub fn warp(costs: &[f64], columns: usize) -> VecDeque<(usize, usize)> {
    let mut moves = Vec::with_capacity(costs.len());
    // The costs of paths to the cells of the row before; column 0 is before the first.
    let mut before = vec![f64::INFINITY; columns + 1];
    before[0] = 0.0;
    for row in costs.chunks_exact(columns) {
        let mut reached = vec![f64::INFINITY; columns + 1];
        for (column, cost) in row.iter().enumerate() {
            let (both, next_row, next_column) = (before[column], before[column + 1], reached[column]);
            let (least, step) = if both < next_row && both < next_column {
                (both, Move::Both)
            } else if next_row < both && next_row < next_column {
                (next_row, Move::Row)
            } else {
                (next_column, Move::Column)
            };
            reached[column + 1] = cost + least;
            moves.push(step);
        }
        before = reached;
    }
    path_of(&moves, columns)
}

/// The path that ends in the last cell.
fn path_of(moves: &[Move], columns: usize) -> VecDeque<(usize, usize)> {
    let mut path = VecDeque::new();
    let Some(mut cell) = moves.len().checked_sub(1) else { return path };
    loop {
        let (row, column) = (cell / columns, cell % columns);
        path.push_front((row, column));
        cell -= match (row, column, moves[cell]) {
            (0, 0, _) => return path,
            (0, ..) | (_, 1.., Move::Column) => 1,
            (_, 0, _) | (_, _, Move::Row) => columns,
            (_, _, Move::Both) => columns + 1,
        };
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The least cost of a path to each cell, by its definition.
    fn least_cost(costs: &[f64], columns: usize) -> f64 {
        let mut least: Vec<f64> = Vec::new();
        for (cell, cost) in costs.iter().enumerate() {
            let (row, column) = (cell / columns, cell % columns);
            let mut before = f64::INFINITY;
            for (possible, back) in [(row > 0, columns), (column > 0, 1), (row > 0 && column > 0, columns + 1)] {
                before = if possible { before.min(least[cell - back]) } else { before };
            }
            least.push(cost + if cell == 0 { 0.0 } else { before });
        }
        least.last().copied().unwrap_or_default()
    }

    /// Frames in which one token after the other is spoken, for as many frames each, and weights of two heads that attend to them.
    fn spoken(lengths: &[usize], noise: &[f32]) -> (Vec<f32>, AttentionShape) {
        let frames = lengths.iter().sum();
        let shape = AttentionShape { heads: 2, frames };
        let mut noise = noise.iter().cycle();
        let mut weights = Vec::new();
        for token in 0..lengths.len() {
            let first: usize = lengths[..token].iter().sum();
            for _ in 0..shape.heads {
                let row = (0..frames).map(|frame| (first..first + lengths[token]).contains(&frame));
                weights.extend(row.map(|spoken| f32::from(u8::from(spoken)) + noise.next().unwrap_or(&0.0)));
            }
        }
        (weights, shape)
    }

    proptest! {
        #[test]
        fn a_path_is_monotone_and_no_path_costs_less(
            columns in 1usize..12, rows in 1usize..9, costs in prop::collection::vec(-3.0f64..3.0, 108),
        ) {
            let costs = &costs[..rows * columns];
            let path = warp(costs, columns);
            prop_assert_eq!((path.front(), path.back()), (Some(&(0, 0)), Some(&(rows - 1, columns - 1))));
            for (before, after) in path.iter().zip(path.iter().skip(1)) {
                let step = (after.0 - before.0, after.1 - before.1);
                prop_assert!([(0, 1), (1, 0), (1, 1)].contains(&step), "{:?}", step);
            }
            let cost: f64 = path.iter().map(|(row, column)| costs[row * columns + column]).sum();
            prop_assert!((cost - least_cost(costs, columns)).abs() < 1e-9);
        }

        #[test]
        fn a_median_is_that_of_sorted_neighbours(row in prop::collection::vec(-3.0f64..3.0, 0..40)) {
            let found = median_filtered(&row);
            prop_assert_eq!(found.len(), row.len());
            if row.len() <= 3 {
                prop_assert_eq!(&found, &row);
                return Ok(());
            }
            let mirrored: Vec<f64> = row[1..=3].iter().rev().chain(&row).chain(row[row.len() - 4..][..3].iter().rev()).copied().collect();
            for (window, found) in mirrored.windows(MEDIAN_WIDTH).zip(found) {
                let mut sorted = window.to_vec();
                sorted.sort_by(f64::total_cmp);
                prop_assert_eq!(found, sorted[3]);
            }
        }

        #[test]
        fn tokens_begin_where_they_are_attended_to(
            lengths in prop::collection::vec(8usize..20, 2..8), noise in prop::collection::vec(0.0f32..0.05, 37),
        ) {
            let (weights, shape) = spoken(&lengths, &noise);
            let starts: Vec<usize> = (0..lengths.len()).map(|token| lengths[..token].iter().sum()).collect();
            let found = token_frames(&weights, shape, 0..lengths.len(), shape.frames);
            prop_assert_eq!(found.len(), starts.len());
            for (found, start) in found.iter().zip(starts) {
                prop_assert!(found.abs_diff(start) <= 1, "{} instead of {}", found, start);
            }
        }
    }

    #[test]
    fn frames_after_the_end_and_other_positions_are_left_out() {
        let (weights, shape) = spoken(&[10, 10, 10, 10], &[0.0]);
        let found = token_frames(&weights, shape, 1..4, 30);
        assert!(found.len() == 3 && found[0] == 0 && found.iter().all(|frame| *frame < 30), "{found:?}");
        for positions in [4..4, 2..9] {
            assert_eq!(token_frames(&weights, shape, positions, 30), Vec::<usize>::new());
        }
        let nothing = AttentionShape { heads: 1, frames: 4 };
        assert_eq!(token_frames(&[0.0; 8], nothing, 0..2, 4).len(), 2, "nothing is attended to");
    }
}
