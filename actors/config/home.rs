//! The user's directories.

use std::path::{Path, PathBuf};

/// The user's directories, by the XDG specification.
#[derive(Debug, Clone)]
pub struct Home {
    /// `None` without a home directory: in a shared directory, any user could put a configuration in its place.
    pub(super) config: Option<PathBuf>,
    pub(super) cache: PathBuf,
    pub(super) state: PathBuf,
}

impl Home {
    /// The directory for the configuration of `program`.
    #[must_use]
    pub fn config(&self, program: impl AsRef<Path>) -> Option<PathBuf> {
        self.config.as_ref().map(|directory| directory.join(program))
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

/// The directory that takes the place of a home for a user without one.
#[cfg(unix)]
pub(super) fn substitute_home() -> PathBuf {
    std::env::temp_dir().join(format!("cuelight-{}", rustix::process::geteuid().as_raw()))
}

/// The directory that takes the place of a home for a user without one.
#[cfg(not(unix))]
pub(super) fn substitute_home() -> PathBuf {
    std::env::temp_dir().join("cuelight")
}

/// Whether no other user can write to the substitute for a home. It is created if it does not exist.
#[cfg(unix)]
pub(super) fn is_private(substitute: &Path) -> bool {
    use std::os::unix::fs::{DirBuilderExt, MetadataExt};

    // Fails if it exists. If it cannot be created for another reason, nothing is read from it either.
    let _ = std::fs::DirBuilder::new().mode(0o700).create(substitute);
    std::fs::symlink_metadata(substitute).map_or(true, |found| {
        found.is_dir() && found.uid() == rustix::process::geteuid().as_raw() && found.mode() & 0o077 == 0
    })
}

/// Whether no other user can write to the substitute for a home: each user has a directory for temporary files.
#[cfg(not(unix))]
pub(super) fn is_private(_substitute: &Path) -> bool {
    true
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
#[cfg(unix)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_substitute_is_created_for_its_user_only() {
        let parent = tempfile::tempdir().unwrap();
        let substitute = parent.path().join("home");
        assert!(is_private(&substitute) && is_private(&substitute));
        assert_eq!(substitute.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        // In a directory that does not exist there are no files.
        assert!(is_private(&parent.path().join("no/home")));
    }

    #[test]
    fn a_directory_that_others_can_write_and_a_link_are_refused() {
        let parent = tempfile::tempdir().unwrap();
        let [shared, link] = ["shared", "link"].map(|name| parent.path().join(name));
        std::fs::create_dir(&shared).unwrap();
        std::fs::set_permissions(&shared, std::fs::Permissions::from_mode(0o777)).unwrap();
        std::os::unix::fs::symlink(parent.path(), &link).unwrap();
        assert!(!is_private(&shared) && !is_private(&link));
    }
}
