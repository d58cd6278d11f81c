//! Recurrent state: which slots the rows of a step read and write, and what is kept as a checkpoint.
//!
//! The cached blocks of a prompt's prefix are of use only up to a block with a checkpoint. Checkpoints are made where a later
//! prompt is likely to part from this one: near the end of a prompt, in regular intervals of an answer, and where a prompt has
//! parted from an earlier one.

use cuelight_engine::engine::{BLOCK_TOKENS, BlockId, SequenceState};

use super::sequence::Sequence;
use super::state_slots::SlotHandle;
use super::{Draft, Policy};
use crate::core::request::RequestId;

/// The blocks of a prompt's prefix that are in the cache.
pub(super) struct CachedPrefix {
    /// The blocks.
    pub blocks: Vec<BlockId>,
    /// How many of them can be used.
    pub usable: usize,
}

impl Policy {
    /// What the cache has of a waiting sequence's prefix.
    pub(super) fn find_prefix(&self, sequence: &Sequence) -> CachedPrefix {
        let blocks = match self.config.prefix_cache {
            true => self.blocks.find_prefix(&sequence.scope, sequence.cacheable(), &sequence.media),
            false => Vec::new(),
        };
        let usable = self.usable(&blocks);
        CachedPrefix { blocks, usable }
    }

    /// How many of the leading blocks can be used: a row after them finds its recurrent state, and its window.
    fn usable(&self, blocks: &[BlockId]) -> usize {
        let (mut usable, mut windows) = (0, 0);
        for (count, block) in (1..).zip(blocks) {
            windows = if self.windows.has(*block) { windows + 1 } else { 0 };
            let has_state = !self.slots.is_used() || self.slots.has(*block);
            if has_state && windows >= count - self.first_read(count) {
                usable = count;
            }
        }
        usable
    }

    /// Gives an admitted sequence the state after its cached blocks.
    pub(super) fn start_state(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.get_mut(&id).filter(|_| self.slots.is_used()) else { return };
        let last = sequence.blocks.last().map(|block| block.id());
        sequence.state.newest = last.and_then(|block| self.slots.take(block));
    }

    /// Requests the checkpoints of an admitted sequence, which would wait forever for blocks that are not kept. `known` blocks of
    /// its prefix are in the cache or in a tier.
    pub(super) fn want_checkpoints(&mut self, id: RequestId, known: usize) {
        let Some(sequence) = self.sequences.get_mut(&id).filter(|_| self.slots.is_used()) else { return };
        if self.config.prefix_cache && sequence.is_kept() {
            sequence.state.want(known * BLOCK_TOKENS, sequence.planned);
            sequence.state.want_end_of_prompt(sequence.prompt_tokens, sequence.planned);
        }
    }

    /// Whether one more sequence can have a slot, and a window.
    pub(super) fn has_slot_for_another(&self) -> bool {
        let slots = if self.slots.is_used() { self.slots.total() } else { usize::MAX };
        self.running.len() < slots.min(self.most_windows())
    }

    /// The slots for the next `rows` rows of a sequence. `None` while there is none to write to.
    pub(super) fn plan_state(&mut self, id: RequestId, rows: usize) -> Option<SequenceState> {
        if !self.slots.is_used() {
            return Some(SequenceState::default());
        }
        let sequence = self.sequences.get_mut(&id)?;
        let (first, state) = (sequence.planned, &mut sequence.state);
        let from = state.newest.as_ref().map(SlotHandle::id);
        debug_assert_eq!(from.is_some(), first > 0, "a sequence has state as soon as it has computed tokens");
        let newest = match self.slots.writable(state.newest.take(), self.next_step) {
            Ok(slot) => slot,
            Err(slot) => {
                state.newest = slot;
                return None;
            }
        };
        let mut to = Vec::new();
        for position in state.take_wanted(first, first + rows, sequence.prompt_tokens) {
            if !self.config.prefix_cache {
                continue;
            }
            if position == first + rows {
                state.pending.push((position, self.slots.share(&newest)));
            } else if let Some(slot) = self.slots.allocate() {
                to.push(((position - first) as u32, slot.id()));
                state.pending.push((position, slot));
            }
        }
        to.push((rows as u32, newest.id()));
        state.newest = Some(newest);
        Some(SequenceState { from, to })
    }

    /// Gets a slot for the state after each token of a draft, which is shortened to as many tokens as there are slots.
    pub(super) fn reserve_draft_slots(&mut self, id: RequestId, draft: &mut Draft) {
        let Some(sequence) = self.sequences.get_mut(&id).filter(|_| self.slots.is_used()) else { return };
        debug_assert!(sequence.state.drafted.is_empty(), "the last draft was not verified");
        sequence.state.drafted = draft.tokens.iter().map_while(|_| self.slots.allocate()).collect();
        draft.tokens.truncate(sequence.state.drafted.len());
    }

    /// Continues with the state after the accepted tokens of a draft.
    pub(super) fn accept_state(&mut self, id: RequestId, accepted: usize) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let mut drafted = std::mem::take(&mut sequence.state.drafted);
        if let Some(newest) = accepted.checked_sub(1).filter(|last| *last < drafted.len()) {
            let newest = drafted.swap_remove(newest);
            drafted.extend(sequence.state.newest.replace(newest));
        }
        drafted.into_iter().for_each(|slot| self.slots.release(slot));
    }

    /// Keeps the checkpoints of a sequence whose blocks are in the prefix cache.
    pub(super) fn keep_checkpoints(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let cached = sequence.cached_blocks * BLOCK_TOKENS;
        for (position, slot) in sequence.state.pending.extract_if(.., |(position, _)| *position <= cached) {
            let block = sequence.blocks[position / BLOCK_TOKENS - 1].id();
            match self.blocks.content(block) {
                Some(content) => self.slots.keep(block, content, slot),
                None => self.slots.release(slot),
            }
            if position > sequence.prompt_tokens {
                let before = sequence.state.in_answer.replace(block).filter(|before| *before != block);
                before.into_iter().for_each(|before| self.slots.forget(before));
            }
        }
    }

    /// Takes the slots of a sequence, at once or when the device has finished its last step.
    pub(super) fn release_state(&mut self, id: RequestId, is_at_executor: bool) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        let last_step = sequence.last_step;
        for slot in std::mem::take(&mut sequence.state).into_handles() {
            if is_at_executor {
                self.slots.retire(slot, last_step);
            } else {
                self.slots.release(slot);
            }
        }
    }
}
