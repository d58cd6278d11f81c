//! Why a file with an encoder of images or audio cannot be used.

/// Why a file has no encoder that can be computed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TowerError {
    /// A model without an encoder.
    #[error("{file}: has no encoder: its architecture is {found:?}, but a file with one (mmproj) has \"clip\"")]
    NotProjector {
        /// The file.
        file: String,
        /// Its architecture.
        found: String,
    },
    /// The file does not name its projector.
    #[error("{file}: names no projector of {kind}; `clip.projector_type` is missing")]
    NoTower {
        /// The file.
        file: String,
        /// What the projector would be for.
        kind: &'static str,
    },
    /// The projector is not one of those that are computed.
    #[error("{file}: the projector {found:?} of {kind} is not supported; supported are {known}")]
    UnknownProjector {
        /// The file.
        file: String,
        /// What the projector is for.
        kind: &'static str,
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
