//! Decides from how many rows it is faster to upload a layer's experts to the device than to compute them on the host.
//!
//! On the host the time of a step grows with its rows. The time of an upload does not depend on the rows, so from some number
//! of rows on uploading is faster. Both times are measured: a line is fitted to the times of steps of each kind.

use std::time::Duration;

use crate::device::ExpertStreaming;

/// The measurements and the resulting decision.
#[derive(Debug)]
pub(super) struct BreakEven {
    mode: ExpertStreaming,
    /// Seconds of a step as a function of its rows.
    host: Line,
    streamed: Line,
    /// Maximum bytes uploaded for a step.
    bytes: u64,
    host_steps: u32,
}

impl BreakEven {
    /// Minimum rows of a step for which experts are uploaded. Decode steps have fewer.
    const MIN_ROWS: usize = 32;
    /// Bytes per second assumed before the first measurement: the rate of a fast bus.
    const ASSUMED_RATE: f64 = 16e9;
    /// One in this many steps near the threshold is streamed, to notice when streaming becomes faster.
    const RETRY_INTERVAL: u32 = 64;

    pub fn new(mode: ExpertStreaming, bytes: u64) -> Self {
        let (host, streamed) = (Line { from_zero: true, ..Line::default() }, Line::default());
        BreakEven { mode, host, streamed, bytes, host_steps: 0 }
    }

    /// Whether the experts of a step of `rows` rows are streamed to the device.
    pub fn should_stream(&mut self, rows: usize) -> bool {
        let from = self.stream_from_rows();
        let streams = from.is_some_and(|from| rows >= from);
        let may_be_wrong = self.mode == ExpertStreaming::Auto && from.is_some_and(|from| 2 * rows >= from);
        if !may_be_wrong || rows < Self::MIN_ROWS || streams {
            return streams;
        }
        self.host_steps += 1;
        self.host_steps.is_multiple_of(Self::RETRY_INTERVAL)
    }

    /// The rows from which streaming is faster; `None` if it is not, or if that is not known yet.
    pub fn stream_from_rows(&self) -> Option<usize> {
        let rows = match self.mode {
            ExpertStreaming::Off => return None,
            ExpertStreaming::FromRows(rows) => return Some(rows),
            ExpertStreaming::Auto => {
                let (at_zero, per_row) = self.host.line()?;
                let assumed = (self.bytes as f64 / Self::ASSUMED_RATE, 0.0);
                let (streamed_at_zero, streamed_per_row) = self.streamed.line().unwrap_or(assumed);
                (streamed_at_zero - at_zero) / (per_row - streamed_per_row)
            }
        };
        // Lines that do not intersect give an infinite or a negative number.
        const MOST: f64 = 1e6;
        (rows.is_finite() && rows < MOST && (rows > 0.0 || self.is_always_faster()))
            .then(|| (rows.max(0.0).ceil() as usize).max(Self::MIN_ROWS))
    }

    /// Whether streaming is faster for any number of rows.
    fn is_always_faster(&self) -> bool {
        let lines = self.host.line().zip(self.streamed.line());
        lines.is_some_and(|((at_zero, per_row), (streamed, streamed_per_row))| {
            streamed < at_zero && streamed_per_row < per_row
        })
    }

    /// Records the time of a step of `rows` rows.
    pub fn record(&mut self, streamed: bool, rows: usize, elapsed: Duration) {
        if rows >= Self::MIN_ROWS {
            let line = if streamed { &mut self.streamed } else { &mut self.host };
            line.add(rows as f64, elapsed.as_secs_f64());
        }
    }
}

/// A line fitted to points by least squares. Newer points have more weight.
#[derive(Debug, Clone, Copy, Default)]
struct Line {
    /// If all points have the same `x`: whether the line passes through zero (`true`) or is horizontal (`false`).
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

    /// The value at zero and the slope, which is never negative; `None` without points.
    fn line(&self) -> Option<(f64, f64)> {
        /// If the variance is below this fraction of the squared mean, all points count as having the same `x`.
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
mod tests {
    use super::*;

    fn seconds(seconds: f64) -> Duration {
        Duration::from_secs_f64(seconds)
    }

    /// Runs steps of these rows where the host takes 1 ms per row and an upload takes `upload` seconds.
    fn run(break_even: &mut BreakEven, upload: f64, rows: &[usize]) -> Vec<bool> {
        let step = |rows: &usize| {
            let streams = break_even.should_stream(*rows);
            let elapsed = if streams { upload + 1e-5 * *rows as f64 } else { 0.02 + 1e-3 * *rows as f64 };
            break_even.record(streams, *rows, seconds(elapsed));
            streams
        };
        rows.iter().map(step).collect()
    }

    #[test]
    fn experts_are_streamed_from_the_number_of_rows_where_it_is_faster() {
        // 3.2 GB take an assumed 0.2 s, which corresponds to 200 rows.
        let mut break_even = BreakEven::new(ExpertStreaming::Auto, 3_200_000_000);
        assert!(!break_even.should_stream(4096), "nothing has been measured");
        assert_eq!(break_even.stream_from_rows(), None);
        let tried = run(&mut break_even, 0.5, &[64, 128, 100, 500, 600, 400, 300]);
        assert_eq!(tried, [false, false, false, true, true, false, false], "streaming is slower than assumed");
        assert!((450..520).contains(&break_even.stream_from_rows().unwrap()), "{break_even:?}");
        assert!(!break_even.should_stream(1), "decode steps stay on the host");
    }

    #[test]
    fn streaming_that_is_never_faster_is_retried_rarely() {
        let mut break_even = BreakEven::new(ExpertStreaming::Auto, 1_600_000_000);
        let streamed = run(&mut break_even, 30.0, &[64, 128, 256, 512].repeat(200));
        let count = streamed.iter().filter(|streamed| **streamed).count();
        assert!((1..12).contains(&count), "{count} of {}", streamed.len());
    }

    #[test]
    fn streaming_that_becomes_faster_is_noticed() {
        let mut break_even = BreakEven::new(ExpertStreaming::Auto, 1_600_000_000);
        run(&mut break_even, 0.8, &[64, 128, 256, 512].repeat(10));
        let streamed = run(&mut break_even, 0.05, &[64, 128, 256, 512].repeat(200));
        assert!(streamed[700..].iter().filter(|streamed| **streamed).count() >= 70, "{break_even:?}");
    }

    #[test]
    fn explicit_settings_are_followed() {
        assert!(!BreakEven::new(ExpertStreaming::Off, 1).should_stream(1 << 20));
        let mut from_eight = BreakEven::new(ExpertStreaming::FromRows(8), 1);
        assert_eq!([7, 8, 9].map(|rows| from_eight.should_stream(rows)), [false, true, true]);
        assert_eq!(from_eight.stream_from_rows(), Some(8));
    }
}
