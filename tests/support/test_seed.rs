//! The seed by which tests choose samples of what they could check.

use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of this run's samples: `CUELIGHT_TEST_SEED`, or else the number of the day.
pub fn test_seed() -> u64 {
    let days = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() / 86_400);
    std::env::var("CUELIGHT_TEST_SEED").map_or_else(|_| days(), |seed| seed.parse().unwrap())
}
