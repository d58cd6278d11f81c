//! How many blocks the KV cache has, and what they take.
//!
//! Layers whose rows read the positions of a window only need blocks for the windows of running sequences, and not for everything
//! that the other layers keep. They get blocks of their own where that takes less memory.

use cuelight_shaders::layer_state::LayerState;

use crate::engine::BLOCK_TOKENS;

/// Bytes of one KV block, summed over the layers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BlockBytes {
    /// Of the layers that keep all positions.
    pub all: u64,
    /// Of the layers that keep those of windows.
    pub windowed: u64,
}

impl BlockBytes {
    /// A layer whose blocks take `bytes`.
    pub(crate) fn of_layer(state: &LayerState, bytes: u64) -> Self {
        match state.kv.is_windowed {
            true => BlockBytes { all: 0, windowed: bytes },
            false => BlockBytes { all: bytes, windowed: 0 },
        }
    }

    /// Bytes of a block of every layer.
    #[must_use]
    pub fn total(self) -> u64 {
        self.all + self.windowed
    }

    /// Bytes of a cache with `blocks` blocks, and in layers with windows at most `windows`.
    pub(super) fn of_cache(self, blocks: usize, windows: Option<usize>) -> u64 {
        let windowed = windows.map_or(blocks, |windows| windows.min(blocks));
        self.all.saturating_mul(blocks as u64).saturating_add(self.windowed.saturating_mul(windowed as u64))
    }

    /// The most blocks whose cache takes no more than `bytes`, if layers with windows have at most `windows`.
    pub(super) fn blocks_within(self, bytes: u64, windows: Option<usize>) -> usize {
        let count = |bytes: u64, of_block: u64| usize::try_from(bytes / of_block.max(1)).unwrap_or(usize::MAX);
        let equal = count(bytes, self.total());
        match windows {
            Some(windows) if windows < equal => count(bytes - self.windowed.saturating_mul(windows as u64), self.all),
            _ => equal,
        }
    }
}

impl std::ops::Add for BlockBytes {
    type Output = BlockBytes;

    fn add(self, other: BlockBytes) -> BlockBytes {
        BlockBytes { all: self.all + other.all, windowed: self.windowed + other.windowed }
    }
}

impl std::iter::Sum for BlockBytes {
    fn sum<I: Iterator<Item = BlockBytes>>(parts: I) -> BlockBytes {
        parts.fold(BlockBytes::default(), std::ops::Add::add)
    }
}

/// The windows of a model, and the steps that it computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WindowNeeds {
    /// The most positions that a row reads, up to its own.
    pub positions: usize,
    /// Most sequences in a step.
    pub max_sequences: usize,
    /// Most rows in a step.
    pub max_batched_tokens: usize,
}

impl WindowNeeds {
    /// Blocks that a sequence holds between two steps: those of its window, and of the rows of two steps that decode.
    #[must_use]
    pub fn blocks_of_sequence(self) -> usize {
        self.positions.saturating_sub(1).div_ceil(BLOCK_TOKENS) + 3
    }

    /// Blocks that the rows of two steps need in addition: one is computed while the next is formed.
    #[must_use]
    pub fn blocks_of_steps(self) -> usize {
        2 * (self.max_batched_tokens.div_ceil(BLOCK_TOKENS) + 1)
    }

    /// The most sequences that can run with this many blocks.
    #[must_use]
    pub fn sequences_within(self, blocks: usize) -> usize {
        (blocks.saturating_sub(self.blocks_of_steps()) / self.blocks_of_sequence()).max(1)
    }

    /// Enough for one sequence.
    fn least(self) -> usize {
        self.blocks_of_sequence() + self.blocks_of_steps()
    }

    /// Enough for all sequences of a step, and as many again whose windows are kept for the next turn of their conversations.
    fn most(self) -> usize {
        (2 * self.max_sequences).saturating_mul(self.blocks_of_sequence()).saturating_add(self.blocks_of_steps())
    }

    /// The blocks if `bytes` are there for the cache: beyond the least, windows take up to half of these bytes.
    pub(super) fn blocks_within(self, bytes: u64, of_block: u64) -> usize {
        let rest = bytes.saturating_sub(of_block.saturating_mul(self.least() as u64));
        let more = usize::try_from(rest / 2 / of_block.max(1)).unwrap_or(usize::MAX);
        self.least().saturating_add(more).min(self.most())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sixth of the bytes of a block are of layers that keep everything.
    const BYTES: BlockBytes = BlockBytes { all: 10, windowed: 50 };

    const NEEDS: WindowNeeds = WindowNeeds { positions: 129, max_sequences: 4, max_batched_tokens: 64 };

    #[test]
    fn windows_take_no_more_than_their_blocks() {
        assert_eq!(BYTES.of_cache(100, None), 6000);
        assert_eq!(BYTES.of_cache(100, Some(20)), 2000);
        assert_eq!(BYTES.of_cache(10, Some(20)), 600);
        for (bytes, windows) in [(6000, None), (6000, Some(20)), (600, Some(20)), (599, Some(20)), (0, Some(20))] {
            let blocks = BYTES.blocks_within(bytes, windows);
            assert!(BYTES.of_cache(blocks, windows) <= bytes && BYTES.of_cache(blocks + 1, windows) > bytes);
        }
        assert_eq!(BYTES.blocks_within(6000, Some(20)), 500);
    }

    #[test]
    fn windows_get_what_all_sequences_need_or_half_of_the_memory() {
        assert_eq!((NEEDS.blocks_of_sequence(), NEEDS.blocks_of_steps()), (11, 10));
        assert_eq!(NEEDS.blocks_within(u64::MAX, BYTES.windowed), 2 * 4 * 11 + 10);
        assert_eq!(NEEDS.blocks_within(0, BYTES.windowed), 21);
        assert_eq!(NEEDS.blocks_within(21 * 50 + 1000, BYTES.windowed), 21 + 10);
        assert_eq!([0, 21, 31, 32, 98].map(|blocks| NEEDS.sequences_within(blocks)), [1, 1, 1, 2, 8]);
    }
}
