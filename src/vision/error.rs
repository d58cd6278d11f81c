//! Why an image cannot be prepared.

/// Why an image cannot be prepared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ImageError {
    /// It has no pixels.
    #[error("the image is {width} x {height} pixels; it must have at least one")]
    Empty {
        /// Pixels of a row.
        width: u32,
        /// Rows.
        height: u32,
    },
    /// Its colors are not those of its size.
    #[error("an image of {width} x {height} pixels has {found} values of colors instead of {expected}")]
    WrongLength {
        /// Pixels of a row.
        width: u32,
        /// Rows.
        height: u32,
        /// Its values.
        found: usize,
        /// The values of an image of this size.
        expected: u64,
    },
}
