//! The shape of `mat_vec.glsl`, the kernel for few rows.

use crate::gpu::DeviceLimits;
use crate::gpu::weight::RUN_COLUMNS;

/// The most rows that share unpacked weights in `mat_vec.comp`.
pub const MAX_ROWS_TOGETHER: usize = 8;

/// The most rows for which `mat_vec.comp` is faster than a mostly empty tile of `few_rows.comp`.
pub const MAX_ROWS_BEFORE_MATRICES: usize = 4;

/// How `mat_vec.glsl` divides the results of a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct MatVec {
    /// Invocations of a team, which share the columns of a result.
    lanes: usize,
    /// Teams of a workgroup.
    teams: usize,
    /// Rows of a workgroup.
    pub rows: usize,
    /// Outputs of a team.
    outputs: usize,
    /// Runs of a row of x that are in shared memory at a time.
    chunk_runs: usize,
}

impl MatVec {
    /// Rows that a workgroup can have on every device.
    pub const SURE_ROWS: usize = 4;
    /// Quads of a run in shared memory: eight, and one of padding.
    const RUN_QUADS: usize = RUN_COLUMNS / 4 + 1;
    const QUAD_BYTES: usize = 4 * size_of::<f32>();

    /// The division for rows of `columns` columns. The lanes of a team depend on nothing else, because they decide the
    /// order of the sums.
    pub fn new(device: &DeviceLimits, columns: usize, rows: usize) -> MatVec {
        const INVOCATIONS: usize = 256;
        let lanes = columns.div_ceil(RUN_COLUMNS).next_power_of_two().min(Self::most_lanes(device));
        let teams = INVOCATIONS.min(device.max_workgroup_size as usize) / lanes;
        let of_rows = |rows: usize| {
            let outputs = if rows <= MAX_ROWS_BEFORE_MATRICES { 4 } else { 2 };
            let chunk_runs = Self::chunk_runs(device, columns, rows, lanes);
            MatVec { lanes, teams, rows, outputs, chunk_runs }
        };
        let halved = (0..=rows.next_power_of_two().min(MAX_ROWS_TOGETHER).ilog2()).rev().map(|log| 1 << log);
        let fits = |shape: &MatVec| shape.shared_quads() * Self::QUAD_BYTES <= device.shared_memory_bytes as usize;
        halved.map(of_rows).find(fits).unwrap_or_else(|| of_rows(1))
    }

    /// Runs of a chunk: a whole number for each lane. A larger chunk would leave room for fewer workgroups in a compute unit.
    fn chunk_runs(device: &DeviceLimits, columns: usize, rows: usize, lanes: usize) -> usize {
        const USUAL_BYTES: usize = 18 << 10;
        let bytes = USUAL_BYTES.min(device.shared_memory_bytes as usize);
        let runs_that_fit = bytes / (rows * Self::RUN_QUADS * Self::QUAD_BYTES);
        let most = columns.div_ceil(RUN_COLUMNS).next_multiple_of(lanes);
        (runs_that_fit / lanes * lanes).clamp(lanes, most)
    }

    /// The most lanes for which the inputs of [`MatVec::SURE_ROWS`] rows fit into shared memory.
    fn most_lanes(device: &DeviceLimits) -> usize {
        let bytes_of = |lanes: usize| Self::SURE_ROWS * lanes * Self::RUN_QUADS * Self::QUAD_BYTES;
        if bytes_of(32) <= device.shared_memory_bytes as usize { 32 } else { 16 }
    }

    /// The same with as many outputs in a workgroup as divide the `outputs` outputs of a head.
    pub fn in_heads_of(self, outputs: usize) -> MatVec {
        let fewer = [self, MatVec { teams: 1, ..self }];
        let fits = fewer.into_iter().find(|shape| outputs.is_multiple_of(shape.outputs_of_group()));
        fits.unwrap_or(MatVec { teams: 1, outputs: 1, ..self })
    }

    /// Outputs of a workgroup.
    pub fn outputs_of_group(self) -> usize {
        self.teams * self.outputs
    }

    /// Quads of shared memory: for the inputs of a chunk, and later for the sums of all invocations.
    fn shared_quads(self) -> usize {
        let sums = (self.rows * self.outputs).div_ceil(4) * self.lanes * self.teams;
        (self.rows * self.chunk_runs * Self::RUN_QUADS).max(sums)
    }

    /// The specialization constants of `mat_vec.glsl`.
    pub fn constants(self) -> [(u32, usize); 6] {
        [
            (0, self.lanes * self.teams),
            (1, self.rows),
            (2, self.outputs),
            (4, self.lanes),
            (5, self.chunk_runs),
            (6, self.shared_quads()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_rows_share_their_inputs_within_the_memory_of_a_workgroup() {
        let shape = |kib: u32, columns, rows| {
            let shape = MatVec::new(&DeviceLimits::of_large_gpu(kib << 10), columns, rows);
            assert!(shape.shared_quads() * MatVec::QUAD_BYTES <= (kib << 10) as usize);
            (shape.lanes, shape.teams, shape.rows, shape.outputs, shape.chunk_runs)
        };
        assert_eq!(shape(48, 4096, 1), (32, 8, 1, 4, 128));
        assert_eq!(shape(48, 14_336, 1), (32, 8, 1, 4, 128));
        assert_eq!(shape(48, 4096, 100), (32, 8, 8, 2, 32));
        assert_eq!(shape(48, 64, 3), (2, 128, 4, 4, 2));
        assert_eq!(shape(16, 4096, 8), (16, 16, MatVec::SURE_ROWS, 4, 16));
    }

    #[test]
    fn workgroups_do_not_share_outputs_of_two_heads() {
        let outputs = |of_head| {
            MatVec::new(&DeviceLimits::of_large_gpu(48 << 10), 1024, 1).in_heads_of(of_head).outputs_of_group()
        };
        assert_eq!([64, 36, 6].map(outputs), [32, 4, 1]);
    }
}
