//! The limits of a device, by which ops choose their shaders.

/// The limits of a device, as its driver reports them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceLimits {
    /// Invocations of a subgroup.
    pub subgroup_size: u32,
    /// Maximum invocations of a workgroup.
    pub max_workgroup_size: u32,
    /// Maximum workgroups of a dispatch in each dimension.
    pub max_groups: [u32; 3],
    /// Shared memory of a workgroup, in bytes.
    pub shared_memory_bytes: u32,
    /// Compute units, also called streaming multiprocessors: each runs workgroups of its own.
    pub compute_units: u32,
    /// M, N and K of matrices that a subgroup multiplies: float16 times float16, summed in float32. Only a shape that
    /// [`cooperative_shape_fits`](crate::matmul::cooperative_shape_fits).
    pub cooperative_matrix: Option<[u32; 3]>,
}

impl DeviceLimits {
    /// The number of compute units that is assumed where the driver does not report it: that of a large GPU.
    pub const USUAL_COMPUTE_UNITS: u32 = 128;

    /// Limits for tests: those of a large GPU with matrices, and this much shared memory.
    #[cfg(test)]
    pub(crate) fn of_large_gpu(shared_memory_bytes: u32) -> DeviceLimits {
        DeviceLimits {
            subgroup_size: 32,
            max_workgroup_size: 1024,
            max_groups: [65_535; 3],
            shared_memory_bytes,
            compute_units: 132,
            cooperative_matrix: Some([16, 16, 16]),
        }
    }

    /// The number of workgroups that keeps the device busy: about one for each compute unit. It is a power of two, as
    /// the numbers of tiles mostly are: with 132 units, 128 workgroups are enough.
    #[must_use]
    pub fn busy_groups(&self) -> usize {
        1 << self.compute_units.max(1).ilog2()
    }

    /// The number of workgroups beyond which more of them gain nothing: enough for each compute unit to hide its
    /// latencies.
    #[must_use]
    pub fn saturating_groups(&self) -> usize {
        const GROUPS_OF_UNIT: usize = 32;
        GROUPS_OF_UNIT * self.busy_groups()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_follow_the_compute_units() {
        let limits = |compute_units| DeviceLimits { compute_units, ..DeviceLimits::of_large_gpu(48 << 10) };
        let groups = |units| (limits(units).busy_groups(), limits(units).saturating_groups());
        assert_eq!([0, 1, 20, 128, 132].map(groups), [(1, 32), (1, 32), (16, 512), (128, 4096), (128, 4096)]);
    }
}
