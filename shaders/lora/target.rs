//! What of a model an adapter changes: a projection, and where the changes of all adapters are on a device.

use super::adapter::{Adapter, LowRank};
use crate::gpu::Region;

/// Words before the matrices of a change on a device: its rank, the bits of its scale, and two that align the matrices.
const HEADER_WORDS: usize = 4;

/// A projection that adapters can change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Its number in an [`Adapter`].
    pub index: usize,
    /// The number of its matrices, each with a number of its own from `index` on: one, or one of each expert.
    pub count: usize,
    /// Outputs of the projection.
    pub outputs: usize,
    /// Columns of the projection: the width of its input.
    pub columns: usize,
    /// The largest rank of a change.
    pub max_rank: usize,
}

impl Target {
    /// Bytes of the change of one matrix by one adapter on a device, at its largest: the header, A and B as [`LowRank`] has them.
    #[must_use]
    pub fn change_bytes(&self) -> u64 {
        let header = (HEADER_WORDS * size_of::<u32>()) as u64;
        header + LowRank::bytes([self.outputs, self.columns], self.max_rank).next_multiple_of(header)
    }

    /// Bytes of the changes of all matrices by one adapter.
    #[must_use]
    pub fn slot_bytes(&self) -> u64 {
        self.count as u64 * self.change_bytes()
    }

    /// The change of a matrix by an adapter as it is on a device, without what is beyond it. An adapter that does not change the
    /// matrix has rank 0.
    #[must_use]
    pub fn content(&self, adapter: &Adapter, matrix: usize) -> Vec<u8> {
        let change = adapter.change(self.index + matrix);
        let header = change.map_or([0; HEADER_WORDS], |change| [change.rank() as u32, change.scale().to_bits(), 0, 0]);
        let matrices = change.into_iter().flat_map(|change| change.a().iter().chain(change.b()));
        header.into_iter().chain(matrices.map(|value| value.to_bits())).flat_map(u32::to_le_bytes).collect()
    }
}

/// The changes of all adapters on a device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DeviceAdapters {
    /// The memory of each projection by its number, `[slot, matrix, Target::change_bytes]`; empty for one that is not on the
    /// device.
    pub targets: Vec<Region>,
}

impl DeviceAdapters {
    /// The memory of a projection.
    ///
    /// # Panics
    /// When the projection is not on the device.
    #[must_use]
    pub fn of(&self, target: &Target) -> Region {
        self.targets[target.index]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_the_header_and_both_matrices() {
        let change = LowRank::new((1..=6).map(|x| x as f32).collect(), &[7.0; 10], [5, 3], 0.5);
        let adapter = Adapter::new(vec![None, change]);
        let target = Target { index: 1, count: 1, outputs: 5, columns: 3, max_rank: 4 };
        let content = target.content(&adapter, 0);
        let words: Vec<u32> = content.as_chunks::<4>().0.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect();
        assert_eq!(words[..5], [2, 0.5f32.to_bits(), 0, 0, 1.0f32.to_bits()]);
        assert_eq!(words[10..16], [vec![7.0f32.to_bits(); 5], vec![0]].concat(), "a strip of five outputs");
        assert!(content.len() as u64 <= target.slot_bytes());
        assert!(target.slot_bytes().is_multiple_of(16));
        assert_eq!(Target { index: 0, count: 2, ..target.clone() }.content(&adapter, 1), content);
        assert_eq!(Target { index: 0, ..target }.content(&adapter, 0), [0; 16]);
    }
}
