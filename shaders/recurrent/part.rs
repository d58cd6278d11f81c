//! The place of an op's values in a slot.

/// The number that stands for no slot: a sequence that starts with zeros, or a row after which nothing is stored.
pub const NO_SLOT: u32 = u32::MAX;

/// The place of an op's values in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatePart {
    /// The layer.
    pub layer: usize,
    /// The first value of the op among the layer's.
    pub start: usize,
    /// The number of values of the op.
    pub len: usize,
}
