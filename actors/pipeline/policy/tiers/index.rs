//! Which units a tier holds, and the order of their last use.

use std::collections::{BTreeMap, HashMap};

use crate::core::block_hash::BlockHash;
use crate::core::cached_unit::{KeptUnit, UnitId, UnitKind};
use crate::core::tier::TierLimits;

/// A unit in a tier or on its way to it.
#[derive(Debug, Clone, Copy)]
struct Entry {
    used: i64,
    bytes: u64,
    is_portable: bool,
    is_present: bool,
}

/// The units of a tier. The least recently used one is given up first.
#[derive(Debug, Default)]
pub(in crate::pipeline::policy) struct TierIndex {
    limits: TierLimits,
    entries: HashMap<UnitId, Entry>,
    /// The present units, by the time of their last use.
    by_use: BTreeMap<i64, UnitId>,
    /// Number of the present units of each kind, in the order of [`UnitKind::ALL`].
    present: [usize; UnitKind::COUNT],
    /// Bytes of the present units.
    bytes: u64,
    /// Bytes of the units on their way.
    arriving: u64,
    clock: i64,
    /// The blocks that became present or ceased to be since they were taken last. `None` when they are not recorded.
    changes: Option<Vec<(BlockHash, bool)>>,
}

impl TierIndex {
    /// Changes the limits. Units over the new limit are given up as others arrive.
    pub fn set_limits(&mut self, limits: TierLimits) {
        self.limits = limits;
    }

    pub fn limits(&self) -> TierLimits {
        self.limits
    }

    pub fn is_enabled(&self) -> bool {
        self.limits.bytes > 0
    }

    /// Number of present units of a kind.
    pub fn present(&self, kind: UnitKind) -> usize {
        self.present[kind as usize]
    }

    /// Bytes of the present units.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Bytes of the units on their way.
    pub fn arriving(&self) -> u64 {
        self.arriving
    }

    /// Whether it keeps units of a kind: they have bytes, and one is not too large.
    pub fn keeps(&self, kind: UnitKind) -> bool {
        (1..=self.limits.bytes).contains(&self.limits.of(kind))
    }

    /// Whether another unit may be sent without giving up one.
    pub fn has_space(&self, kind: UnitKind) -> bool {
        self.bytes + self.arriving + self.limits.of(kind) <= self.limits.bytes
    }

    /// Whether it holds more than it may.
    pub fn is_over_limit(&self) -> bool {
        self.bytes + self.arriving > self.limits.bytes
    }

    /// Whether another unit may be on its way.
    pub fn accepts(&self, kind: UnitKind) -> bool {
        self.keeps(kind) && self.arriving + self.limits.of(kind) <= self.limits.arriving
    }

    /// Whether the unit is present.
    pub fn has(&self, id: &UnitId) -> bool {
        self.entries.get(id).is_some_and(|entry| entry.is_present)
    }

    /// Whether the unit is present or on its way.
    pub fn knows(&self, id: &UnitId) -> bool {
        self.entries.contains_key(id)
    }

    /// Makes the unit the most recently used one.
    pub fn touch(&mut self, id: &UnitId) {
        let Some(entry) = self.entries.get_mut(id) else { return };
        self.clock += 1;
        if entry.is_present {
            self.by_use.remove(&entry.used);
            self.by_use.insert(self.clock, *id);
        }
        entry.used = self.clock;
    }

    /// The time of the next use. Reserves `count` of them.
    pub fn reserve(&mut self, count: usize) -> i64 {
        self.clock += count as i64;
        self.clock - count as i64 + 1
    }

    /// Records the changes from now on.
    pub fn record_changes(&mut self) {
        self.changes = Some(Vec::new());
    }

    /// The changes of blocks since the last call, in order: whether each is present now. None unless they are recorded.
    pub fn take_changes(&mut self) -> Vec<(BlockHash, bool)> {
        self.changes.as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn record(&mut self, id: UnitId, is_present: bool) {
        if let Some(changes) = &mut self.changes
            && id.kind == UnitKind::Block
        {
            changes.push((id.block, is_present));
        }
    }

    /// The unit is sent.
    pub fn send(&mut self, KeptUnit { id, is_portable }: KeptUnit, used: i64) {
        self.remove(&id);
        let bytes = self.limits.of(id.kind);
        self.arriving += bytes;
        self.entries.insert(id, Entry { used, bytes, is_portable, is_present: false });
    }

    /// The unit is there. It may have been sent before this index was made.
    pub fn arrived(&mut self, KeptUnit { id, is_portable }: KeptUnit) {
        let used = match self.entries.get(&id) {
            Some(entry) if entry.is_present => return,
            Some(entry) => entry.used,
            None => self.reserve(1),
        };
        self.remove(&id);
        let bytes = self.limits.of(id.kind);
        self.bytes += bytes;
        self.present[id.kind as usize] += 1;
        self.entries.insert(id, Entry { used, bytes, is_portable, is_present: true });
        self.by_use.insert(used, id);
        self.record(id, true);
    }

    /// Forgets a unit.
    pub fn remove(&mut self, id: &UnitId) -> Option<KeptUnit> {
        let entry = self.entries.remove(id)?;
        if entry.is_present {
            self.by_use.remove(&entry.used);
            self.bytes -= entry.bytes;
            self.present[id.kind as usize] -= 1;
            self.record(*id, false);
        } else {
            self.arriving -= entry.bytes;
        }
        Some(KeptUnit { id: *id, is_portable: entry.is_portable })
    }

    /// Gives up the least recently used unit.
    pub fn pop_oldest(&mut self) -> Option<KeptUnit> {
        let (_, id) = self.by_use.first_key_value()?;
        let id = *id;
        self.remove(&id)
    }

    /// The present units, the least recently used first.
    pub fn oldest_first(&self) -> impl DoubleEndedIterator<Item = KeptUnit> {
        self.by_use.values().map(|id| KeptUnit { id: *id, is_portable: self.entries[id].is_portable })
    }

    /// Forgets the units that are on their way.
    pub fn forget_arriving(&mut self) {
        self.entries.retain(|_, entry| entry.is_present);
        self.arriving = 0;
    }

    /// Panics unless all counts agree and no more bytes are here than allowed.
    pub fn check(&self) {
        let present = self.entries.iter().filter(|(_, entry)| entry.is_present);
        assert_eq!(present.clone().count(), self.by_use.len());
        assert_eq!(present.clone().map(|(_, entry)| entry.bytes).sum::<u64>(), self.bytes);
        for (id, entry) in present {
            assert_eq!(self.by_use.get(&entry.used), Some(id));
        }
        let arriving = self.entries.values().filter(|entry| !entry.is_present).map(|entry| entry.bytes);
        assert_eq!(arriving.sum::<u64>(), self.arriving);
        assert_eq!(self.present.iter().sum::<usize>(), self.by_use.len());
        assert!(!self.is_over_limit(), "a tier holds more than it can");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::cached_unit::UnitBytes;

    fn block(number: u8) -> KeptUnit {
        unit(number, UnitKind::Block)
    }

    fn unit(number: u8, kind: UnitKind) -> KeptUnit {
        KeptUnit { id: UnitId { block: BlockHash([number; 32]), kind }, is_portable: true }
    }

    fn index(bytes: u64) -> TierIndex {
        let mut index = TierIndex::default();
        index.set_limits(TierLimits { bytes, arriving: 2, piece: 1, of_unit: UnitBytes { block: 1, state: 2 } });
        index
    }

    fn send(index: &mut TierIndex, unit: KeptUnit) {
        let used = index.reserve(1);
        index.send(unit, used);
    }

    fn add(index: &mut TierIndex, unit: KeptUnit) {
        send(index, unit);
        index.arrived(unit);
    }

    #[test]
    fn the_least_recently_used_present_unit_is_given_up() {
        let mut index = index(4);
        (1..=3).for_each(|number| add(&mut index, block(number)));
        send(&mut index, block(4));
        let four = block(4).id;
        assert!(index.knows(&four) && !index.has(&four));
        assert!(index.accepts(UnitKind::Block) && !index.has_space(UnitKind::Block));
        index.touch(&block(1).id);
        assert_eq!(index.pop_oldest(), Some(block(2)));
        index.arrived(block(4));
        let order: Vec<_> = index.oldest_first().collect();
        assert_eq!(order, [block(3), block(4), block(1)], "a unit counts as used when it is sent");
        index.check();
    }

    #[test]
    fn changes_of_present_blocks_are_recorded() {
        let mut index = index(6);
        add(&mut index, block(1));
        index.record_changes();
        (2..=3).for_each(|number| add(&mut index, block(number)));
        add(&mut index, unit(1, UnitKind::State));
        index.arrived(block(3));
        index.pop_oldest();
        index.remove(&block(3).id);
        index.remove(&unit(1, UnitKind::State).id);
        send(&mut index, block(4));
        index.remove(&block(4).id);
        let expected = [(2, true), (3, true), (1, false), (3, false)];
        assert_eq!(index.take_changes(), expected.map(|(number, is_present)| (block(number).id.block, is_present)));
        assert!(index.take_changes().is_empty());
    }

    #[test]
    fn only_some_bytes_may_be_on_their_way() {
        let mut index = index(9);
        send(&mut index, block(1));
        assert!(index.accepts(UnitKind::Block) && !index.accepts(UnitKind::State));
        send(&mut index, block(2));
        assert!(!index.accepts(UnitKind::Block));
        index.forget_arriving();
        assert!(index.accepts(UnitKind::State) && !index.knows(&block(1).id));
        index.arrived(block(1));
        assert!(index.has(&block(1).id), "it arrived although it was forgotten");
        index.remove(&block(1).id);
        assert_eq!((index.present(UnitKind::Block), index.bytes(), index.arriving()), (0, 0, 0));
        index.check();
    }

    #[test]
    fn a_block_and_the_state_after_it_are_counted_by_their_bytes() {
        let mut index = index(4);
        let state = unit(1, UnitKind::State);
        add(&mut index, block(1));
        add(&mut index, state);
        assert!(index.has(&block(1).id) && index.has(&state.id));
        assert_eq!((index.present(UnitKind::Block), index.present(UnitKind::State), index.bytes()), (1, 1, 3));
        assert!(index.has_space(UnitKind::Block) && !index.has_space(UnitKind::State));
        index.set_limits(TierLimits { bytes: 1, ..index.limits() });
        assert!(index.is_over_limit() && index.keeps(UnitKind::Block) && !index.keeps(UnitKind::State));
        assert_eq!([index.pop_oldest(), index.pop_oldest(), index.pop_oldest()], [Some(block(1)), Some(state), None]);
        index.check();
    }
}
