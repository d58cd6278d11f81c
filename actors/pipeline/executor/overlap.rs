//! Decides whether a step is computed as two micro-batches, so that the device works on one while the experts work on the
//! other.
//!
//! Two micro-batches read the weights twice, so splitting does not always help. Both variants are measured for steps of
//! about the same size. The faster one is used, and the other is measured again from time to time.

use std::collections::HashMap;
use std::time::Duration;

use cuelight_engine::engine::Step;

/// The values of `--overlap`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OverlapMode {
    /// Split steps into two micro-batches where that was measured to be faster.
    #[default]
    Auto,
    /// Never split a step.
    Off,
}

/// A class of steps that take about the same time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct StepClass {
    /// Bit length of the number of rows.
    rows: u32,
    /// Bit length of the number of sequences.
    sequences: u32,
}

/// Measured times of one class of steps and one number of micro-batches.
#[derive(Debug, Clone, Copy, Default)]
struct Measured {
    steps: u32,
    /// Running mean of the time per row, in seconds.
    seconds_per_row: f64,
}

/// Chooses the number of micro-batches of every step.
#[derive(Debug, Default)]
pub(super) struct Overlap {
    mode: OverlapMode,
    /// Whether the engine has submitted any expert job. Without one there is nothing to overlap.
    uses_host_experts: bool,
    /// Times of one micro-batch and of two.
    measured: HashMap<StepClass, [Measured; 2]>,
    /// Number of decisions so far.
    decisions: u32,
}

impl Overlap {
    pub fn new(mode: OverlapMode) -> Self {
        Overlap { mode, ..Overlap::default() }
    }

    /// Records that the engine has submitted an expert job.
    pub fn experts_used(&mut self) {
        self.uses_host_experts = true;
    }

    /// Whether the engine has submitted any expert job.
    pub fn uses_host_experts(&self) -> bool {
        self.uses_host_experts
    }

    /// The class of a step.
    pub fn class(step: &Step) -> StepClass {
        let bit_length = |count: usize| usize::BITS - count.leading_zeros();
        StepClass { rows: bit_length(step.rows()), sequences: bit_length(step.sequences.len()) }
    }

    /// Number of micro-batches for a step of this class.
    pub fn micro_batches(&mut self, class: StepClass) -> usize {
        /// Measured steps of each variant before they are compared. The first step of a class may prepare something.
        const TRIES: u32 = 3;
        /// The slower variant is measured again once in this many decisions.
        const RETRY_INTERVAL: u32 = 64;
        if self.mode == OverlapMode::Off || !self.uses_host_experts || class.sequences < 2 {
            return 1;
        }
        self.decisions = self.decisions.wrapping_add(1);
        let [one, two] = self.measured.get(&class).copied().unwrap_or_default();
        let two_are_better = two.seconds_per_row < one.seconds_per_row;
        let in_two = match (one.steps < TRIES, two.steps < TRIES) {
            (true, _) => false,
            (false, true) => true,
            (false, false) if self.decisions.is_multiple_of(RETRY_INTERVAL) => !two_are_better,
            (false, false) => two_are_better,
        };
        if in_two { 2 } else { 1 }
    }

    /// Records the time of a step.
    pub fn record(&mut self, class: StepClass, micro_batches: usize, rows: usize, elapsed: Duration) {
        /// Weight of a new measurement in the running mean.
        const WEIGHT: f64 = 0.25;
        let measured = &mut self.measured.entry(class).or_default()[usize::from(micro_batches > 1)];
        let seconds_per_row = elapsed.as_secs_f64() / rows.max(1) as f64;
        // The first step of a class is slower because shaders are prepared and pages are read, so it is replaced.
        let weight = if measured.steps <= 1 { 1.0 } else { WEIGHT };
        measured.seconds_per_row += weight * (seconds_per_row - measured.seconds_per_row);
        measured.steps = measured.steps.saturating_add(1);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: StepClass = StepClass { rows: 4, sequences: 4 };

    /// Of 640 steps, how many are split when a step takes `one` microseconds unsplit and `two` split.
    fn split_steps(overlap: &mut Overlap, one: u64, two: u64) -> usize {
        let mut count = 0;
        for _ in 0..640 {
            let micro_batches = overlap.micro_batches(CLASS);
            count += micro_batches - 1;
            let micros = if micro_batches == 2 { two } else { one };
            overlap.record(CLASS, micro_batches, 8, Duration::from_micros(micros));
        }
        count
    }

    #[test]
    fn the_faster_variant_is_used_also_after_it_changes() {
        let mut overlap = Overlap::new(OverlapMode::Auto);
        assert_eq!(split_steps(&mut overlap, 100, 60), 0, "no expert job was submitted yet");
        overlap.experts_used();
        assert!(split_steps(&mut overlap, 100, 60) > 600);
        assert!(split_steps(&mut overlap, 100, 130) < 150);
        assert!(split_steps(&mut overlap, 100, 60) > 350);
    }

    #[test]
    fn steps_of_one_sequence_or_with_overlap_off_are_never_split() {
        let mut overlap = Overlap::new(OverlapMode::Off);
        overlap.experts_used();
        assert_eq!(split_steps(&mut overlap, 100, 10), 0);
        let mut overlap = Overlap::new(OverlapMode::Auto);
        overlap.experts_used();
        assert_eq!(overlap.micro_batches(StepClass { rows: 9, sequences: 1 }), 1);
    }
}
