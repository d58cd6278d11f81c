//! How often a pipeline restarts its actors after faults.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::time::Instant;

/// Limits and backoff of restarts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RestartPolicy {
    /// Maximum number of restarts within the window. After one more fault the pipeline gives up.
    pub max_restarts: usize,
    /// Length of the window, in time that the actors run. A load that takes long and fails brings the end of the window no closer.
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
pub(super) struct RestartHistory {
    /// For each restart, how long the actors had run before it.
    restarts: VecDeque<Duration>,
    /// How long they ran until they last stopped or started.
    ran: Duration,
    /// Since when they run. `None` while one of them is being restarted.
    running_since: Option<Instant>,
}

impl RestartHistory {
    /// Records whether the actors run from now on.
    pub fn set_running(&mut self, is_running: bool, now: Instant) {
        self.ran = self.ran_until(now);
        self.running_since = is_running.then_some(now);
    }

    fn ran_until(&self, now: Instant) -> Duration {
        self.ran + self.running_since.map_or(Duration::ZERO, |since| now.duration_since(since))
    }

    /// Records a restart and returns the pause before it. `None` when there were too many restarts.
    pub fn next(&mut self, now: Instant, policy: &RestartPolicy) -> Option<Duration> {
        let ran = self.ran_until(now);
        self.restarts.retain(|&at| ran - at < policy.window);
        let before = self.restarts.len();
        if before >= policy.max_restarts {
            return None;
        }
        self.restarts.push_back(ran);
        let factor = 1u32 << before.min(20);
        Some(policy.first_backoff.saturating_mul(factor).min(policy.max_backoff))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);
    const POLICY: RestartPolicy = RestartPolicy {
        max_restarts: 3,
        window: Duration::from_secs(60),
        first_backoff: SECOND,
        max_backoff: Duration::from_secs(3),
    };

    #[tokio::test(start_paused = true)]
    async fn the_backoff_doubles_and_is_reset_after_a_quiet_window() {
        let mut history = RestartHistory::default();
        let now = Instant::now();
        history.set_running(true, now);
        let pauses: Vec<_> = (0..4).map(|_| history.next(now, &POLICY)).collect();
        assert_eq!(pauses, [Some(SECOND), Some(2 * SECOND), Some(3 * SECOND), None]);
        assert_eq!(history.next(now + 61 * SECOND, &POLICY), Some(SECOND));
    }

    #[tokio::test(start_paused = true)]
    async fn the_window_goes_on_only_while_the_actors_run() {
        let mut history = RestartHistory::default();
        let now = Instant::now();
        let down = |history: &mut RestartHistory, times: u32| {
            history.set_running(false, now);
            (0..times).map(|time| history.next(now + 3600 * time * SECOND, &POLICY).is_some()).collect::<Vec<_>>()
        };
        assert_eq!(down(&mut history, 4), [true, true, true, false]);
        history.set_running(true, now + 4 * 3600 * SECOND);
        assert_eq!(history.next(now + 4 * 3600 * SECOND + 59 * SECOND, &POLICY), None);
        assert_eq!(history.next(now + 4 * 3600 * SECOND + 60 * SECOND, &POLICY), Some(SECOND));
    }
}
