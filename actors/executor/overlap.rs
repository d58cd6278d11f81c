//! Whether a step is computed as two micro-batches, so that the device works on one while the experts work on the other.
//!
//! Two halves read the weights twice, so it does not always pay. Both ways are tried for steps of about the same rows, and the
//! faster one is kept, with a look at the other from time to time.

use std::collections::HashMap;
use std::time::Duration;

use cuelight_engine::engine::Step;

/// What `--overlap` may be.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OverlapMode {
    /// Two micro-batches where that was measured to be faster.
    #[default]
    Auto,
    /// Every step in one go.
    Off,
}

/// Steps that take about as long as one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Kind {
    /// The power of two that the rows come to.
    rows: u32,
    sequences: u32,
}

/// What was measured of a kind of steps, for one way to compute them.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    steps: u32,
    /// A running mean of the time per row, in seconds.
    seconds_per_row: f64,
}

/// The choice, step after step.
#[derive(Debug, Default)]
pub(super) struct Overlap {
    mode: OverlapMode,
    /// Whether the engine has handed any experts out: without that there is nothing to overlap.
    hands_out: bool,
    /// In one go, and in two.
    measured: HashMap<Kind, [Measured; 2]>,
    chosen: u32,
}

impl Overlap {
    pub fn new(mode: OverlapMode) -> Self {
        Overlap { mode, ..Overlap::default() }
    }

    /// The engine waits for experts.
    pub fn experts_asked(&mut self) {
        self.hands_out = true;
    }

    /// Whether the engine has handed any experts out.
    pub fn hands_out(&self) -> bool {
        self.hands_out
    }

    /// The kind of a step.
    pub fn kind(step: &Step) -> Kind {
        let power = |count: usize| usize::BITS - count.leading_zeros();
        Kind { rows: power(step.rows()), sequences: power(step.sequences.len()) }
    }

    /// In how many parts a step of this kind is computed.
    pub fn parts(&mut self, kind: Kind) -> usize {
        /// Steps of each way before they are compared; the first of a kind may prepare something.
        const TRIES: u32 = 3;
        /// How often the slower way is tried again.
        const SECOND_LOOK: u32 = 64;
        if self.mode == OverlapMode::Off || !self.hands_out || kind.sequences < 2 {
            return 1;
        }
        self.chosen = self.chosen.wrapping_add(1);
        let [one, two] = self.measured.get(&kind).copied().unwrap_or_default();
        let two_are_better = two.seconds_per_row < one.seconds_per_row;
        let in_two = match (one.steps < TRIES, two.steps < TRIES) {
            (true, _) => false,
            (false, true) => true,
            (false, false) if self.chosen.is_multiple_of(SECOND_LOOK) => !two_are_better,
            (false, false) => two_are_better,
        };
        if in_two { 2 } else { 1 }
    }

    /// A step of this kind and so many rows took so long in so many parts.
    pub fn took(&mut self, kind: Kind, parts: usize, rows: usize, elapsed: Duration) {
        /// What a new step counts.
        const SHARE: f64 = 0.25;
        let measured = &mut self.measured.entry(kind).or_default()[usize::from(parts > 1)];
        let seconds_per_row = elapsed.as_secs_f64() / rows.max(1) as f64;
        // The first step of a kind is not like the others: shaders are prepared, pages fetched.
        let share = if measured.steps <= 1 { 1.0 } else { SHARE };
        measured.seconds_per_row += share * (seconds_per_row - measured.seconds_per_row);
        measured.steps = measured.steps.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind { rows: 4, sequences: 4 };

    /// How many of many steps are computed in two parts, when they take so long in one and in two.
    fn in_two(overlap: &mut Overlap, one: u64, two: u64) -> usize {
        let mut count = 0;
        for _ in 0..640 {
            let parts = overlap.parts(KIND);
            count += parts - 1;
            overlap.took(KIND, parts, 8, Duration::from_micros(if parts == 2 { two } else { one }));
        }
        count
    }

    #[test]
    fn the_faster_way_is_found_and_found_again_when_it_changes() {
        let mut overlap = Overlap::new(OverlapMode::Auto);
        assert_eq!(in_two(&mut overlap, 100, 60), 0, "no experts were handed out yet");
        overlap.experts_asked();
        assert!(in_two(&mut overlap, 100, 60) > 600);
        assert!(in_two(&mut overlap, 100, 130) < 150);
        assert!(in_two(&mut overlap, 100, 60) > 350);
    }

    #[test]
    fn a_single_sequence_and_a_person_who_says_no_are_never_divided() {
        let mut overlap = Overlap::new(OverlapMode::Off);
        overlap.experts_asked();
        assert_eq!(in_two(&mut overlap, 100, 10), 0);
        let mut overlap = Overlap::new(OverlapMode::Auto);
        overlap.experts_asked();
        assert_eq!(overlap.parts(Kind { rows: 9, sequences: 1 }), 1);
    }
}
