//! Values of the CPU kernels that depend on the CPU. They change the speed of an op and never its results.

/// What the kernels of an engine adapt to the CPU. The defaults are safe on an unknown CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// How far ahead of the weights in use the next ones are prefetched, in bytes; 0 to leave this to the hardware. The
    /// hardware prefetcher of most CPUs stops at the end of a page of 4 KiB.
    pub prefetch_ahead: usize,
    /// Bytes of activations that stay in the L2 cache of a core while all outputs of a task are computed for them.
    pub rows_in_cache: usize,
    /// The fewest rows at the end of a batch, up to 16, for which products of tiles (AMX) are faster than dot products.
    /// With fewer rows memory is the limit, or most of a tile is empty.
    pub amx_least_rows: usize,
}

impl Tuning {
    /// The most bytes for [`Tuning::prefetch_ahead`].
    pub const MOST_PREFETCH_AHEAD: usize = 1 << 20;
    /// The least and most bytes for [`Tuning::rows_in_cache`].
    pub const ROWS_IN_CACHE: std::ops::RangeInclusive<usize> = 64 << 10..=16 << 20;
    /// The least and most rows for [`Tuning::amx_least_rows`].
    pub const AMX_LEAST_ROWS: std::ops::RangeInclusive<usize> = 1..=16;

    /// The nearest values that are in their ranges.
    #[must_use]
    pub fn clamped(self) -> Self {
        let clamp = |value: usize, range: std::ops::RangeInclusive<usize>| value.clamp(*range.start(), *range.end());
        Tuning {
            prefetch_ahead: self.prefetch_ahead.min(Self::MOST_PREFETCH_AHEAD),
            rows_in_cache: clamp(self.rows_in_cache, Self::ROWS_IN_CACHE),
            amx_least_rows: clamp(self.amx_least_rows, Self::AMX_LEAST_ROWS),
        }
    }
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning { prefetch_ahead: 8 << 10, rows_in_cache: 512 << 10, amx_least_rows: 5 }
    }
}
