//! From how many rows on it is faster to bring a layer's experts to the device than to compute them on the host.
//!
//! On the host a step takes the longer the more rows it has. To bring the experts takes the same however many rows they
//! are for, so there is a number of rows from which on that is faster. Both are measured: a line is fitted to what
//! steps of either way took.

use std::time::Duration;

use crate::device::ExpertStreaming;

/// What was measured so far.
#[derive(Debug)]
pub(super) struct BreakEven {
    mode: ExpertStreaming,
    /// Seconds of a step by its rows.
    host: Line,
    streamed: Line,
    /// What is brought for a step, at most.
    bytes: u64,
    host_steps: u32,
}

impl BreakEven {
    /// The least rows of a step for which experts may be brought: decoding is not what this is for.
    const LEAST_ROWS: usize = 32;
    /// Bytes a second that may be hoped for where nothing was measured yet: what a fast bus carries.
    const HOPED_RATE: f64 = 16e9;
    /// After so many steps on the host that might have been faster, one shows whether it is still so.
    const SECOND_LOOK: u32 = 64;

    pub fn new(mode: ExpertStreaming, bytes: u64) -> Self {
        let (host, streamed) = (Line { from_zero: true, ..Line::default() }, Line::default());
        BreakEven { mode, host, streamed, bytes, host_steps: 0 }
    }

    /// Whether the experts of a step of so many rows come to the device.
    pub fn streams(&mut self, rows: usize) -> bool {
        let from = self.streams_from();
        let streams = from.is_some_and(|from| rows >= from);
        let may_be_wrong = self.mode == ExpertStreaming::Auto && from.is_some_and(|from| 2 * rows >= from);
        if !may_be_wrong || rows < Self::LEAST_ROWS || streams {
            return streams;
        }
        self.host_steps += 1;
        self.host_steps.is_multiple_of(Self::SECOND_LOOK)
    }

    /// From how many rows on; `None` as long as nothing is known that would make it faster.
    pub fn streams_from(&self) -> Option<usize> {
        let rows = match self.mode {
            ExpertStreaming::Off => return None,
            ExpertStreaming::FromRows(rows) => return Some(rows),
            ExpertStreaming::Auto => {
                let (at_zero, per_row) = self.host.line()?;
                let hoped = (self.bytes as f64 / Self::HOPED_RATE, 0.0);
                let (streamed_at_zero, streamed_per_row) = self.streamed.line().unwrap_or(hoped);
                (streamed_at_zero - at_zero) / (per_row - streamed_per_row)
            }
        };
        // A line that never meets the other gives no number, or one below zero.
        const MOST: f64 = 1e6;
        (rows.is_finite() && rows < MOST && (rows > 0.0 || self.is_always_faster()))
            .then(|| (rows.max(0.0).ceil() as usize).max(Self::LEAST_ROWS))
    }

    /// Whether to bring experts is faster for any rows.
    fn is_always_faster(&self) -> bool {
        let lines = self.host.line().zip(self.streamed.line());
        lines.is_some_and(|((at_zero, per_row), (streamed, streamed_per_row))| {
            streamed < at_zero && streamed_per_row < per_row
        })
    }

    /// A step of so many rows took so long.
    pub fn took(&mut self, streamed: bool, rows: usize, elapsed: Duration) {
        if rows >= Self::LEAST_ROWS {
            let line = if streamed { &mut self.streamed } else { &mut self.host };
            line.add(rows as f64, elapsed.as_secs_f64());
        }
    }
}

/// A line through points, the newer ones counting more (least squares).
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    /// Where points are all at one place: whether the line goes through zero, or is level.
    from_zero: bool,
    weight: f64,
    x: f64,
    y: f64,
    xx: f64,
    xy: f64,
}

impl Line {
    fn add(&mut self, x: f64, y: f64) {
        const KEPT: f64 = 0.9;
        for sum in [&mut self.weight, &mut self.x, &mut self.y, &mut self.xx, &mut self.xy] {
            *sum *= KEPT;
        }
        self.weight += 1.0;
        self.x += x;
        self.y += y;
        self.xx += x * x;
        self.xy += x * y;
    }

    /// Its value at zero and its slope, which is never below zero; `None` without points.
    fn line(&self) -> Option<(f64, f64)> {
        /// Of the mean's square: below that, points are at one place.
        const SPREAD: f64 = 0.01;
        if self.weight == 0.0 {
            return None;
        }
        let (x, y) = (self.x / self.weight, self.y / self.weight);
        let (variance, covariance) = (self.xx / self.weight - x * x, self.xy / self.weight - x * y);
        let slope = match (variance > SPREAD * x * x, self.from_zero) {
            (true, _) => (covariance / variance).max(0.0),
            (false, true) => y / x,
            (false, false) => 0.0,
        };
        Some((y - slope * x, slope))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// Runs steps of these rows where the host takes a millisecond a row and to bring experts takes `bring`.
    fn run(break_even: &mut BreakEven, bring: f64, rows: &[usize]) -> Vec<bool> {
        let step = |rows: &usize| {
            let streams = break_even.streams(*rows);
            let elapsed = if streams { bring + 1e-5 * *rows as f64 } else { 0.02 + 1e-3 * *rows as f64 };
            break_even.took(streams, *rows, seconds(elapsed));
            streams
        };
        rows.iter().map(step).collect()
    }

    #[test]
    fn experts_come_from_the_number_of_rows_on_from_which_it_is_faster() {
        // 3.2 GB: hoped for in 0.2 s, that is 200 rows.
        let mut break_even = BreakEven::new(ExpertStreaming::Auto, 3_200_000_000);
        assert!(!break_even.streams(4096), "nothing was measured");
        assert_eq!(break_even.streams_from(), None);
        let tried = run(&mut break_even, 0.5, &[64, 128, 100, 500, 600, 400, 300]);
        assert_eq!(tried, [false, false, false, true, true, false, false], "and found slower than hoped");
        assert!((450..520).contains(&break_even.streams_from().unwrap()), "{break_even:?}");
        assert!(!break_even.streams(1), "decoding is the host's");
    }

    #[test]
    fn where_it_never_pays_it_is_tried_now_and_then_and_not_more() {
        let mut break_even = BreakEven::new(ExpertStreaming::Auto, 1_600_000_000);
        let streamed = run(&mut break_even, 30.0, &[64, 128, 256, 512].repeat(200));
        let count = streamed.iter().filter(|streamed| **streamed).count();
        assert!((1..12).contains(&count), "{count} of {}", streamed.len());
    }

    #[test]
    fn what_becomes_faster_is_found() {
        let mut break_even = BreakEven::new(ExpertStreaming::Auto, 1_600_000_000);
        run(&mut break_even, 0.8, &[64, 128, 256, 512].repeat(10));
        let streamed = run(&mut break_even, 0.05, &[64, 128, 256, 512].repeat(200));
        assert!(streamed[700..].iter().filter(|streamed| **streamed).count() >= 70, "{break_even:?}");
    }

    #[test]
    fn whoever_says_when_is_obeyed() {
        assert!(!BreakEven::new(ExpertStreaming::Off, 1).streams(1 << 20));
        let mut from_eight = BreakEven::new(ExpertStreaming::FromRows(8), 1);
        assert_eq!([7, 8, 9].map(|rows| from_eight.streams(rows)), [false, true, true]);
        assert_eq!(from_eight.streams_from(), Some(8));
    }
}
