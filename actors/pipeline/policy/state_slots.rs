//! The slots of recurrent state: which are free, how many references the others have, and which hold checkpoints.
//!
//! A slot holds the state of a sequence after some position. A running sequence holds the slot of its newest state and
//! writes to it as long as nothing else refers to it; otherwise it continues in another slot, and the old one keeps its
//! content. A *checkpoint* is such a content: the state after the last token of a block in the prefix cache. It is kept for
//! a prompt with the same tokens until the slot is needed. The least recently used one is given up first.

use std::collections::{BTreeMap, HashMap, VecDeque};

use cuelight_engine::engine::{BlockId, SlotId, StepId};

use crate::core::block_hash::BlockContent;

/// One reference to a slot. Released with [`StateSlots::release`].
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a slot is free again only when its handles are released"]
pub struct SlotHandle(SlotId);

impl SlotHandle {
    /// The id of the slot, as used by the engine.
    #[must_use]
    pub fn id(&self) -> SlotId {
        self.0
    }
}

/// Manages all slots of one engine.
#[derive(Debug)]
pub struct StateSlots {
    /// Reference count of each slot. 0 for a free slot.
    references: Vec<u32>,
    free: Vec<SlotId>,
    /// The checkpoints, by the block after whose last token the state is.
    checkpoints: HashMap<BlockId, Checkpoint>,
    by_use: BTreeMap<u64, BlockId>,
    /// References to release once a step is done, because the device may read or write the slot until then.
    retired: VecDeque<(StepId, SlotHandle)>,
    clock: u64,
    evictions: u64,
    /// The checkpoints that were given up for their slot since they were taken last. `None` when they are not recorded.
    evicted: Option<Vec<(SlotId, BlockContent)>>,
}

/// A state that is kept for other prompts.
#[derive(Debug)]
struct Checkpoint {
    slot: SlotHandle,
    /// The time of its last use.
    used: u64,
    /// The block after which it is.
    after: BlockContent,
}

impl StateSlots {
    /// A manager with `slots` free slots.
    #[must_use]
    pub fn new(slots: usize) -> Self {
        let count = SlotId::try_from(slots).unwrap_or(SlotId::MAX);
        StateSlots {
            references: vec![0; count as usize],
            free: (0..count).rev().collect(),
            checkpoints: HashMap::new(),
            by_use: BTreeMap::new(),
            retired: VecDeque::new(),
            clock: 0,
            evictions: 0,
            evicted: None,
        }
    }

    /// Chooses whether [`take_evicted`](Self::take_evicted) returns anything.
    pub fn record_evictions(&mut self, is_recorded: bool) {
        match is_recorded {
            true => drop(self.evicted.get_or_insert_default()),
            false => self.evicted = None,
        }
    }

    /// The checkpoints that were given up for their slot, or with their block, since the last call. Their slots have their contents
    /// until something is written to them.
    pub fn take_evicted(&mut self) -> Vec<(SlotId, BlockContent)> {
        self.evicted.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Whether the model has recurrent state.
    #[must_use]
    pub fn is_used(&self) -> bool {
        !self.references.is_empty()
    }

    /// Number of all slots.
    #[must_use]
    pub fn total(&self) -> usize {
        self.references.len()
    }

    /// Number of checkpoints.
    #[must_use]
    pub fn checkpoints(&self) -> usize {
        self.checkpoints.len()
    }

    /// Number of slots that are not free.
    #[must_use]
    pub fn used(&self) -> usize {
        self.total() - self.free.len()
    }

    /// Number of checkpoints that were given up for their slot so far.
    #[must_use]
    pub fn evictions(&self) -> u64 {
        self.evictions
    }

    /// Allocates a slot, giving up checkpoints until one is free. `None` when sequences and steps refer to all of them.
    pub fn allocate(&mut self) -> Option<SlotHandle> {
        while self.free.is_empty() {
            let (_, block) = self.by_use.pop_first()?;
            self.evictions += 1;
            self.evict(block);
        }
        let id = self.free.pop()?;
        self.references[id as usize] = 1;
        Some(SlotHandle(id))
    }

    /// Whether [`allocate`](Self::allocate) returns a slot.
    #[must_use]
    pub fn can_allocate(&self) -> bool {
        !self.free.is_empty() || self.checkpoints.values().any(|checkpoint| self.is_exclusive(&checkpoint.slot))
    }

    /// Another reference to the slot.
    pub fn share(&mut self, slot: &SlotHandle) -> SlotHandle {
        self.references[slot.0 as usize] += 1;
        SlotHandle(slot.0)
    }

    /// A slot to which a sequence that holds `slot` may write. The slot is exchanged if something else refers to it; the
    /// device reads the old one until `step` is done. Gives `slot` back when no slot can be had.
    pub fn writable(&mut self, slot: Option<SlotHandle>, step: StepId) -> Result<SlotHandle, Option<SlotHandle>> {
        match slot {
            Some(slot) if self.is_exclusive(&slot) => Ok(slot),
            slot => match self.allocate() {
                Some(new) => {
                    slot.into_iter().for_each(|old| self.retire(old, step));
                    Ok(new)
                }
                // Its checkpoint may have been given up.
                None => match slot {
                    Some(slot) if self.is_exclusive(&slot) => Ok(slot),
                    slot => Err(slot),
                },
            },
        }
    }

    fn is_exclusive(&self, slot: &SlotHandle) -> bool {
        self.references[slot.0 as usize] == 1
    }

    /// Releases a reference.
    pub fn release(&mut self, slot: SlotHandle) {
        let references = &mut self.references[slot.0 as usize];
        debug_assert!(*references > 0, "slot {} was released more often than referenced", slot.0);
        *references -= 1;
        if *references == 0 {
            self.free.push(slot.0);
        }
    }

    /// Releases a reference when `step` is done.
    pub fn retire(&mut self, slot: SlotHandle, step: StepId) {
        self.retired.push_back((step, slot));
    }

    /// Releases the references that were retired until `step` or an earlier step.
    pub fn step_is_done(&mut self, step: StepId) {
        for _ in 0..self.retired.len() {
            let Some((until, slot)) = self.retired.pop_front() else { return };
            if until <= step {
                self.release(slot);
            } else {
                self.retired.push_back((until, slot));
            }
        }
    }

    /// Keeps a state as the checkpoint after a block with this content. Without effect when there is one already.
    pub fn keep(&mut self, block: BlockId, after: BlockContent, slot: SlotHandle) {
        if self.has(block) {
            return self.release(slot);
        }
        self.clock += 1;
        self.by_use.insert(self.clock, block);
        self.checkpoints.insert(block, Checkpoint { slot, used: self.clock, after });
    }

    /// Whether there is a checkpoint after a block.
    #[must_use]
    pub fn has(&self, block: BlockId) -> bool {
        self.checkpoints.contains_key(&block)
    }

    /// A reference to the checkpoint after a block.
    pub fn take(&mut self, block: BlockId) -> Option<SlotHandle> {
        let Checkpoint { slot, used, .. } = self.checkpoints.get_mut(&block)?;
        self.by_use.remove(used);
        self.clock += 1;
        *used = self.clock;
        self.by_use.insert(self.clock, block);
        self.references[slot.0 as usize] += 1;
        Some(SlotHandle(slot.0))
    }

    /// The slot of the checkpoint after a block, and what it contains.
    #[must_use]
    pub fn checkpoint(&self, block: BlockId) -> Option<(SlotId, BlockContent)> {
        self.checkpoints.get(&block).map(|checkpoint| (checkpoint.slot.id(), checkpoint.after))
    }

    /// Gives up the checkpoint after a block, if there is one, because no sequence needs it any more.
    pub fn forget(&mut self, block: BlockId) {
        if let Some(Checkpoint { slot, used, .. }) = self.checkpoints.remove(&block) {
            self.by_use.remove(&used);
            self.release(slot);
        }
    }

    /// Gives up the checkpoint after a block, if there is one, because its memory or that of the block is needed.
    pub fn evict(&mut self, block: BlockId) {
        let evicted = self.checkpoint(block);
        if let Some(recorded) = &mut self.evicted {
            recorded.extend(evicted);
        }
        self.forget(block);
    }

    /// Panics unless `handles`, the checkpoints and the retired handles match the reference counts, and every other slot is
    /// free.
    pub fn check<'a>(&'a self, handles: impl Iterator<Item = &'a SlotHandle>) {
        let mut seen = vec![0u32; self.total()];
        let kept = self.checkpoints.values().map(|checkpoint| &checkpoint.slot);
        for slot in handles.chain(kept).chain(self.retired.iter().map(|(_, slot)| slot)) {
            seen[slot.0 as usize] += 1;
        }
        assert_eq!(seen, self.references, "references to slots are lost or duplicated");
        assert_eq!(self.free.len(), seen.iter().filter(|count| **count == 0).count(), "a slot is lost");
        assert!(self.free.iter().all(|slot| seen[*slot as usize] == 0), "a free slot has references");
        assert_eq!(self.checkpoints.len(), self.by_use.len());
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use cuelight_engine::engine::BLOCK_TOKENS;

    use super::*;
    use crate::core::block_hash::BlockHash;

    const STEP: StepId = StepId(7);

    fn content(number: u8) -> BlockContent {
        let (hash, before) = (BlockHash([number; 32]), BlockHash([0; 32]));
        BlockContent { hash, before, tokens: [0; BLOCK_TOKENS], has_media: false, is_portable: true }
    }

    #[test]
    fn a_sequence_keeps_its_slot_until_it_is_a_checkpoint() {
        let mut slots = StateSlots::new(3);
        let first = slots.writable(None, STEP).unwrap();
        let id = first.id();
        let same = slots.writable(Some(first), STEP).unwrap();
        assert_eq!(same.id(), id);
        let kept = slots.share(&same);
        slots.keep(5, content(5), kept);
        let other = slots.writable(Some(same), STEP).unwrap();
        assert_ne!(other.id(), id);
        slots.check([&other].into_iter());
        slots.step_is_done(STEP);
        assert_eq!((slots.used(), slots.checkpoints()), (2, 1));
        let again = slots.take(5).unwrap();
        assert_eq!(again.id(), id);
        slots.release(again);
        slots.release(other);
        slots.check([].iter());
    }

    #[test]
    fn the_least_recently_used_checkpoint_is_given_up_first() {
        let mut slots = StateSlots::new(2);
        slots.record_evictions(true);
        for block in [1, 2] {
            let slot = slots.allocate().unwrap();
            slots.keep(block, content(block as u8), slot);
        }
        let (second, _) = slots.checkpoint(2).unwrap();
        let used = slots.take(1).unwrap();
        let new = slots.allocate().unwrap();
        assert!(slots.has(1) && !slots.has(2));
        assert_eq!((slots.evictions(), slots.take_evicted()), (1, vec![(second, content(2))]));
        slots.forget(1);
        assert!(!slots.has(1) && slots.take_evicted().is_empty(), "what was forgotten is not copied");
        slots.check([&used, &new].into_iter());
    }

    #[test]
    fn without_another_slot_a_sequence_takes_over_its_checkpoint() {
        let mut slots = StateSlots::new(1);
        let slot = slots.allocate().unwrap();
        slots.keep(1, content(1), slot);
        let mine = slots.take(1).unwrap();
        let id = mine.id();
        let mine = slots.writable(Some(mine), STEP).unwrap();
        assert_eq!((mine.id(), slots.has(1)), (id, false));
        let shared = slots.share(&mine);
        let refused = slots.writable(Some(mine), STEP).unwrap_err();
        assert_eq!(refused.as_ref(), Some(&shared), "another sequence uses it");
        slots.check(refused.iter().chain([&shared]));
    }
}
