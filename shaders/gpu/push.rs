//! Push constants.

/// Push constants in the scalar layout: addresses, then words.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Push {
    bytes: Vec<u8>,
}

impl Push {
    /// The size that every device supports.
    pub const MAX_BYTES: usize = 128;

    /// No push constants.
    #[must_use]
    pub fn new() -> Self {
        Push::default()
    }

    /// Adds an address.
    ///
    /// # Panics
    /// When a word was added before: an address must be aligned.
    #[must_use]
    pub fn address(mut self, address: u64) -> Self {
        assert!(self.bytes.len().is_multiple_of(size_of::<u64>()), "addresses come before words");
        self.bytes.extend(address.to_le_bytes());
        self
    }

    /// Adds an integer.
    ///
    /// # Panics
    /// When it does not fit 32 bits: sizes of values are checked when a model is planned.
    #[must_use]
    pub fn size(self, value: usize) -> Self {
        self.word(u32::try_from(value).expect("a dimension of a value fits 32 bits"))
    }

    /// Adds a word.
    #[must_use]
    pub fn word(mut self, value: u32) -> Self {
        self.bytes.extend(value.to_le_bytes());
        self
    }

    /// Adds a float32.
    #[must_use]
    pub fn float(self, value: f32) -> Self {
        self.word(value.to_bits())
    }

    /// The bytes, in order.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A size as shaders have it. Sizes of values are checked when a model is planned; a device refuses a dispatch that is
/// too large.
pub(crate) fn word(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn push_constants_are_laid_out_as_scalars() {
        let push = Push::new().address(1).word(2).float(1.0).size(7);
        assert_eq!(push.as_bytes(), [1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 128, 63, 7, 0, 0, 0]);
    }
}
