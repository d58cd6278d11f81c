//! The state of a scheduler in numbers.

use super::tier::{Tier, TierCounts};

/// Sequences, tokens, KV blocks and slots of one scheduler, or of several added up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Sequences that hold blocks.
    pub running: usize,
    /// Sequences that wait for blocks, for a slot, or for a prefix that another sequence computes.
    pub waiting: usize,
    /// Sequences, running or waiting, whose client does not read.
    pub paused: usize,
    /// Whether an executor is ready (for several schedulers: any of them). Without one every sequence waits.
    pub executor_ready: bool,
    /// Prompt tokens of requests that have not taken part in a step yet.
    pub queued_tokens: usize,
    /// Maximum number of sequences that run at once.
    pub max_running: usize,
    /// KV blocks held by sequences.
    pub blocks_used: usize,
    /// KV blocks that no sequence holds and whose content can be reused.
    pub blocks_cached: usize,
    /// All KV blocks.
    pub blocks_total: usize,
    /// Cached blocks evicted so far to make blocks available.
    pub evictions: u64,
    /// Slots for recurrent state that hold something; 0 for a model without recurrent state.
    pub slots_used: usize,
    /// Slots that hold a checkpoint.
    pub slots_cached: usize,
    /// All slots.
    pub slots_total: usize,
    /// Checkpoints evicted so far to make slots available.
    pub slot_evictions: u64,
    /// Window blocks that sequences use; 0 for a model whose layers all keep everything.
    pub windows_used: usize,
    /// Window blocks that nothing uses and whose content can be reused.
    pub windows_kept: usize,
    /// All window blocks.
    pub windows_total: usize,
    /// Window blocks evicted so far.
    pub window_evictions: u64,
    /// The lower tiers, in the order of [`Tier::ALL`](super::tier::Tier::ALL).
    pub tiers: [TierCounts; Tier::COUNT],
}

impl Counts {
    /// The sum of two schedulers' counts.
    #[must_use]
    pub fn plus(self, other: Counts) -> Counts {
        Counts {
            running: self.running + other.running,
            waiting: self.waiting + other.waiting,
            paused: self.paused + other.paused,
            executor_ready: self.executor_ready || other.executor_ready,
            queued_tokens: self.queued_tokens + other.queued_tokens,
            max_running: self.max_running + other.max_running,
            blocks_used: self.blocks_used + other.blocks_used,
            blocks_cached: self.blocks_cached + other.blocks_cached,
            blocks_total: self.blocks_total + other.blocks_total,
            evictions: self.evictions + other.evictions,
            slots_used: self.slots_used + other.slots_used,
            slots_cached: self.slots_cached + other.slots_cached,
            slots_total: self.slots_total + other.slots_total,
            slot_evictions: self.slot_evictions + other.slot_evictions,
            windows_used: self.windows_used + other.windows_used,
            windows_kept: self.windows_kept + other.windows_kept,
            windows_total: self.windows_total + other.windows_total,
            window_evictions: self.window_evictions + other.window_evictions,
            tiers: std::array::from_fn(|tier| self.tiers[tier] + other.tiers[tier]),
        }
    }
}
