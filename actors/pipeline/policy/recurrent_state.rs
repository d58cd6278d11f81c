//! The recurrent state of one sequence: the slot of its newest state, and checkpoints on their way to the cache.

use std::collections::BTreeSet;

use cuelight_engine::engine::{BLOCK_TOKENS, BlockId};

use super::state_slots::SlotHandle;

/// The checkpoint of a prompt is at least this far from its end: the next turn of a conversation often repeats the prompt
/// without its last tokens, which open the answer.
const TAIL_TOKENS: usize = 8;

/// While a sequence decodes, it has a checkpoint at the last multiple of this many tokens.
const DECODE_INTERVAL: usize = 4 * BLOCK_TOKENS;

/// The slots of a sequence. Empty for a model without recurrent state.
#[derive(Debug, Default)]
pub(super) struct RecurrentState {
    /// The state after all tokens of formed steps, without those of a draft. `None` at the start.
    pub newest: Option<SlotHandle>,
    /// The states after each drafted token of the step in flight.
    pub drafted: Vec<SlotHandle>,
    /// Positions after which a checkpoint is to be made, all at the end of a block.
    wanted: BTreeSet<usize>,
    /// Checkpoints whose block is not in the prefix cache yet, with their positions.
    pub pending: Vec<(usize, SlotHandle)>,
    /// The block with the newest checkpoint in the answer.
    pub in_answer: Option<BlockId>,
}

impl RecurrentState {
    /// Requests a checkpoint after the last block that ends at `position` or before, if the sequence has not passed it.
    pub fn want(&mut self, position: usize, planned: usize) {
        let end = position / BLOCK_TOKENS * BLOCK_TOKENS;
        if end > planned {
            self.wanted.insert(end);
        }
    }

    /// Number of leading blocks of a prompt after which its last checkpoint is.
    pub fn blocks_until_last(prompt_tokens: usize) -> usize {
        prompt_tokens.saturating_sub(TAIL_TOKENS) / BLOCK_TOKENS
    }

    /// Requests the checkpoint near the end of a prompt.
    pub fn want_end_of_prompt(&mut self, prompt_tokens: usize, planned: usize) {
        self.want(Self::blocks_until_last(prompt_tokens) * BLOCK_TOKENS, planned);
    }

    /// The last position up to `most` for which a checkpoint is requested or on its way.
    pub fn checkpoint_until(&self, most: usize) -> Option<usize> {
        let pending = self.pending.iter().map(|(position, _)| *position).filter(|position| *position <= most);
        pending.chain(self.wanted.range(..=most).next_back().copied()).max()
    }

    /// Removes the positions up to `end` after which the rows `first..end` are to make checkpoints, and returns them.
    pub fn take_wanted(&mut self, first: usize, end: usize, prompt_tokens: usize) -> Vec<usize> {
        if end > prompt_tokens {
            self.want(end / DECODE_INTERVAL * DECODE_INTERVAL, first.max(prompt_tokens));
        }
        let later = self.wanted.split_off(&(end + 1));
        std::mem::replace(&mut self.wanted, later).into_iter().filter(|position| *position > first).collect()
    }

    /// All slots that it holds.
    pub fn handles(&self) -> impl Iterator<Item = &SlotHandle> {
        self.newest.iter().chain(&self.drafted).chain(self.pending.iter().map(|(_, slot)| slot))
    }

    /// The same, by value.
    pub fn into_handles(self) -> impl Iterator<Item = SlotHandle> {
        self.newest.into_iter().chain(self.drafted).chain(self.pending.into_iter().map(|(_, slot)| slot))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checkpoints_are_made_at_requested_block_ends_and_regularly_in_the_answer() {
        let mut state = RecurrentState::default();
        state.want_end_of_prompt(100, 0);
        state.want(50, 0);
        assert_eq!(state.checkpoint_until(79), Some(48));
        assert_eq!(state.take_wanted(0, 60, 100), [48]);
        assert_eq!(state.take_wanted(60, 100, 100), [80]);
        assert_eq!(state.take_wanted(100, 127, 100), [0; 0]);
        assert_eq!(state.take_wanted(127, 128, 100), [128]);
        state.want(128, 128);
        assert_eq!(state.checkpoint_until(1000), None, "it has passed that position");
    }
}
