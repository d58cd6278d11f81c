//! Why a vision tower cannot be used, and why an image cannot be prepared for it.

/// Why a file is not a vision tower that can be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VisionError {
    /// A model without a vision tower.
    #[error("{file}: not a vision tower: its architecture is {found:?}, but a file with one (mmproj) has \"clip\"")]
    NotVision {
        /// The file.
        file: String,
        /// Its architecture.
        found: String,
    },
    /// The file says nothing of images.
    #[error("{file}: has no vision tower; it may be one for audio")]
    NoTower {
        /// The file.
        file: String,
    },
    /// The projector is not one of those that are computed.
    #[error("{file}: the projector {found:?} is not supported; supported are {known}")]
    UnknownProjector {
        /// The file.
        file: String,
        /// Its projector.
        found: String,
        /// The supported ones.
        known: String,
    },
    /// A key has a value that is not computed.
    #[error("{file}: {key} is {found}, but must be {wanted}")]
    Key {
        /// The file.
        file: String,
        /// The key.
        key: String,
        /// Its value.
        found: String,
        /// What it may be.
        wanted: String,
    },
}

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
