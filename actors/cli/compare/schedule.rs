//! The order of the runs, and how long the rest of them takes.

use std::time::Duration;

use super::contender::FlashAttention;

/// One process of a contender, in each round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The index of the job.
    pub job: usize,
    /// The index of the contender.
    pub contender: usize,
    /// The setting of a peer.
    pub setting: Option<FlashAttention>,
}

/// All runs of a comparison.
#[derive(Debug)]
pub struct Schedule {
    rounds: usize,
    slots: Vec<Slot>,
}

/// A run, and what is known of it.
#[derive(Debug)]
struct Slot {
    run: Run,
    /// How often it ran.
    done: usize,
    /// How long it took the last time.
    took: Option<Duration>,
    /// Whether it does not run again.
    is_ended: bool,
}

impl Schedule {
    /// The runs of a round in their order: job by job.
    #[must_use]
    pub fn new(rounds: usize, runs: Vec<Run>) -> Self {
        let slot = |run| Slot { run, done: 0, took: None, is_ended: false };
        Schedule { rounds, slots: runs.into_iter().map(slot).collect() }
    }

    /// The next run. In every second round the contenders of a job run in reverse order, so that none always runs after
    /// the same other one.
    #[must_use]
    pub fn next(&self) -> Option<Run> {
        let open = |slot: &&Slot| !slot.is_ended && slot.done < self.rounds;
        let round = self.slots.iter().filter(open).map(|slot| slot.done).min()?;
        let mut due = self.slots.iter().filter(open).filter(|slot| slot.done == round).map(|slot| slot.run);
        let first = due.next()?;
        if round % 2 == 0 { Some(first) } else { due.take_while(|run| run.job == first.job).last().or(Some(first)) }
    }

    /// The round of the next run, from 1.
    #[must_use]
    pub fn round(&self, run: Run) -> usize {
        self.slots.iter().find(|slot| slot.run == run).map_or(0, |slot| slot.done) + 1
    }

    /// Notes that a run was made.
    pub fn record(&mut self, run: Run, took: Duration) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.run == run) {
            slot.done += 1;
            slot.took = Some(took);
        }
    }

    /// Leaves a run out of the later rounds.
    pub fn end(&mut self, run: Run) {
        if let Some(slot) = self.slots.iter_mut().find(|slot| slot.run == run) {
            slot.is_ended = true;
        }
    }

    /// How many runs are left.
    #[must_use]
    pub fn left(&self) -> usize {
        self.slots.iter().map(|slot| self.left_of(slot)).sum()
    }

    fn left_of(&self, slot: &Slot) -> usize {
        if slot.is_ended { 0 } else { self.rounds.saturating_sub(slot.done) }
    }

    /// How long the rest takes, if each run takes as long as it did, and a new one as long as those of its job did, or of
    /// all jobs.
    #[must_use]
    pub fn time_left(&self) -> Duration {
        let mean = |times: Vec<Duration>| {
            let count = u32::try_from(times.len()).ok().filter(|count| *count > 0)?;
            Some(times.iter().sum::<Duration>() / count)
        };
        let of_all = || mean(self.slots.iter().filter_map(|slot| slot.took).collect());
        let of_job =
            |job| mean(self.slots.iter().filter(|slot| slot.run.job == job).filter_map(|slot| slot.took).collect());
        let time = |slot: &Slot| slot.took.or_else(|| of_job(slot.run.job)).or_else(of_all).unwrap_or_default();
        self.slots.iter().map(|slot| time(slot) * u32::try_from(self.left_of(slot)).unwrap_or(u32::MAX)).sum()
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    fn schedule(rounds: usize) -> Schedule {
        let runs = (0..2).flat_map(|job| (0..3).map(move |contender| Run { job, contender, setting: None }));
        Schedule::new(rounds, runs.collect())
    }

    fn order(mut schedule: Schedule) -> Vec<(usize, usize)> {
        let mut order = Vec::new();
        while let Some(run) = schedule.next() {
            schedule.record(run, Duration::ZERO);
            order.push((run.job, run.contender));
        }
        order
    }

    #[test]
    fn every_second_round_is_reversed_within_each_job() {
        let one = [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)];
        let other = [(0, 2), (0, 1), (0, 0), (1, 2), (1, 1), (1, 0)];
        assert_eq!(order(schedule(3)), [one, other, one].concat());
    }

    #[test]
    fn a_run_that_ended_is_left_out() {
        let mut schedule = schedule(2);
        schedule.end(Run { job: 0, contender: 1, setting: None });
        schedule.end(Run { job: 1, contender: 2, setting: None });
        assert_eq!(schedule.left(), 8);
        assert_eq!(order(schedule), [(0, 0), (0, 2), (1, 0), (1, 1), (0, 2), (0, 0), (1, 1), (1, 0)]);
    }

    #[test]
    fn the_time_left_is_that_of_earlier_runs() {
        let mut schedule = schedule(2);
        assert_eq!(schedule.time_left(), Duration::ZERO);
        let second = Duration::from_secs(1);
        let first = schedule.next().unwrap();
        assert_eq!(schedule.round(first), 1);
        schedule.record(first, 4 * second);
        assert_eq!((schedule.left(), schedule.time_left()), (11, 44 * second));
        schedule.record(schedule.next().unwrap(), 2 * second);
        // The third contender of the job counts as the mean of the other two.
        assert_eq!(schedule.time_left(), (4 + 2 + 2 * 3 + 6 * 3) * second);
    }
}
