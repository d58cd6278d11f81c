//! Recurrent state on a device.

use super::part::StatePart;
use crate::gpu::Region;

/// The slots of all layers on a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceStates {
    /// The memory of each layer, `[slot, value]` of f32.
    pub layers: Vec<Region>,
    /// Values in a slot of each layer.
    pub slot_lens: Vec<usize>,
}

impl DeviceStates {
    /// The memory of an op's layer from the op's first value on: its value `i` in slot `s` is at
    /// `address + 4 (s * slot_len + i)`.
    #[must_use]
    pub fn of(&self, part: StatePart) -> Region {
        let start = (part.start * size_of::<f32>()) as u64;
        self.layers[part.layer].split_at(start).1
    }

    /// Values in a slot of an op's layer.
    #[must_use]
    pub fn slot_len(&self, part: StatePart) -> usize {
        self.slot_lens[part.layer]
    }
}
