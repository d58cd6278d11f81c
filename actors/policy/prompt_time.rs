//! How much of the time of streams goes to the prompts of others.
//!
//! In a step that has rows of a prompt as well, everybody who waits for a next token waits longer. So prompts have a share of
//! the time that streams take: each as much as one stream, and at least a sixth. One prompt beside eight streams leaves them
//! six sevenths of their rate. As many prompts as streams, or six, may have as much in each step as it can give, for then
//! whoever waits for a first token counts for more.
//!
//! A few rows in every step would be the dearest way to use that share: weights that are read for 20 rows cost as much
//! for 2. So a step has either no rows of prompts or as many as it may, up to [`STRETCH`] times the time of its streams, and
//! for what that was beyond their share prompts stand back in the steps that follow. The first chunk of a prompt that
//! comes does not wait for anything to be saved up.

use std::time::Duration;

/// So many times the time of its streams a step takes at most, with the rows of prompts.
pub(super) const STRETCH: u32 = 2;

/// So many prompts together may take as much time as any number of streams.
pub(super) const PROMPTS_FOR_HALF: usize = 6;

/// So many times the time of a step's streams prompts owe at most. A chunk that takes longer still, because the least there
/// is of a slow prompt does, takes more than its share: it comes every `MOST_OWED * PROMPTS_FOR_HALF` steps at the latest.
const MOST_OWED: f64 = 4.0;

/// What a step with rows of prompts is expected to take from its streams.
#[derive(Debug, Clone, Copy)]
pub(super) struct Charge {
    /// The time that streams wait in any case.
    free: Duration,
    expected: Duration,
}

/// The account of the time that prompts take from streams.
#[derive(Debug, Default)]
pub(super) struct PromptTime {
    /// Seconds that prompts may still take; below zero they owe them.
    balance: f64,
}

impl PromptTime {
    /// A step is formed whose streams take so long alone, and so many prompts would like to have rows in it.
    pub fn earn(&mut self, alone: Duration, streams: usize, prompts: usize) {
        let whole_share = streams.clamp(1, PROMPTS_FOR_HALF);
        if prompts >= whole_share {
            return self.forget();
        }
        let alone = alone.as_secs_f64();
        let earned = alone * prompts.max(1) as f64 / whole_share as f64;
        // Nothing is saved up for those who are not there yet.
        let most = if prompts > 0 { earned } else { 0.0 };
        self.balance = (self.balance + earned).clamp(-MOST_OWED * alone, most);
    }

    /// Whether prompts took more than their share and must stand back.
    pub fn is_owed(&self) -> bool {
        self.balance < 0.0
    }

    /// A step is expected to take so long, prompts included, of which `free` is taken from nobody.
    pub fn spend(&mut self, together: Duration, free: Duration) -> Charge {
        let expected = together.saturating_sub(free);
        self.balance -= expected.as_secs_f64();
        Charge { free, expected }
    }

    /// The step took so long: chunks may well be dearer than a sum of rows says.
    pub fn correct(&mut self, charge: Charge, elapsed: Duration) {
        self.balance += charge.expected.as_secs_f64() - elapsed.saturating_sub(charge.free).as_secs_f64();
    }

    /// Nobody waits for a next token to whom anything could be owed.
    pub fn forget(&mut self) {
        self.balance = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALONE: Duration = Duration::from_millis(10);

    /// Of 1000 steps beside prompts without end, whose chunks take longer than expected or not: the time of all as a
    /// multiple of that of their streams, and the longest row of steps without a chunk.
    fn stretched(streams: usize, prompts: usize, expected: Duration, chunk: Duration) -> (f64, usize) {
        let mut prompt_time = PromptTime::default();
        let (mut total, mut without, mut longest) = (Duration::ZERO, 0, 0);
        for _ in 0..1000 {
            prompt_time.earn(ALONE, streams, prompts);
            total += ALONE;
            if prompt_time.is_owed() {
                without += 1;
                longest = longest.max(without);
            } else {
                let charge = prompt_time.spend(ALONE + expected, ALONE);
                prompt_time.correct(charge, ALONE + chunk);
                total += chunk;
                without = 0;
            }
        }
        (total.as_secs_f64() / (1000 * ALONE).as_secs_f64(), longest)
    }

    #[test]
    fn a_prompt_takes_as_much_as_a_stream_but_at_least_a_sixth_and_as_many_as_streams_what_a_step_gives() {
        let cases = [
            (2, 1, 1.5),
            (4, 1, 1.25),
            (8, 1, 7.0 / 6.0),
            (64, 1, 7.0 / 6.0),
            (8, 3, 1.5),
            (8, 6, 9.0),
            (1, 1, 9.0),
            (8, 99, 9.0),
        ];
        for (streams, prompts, expected) in cases {
            for chunk in [4, 7, 10, 15].map(Duration::from_millis) {
                let (mean, _) = stretched(streams, prompts, Duration::from_millis(8), chunk);
                // Who takes less in a step than it might has less.
                let expected = f64::min(expected, 1.0 + chunk.as_secs_f64() / ALONE.as_secs_f64());
                assert!((mean - expected).abs() < 0.01, "{prompts} beside {streams}, {chunk:?}: {mean} for {expected}");
            }
        }
    }

    #[test]
    fn a_prompt_whose_least_chunk_is_slower_than_many_steps_goes_on() {
        let (_, longest) = stretched(8, 1, ALONE, 100 * ALONE);
        assert!(longest <= 25, "{longest} steps without it");
    }

    #[test]
    fn a_prompt_begins_at_once_and_idleness_saves_up_nothing() {
        let mut prompt_time = PromptTime::default();
        for _ in 0..100 {
            prompt_time.earn(ALONE, 8, 0);
        }
        prompt_time.earn(ALONE, 8, 1);
        assert!(!prompt_time.is_owed());
        prompt_time.spend(2 * ALONE, ALONE);
        let without = (0..100).take_while(|_| {
            prompt_time.earn(ALONE, 8, 1);
            prompt_time.is_owed()
        });
        assert_eq!(without.count(), 4, "of six steps the second to the fifth; the sixth is paid for in the next");
    }
}
