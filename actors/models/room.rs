//! Whether a model fits beside the others, and who must go so that it does: numbers in, a decision out.

use cuelight_engine::memory::{self, format_bytes};
use tokio::time::Instant;

/// What the system says about the machine's memory.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Bytes that a program could still take; `None` where the system does not say.
    pub available_bytes: Option<u64>,
    /// Bytes that this process has taken already, and that are therefore not among them.
    pub occupied_bytes: u64,
}

impl Machine {
    /// As it is now.
    #[must_use]
    pub fn now() -> Self {
        Machine { available_bytes: memory::available(), occupied_bytes: memory::occupied().unwrap_or(0) }
    }

    /// What a model may be planned into beside models that hold `held_bytes`: of a budget, and of what there is but for
    /// a reserve. `None`: no limit is known.
    #[must_use]
    pub fn limit(self, budget_bytes: Option<u64>, held_bytes: u64) -> Option<u64> {
        Machine { available_bytes: self.available_bytes.map(memory::usable), ..self }.free(budget_bytes, held_bytes)
    }

    /// What is free beside models that hold `held_bytes`. The system counts what they were promised as free until they
    /// write to it, and their mapped weights always, so that is taken off.
    pub(super) fn free(self, budget_bytes: Option<u64>, held_bytes: u64) -> Option<u64> {
        let promised = held_bytes.saturating_sub(self.occupied_bytes);
        let of_machine = self.available_bytes.map(|available| available.saturating_sub(promised));
        let of_budget = budget_bytes.map(|budget| budget.saturating_sub(held_bytes));
        [of_machine, of_budget].into_iter().flatten().min()
    }
}

/// A model that holds memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resident {
    /// What it holds, in bytes.
    pub bytes: u64,
    pub hold: Hold,
}

/// What keeps a model where it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// It is on its way out.
    Leaving,
    /// Nobody uses it since then; it may go.
    Idle(Instant),
    /// Calls are in progress; it may go once they are over.
    Busy,
    /// It stays loaded until somebody says otherwise.
    Kept,
}

/// What the newcomer finds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Room {
    /// Bytes that nobody holds.
    pub free_bytes: u64,
    /// Most models at once.
    pub max_models: usize,
}

/// What to do so that a newcomer fits.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// It fits now.
    Load,
    /// Wait until those that are leaving have left.
    Wait,
    /// Unload these first, by index.
    Unload(Vec<usize>),
    /// It would fit if calls in progress were over.
    Busy,
    /// It cannot fit beside the models that are kept.
    Never,
}

impl Room {
    /// Decides for a model that takes `needed_bytes`.
    ///
    /// Of the idle models those go first that were used least recently, and none that need not go.
    pub fn decide(self, needed_bytes: u64, residents: &[Resident]) -> Decision {
        if self.fits(needed_bytes, residents, |_| true) {
            return Decision::Load;
        }
        let leaving = |index: usize| residents[index].hold == Hold::Leaving;
        if self.fits(needed_bytes, residents, |index| !leaving(index)) {
            return Decision::Wait;
        }
        let since = |(index, resident): (usize, &Resident)| match resident.hold {
            Hold::Idle(since) => Some((since, index)),
            _ => None,
        };
        let mut idle: Vec<(Instant, usize)> = residents.iter().enumerate().filter_map(since).collect();
        idle.sort_unstable();
        let mut going: Vec<usize> = Vec::new();
        for (_, index) in idle {
            going.push(index);
            let stays = |index: usize| !leaving(index) && !going.contains(&index);
            if self.fits(needed_bytes, residents, stays) {
                return Decision::Unload(self.without_the_needless(needed_bytes, residents, going));
            }
        }
        let kept = |index: usize| residents[index].hold == Hold::Kept;
        if self.fits(needed_bytes, residents, kept) { Decision::Busy } else { Decision::Never }
    }

    /// In sizes, why `newcomer` finds no room.
    pub fn explain(self, newcomer: &str, needed_bytes: u64, residents: &[Resident]) -> String {
        let sum = |kept: bool| -> u64 {
            residents.iter().filter(|other| (other.hold == Hold::Kept) == kept).map(|other| other.bytes).sum()
        };
        let (busy_bytes, kept_bytes) = (sum(false), sum(true));
        let mut text = format!("the model `{newcomer}` takes {}", format_bytes(needed_bytes));
        if needed_bytes > self.free_bytes {
            text.push_str(&format!(" of memory, and {} are free", format_bytes(self.free_bytes)));
        } else {
            text.push_str(&format!(", which is free, but no more than {} models may be loaded", self.max_models));
        }
        if busy_bytes > 0 {
            text.push_str(&format!("; models with calls in progress hold {}", format_bytes(busy_bytes)));
        }
        if kept_bytes > 0 {
            text.push_str(&format!("; models that stay loaded hold {}", format_bytes(kept_bytes)));
        }
        text
    }

    /// Whether the newcomer fits once only those stay for which `stays` holds.
    fn fits(self, needed_bytes: u64, residents: &[Resident], stays: impl Fn(usize) -> bool) -> bool {
        let staying = (0..residents.len()).filter(|&index| stays(index)).count();
        let gone = (0..residents.len()).filter(|&index| !stays(index)).map(|index| residents[index].bytes);
        let free_bytes = gone.fold(self.free_bytes, u64::saturating_add);
        staying < self.max_models && needed_bytes <= free_bytes
    }

    /// A large model that goes last may make it needless that small ones went before it.
    fn without_the_needless(self, needed_bytes: u64, residents: &[Resident], mut going: Vec<usize>) -> Vec<usize> {
        for candidate in going.clone() {
            let goes = |index: usize| index != candidate && going.contains(&index);
            let stays = |index: usize| residents[index].hold != Hold::Leaving && !goes(index);
            if self.fits(needed_bytes, residents, stays) {
                going.retain(|&index| index != candidate);
            }
        }
        going
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Idle since this many seconds after some start.
    fn idle(seconds: u64) -> Hold {
        thread_local!(static START: Instant = Instant::now());
        Hold::Idle(START.with(|start| *start) + Duration::from_secs(seconds))
    }

    fn decide(needed_bytes: u64, free_bytes: u64, residents: &[(u64, Hold)]) -> Decision {
        let residents: Vec<Resident> = residents.iter().map(|&(bytes, hold)| Resident { bytes, hold }).collect();
        Room { free_bytes, max_models: 4 }.decide(needed_bytes, &residents)
    }

    #[test]
    fn what_fits_loads_and_disturbs_nobody() {
        assert_eq!(decide(10, 10, &[(5, idle(0)), (5, Hold::Busy)]), Decision::Load);
    }

    #[test]
    fn the_least_recently_used_goes_first() {
        assert_eq!(decide(10, 5, &[(5, idle(3)), (5, idle(1)), (5, idle(2))]), Decision::Unload(vec![1]));
        assert_eq!(decide(13, 3, &[(5, idle(3)), (5, idle(1)), (5, idle(2))]), Decision::Unload(vec![1, 2]));
    }

    #[test]
    fn nobody_goes_who_need_not() {
        assert_eq!(decide(10, 0, &[(1, idle(1)), (10, idle(2))]), Decision::Unload(vec![1]));
        assert_eq!(decide(11, 0, &[(1, idle(1)), (1, idle(2)), (10, idle(3))]), Decision::Unload(vec![1, 2]));
    }

    #[test]
    fn those_on_their_way_out_are_waited_for() {
        assert_eq!(decide(10, 5, &[(5, Hold::Leaving), (5, idle(1))]), Decision::Wait);
        assert_eq!(decide(15, 5, &[(5, Hold::Leaving), (5, idle(1))]), Decision::Unload(vec![1]));
    }

    #[test]
    fn calls_in_progress_end_some_day_but_kept_models_stay() {
        assert_eq!(decide(10, 5, &[(5, Hold::Busy), (5, Hold::Kept)]), Decision::Busy);
        assert_eq!(decide(15, 5, &[(5, Hold::Busy), (5, Hold::Kept)]), Decision::Never);
        assert_eq!(decide(16, 5, &[(5, idle(1)), (5, Hold::Busy)]), Decision::Never);
    }

    #[test]
    fn memory_that_was_promised_but_not_written_to_is_not_free() {
        let machine = Machine { available_bytes: Some(2000), occupied_bytes: 300 };
        assert_eq!(machine.free(None, 0), Some(2000));
        assert_eq!(machine.free(None, 200), Some(2000), "all of it is written to");
        assert_eq!(machine.free(None, 800), Some(1500));
        assert_eq!(machine.free(None, 9000), Some(0));
        assert_eq!(machine.limit(None, 800), Some(1400), "a part of what there is stays free");
    }

    #[test]
    fn a_budget_holds_to_the_byte_and_the_machine_is_a_limit_too() {
        let machine = Machine { available_bytes: Some(2000), occupied_bytes: 0 };
        assert_eq!(machine.limit(Some(1000), 600), Some(400));
        assert_eq!(machine.free(Some(9000), 600), Some(1400));
        let unknown = Machine { available_bytes: None, ..machine };
        assert_eq!((unknown.free(Some(1000), 600), unknown.free(None, 600)), (Some(400), None));
    }

    #[test]
    fn who_finds_no_room_is_told_the_sizes() {
        let residents = [Resident { bytes: 2048, hold: Hold::Busy }, Resident { bytes: 1024, hold: Hold::Kept }];
        let room = Room { free_bytes: 512, max_models: 2 };
        assert_eq!(
            room.explain("new", 4096, &residents),
            "the model `new` takes 4.0 KiB of memory, and 512 B are free; models with calls in progress hold 2.0 KiB; \
             models that stay loaded hold 1.0 KiB"
        );
        assert_eq!(
            room.explain("new", 100, &residents[..1]),
            "the model `new` takes 100 B, which is free, but no more than 2 models may be loaded; models with calls in \
             progress hold 2.0 KiB"
        );
    }

    #[test]
    fn the_number_of_models_is_a_limit_too() {
        let full: Vec<Resident> = (0..2).map(|i| Resident { bytes: 0, hold: idle(i) }).collect();
        assert_eq!(Room { free_bytes: 100, max_models: 2 }.decide(1, &full), Decision::Unload(vec![0]));
        assert_eq!(Room { free_bytes: 100, max_models: 0 }.decide(1, &[]), Decision::Never);
    }
}
