//! The load of a sequence's blocks from lower tiers.

use std::collections::VecDeque;
use std::time::Duration;

use crate::core::block_hash::BlockContent;
use crate::core::tier::{FetchId, Tier};

/// Blocks that a sequence waits for. They are read in pieces, one after the other.
#[derive(Debug)]
pub(in crate::pipeline::policy) struct Loading {
    /// The blocks that are not on the device yet, in order, and where they are.
    pub blocks: VecDeque<(BlockContent, Tier)>,
    /// The read of the first of them that is under way, and their number.
    pub fetch: Option<(FetchId, usize)>,
    /// How long a read may take before the sequence computes the blocks instead.
    pub time_limit: Duration,
}

impl Loading {
    /// The next piece: up to `most` blocks from the tier of the first one.
    pub fn next_piece(&self, most: usize) -> Vec<BlockContent> {
        let tier = self.blocks.front().map(|(_, tier)| tier);
        let piece = self.blocks.iter().take(most.max(1)).take_while(|(_, other)| Some(other) == tier);
        piece.map(|(content, _)| *content).collect()
    }
}
