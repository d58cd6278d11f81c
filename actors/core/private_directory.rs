//! Directories with what users wrote, which one process, or one part of it, uses at a time.

use std::fs::{DirBuilder, File};
use std::io;
use std::path::Path;

/// The file by which a directory is held.
const LOCK: &str = "lock";

/// Makes a directory that only this user can read, with those above it. One that is there stays as it is.
///
/// # Errors
/// When it cannot be made.
pub fn make(path: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Opens the file to lock, by which the directory is held until the file is dropped.
///
/// # Errors
/// When it cannot be made.
pub fn open_lock(directory: &Path) -> io::Result<File> {
    File::options().create(true).truncate(false).write(true).open(directory.join(LOCK))
}

#[cfg(all(test, unix))]
#[allow(clippy::unwrap_used)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn others_cannot_read_a_directory_and_hold_it_only_once() {
        let parent = tempfile::tempdir().unwrap();
        let path = parent.path().join("a/b");
        make(&path).unwrap();
        make(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o700);
        let held = open_lock(&path).unwrap();
        held.try_lock().unwrap();
        assert!(open_lock(&path).unwrap().try_lock().is_err());
        drop(held);
        open_lock(&path).unwrap().try_lock().unwrap();
    }
}
