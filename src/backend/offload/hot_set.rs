//! Tracks which experts are in a pool on the device, and selects which to upload and which to evict.
//!
//! The least recently used expert is evicted, but only in favour of an expert that was used more often recently. So a prompt,
//! which uses nearly every expert once, does not evict the experts that most tokens use. Use counts are halved periodically.
//! (Einziger, Friedman and Manes 2017, "TinyLFU: A Highly Efficient Cache Admission Policy".)

use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

/// The experts of a pool, numbered across its layers.
#[derive(Debug)]
pub(super) struct HotSet {
    /// The slot of each expert; `None` if it is not in the pool.
    slot_of: Vec<Option<usize>>,
    /// The expert of each slot and the time of its last use.
    slots: Vec<Option<(usize, u64)>>,
    /// Slots by the last use of their experts.
    by_last_use: BTreeMap<u64, usize>,
    /// Number of slots that have never been used.
    free: usize,
    /// Recent uses of each expert.
    uses: Vec<u32>,
    uses_until_halving: usize,
    clock: u64,
    /// Experts that were admitted but have not arrived, with their slots once reserved.
    pending: HashMap<usize, Option<usize>>,
}

impl HotSet {
    /// Average uses of an expert after which all counts are halved.
    const USES_BEFORE_HALVING: usize = 16;

    /// An empty pool of `slots` slots, at least one, for `n_experts` experts.
    pub fn new(n_experts: usize, slots: usize) -> Self {
        HotSet {
            slot_of: vec![None; n_experts],
            slots: vec![None; slots],
            by_last_use: BTreeMap::new(),
            free: slots,
            uses: vec![0; n_experts],
            uses_until_halving: Self::USES_BEFORE_HALVING * n_experts,
            clock: 0,
            pending: HashMap::new(),
        }
    }

    /// The number of slots.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Counts a use of an expert by a step. Returns its slot if it is in the pool.
    pub fn use_expert(&mut self, expert: usize) -> Option<usize> {
        self.count(expert);
        let slot = self.slot_of[expert]?;
        self.touch(slot, expert);
        Some(slot)
    }

    fn count(&mut self, expert: usize) {
        self.uses[expert] += 1;
        self.uses_until_halving -= 1;
        if self.uses_until_halving == 0 {
            self.uses.iter_mut().for_each(|uses| *uses /= 2);
            self.uses_until_halving = Self::USES_BEFORE_HALVING * self.uses.len();
        }
    }

    fn touch(&mut self, slot: usize, expert: usize) {
        if let Some((_, last_use)) = self.slots[slot] {
            self.by_last_use.remove(&last_use);
        }
        self.clock += 1;
        self.by_last_use.insert(self.clock, slot);
        self.slots[slot] = Some((expert, self.clock));
    }

    /// Whether an expert that is not in the pool should be uploaded. If so, it is pending from then on.
    pub fn admit(&mut self, expert: usize) -> bool {
        if self.slot_of[expert].is_some() || self.pending.contains_key(&expert) {
            return false;
        }
        let without_slot = self.pending.values().filter(|slot| slot.is_none()).count();
        let is_admitted = self.free > without_slot || self.uses[expert] > self.uses_of_oldest();
        if is_admitted {
            self.pending.insert(expert, None);
        }
        is_admitted
    }

    /// Recent uses of the expert that would be evicted; `u32::MAX` if none can be.
    fn uses_of_oldest(&self) -> u32 {
        let oldest = self.by_last_use.first_key_value().and_then(|(_, slot)| self.slots[*slot]);
        oldest.map_or(u32::MAX, |(expert, _)| self.uses[expert])
    }

    /// Reserves a slot for a pending expert and evicts the slot's expert. `None` if every slot is reserved for another pending
    /// expert; then this one is no longer pending.
    pub fn reserve(&mut self, expert: usize) -> Option<usize> {
        let slot = match self.free.checked_sub(1) {
            Some(free) => {
                self.free = free;
                Some(free)
            }
            None => self.by_last_use.pop_first().map(|(_, slot)| slot),
        };
        let Some(slot) = slot else {
            self.pending.remove(&expert);
            return None;
        };
        if let Some((evicted, _)) = self.slots[slot].take() {
            self.slot_of[evicted] = None;
        }
        self.pending.insert(expert, Some(slot));
        Some(slot)
    }

    /// Marks a pending expert as present in its reserved slot.
    pub fn arrived(&mut self, expert: usize) {
        if let Some(slot) = self.pending.remove(&expert).flatten() {
            self.slot_of[expert] = Some(slot);
            self.touch(slot, expert);
        }
    }

    /// The experts of this range that are not in the pool, by recent uses, most used first.
    pub fn missing(&self, experts: Range<usize>) -> Vec<usize> {
        let mut missing: Vec<usize> = experts.filter(|expert| self.slot_of[*expert].is_none()).collect();
        missing.sort_by_key(|expert| Reverse(self.uses[*expert]));
        missing
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Uses an expert and uploads it at once if it is admitted. Returns whether it was in the pool.
    fn use_and_upload(set: &mut HotSet, expert: usize) -> bool {
        let hit = set.use_expert(expert).is_some();
        if !hit && set.admit(expert) {
            set.reserve(expert).unwrap();
            set.arrived(expert);
        }
        hit
    }

    /// Random experts of a Zipf distribution: expert `k` has a probability in proportion to `1 / (k + 1)`.
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
        let hits: Vec<bool> = uses.map(|expert| use_and_upload(set, expert)).collect();
        hits.iter().filter(|hit| **hit).count() as f64 / hits.len() as f64
    }

    #[test]
    fn the_most_used_experts_are_kept() {
        let mut set = HotSet::new(512, 128);
        hit_rate(&mut set, zipf(512, 20_000));
        let best: f64 = (1..=128).map(|rank| 1.0 / f64::from(rank)).sum::<f64>()
            / (1..=512).map(|rank| 1.0 / f64::from(rank)).sum::<f64>();
        let rate = hit_rate(&mut set, zipf(512, 20_000));
        assert!(rate > 0.9 * best, "hit rate {rate:.3}; {best:.3} with the best 128 experts");
    }

    #[test]
    fn a_prompt_that_uses_every_expert_does_not_evict_the_most_used_ones() {
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
    fn the_set_adapts_when_other_experts_are_used() {
        let mut set = HotSet::new(512, 128);
        hit_rate(&mut set, zipf(512, 20_000));
        let moved = |uses: usize| zipf(512, uses).map(|expert| (expert + 256) % 512);
        hit_rate(&mut set, moved(20_000));
        let rate = hit_rate(&mut set, moved(5_000));
        assert!(rate > 0.7, "{rate:.3}");
    }

    proptest! {
        #[test]
        fn every_slot_has_at_most_one_expert_and_every_expert_at_most_one_slot(
            uses in prop::collection::vec(0_usize..20, 1..400), slots in 1_usize..25,
        ) {
            let mut set = HotSet::new(20, slots);
            let (mut pending, mut uploading) = (Vec::new(), Vec::new());
            for (number, expert) in uses.into_iter().enumerate() {
                if set.use_expert(expert).is_none() && set.admit(expert) {
                    prop_assert!(!set.admit(expert), "it is pending already");
                    pending.push(expert);
                }
                if number % 3 == 0 && let Some(expert) = pending.pop() && let Some(slot) = set.reserve(expert) {
                    prop_assert!(slot < slots && !uploading.iter().any(|(_, other)| *other == slot));
                    prop_assert!(set.use_expert(expert).is_none(), "it has not arrived");
                    uploading.push((expert, slot));
                }
                if number % 4 == 0 && let Some((expert, slot)) = uploading.pop() {
                    set.arrived(expert);
                    prop_assert_eq!(set.use_expert(expert), Some(slot));
                }
                let occupied = set.slot_of.iter().flatten();
                prop_assert!(occupied.clone().collect::<std::collections::HashSet<_>>().len() == occupied.count());
                for (slot, expert) in set.slots.iter().enumerate() {
                    prop_assert!(expert.is_none_or(|(expert, _)| set.slot_of[expert] == Some(slot)));
                }
                prop_assert_eq!(set.by_last_use.len(), set.slots.iter().flatten().count());
            }
        }
    }
}
