//! Decides whether a model fits next to the loaded ones, and which of them to unload so that it does. A pure function.

use cuelight_engine::memory::{self, format_bytes};
use tokio::time::Instant;

/// The memory of the machine, as the system reports it.
#[derive(Debug, Clone, Copy)]
pub struct Machine {
    /// Bytes that a program could still allocate. `None` when the system does not report it.
    pub available_bytes: Option<u64>,
    /// Bytes that this process occupies already. They are not part of `available_bytes`.
    pub occupied_bytes: u64,
}

impl Machine {
    /// The current values.
    #[must_use]
    pub fn now() -> Self {
        Machine { available_bytes: memory::available(), occupied_bytes: memory::occupied().unwrap_or(0) }
    }

    /// The memory that a new model may be planned for, in bytes, next to models that use `held_bytes`: the rest of the
    /// budget, and at most the available memory minus a reserve. `None` when no limit is known.
    #[must_use]
    pub fn limit(self, budget_bytes: Option<u64>, held_bytes: u64) -> Option<u64> {
        Machine { available_bytes: self.available_bytes.map(memory::usable), ..self }.free(budget_bytes, held_bytes)
    }

    /// The free memory, in bytes, next to models that use `held_bytes`. The system reports memory that models have
    /// reserved but not written to as available, and their mapped weights always. Both are subtracted.
    pub(super) fn free(self, budget_bytes: Option<u64>, held_bytes: u64) -> Option<u64> {
        let reserved = held_bytes.saturating_sub(self.occupied_bytes);
        let of_machine = self.available_bytes.map(|available| available.saturating_sub(reserved));
        let of_budget = budget_bytes.map(|budget| budget.saturating_sub(held_bytes));
        [of_machine, of_budget].into_iter().flatten().min()
    }
}

/// A model that uses memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Resident {
    /// The memory that it uses, in bytes.
    pub bytes: u64,
    pub hold: Hold,
}

/// Whether a model can be unloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hold {
    /// It is being unloaded.
    Leaving,
    /// It is being loaded. Afterwards it may be idle.
    Loading,
    /// It has been idle since then and can be unloaded.
    Idle(Instant),
    /// Calls use it. It can be unloaded when they have ended.
    Busy,
    /// It stays loaded until it is unloaded by request.
    Kept,
}

/// The memory and slots that are free for a new model.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemoryBudget {
    /// Free bytes.
    pub free_bytes: u64,
    /// Maximum number of loaded models.
    pub max_models: usize,
}

/// What to do so that a new model fits.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Load it now.
    Load,
    /// Wait for the models that are being unloaded or loaded.
    Wait,
    /// Unload the models with these indices first.
    Unload(Vec<usize>),
    /// It does not fit now, but would after the calls in progress.
    Busy,
    /// It does not fit next to the models that stay loaded.
    Never,
}

impl MemoryBudget {
    /// Decides for a model that needs `needed_bytes`.
    ///
    /// The least recently used idle models are unloaded first, and no more than necessary.
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
        let mut unloaded: Vec<usize> = Vec::new();
        for (_, index) in idle {
            unloaded.push(index);
            let stays = |index: usize| !leaving(index) && !unloaded.contains(&index);
            if self.fits(needed_bytes, residents, stays) {
                return Decision::Unload(self.keep_unneeded(needed_bytes, residents, unloaded));
            }
        }
        let is_loading = |index: usize| residents[index].hold == Hold::Loading;
        let stays = |index: usize| matches!(residents[index].hold, Hold::Busy | Hold::Kept);
        if (0..residents.len()).any(is_loading) && self.fits(needed_bytes, residents, stays) {
            return Decision::Wait;
        }
        let kept = |index: usize| residents[index].hold == Hold::Kept;
        if self.fits(needed_bytes, residents, kept) { Decision::Busy } else { Decision::Never }
    }

    /// A sentence with the sizes that explains why the model `newcomer` does not fit.
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

    /// Whether a new model fits when only the models accepted by `stays` are loaded.
    fn fits(self, needed_bytes: u64, residents: &[Resident], stays: impl Fn(usize) -> bool) -> bool {
        let staying = (0..residents.len()).filter(|&index| stays(index)).count();
        let gone = (0..residents.len()).filter(|&index| !stays(index)).map(|index| residents[index].bytes);
        let free_bytes = gone.fold(self.free_bytes, u64::saturating_add);
        staying < self.max_models && needed_bytes <= free_bytes
    }

    /// Removes models from the list that need not be unloaded, because a large one was added after them.
    fn keep_unneeded(self, needed_bytes: u64, residents: &[Resident], mut unloaded: Vec<usize>) -> Vec<usize> {
        for candidate in unloaded.clone() {
            let is_unloaded = |index: usize| index != candidate && unloaded.contains(&index);
            let stays = |index: usize| residents[index].hold != Hold::Leaving && !is_unloaded(index);
            if self.fits(needed_bytes, residents, stays) {
                unloaded.retain(|&index| index != candidate);
            }
        }
        unloaded
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Idle since `seconds` after a fixed instant.
    fn idle(seconds: u64) -> Hold {
        thread_local!(static START: Instant = Instant::now());
        Hold::Idle(START.with(|start| *start) + Duration::from_secs(seconds))
    }

    fn decide(needed_bytes: u64, free_bytes: u64, residents: &[(u64, Hold)]) -> Decision {
        let residents: Vec<Resident> = residents.iter().map(|&(bytes, hold)| Resident { bytes, hold }).collect();
        MemoryBudget { free_bytes, max_models: 4 }.decide(needed_bytes, &residents)
    }

    #[test]
    fn a_model_that_fits_is_loaded_without_unloading_others() {
        assert_eq!(decide(10, 10, &[(5, idle(0)), (5, Hold::Busy)]), Decision::Load);
    }

    #[test]
    fn the_least_recently_used_model_is_unloaded_first() {
        assert_eq!(decide(10, 5, &[(5, idle(3)), (5, idle(1)), (5, idle(2))]), Decision::Unload(vec![1]));
        assert_eq!(decide(13, 3, &[(5, idle(3)), (5, idle(1)), (5, idle(2))]), Decision::Unload(vec![1, 2]));
    }

    #[test]
    fn no_model_is_unloaded_unnecessarily() {
        assert_eq!(decide(10, 0, &[(1, idle(1)), (10, idle(2))]), Decision::Unload(vec![1]));
        assert_eq!(decide(11, 0, &[(1, idle(1)), (1, idle(2)), (10, idle(3))]), Decision::Unload(vec![1, 2]));
    }

    #[test]
    fn models_that_are_being_unloaded_are_waited_for() {
        assert_eq!(decide(10, 5, &[(5, Hold::Leaving), (5, idle(1))]), Decision::Wait);
        assert_eq!(decide(15, 5, &[(5, Hold::Leaving), (5, idle(1))]), Decision::Unload(vec![1]));
    }

    #[test]
    fn a_model_that_is_being_loaded_is_waited_for_if_it_could_be_unloaded_afterwards() {
        assert_eq!(decide(10, 5, &[(5, Hold::Loading)]), Decision::Wait);
        assert_eq!(decide(10, 5, &[(5, Hold::Loading), (5, idle(1))]), Decision::Unload(vec![1]));
        assert_eq!(decide(15, 5, &[(5, Hold::Loading), (5, idle(1))]), Decision::Wait);
        assert_eq!(decide(15, 5, &[(5, Hold::Loading), (5, Hold::Busy)]), Decision::Busy);
        assert_eq!(decide(10, 10, &[(5, Hold::Loading)]), Decision::Load, "two loads at a time");
    }

    #[test]
    fn busy_models_can_be_waited_for_but_kept_models_cannot() {
        assert_eq!(decide(10, 5, &[(5, Hold::Busy), (5, Hold::Kept)]), Decision::Busy);
        assert_eq!(decide(15, 5, &[(5, Hold::Busy), (5, Hold::Kept)]), Decision::Never);
        assert_eq!(decide(16, 5, &[(5, idle(1)), (5, Hold::Busy)]), Decision::Never);
    }

    #[test]
    fn reserved_memory_is_not_free() {
        let machine = Machine { available_bytes: Some(2000), occupied_bytes: 300 };
        assert_eq!(machine.free(None, 0), Some(2000));
        assert_eq!(machine.free(None, 200), Some(2000), "all of it is written");
        assert_eq!(machine.free(None, 800), Some(1500));
        assert_eq!(machine.free(None, 9000), Some(0));
        assert_eq!(machine.limit(None, 800), Some(1400), "a reserve stays free");
    }

    #[test]
    fn the_budget_and_the_machine_both_limit_memory() {
        let machine = Machine { available_bytes: Some(2000), occupied_bytes: 0 };
        assert_eq!(machine.limit(Some(1000), 600), Some(400));
        assert_eq!(machine.free(Some(9000), 600), Some(1400));
        let unknown = Machine { available_bytes: None, ..machine };
        assert_eq!((unknown.free(Some(1000), 600), unknown.free(None, 600)), (Some(400), None));
    }

    #[test]
    fn a_refusal_names_the_sizes() {
        let residents = [Resident { bytes: 2048, hold: Hold::Busy }, Resident { bytes: 1024, hold: Hold::Kept }];
        let budget = MemoryBudget { free_bytes: 512, max_models: 2 };
        assert_eq!(
            budget.explain("new", 4096, &residents),
            "the model `new` takes 4.0 KiB of memory, and 512 B are free; models with calls in progress hold 2.0 KiB; \
             models that stay loaded hold 1.0 KiB"
        );
        assert_eq!(
            budget.explain("new", 100, &residents[..1]),
            "the model `new` takes 100 B, which is free, but no more than 2 models may be loaded; models with calls in \
             progress hold 2.0 KiB"
        );
    }

    #[test]
    fn the_number_of_models_is_limited() {
        let full: Vec<Resident> = (0..2).map(|i| Resident { bytes: 0, hold: idle(i) }).collect();
        assert_eq!(MemoryBudget { free_bytes: 100, max_models: 2 }.decide(1, &full), Decision::Unload(vec![0]));
        assert_eq!(MemoryBudget { free_bytes: 100, max_models: 0 }.decide(1, &[]), Decision::Never);
    }
}
