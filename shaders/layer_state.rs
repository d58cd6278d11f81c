//! What a layer stores of a sequence.

use crate::kv::{KvShape, KvType};

/// What a layer stores of a sequence: keys and values of each position, recurrent state of the newest one, or both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerState {
    /// The keys and values; without heads if there are none.
    pub kv: KvShape,
    /// Number of float32 values of the recurrent state; 0 if there is none.
    pub recurrent_len: usize,
}

impl LayerState {
    /// A layer that stores nothing.
    pub const NONE: LayerState =
        LayerState { kv: KvShape { n_kv_heads: 0, key_dim: 0, value_dim: 0, values_in_keys: false }, recurrent_len: 0 };

    /// A layer that stores keys and values only.
    #[must_use]
    pub fn of_kv(kv: KvShape) -> Self {
        LayerState { kv, ..LayerState::NONE }
    }

    /// A layer that stores recurrent state only.
    #[must_use]
    pub fn recurrent(recurrent_len: usize) -> Self {
        LayerState { recurrent_len, ..LayerState::NONE }
    }

    /// Bytes of one block of keys and values.
    #[must_use]
    pub fn block_bytes(&self, kv_type: KvType) -> u64 {
        self.kv.block_bytes(kv_type)
    }

    /// Bytes of the recurrent state of one sequence.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        (self.recurrent_len * size_of::<f32>()) as u64
    }
}
