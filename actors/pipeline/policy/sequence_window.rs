//! The window of one sequence in layers that keep no more than that.

use std::ops::Range;

/// The window blocks that a sequence uses. Empty for a model whose layers all keep everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct SequenceWindow {
    /// The indices of its KV blocks whose window blocks it uses.
    pub used: Range<usize>,
    /// Numbers of leading blocks after which another prompt may continue.
    pub resumed: Vec<usize>,
}
