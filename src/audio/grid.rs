//! Convolutions over squares of a spectrogram, with a stride of 2, as matrices for rows that are gathered before them.

use std::ops::Range;

/// Values at each side of a square, and the taps of a kernel.
const SIDE: usize = 3;
/// The taps of a kernel.
pub const TAPS: usize = SIDE * SIDE;

/// The order of the taps of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Taps {
    /// Those of one bin follow one another.
    BinByBin,
    /// Those of one time follow one another.
    TimeByTime,
}

/// The order of the values of a time when they become one row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Joining {
    /// Those of a bin follow one another.
    BinByBin,
    /// Those of a channel follow one another.
    ChannelByChannel,
}

/// The shape of values at places in time and frequency, [times, bins, channels].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grid {
    /// Places in time.
    pub times: usize,
    /// Places in frequency.
    pub bins: usize,
    /// Values of a place.
    pub channels: usize,
}

impl Grid {
    /// The grid after a convolution with this many outputs: one place for every second time and bin.
    #[must_use]
    pub fn halved(self, channels: usize) -> Self {
        Grid { times: self.times.div_ceil(2), bins: self.bins.div_ceil(2), channels }
    }

    /// The number of places.
    #[must_use]
    pub fn places(self) -> usize {
        self.times * self.bins
    }

    /// For some places of the halved grid: the values of the square around each. The taps of a channel follow one another, as the
    /// kernel stores them; places outside are zero.
    #[must_use]
    pub fn gathered(self, values: &[f32], places: Range<usize>, taps: Taps) -> Vec<f32> {
        let (bins, width) = (self.bins.div_ceil(2), TAPS * self.channels);
        let mut gathered = vec![0.0; places.len() * width];
        for (place, row) in places.zip(gathered.chunks_exact_mut(width)) {
            let middle = [2 * (place / bins), 2 * (place % bins)];
            for tap in 0..TAPS {
                let Some(from) = self.neighbour(middle, tap, taps) else { continue };
                let source = &values[from * self.channels..][..self.channels];
                row.iter_mut().skip(tap).step_by(TAPS).zip(source).for_each(|(value, source)| *value = *source);
            }
        }
        gathered
    }

    /// The place of a tap around a place, which is given by its time and bin.
    fn neighbour(self, [time, bin]: [usize; 2], tap: usize, taps: Taps) -> Option<usize> {
        let [time_tap, bin_tap] = match taps {
            Taps::BinByBin => [tap % SIDE, tap / SIDE],
            Taps::TimeByTime => [tap / SIDE, tap % SIDE],
        };
        let time = (time + time_tap).checked_sub(1).filter(|time| *time < self.times)?;
        let bin = (bin + bin_tap).checked_sub(1).filter(|bin| *bin < self.bins)?;
        Some(time * self.bins + bin)
    }

    /// The values of each time as one row.
    #[must_use]
    pub fn joined(self, values: Vec<f32>, joining: Joining) -> Vec<f32> {
        if joining == Joining::BinByBin {
            return values;
        }
        let of_time = |values: &[f32]| -> Vec<f32> {
            (0..self.channels).flat_map(|channel| values[channel..].iter().step_by(self.channels)).copied().collect()
        };
        values.chunks_exact((self.bins * self.channels).max(1)).flat_map(of_time).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The convolution by its definition, of a kernel [outputs, channels, 3, 3].
    fn reference(grid: Grid, values: &[f32], kernel: &[f32], taps: Taps) -> Vec<f64> {
        let outputs = kernel.len() / (TAPS * grid.channels);
        let at = |time: usize, bin: usize, channel: usize| {
            let is_inside = (1..=grid.times).contains(&time) && (1..=grid.bins).contains(&bin);
            if !is_inside {
                return 0.0;
            }
            f64::from(values[((time - 1) * grid.bins + bin - 1) * grid.channels + channel])
        };
        let half = grid.halved(outputs);
        let mut results = Vec::new();
        for place in 0..half.places() {
            let (time, bin) = (2 * (place / half.bins), 2 * (place % half.bins));
            for output in 0..outputs {
                let mut sum = 0.0;
                for (channel, tap, other) in each_tap(grid.channels) {
                    let (time, bin) =
                        if taps == Taps::TimeByTime { (time + tap, bin + other) } else { (time + other, bin + tap) };
                    let weight = kernel[(output * grid.channels + channel) * TAPS + tap * SIDE + other];
                    sum += f64::from(weight) * at(time, bin, channel);
                }
                results.push(sum);
            }
        }
        results
    }

    /// Each channel with each tap, given by its two numbers.
    fn each_tap(channels: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        (0..channels * TAPS).map(|index| (index / TAPS, index % TAPS / SIDE, index % SIDE))
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn a_matrix_over_gathered_squares_is_the_convolution(
            times in 1usize..8, bins in 1usize..8, channels in 1usize..4, outputs in 1usize..4, by_time in any::<bool>(), split in 0usize..16,
        ) {
            let grid = Grid { times, bins, channels };
            let number = |index: usize| ((index * 7919 + 13) % 201) as f32 / 100.0 - 1.0;
            let values: Vec<f32> = (0..grid.places() * channels).map(number).collect();
            let kernel: Vec<f32> = (0..outputs * channels * TAPS).map(|index| number(index + 5)).collect();
            let taps = if by_time { Taps::TimeByTime } else { Taps::BinByBin };
            let places = grid.halved(outputs).places();
            let split = split.min(places);
            let gathered = [grid.gathered(&values, 0..split, taps), grid.gathered(&values, split..places, taps)].concat();
            let product = |row: &[f32], kernel: &[f32]| -> f64 {
                row.iter().zip(kernel).map(|(value, weight)| f64::from(*value) * f64::from(*weight)).sum()
            };
            let width = TAPS * channels;
            let found: Vec<f64> = gathered
                .chunks_exact(width)
                .flat_map(|row| kernel.chunks_exact(width).map(move |kernel| product(row, kernel)))
                .collect();
            let expected = reference(grid, &values, &kernel, taps);
            prop_assert_eq!(found.len(), expected.len());
            for (found, expected) in found.iter().zip(&expected) {
                prop_assert!((found - expected).abs() < 1e-9, "{} {}", found, expected);
            }
        }
    }

    #[test]
    fn the_values_of_a_time_are_joined_by_bins_or_by_channels() {
        let grid = Grid { times: 2, bins: 2, channels: 3 };
        let values: Vec<f32> = (0..12).map(|value| value as f32).collect();
        assert_eq!(grid.joined(values.clone(), Joining::BinByBin), values);
        let by_channel = grid.joined(values, Joining::ChannelByChannel);
        assert_eq!(by_channel, [0.0, 3.0, 1.0, 4.0, 2.0, 5.0, 6.0, 9.0, 7.0, 10.0, 8.0, 11.0]);
    }
}
