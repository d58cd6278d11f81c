//! What a layer stores of a sequence.

use crate::kv::{KvShape, KvType};

/// What a layer stores of a sequence: keys and values of each position, index keys of each position, recurrent state of the
/// newest one, or several of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerState {
    /// The keys and values; without heads if there are none.
    pub kv: KvShape,
    /// The keys by which the layer selects the positions to which it attends; without heads if it does not.
    pub index: KvShape,
    /// Number of float32 values of the recurrent state; 0 if there is none.
    pub recurrent_len: usize,
}

impl LayerState {
    /// A layer that stores nothing.
    pub const NONE: LayerState = LayerState { kv: KvShape::NONE, index: KvShape::NONE, recurrent_len: 0 };

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

    /// The shapes of what is stored of each position: keys and values, and index keys.
    #[must_use]
    pub fn shapes(&self) -> [KvShape; 2] {
        [self.kv, self.index]
    }

    /// Bytes of one block of keys and values, and of index keys.
    #[must_use]
    pub fn block_bytes(&self, kv_type: KvType) -> u64 {
        self.shapes().iter().map(|shape| shape.block_bytes(kv_type)).sum()
    }

    /// Bytes of the recurrent state of one sequence.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        (self.recurrent_len * size_of::<f32>()) as u64
    }
}
