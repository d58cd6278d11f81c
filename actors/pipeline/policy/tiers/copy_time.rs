//! Predicts how long it takes to load blocks from a tier, from measured loads.

use std::time::Duration;

use crate::core::tier::Tier;
use crate::pipeline::policy::step_time::{StepTime, Work};

/// A load that is expected to be slower than computing is made all the same after this many, so that the measurement is renewed.
const DECLINED_BEFORE_PROBE: u32 = 64;

/// Measured reads from each tier and writes to the device.
#[derive(Debug, Default)]
pub(in crate::pipeline::policy) struct CopyTimes {
    /// In the order of [`Tier::ALL`].
    reads: [StepTime; Tier::COUNT],
    /// To the device.
    write: StepTime,
    declined: u32,
}

/// Blocks to load from each tier, in the order of [`Tier::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::pipeline::policy) struct Amount([usize; Tier::COUNT]);

impl Amount {
    pub fn add(&mut self, tier: Tier) {
        self.0[tier as usize] += 1;
    }
}

/// Blocks, as the work whose time is fitted to a base and a time for each.
fn work(blocks: usize) -> Work {
    Work { rows: blocks, attended: 0 }
}

impl CopyTimes {
    /// Blocks were read from a tier.
    pub fn read(&mut self, tier: Tier, blocks: usize, elapsed: Duration) {
        self.reads[tier as usize].observe(work(blocks), false, elapsed);
    }

    /// Blocks were written to the device.
    pub fn written(&mut self, blocks: usize, elapsed: Duration) {
        self.write.observe(work(blocks), false, elapsed);
    }

    /// The predicted time to load blocks. What was never measured counts as free, so that it is tried.
    pub fn predict(&self, Amount(blocks): Amount) -> Duration {
        let of = |times: &StepTime, blocks: usize| match blocks {
            0 => Duration::ZERO,
            blocks => times.predict(work(blocks)).unwrap_or_default(),
        };
        let reads: Duration = self.reads.iter().zip(blocks).map(|(times, blocks)| of(times, blocks)).sum();
        reads + of(&self.write, blocks.iter().sum())
    }

    /// A load was expected to be slower than computing. Returns whether to make it all the same.
    pub fn decline(&mut self) -> bool {
        self.declined = (self.declined + 1) % DECLINED_BEFORE_PROBE;
        self.declined == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_predicted_from_measurements_of_each_tier() {
        let mut times = CopyTimes::default();
        assert_eq!(times.predict(Amount([5, 5, 5])), Duration::ZERO);
        for blocks in [1, 4, 16, 64] {
            times.read(Tier::Disk, blocks, Duration::from_micros(500 + 100 * blocks as u64));
            times.read(Tier::Host, blocks, Duration::from_micros(10 * blocks as u64));
            times.written(blocks, Duration::from_micros(40 * blocks as u64));
        }
        let micros = |host, disk| times.predict(Amount([host, disk, 0])).as_micros();
        assert!((3990..=4010).contains(&micros(80, 0)), "{}", micros(80, 0));
        assert!((1890..=1910).contains(&micros(0, 10)), "{}", micros(0, 10));
        assert_eq!(times.predict(Amount::default()), Duration::ZERO);
        assert_eq!((0..128).filter(|_| times.decline()).count(), 2);
    }
}
