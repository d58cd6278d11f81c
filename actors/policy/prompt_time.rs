//! How much of the time of those who wait for their next token goes to the prompts of others.
//!
//! A step with rows of a prompt takes longer, and every stream in it waits. Few rows a step would spread that evenly, but cost
//! the most: a step reads weights for 2 rows as for 20. So prompts save up: a step without them earns a prompt a fifth of its
//! time, and when a chunk is worth it, it is spent at once. One prompt thus takes at most a sixth of the time of all streams, five
//! or more together half of it, and a step takes at most twice its time.

use std::time::Duration;

/// So many times its own time a step of streams takes at most, with rows of prompts.
pub(super) const STRETCH: u32 = 2;

/// So many prompts together may take as much time as the streams.
const PROMPTS_FOR_HALF: u32 = 5;

/// Time that prompts have saved up.
#[derive(Debug, Default)]
pub(super) struct PromptTime(Duration);

impl PromptTime {
    /// A step is formed whose streams alone take so long, while so many prompts are to be computed.
    pub fn earn(&mut self, alone: Duration, prompts: usize) {
        let prompts = u32::try_from(prompts).unwrap_or(u32::MAX).clamp(1, PROMPTS_FOR_HALF);
        self.0 = (self.0 + alone * prompts / PROMPTS_FOR_HALF).min(2 * alone * (STRETCH - 1));
    }

    /// What the step may take beyond the time of its streams; none while a chunk that takes `least` is not worth it yet.
    pub fn available(&self, alone: Duration, least: Duration) -> Option<Duration> {
        // Who saved up all that can be has waited long enough, however slow the prompt.
        let most = alone * (STRETCH - 1);
        (self.0 >= least.min(most)).then_some(self.0.min(most))
    }

    /// The prompts' rows take so long.
    pub fn spend(&mut self, time: Duration) {
        self.0 = self.0.saturating_sub(time);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time of many steps beside so many prompts without end, as a multiple of that of their streams; a chunk takes no
    /// less than `least`, and as long as it may.
    fn stretched(prompts: usize, least: Duration) -> (f64, f64) {
        let (alone, steps) = (Duration::from_millis(10), 1000);
        let mut prompt_time = PromptTime::default();
        let (mut sum, mut longest) = (Duration::ZERO, Duration::ZERO);
        for _ in 0..steps {
            prompt_time.earn(alone, prompts);
            let chunk = prompt_time.available(alone, least).map_or(Duration::ZERO, |time| time.max(least));
            prompt_time.spend(chunk);
            sum += alone + chunk;
            longest = longest.max(alone + chunk);
        }
        (sum.as_secs_f64() / (alone * steps).as_secs_f64(), longest.as_secs_f64() / alone.as_secs_f64())
    }

    #[test]
    fn one_prompt_takes_a_sixth_and_many_take_half() {
        for (prompts, expected) in [(1, 1.2), (2, 1.4), (5, 2.0), (100, 2.0)] {
            for least in [2, 5, 9] {
                let (mean, longest) = stretched(prompts, Duration::from_millis(least));
                assert!(
                    (mean - expected).abs() < 0.01 && longest <= 2.0,
                    "{prompts} prompts: {mean}, at most {longest}"
                );
            }
        }
    }

    #[test]
    fn a_prompt_that_is_slower_than_all_streams_goes_on() {
        let (mean, _) = stretched(1, Duration::from_millis(30));
        assert!(mean > 1.5, "{mean}");
    }
}
