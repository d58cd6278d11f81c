//! The tiles of `few_rows.comp`, the kernel for some tens of rows.

use crate::gpu::DeviceLimits;
use crate::gpu::weight::RUN_COLUMNS;

/// The most rows of a tile of `few_rows.comp`, and of a product that uses it.
pub const MOST_FEW_ROWS: usize = 64;

/// Subgroups that hide the latencies of a compute unit in `few_rows.comp`.
const SUBGROUPS_OF_UNIT: usize = 16;

/// Rows of a block of the input in float16 (`halves.glsl`).
pub const BLOCK_ROWS: usize = 16;

/// A tile of `few_rows.comp`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FewRows {
    /// Rows of the tile.
    pub rows: usize,
    /// Outputs of each weight.
    pub outputs: usize,
    /// Weights that share the tile.
    pub weights: usize,
    /// Ranges of columns. A subgroup computes [`FewRows::SUBGROUP_OUTPUTS`] outputs of one weight from one range.
    pub deep: usize,
    /// Steps whose weights are loaded ahead.
    pub ahead: usize,
}

impl FewRows {
    /// The most subgroups of a workgroup.
    const MOST_SUBGROUPS: usize = 8;

    /// Runs of an output in a step, as in `few_rows.comp`.
    const RUNS: usize = 2;

    /// Outputs of a subgroup: two matrices or more of every shape that `cooperative_shape_fits` accepts.
    pub const SUBGROUP_OUTPUTS: usize = 32;

    /// The tile for a product with a weight of which a run has `run_bytes` bytes; `None` if the device has too little
    /// shared memory or too small workgroups.
    pub fn choose(device: &DeviceLimits, rows: usize, outputs: usize, run_bytes: usize) -> Option<FewRows> {
        // What is loaded ahead is in registers, of which the sums of more rows leave fewer.
        const BYTES_AHEAD: usize = 80;
        let rows = rows.next_multiple_of(BLOCK_ROWS).min(MOST_FEW_ROWS);
        let bytes_ahead = if rows > MOST_FEW_ROWS / 2 { BYTES_AHEAD / 2 } else { BYTES_AHEAD };
        let outputs_each = Self::SUBGROUP_OUTPUTS.div_ceil(device.subgroup_size.max(1) as usize);
        let ahead = (bytes_ahead / (run_bytes * Self::RUNS * outputs_each).max(1)).clamp(1, 2);
        let parts = outputs.div_ceil(Self::SUBGROUP_OUTPUTS);
        let across = if parts >= 2 * device.busy_groups() { 2 } else { 1 };
        let wanted = SUBGROUPS_OF_UNIT * device.busy_groups() / parts.max(1);
        let deep = wanted.next_power_of_two().clamp(4, Self::MOST_SUBGROUPS / across);
        let halved = std::iter::successors(Some(deep), |deep| (*deep > 1).then(|| deep / 2));
        let outputs = across * Self::SUBGROUP_OUTPUTS;
        halved.map(|deep| FewRows { rows, outputs, weights: 1, deep, ahead }).find(|tile| tile.fits(device))
    }

    /// The tile of a gated product of two weights, each of which would have this tile alone: with the same ranges of
    /// columns, so that the bits are the same. `None` if the workgroup would be too large.
    pub fn gated(self, device: &DeviceLimits) -> Option<FewRows> {
        let tile = FewRows { outputs: Self::SUBGROUP_OUTPUTS, weights: 2, ..self };
        (tile.fits(device) && tile.subgroups() <= Self::MOST_SUBGROUPS).then_some(tile)
    }

    fn fits(self, device: &DeviceLimits) -> bool {
        self.subgroups() * device.subgroup_size as usize <= device.max_workgroup_size as usize
            && self.shared_bytes() <= device.shared_memory_bytes as usize
    }

    pub fn subgroups(self) -> usize {
        self.weights * self.outputs / Self::SUBGROUP_OUTPUTS * self.deep
    }

    /// Each subgroup has the runs of a step of each of its outputs, padded with 16 bytes, or 16 rows of results.
    fn shared_bytes(self) -> usize {
        let weights = Self::SUBGROUP_OUTPUTS * (Self::RUNS * RUN_COLUMNS * 2 + 16);
        self.subgroups() * weights.max(16 * Self::SUBGROUP_OUTPUTS * 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Bytes of a run of Q4_K.
    const RUN_BYTES: usize = 18;

    #[test]
    fn few_rows_have_as_many_subgroups_as_the_device_needs() {
        let device = DeviceLimits::of_large_gpu(48 << 10);
        let chosen = |rows, outputs| {
            let tile = FewRows::choose(&device, rows, outputs, RUN_BYTES).expect("the device is large");
            (tile.rows, tile.outputs, tile.deep, tile.ahead)
        };
        assert_eq!(chosen(9, 4096), (16, 32, 8, 2));
        assert_eq!(chosen(32, 1024), (32, 32, 8, 2));
        assert_eq!(chosen(33, 14_336), (48, 64, 4, 1));
        assert_eq!(chosen(64, 128_256), (64, 64, 4, 1));
        let gated = |outputs| {
            let tile = FewRows::choose(&device, 32, outputs, RUN_BYTES).and_then(|tile| tile.gated(&device));
            tile.map(|tile| (tile.outputs, tile.deep, tile.subgroups()))
        };
        assert_eq!(gated(14_336), Some((32, 4, 8)));
        assert_eq!(gated(8192), Some((32, 4, 8)));
        assert_eq!(gated(4096), None);
        for (memory, size, subgroups) in [(48, 1024, 8), (16, 1024, 2), (48, 128, 4), (48, 32, 1)] {
            let device = DeviceLimits { max_workgroup_size: size, ..DeviceLimits::of_large_gpu(memory << 10) };
            let tile = FewRows::choose(&device, 32, 4096, RUN_BYTES).expect("one subgroup fits");
            assert_eq!(tile.subgroups(), subgroups, "{memory} KiB, {size} invocations");
            assert!(tile.shared_bytes() <= (memory as usize) << 10);
        }
        assert_eq!(FewRows::choose(&DeviceLimits::of_large_gpu(2 << 10), 32, 4096, RUN_BYTES), None);
    }
}
