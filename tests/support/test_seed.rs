//! How tests choose samples of what they could check.

#![allow(dead_code, reason = "a test program uses some of it")]

use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of this run's samples: `CUELIGHT_TEST_SEED`, or else the number of the day.
pub fn test_seed() -> u64 {
    let days = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() / 86_400);
    std::env::var("CUELIGHT_TEST_SEED").map_or_else(|_| days(), |seed| seed.parse().unwrap())
}

/// One of `parts` equal parts of the items. They take turns from day to day, because a software device compiles the shaders of one
/// model for up to ten seconds.
pub fn of_the_day<T>(items: impl IntoIterator<Item = T>, parts: usize) -> impl Iterator<Item = T> {
    let seed = test_seed();
    println!("the part of the day is chosen with the seed {seed}");
    items.into_iter().skip(seed as usize % parts).step_by(parts)
}
