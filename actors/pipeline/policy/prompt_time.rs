//! The time budget of prompt rows in steps with decode rows.
//!
//! Prompt rows make a step slower, and every decoding sequence waits longer for its next token. So prompts have a share of
//! the time of decode rows: each prompt as much as one decoding sequence, and at least a sixth. One prompt next to eight
//! decoding sequences leaves them six sevenths of their rate. When there are as many prompts as decoding sequences, or six
//! prompts, they may use as much of each step as it can hold, because the time to first token then matters more.
//!
//! A few prompt rows in every step would be the most expensive way to use that share: weights that are read for 20 rows
//! cost as much for 2. So a step has either no prompt rows or as many as it may, up to [`step_factor`] times the time of its
//! decode rows. Time beyond the prompts' share becomes a deficit, and the following steps have no prompt rows until
//! it is paid back. The first chunk of a new prompt does not wait for credit. A prompt whose rows that are left fit into a step does
//! not wait for the deficit either, and these rows are not charged: its first token would be many steps late to save less than one.

use std::time::Duration;

/// The smallest share of a prompt is one in this many. This many prompts may use as much time as all decode rows.
pub(super) const MAX_SHARES: usize = 6;

/// Maximum time of a step with prompt rows, as a multiple of the time of its decode rows: as much for each prompt as for one
/// decoding sequence, and at least as much for all prompts as for all decoding sequences. One decoding sequence next to many
/// prompts would otherwise make each step small, and a device computes few rows at a fraction of its speed.
pub(super) fn step_factor(decode_rows: usize, prompts: usize) -> u32 {
    let per_decode_row = prompts.min(MAX_SHARES) / decode_rows.max(1);
    1 + u32::try_from(per_decode_row.max(1)).unwrap_or(u32::MAX - 1)
}

/// Limit of the deficit, as a multiple of the time of a step's decode rows.
///
/// A slow prompt whose smallest chunk takes longer than that gets more than its share: it has a chunk at least every
/// `MAX_DEFICIT * MAX_SHARES` steps.
const MAX_DEFICIT: f64 = 4.0;

/// The time that the prompt rows of a step are expected to take from its decode rows.
#[derive(Debug, Clone, Copy)]
pub(super) struct Charge {
    /// Time that is not charged.
    free: Duration,
    /// Time that was charged.
    expected: Duration,
}

/// The balance of the time that prompts may take from decode rows.
#[derive(Debug, Default)]
pub(super) struct PromptTime {
    /// Seconds that prompts may still take. Negative when they are in deficit.
    balance: f64,
}

impl PromptTime {
    /// Adds the credit of a step. `decode_time` is the predicted time of its decode rows alone, `prompts` is the number of
    /// prompts that wait for rows.
    pub fn credit(&mut self, decode_time: Duration, decode_rows: usize, prompts: usize) {
        let shares = decode_rows.clamp(1, MAX_SHARES);
        if prompts >= shares {
            return self.reset();
        }
        let decode_time = decode_time.as_secs_f64();
        let credited = decode_time * prompts.max(1) as f64 / shares as f64;
        // Without prompts a deficit is paid back but no credit accumulates.
        let most = if prompts > 0 { credited } else { 0.0 };
        self.balance = (self.balance + credited).clamp(-MAX_DEFICIT * decode_time, most);
    }

    /// Whether prompts have taken more than their share.
    pub fn is_in_deficit(&self) -> bool {
        self.balance < 0.0
    }

    /// Charges the expected time of a step with prompt rows, except for `free`.
    pub fn charge(&mut self, total: Duration, free: Duration) -> Charge {
        let expected = total.saturating_sub(free);
        self.balance -= expected.as_secs_f64();
        Charge { free, expected }
    }

    /// Corrects a charge by the measured time of the step. Chunks may take longer than predicted.
    pub fn correct(&mut self, charge: Charge, elapsed: Duration) {
        self.balance += charge.expected.as_secs_f64() - elapsed.saturating_sub(charge.free).as_secs_f64();
    }

    /// Sets the balance to zero.
    pub fn reset(&mut self) {
        self.balance = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECODE_TIME: Duration = Duration::from_millis(10);

    /// Runs 1000 steps with endless prompts whose chunks take `chunk` instead of `expected`. Returns the total time as a
    /// multiple of the time of the decode rows, and the longest run of steps without a chunk.
    fn simulate(decode_rows: usize, prompts: usize, expected: Duration, chunk: Duration) -> (f64, usize) {
        let mut prompt_time = PromptTime::default();
        let (mut total, mut without, mut longest) = (Duration::ZERO, 0, 0);
        for _ in 0..1000 {
            prompt_time.credit(DECODE_TIME, decode_rows, prompts);
            total += DECODE_TIME;
            if prompt_time.is_in_deficit() {
                without += 1;
                longest = longest.max(without);
            } else {
                let charge = prompt_time.charge(DECODE_TIME + expected, DECODE_TIME);
                prompt_time.correct(charge, DECODE_TIME + chunk);
                total += chunk;
                without = 0;
            }
        }
        (total.as_secs_f64() / (1000 * DECODE_TIME).as_secs_f64(), longest)
    }

    #[test]
    fn a_prompt_gets_the_share_of_one_decoding_sequence_but_at_least_a_sixth() {
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
        for (decode_rows, prompts, expected) in cases {
            for chunk in [4, 7, 10, 15].map(Duration::from_millis) {
                let (mean, _) = simulate(decode_rows, prompts, Duration::from_millis(8), chunk);
                // A chunk that uses less than the step allows limits the total.
                let expected = f64::min(expected, 1.0 + chunk.as_secs_f64() / DECODE_TIME.as_secs_f64());
                assert!(
                    (mean - expected).abs() < 0.01,
                    "{prompts} with {decode_rows}, {chunk:?}: {mean}, not {expected}"
                );
            }
        }
    }

    #[test]
    fn a_step_has_time_for_each_prompt_as_for_a_decoding_sequence() {
        let cases = [(1, 0, 2), (1, 1, 2), (8, 1, 2), (8, 99, 2), (1, 3, 4), (2, 6, 4), (1, 99, 7), (0, 0, 2)];
        for (decode_rows, prompts, factor) in cases {
            assert_eq!(step_factor(decode_rows, prompts), factor, "{prompts} next to {decode_rows}");
        }
    }

    #[test]
    fn a_prompt_whose_smallest_chunk_is_very_slow_still_advances() {
        let (_, longest) = simulate(8, 1, DECODE_TIME, 100 * DECODE_TIME);
        assert!(longest <= 25, "{longest} steps without a chunk");
    }

    #[test]
    fn a_prompt_starts_at_once_and_no_credit_accumulates_without_prompts() {
        let mut prompt_time = PromptTime::default();
        for _ in 0..100 {
            prompt_time.credit(DECODE_TIME, 8, 0);
        }
        prompt_time.credit(DECODE_TIME, 8, 1);
        assert!(!prompt_time.is_in_deficit());
        prompt_time.charge(2 * DECODE_TIME, DECODE_TIME);
        let without = (0..100).take_while(|_| {
            prompt_time.credit(DECODE_TIME, 8, 1);
            prompt_time.is_in_deficit()
        });
        assert_eq!(without.count(), 4, "steps two to five of six");
    }
}
