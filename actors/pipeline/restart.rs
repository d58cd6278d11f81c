//! How often a pipeline restarts its actors after faults.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Limits and backoff of restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Maximum number of restarts within the window. After one more fault the pipeline gives up.
    pub max_restarts: usize,
    /// Length of the window.
    pub window: Duration,
    /// Pause before the first restart of a window. It doubles with each further restart.
    pub first_backoff: Duration,
    /// Longest pause.
    pub max_backoff: Duration,
}

impl Default for RestartPolicy {
    fn default() -> Self {
        RestartPolicy {
            max_restarts: 10,
            window: Duration::from_secs(60),
            first_backoff: Duration::from_millis(50),
            max_backoff: Duration::from_secs(5),
        }
    }
}

/// The restarts within the current window.
#[derive(Debug, Default)]
pub(super) struct RestartHistory(VecDeque<Instant>);

impl RestartHistory {
    /// Records a restart and returns the pause before it. `None` when there were too many restarts.
    pub fn next(&mut self, now: Instant, policy: &RestartPolicy) -> Option<Duration> {
        self.0.retain(|&at| now.duration_since(at) < policy.window);
        let before = self.0.len();
        if before >= policy.max_restarts {
            return None;
        }
        self.0.push_back(now);
        let factor = 1u32 << before.min(20);
        Some(policy.first_backoff.saturating_mul(factor).min(policy.max_backoff))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn the_backoff_doubles_and_is_reset_after_a_quiet_window() {
        let second = Duration::from_secs(1);
        let policy =
            RestartPolicy { max_restarts: 3, window: 60 * second, first_backoff: second, max_backoff: 3 * second };
        let mut history = RestartHistory::default();
        let now = Instant::now();
        let pauses: Vec<_> = (0..4).map(|_| history.next(now, &policy)).collect();
        assert_eq!(pauses, [Some(second), Some(2 * second), Some(3 * second), None]);
        assert_eq!(history.next(now + 61 * second, &policy), Some(second));
    }
}
