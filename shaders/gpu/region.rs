//! Ranges of device memory.

/// A range of device memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Region {
    /// The address of its first byte.
    pub address: u64,
    /// Its length.
    pub bytes: u64,
}

impl Region {
    /// Whether the two share a byte.
    #[must_use]
    pub fn overlaps(&self, other: &Region) -> bool {
        let end = |region: &Region| region.address + region.bytes;
        self.address.max(other.address) < end(self).min(end(other))
    }

    /// Splits it into its first `bytes` bytes and the rest.
    ///
    /// # Panics
    /// When it is shorter.
    #[must_use]
    pub fn split_at(&self, bytes: u64) -> (Region, Region) {
        assert!(bytes <= self.bytes, "a region of {} bytes is shorter than {bytes}", self.bytes);
        (Region { bytes, ..*self }, Region { address: self.address + bytes, bytes: self.bytes - bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_overlap_if_they_share_a_byte() {
        let region = |address, bytes| Region { address, bytes };
        assert!(region(0, 10).overlaps(&region(9, 1)));
        assert!(!region(0, 10).overlaps(&region(10, 5)));
        assert!(!region(0, 0).overlaps(&region(0, 0)));
        assert!(!region(0, 10).overlaps(&region(5, 0)));
    }
}
