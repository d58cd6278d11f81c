//! The user's directories.

use std::path::{Path, PathBuf};

/// The user's directories, by the XDG specification.
#[derive(Debug, Clone)]
pub struct Home {
    pub(super) config: PathBuf,
    pub(super) cache: PathBuf,
    pub(super) state: PathBuf,
}

impl Home {
    /// The directory for the configuration of `program`.
    #[must_use]
    pub fn config(&self, program: impl AsRef<Path>) -> PathBuf {
        self.config.join(program)
    }

    /// The directory for files of `program` that can be created again.
    #[must_use]
    pub fn cache(&self, program: impl AsRef<Path>) -> PathBuf {
        self.cache.join(program)
    }

    /// The directory for files that `program` keeps between runs, like a history.
    #[must_use]
    pub fn state(&self, program: impl AsRef<Path>) -> PathBuf {
        self.state.join(program)
    }
}
