//! Predicts how long it takes to load units from a tier, from measured loads.

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

/// Bytes to load from each tier, in the order of [`Tier::ALL`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::pipeline::policy) struct Amount([u64; Tier::COUNT]);

impl Amount {
    /// The slowest tier of which something is loaded.
    pub fn slowest(&self) -> Tier {
        let is_used = |tier: &Tier| self.0[*tier as usize] > 0;
        Tier::ALL.into_iter().rfind(is_used).unwrap_or(Tier::Host)
    }

    pub fn add(&mut self, tier: Tier, bytes: u64) {
        self.0[tier as usize] += bytes;
    }
}

/// Bytes, as the work whose time is fitted to a base and a time for each.
fn work(bytes: u64) -> Work {
    Work { rows: usize::try_from(bytes).unwrap_or(usize::MAX), attended: 0 }
}

impl CopyTimes {
    /// Bytes were read from a tier.
    pub fn read(&mut self, tier: Tier, bytes: u64, elapsed: Duration) {
        self.reads[tier as usize].observe(work(bytes), false, elapsed);
    }

    /// Bytes were written to the device.
    pub fn written(&mut self, bytes: u64, elapsed: Duration) {
        self.write.observe(work(bytes), false, elapsed);
    }

    /// The predicted time of a load. What was never measured counts as free, so that it is tried.
    pub fn predict(&self, Amount(bytes): Amount) -> Duration {
        let of = |times: &StepTime, bytes: u64| match bytes {
            0 => Duration::ZERO,
            bytes => times.predict(work(bytes)).unwrap_or_default(),
        };
        let reads: Duration = self.reads.iter().zip(bytes).map(|(times, bytes)| of(times, bytes)).sum();
        reads + of(&self.write, bytes.iter().sum())
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
        for bytes in [1, 4, 16, 64] {
            times.read(Tier::Disk, bytes, Duration::from_micros(500 + 100 * bytes));
            times.read(Tier::Host, bytes, Duration::from_micros(10 * bytes));
            times.written(bytes, Duration::from_micros(40 * bytes));
        }
        let micros = |host, disk| times.predict(Amount([host, disk, 0])).as_micros();
        assert!((3990..=4010).contains(&micros(80, 0)), "{}", micros(80, 0));
        assert!((1890..=1910).contains(&micros(0, 10)), "{}", micros(0, 10));
        assert_eq!(times.predict(Amount::default()), Duration::ZERO);
        assert_eq!((0..128).filter(|_| times.decline()).count(), 2);
    }
}
