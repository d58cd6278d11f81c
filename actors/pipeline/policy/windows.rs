//! Layers that keep windows: the window blocks of the sequences ([`WindowBlocks`](super::window_blocks::WindowBlocks)).
//!
//! A sequence uses the window blocks from the first one that its next row reads to the last one that is written. The cached blocks
//! of a prompt's prefix can be used up to a block before which a whole window is kept. That is so at the end of sequences, and near the
//! end of prompts and where prompts have parted, as long as there is memory.

use cuelight_engine::engine::{BLOCK_TOKENS, BlockId};
use cuelight_engine::memory::WindowNeeds;

use super::Policy;
use super::kv_blocks::{BlockHandle, BlockManager};
use super::recurrent_state::RecurrentState;
use super::sequence::Sequence;
use super::sequence_window::SequenceWindow;
use crate::core::request::RequestId;

impl Policy {
    /// The most sequences that can run.
    pub(super) fn most_windows(&self) -> usize {
        let Some(window) = self.limits.window else { return usize::MAX };
        let (max_sequences, max_batched_tokens) = (self.limits.max_sequences, self.limits.max_batched_tokens);
        let needs = WindowNeeds { positions: window.positions, max_sequences, max_batched_tokens };
        needs.sequences_within(window.blocks)
    }

    /// The index of the first block that a row after `blocks` blocks reads.
    pub(super) fn first_read(&self, blocks: usize) -> usize {
        self.limits.window.map_or(blocks, |window| window.first_block(blocks * BLOCK_TOKENS).min(blocks))
    }

    /// Gives an admitted sequence the window before its next row. `known` blocks of its prefix are in the cache.
    pub(super) fn start_window(&mut self, id: RequestId, known: usize) {
        if !self.windows.is_used() {
            return;
        }
        let count = self.sequences[&id].cached_blocks;
        let used = self.first_read(count)..count;
        let sequence = self.sequences.get_mut(&id).expect("the sequence exists");
        let resumed = vec![known, RecurrentState::blocks_until_last(sequence.prompt_tokens)];
        for block in &sequence.blocks[used.clone()] {
            let is_there = self.windows.has(block.id()) && self.windows.attach(block.id());
            debug_assert!(is_there, "a usable prefix has its window");
        }
        sequence.window = SequenceWindow { used, resumed };
    }

    /// Another prompt will continue after `blocks` blocks of a sequence.
    pub(super) fn keep_window_before(&mut self, id: RequestId, blocks: usize) {
        let resumed = &mut self.sequence_mut(id).window.resumed;
        if !resumed.contains(&blocks) {
            resumed.push(blocks);
        }
    }

    /// The most rows of a running sequence for which there are window blocks.
    pub(super) fn rows_with_windows(&self, sequence: &Sequence) -> usize {
        match self.windows.is_used() {
            true => (sequence.window.used.end + self.windows.available()) * BLOCK_TOKENS - sequence.planned,
            false => usize::MAX,
        }
    }

    /// Gets window blocks for the next `rows` rows of a running sequence, which has the blocks for them. They must be available.
    pub(super) fn extend_window(&mut self, id: RequestId, rows: usize) {
        let Some(sequence) = self.sequences.get_mut(&id).filter(|_| self.windows.is_used()) else { return };
        let end = BlockManager::blocks_for(sequence.planned + rows);
        let used = &mut sequence.window.used;
        for block in sequence.blocks[..end].iter().skip(used.end) {
            let is_there = self.windows.attach(block.id());
            assert!(is_there, "the window blocks are available");
        }
        used.end = used.end.max(end);
    }

    /// The blocks that hold the first `tokens` tokens of a sequence in layers that keep windows.
    pub(super) fn window_table(&self, sequence: &Sequence, tokens: usize) -> Vec<BlockId> {
        if !self.windows.is_used() {
            return Vec::new();
        }
        let of_block = |(index, block): (usize, &BlockHandle)| {
            let id = self.windows.of(block.id()).filter(|_| sequence.window.used.contains(&index));
            // Blocks before the window are not read.
            id.unwrap_or(0)
        };
        sequence.blocks[..BlockManager::blocks_for(tokens)].iter().enumerate().map(of_block).collect()
    }

    /// Gives up the window blocks that no further row of a sequence reads.
    pub(super) fn advance_window(&mut self, id: RequestId) {
        let Some(sequence) = self.sequences.get(&id).filter(|_| self.windows.is_used()) else { return };
        // Rows of a draft that is not verified may be computed once more.
        let next = sequence.computed - sequence.unverified.min(sequence.computed);
        let window = self.limits.window.map_or(0, |window| window.first_block(next));
        let SequenceWindow { used, resumed } = &sequence.window;
        let passed = used.start..window.clamp(used.start, used.end);
        for index in passed.clone() {
            let is_read = |count: &usize| (self.first_read(*count)..*count).contains(&index);
            let is_expected = index < sequence.cached_blocks && resumed.iter().any(is_read);
            self.windows.release(sequence.blocks[index].id(), is_expected);
        }
        self.sequence_mut(id).window.used.start = passed.end;
    }

    /// Gives up the window of a sequence that will lose its blocks, at once or when the device has finished its last step.
    pub(super) fn release_window(&mut self, id: RequestId, is_at_executor: bool) {
        let Some(sequence) = self.sequences.get_mut(&id) else { return };
        for index in std::mem::take(&mut sequence.window).used {
            let block = sequence.blocks[index].id();
            if is_at_executor {
                self.windows.retire(block, sequence.last_step);
            } else {
                self.windows.release(block, index < sequence.cached_blocks);
            }
        }
    }
}
