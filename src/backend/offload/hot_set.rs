//! Which experts a pool on the device has, and which come next.
//!
//! The one used longest ago makes room, but only for an expert that was used more often lately: so a prompt, which uses
//! nearly every expert once, drives none of those out that every token uses. How often each was used is halved from time to
//! time. (Einziger, Friedman and Manes 2017, "TinyLFU: A Highly Efficient Cache Admission Policy".)

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// The experts of a pool, each by a number of its own.
#[derive(Debug)]
pub(super) struct HotSet {
    /// For each expert where it is.
    place_of: Vec<Option<usize>>,
    /// For each place its expert, and when that was used last.
    places: Vec<Option<(usize, u64)>>,
    /// Places by when their experts were used last.
    by_last_use: BTreeMap<u64, usize>,
    /// Places never used yet.
    free: usize,
    /// How often each expert was used lately.
    uses: Vec<u32>,
    uses_until_halving: usize,
    clock: u64,
    /// Experts that are to come, with their places once they have some.
    coming: HashMap<usize, Option<usize>>,
}

impl HotSet {
    /// Uses of an expert, on average, after which all are halved.
    const USES_BEFORE_HALVING: usize = 16;

    /// No expert yet, of so many, and so many places, of which there is at least one.
    pub fn new(n_experts: usize, places: usize) -> Self {
        HotSet {
            place_of: vec![None; n_experts],
            places: vec![None; places],
            by_last_use: BTreeMap::new(),
            free: places,
            uses: vec![0; n_experts],
            uses_until_halving: Self::USES_BEFORE_HALVING * n_experts,
            clock: 0,
            coming: HashMap::new(),
        }
    }

    /// Experts that there is room for.
    pub fn places(&self) -> usize {
        self.places.len()
    }

    /// A step uses an expert: where it is, if it is here.
    pub fn use_expert(&mut self, expert: usize) -> Option<usize> {
        self.count(expert);
        let place = self.place_of[expert]?;
        self.touch(place, expert);
        Some(place)
    }

    fn count(&mut self, expert: usize) {
        self.uses[expert] += 1;
        self.uses_until_halving -= 1;
        if self.uses_until_halving == 0 {
            self.uses.iter_mut().for_each(|uses| *uses /= 2);
            self.uses_until_halving = Self::USES_BEFORE_HALVING * self.uses.len();
        }
    }

    fn touch(&mut self, place: usize, expert: usize) {
        if let Some((_, last_use)) = self.places[place] {
            self.by_last_use.remove(&last_use);
        }
        self.clock += 1;
        self.by_last_use.insert(self.clock, place);
        self.places[place] = Some((expert, self.clock));
    }

    /// Whether an expert that is not here should be brought; it is awaited from then on.
    pub fn wants(&mut self, expert: usize) -> bool {
        if self.place_of[expert].is_some() || self.coming.contains_key(&expert) {
            return false;
        }
        let without_place = self.coming.values().filter(|place| place.is_none()).count();
        let is_wanted = self.free > without_place || self.uses[expert] > self.uses_of_oldest();
        if is_wanted {
            self.coming.insert(expert, None);
        }
        is_wanted
    }

    /// How often the expert was used lately that would make room; as if always, where none can.
    fn uses_of_oldest(&self) -> u32 {
        let place = self.by_last_use.first_key_value().and_then(|(_, place)| self.places[*place]);
        place.map_or(u32::MAX, |(expert, _)| self.uses[expert])
    }

    /// Gives an expert that is to come a place; whoever was there is not any more. `None` where every place is another's that
    /// is on its way: then it is not awaited any longer.
    pub fn reserve(&mut self, expert: usize) -> Option<usize> {
        let place = match self.free.checked_sub(1) {
            Some(free) => {
                self.free = free;
                Some(free)
            }
            None => self.by_last_use.pop_first().map(|(_, place)| place),
        };
        let Some(place) = place else {
            self.coming.remove(&expert);
            return None;
        };
        if let Some((driven_out, _)) = self.places[place].take() {
            self.place_of[driven_out] = None;
        }
        self.coming.insert(expert, Some(place));
        Some(place)
    }

    /// An expert has come to the place that it was given.
    pub fn arrived(&mut self, expert: usize) {
        if let Some(place) = self.coming.remove(&expert).flatten() {
            self.place_of[expert] = Some(place);
            self.touch(place, expert);
        }
    }

    /// Of some experts those that are not here, the ones used most lately first.
    pub fn missing(&self, experts: Range<usize>) -> Vec<usize> {
        let mut missing: Vec<usize> = experts.filter(|expert| self.place_of[*expert].is_none()).collect();
        missing.sort_by_key(|expert| Reverse(self.uses[*expert]));
        missing
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Uses an expert, and brings it at once if it is wanted; whether it was here.
    fn use_and_bring(set: &mut HotSet, expert: usize) -> bool {
        let hit = set.use_expert(expert).is_some();
        if !hit && set.wants(expert) {
            set.reserve(expert).unwrap();
            set.arrived(expert);
        }
        hit
    }

    /// Numbers of which the small ones come more often: expert `k` about in proportion to `1 / (k + 1)`.
    fn zipf(n_experts: usize, count: usize) -> impl Iterator<Item = usize> {
        let total: f64 = (1..=n_experts).map(|rank| 1.0 / rank as f64).sum();
        let mut state = 9_u64;
        (0..count).map(move |_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let mut left = (state >> 11) as f64 / (1_u64 << 53) as f64 * total;
            (0..n_experts)
                .find(|rank| {
                    left -= 1.0 / (rank + 1) as f64;
                    left < 0.0
                })
                .unwrap_or(n_experts - 1)
        })
    }

    fn hit_rate(set: &mut HotSet, uses: impl Iterator<Item = usize>) -> f64 {
        let hits: Vec<bool> = uses.map(|expert| use_and_bring(set, expert)).collect();
        hits.iter().filter(|hit| **hit).count() as f64 / hits.len() as f64
    }

    #[test]
    fn the_experts_that_are_used_most_are_kept() {
        let mut set = HotSet::new(512, 128);
        hit_rate(&mut set, zipf(512, 20_000));
        let best: f64 = (1..=128).map(|rank| 1.0 / f64::from(rank)).sum::<f64>()
            / (1..=512).map(|rank| 1.0 / f64::from(rank)).sum::<f64>();
        let rate = hit_rate(&mut set, zipf(512, 20_000));
        assert!(rate > 0.9 * best, "{rate:.3} of {best:.3} that the best 128 have");
    }

    #[test]
    fn a_prompt_that_uses_every_expert_drives_the_usual_ones_not_out() {
        let mut set = HotSet::new(512, 128);
        hit_rate(&mut set, zipf(512, 20_000));
        let before = hit_rate(&mut set, zipf(512, 5_000));
        for _ in 0..3 {
            hit_rate(&mut set, 0..512);
        }
        let after = hit_rate(&mut set, zipf(512, 1_000));
        assert!(after > 0.9 * before, "{after:.3} after {before:.3}");
    }

    #[test]
    fn other_experts_take_over_when_others_are_used() {
        let mut set = HotSet::new(512, 128);
        hit_rate(&mut set, zipf(512, 20_000));
        let moved = |uses: usize| zipf(512, uses).map(|expert| (expert + 256) % 512);
        hit_rate(&mut set, moved(20_000));
        let rate = hit_rate(&mut set, moved(5_000));
        assert!(rate > 0.7, "{rate:.3}");
    }

    proptest! {
        #[test]
        fn every_place_has_at_most_one_expert_and_every_expert_one_place(
            uses in prop::collection::vec(0_usize..20, 1..400), places in 1_usize..25,
        ) {
            let mut set = HotSet::new(20, places);
            let (mut coming, mut on_their_way) = (Vec::new(), Vec::new());
            for (number, expert) in uses.into_iter().enumerate() {
                if set.use_expert(expert).is_none() && set.wants(expert) {
                    prop_assert!(!set.wants(expert), "it is awaited already");
                    coming.push(expert);
                }
                if number % 3 == 0 && let Some(expert) = coming.pop() && let Some(place) = set.reserve(expert) {
                    prop_assert!(place < places && !on_their_way.iter().any(|(_, other)| *other == place));
                    prop_assert!(set.use_expert(expert).is_none(), "not yet");
                    on_their_way.push((expert, place));
                }
                if number % 4 == 0 && let Some((expert, place)) = on_their_way.pop() {
                    set.arrived(expert);
                    prop_assert_eq!(set.use_expert(expert), Some(place));
                }
                let here = set.place_of.iter().flatten();
                prop_assert!(here.clone().collect::<std::collections::HashSet<_>>().len() == here.count());
                for (place, expert) in set.places.iter().enumerate() {
                    prop_assert!(expert.is_none_or(|(expert, _)| set.place_of[expert] == Some(place)));
                }
                prop_assert_eq!(set.by_last_use.len(), set.places.iter().flatten().count());
            }
        }
    }
}
