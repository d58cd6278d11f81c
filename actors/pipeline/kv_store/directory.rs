//! The directory of the disk tier: one process uses it at a time, and each model has a directory of its own in it.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use sha2::{Digest, Sha256};

use crate::core::private_directory;

/// The file that says in words what a model's directory contains.
const ABOUT: &str = "about.txt";

/// Why a directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It cannot be made or written to.
    #[error("the directory {} for KV blocks cannot be used: {source}", path.display())]
    Io {
        /// The directory.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// Another process uses it.
    #[error("the directory {} for KV blocks is used by another process; give each server a directory of its own", path.display())]
    Held {
        /// The directory.
        path: PathBuf,
    },
}

/// A directory that this process holds until the last clone is dropped.
#[derive(Debug, Clone)]
pub struct KvDirectory {
    path: PathBuf,
    _lock: Arc<File>,
}

impl PartialEq for KvDirectory {
    fn eq(&self, other: &Self) -> bool {
        self.path == other.path
    }
}

impl Eq for KvDirectory {}

impl KvDirectory {
    /// Makes the directory, if there is none, and takes it for this process.
    ///
    /// # Errors
    /// [`DirectoryError`] when it cannot be made or another process has it.
    pub fn open(path: &Path) -> Result<Self, DirectoryError> {
        let failed = |source| DirectoryError::Io { path: path.to_owned(), source };
        private_directory::make(path).map_err(failed)?;
        let lock = private_directory::open_lock(path).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => Ok(KvDirectory { path: path.to_owned(), _lock: Arc::new(lock) }),
            Err(TryLockError::WouldBlock) => Err(DirectoryError::Held { path: path.to_owned() }),
            Err(TryLockError::Error(source)) => Err(failed(source)),
        }
    }

    /// The path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens the directory of the blocks that `about` describes. Waits while another model of this process uses it.
    ///
    /// # Errors
    /// When it cannot be made.
    pub(super) fn of_blocks(&self, about: &str) -> io::Result<BlockDirectory> {
        let path = self.path.join(name_of(about));
        match open_blocks(&path, about) {
            // Another model has removed it before it was locked.
            Err(error) if error.kind() == io::ErrorKind::NotFound => open_blocks(&path, about),
            opened => opened,
        }
    }

    /// Removes directories that no model uses, the least recently opened first, until they have no more than `most_bytes` together.
    /// Those that `kept` describes stay: a replica that has not opened its directory yet will do so.
    ///
    /// # Errors
    /// When a directory cannot be read or removed.
    pub(super) fn trim(&self, most_bytes: u64, kept: &[String]) -> io::Result<()> {
        let kept: Vec<PathBuf> = kept.iter().map(|about| self.path.join(name_of(about))).collect();
        let paths = fs::read_dir(&self.path)?.flatten().map(|entry| entry.path());
        let mut unused: Vec<Unused> = paths.filter(|path| !kept.contains(path)).filter_map(Unused::of).collect();
        unused.sort_unstable_by_key(|directory| directory.opened);
        let mut bytes: u64 = unused.iter().map(|directory| directory.bytes).sum();
        for directory in unused {
            if bytes <= most_bytes {
                break;
            }
            fs::remove_dir_all(&directory.path)?;
            bytes -= directory.bytes;
        }
        Ok(())
    }
}

/// A directory of blocks that no model uses, held so that none opens it.
struct Unused {
    opened: SystemTime,
    bytes: u64,
    path: PathBuf,
    _lock: File,
}

impl Unused {
    /// The directory of blocks at `path`. `None` when a model uses it, or it is something else.
    fn of(path: PathBuf) -> Option<Self> {
        let opened = fs::metadata(path.join(ABOUT)).and_then(|about| about.modified()).ok()?;
        let lock = private_directory::open_lock(&path).ok()?;
        lock.try_lock().ok()?;
        Some(Unused { opened, bytes: bytes_in(&path).ok()?, path, _lock: lock })
    }
}

/// The directory of one model's blocks, held until it is dropped.
#[derive(Debug)]
pub(super) struct BlockDirectory {
    pub path: PathBuf,
    _lock: File,
}

/// Makes the directory of the blocks that `about` describes, if there is none, and locks it.
fn open_blocks(path: &Path, about: &str) -> io::Result<BlockDirectory> {
    private_directory::make(path)?;
    let lock = private_directory::open_lock(path)?;
    lock.lock()?;
    fs::write(path.join(ABOUT), about)?;
    Ok(BlockDirectory { path: path.to_owned(), _lock: lock })
}

/// The name of the directory of the blocks that `about` describes.
fn name_of(about: &str) -> String {
    Sha256::digest(about.as_bytes()).iter().take(16).map(|byte| format!("{byte:02x}")).collect()
}

fn bytes_in(directory: &Path) -> io::Result<u64> {
    let files = fs::read_dir(directory)?.flatten();
    Ok(files.filter_map(|file| file.metadata().ok()).map(|metadata| metadata.len()).sum())
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_directory_has_one_user_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("kv");
        let held = KvDirectory::open(&path).unwrap();
        let error = KvDirectory::open(&path).unwrap_err().to_string();
        assert!(error.contains("used by another process") && error.contains("kv"), "{error}");
        drop(held);
        KvDirectory::open(&path).unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(matches!(KvDirectory::open(&file), Err(DirectoryError::Io { .. })));
    }

    #[test]
    fn directories_of_other_models_are_removed_when_they_are_too_large() {
        let directory = tempfile::tempdir().unwrap();
        let held = KvDirectory::open(directory.path()).unwrap();
        let paths = ["old", "new", "mine"].map(|about| {
            let blocks = held.of_blocks(about).unwrap();
            fs::write(blocks.path.join("block.kv"), [0; 1000]).unwrap();
            let age = Duration::from_secs(if about == "old" { 1000 } else { 10 });
            let file = File::options().write(true).open(blocks.path.join(ABOUT)).unwrap();
            file.set_modified(SystemTime::now() - age).unwrap();
            blocks.path.clone()
        });
        let _mine = held.of_blocks("mine").unwrap();
        held.trim(5000, &[]).unwrap();
        assert!(paths.iter().all(|path| path.exists()));
        held.trim(1500, &[]).unwrap();
        assert_eq!(paths.each_ref().map(|path| path.exists()), [false, true, true]);
        held.trim(0, &["new".to_owned()]).unwrap();
        assert!(paths[1].exists(), "a replica will open it");
        held.trim(0, &[]).unwrap();
        assert_eq!(paths.each_ref().map(|path| path.exists()), [false, false, true], "one in use is never removed");
    }

    #[test]
    fn a_directory_that_is_removed_before_it_is_locked_is_made_again() {
        let directory = tempfile::tempdir().unwrap();
        let held = KvDirectory::open(directory.path()).unwrap();
        let path = held.of_blocks("model").unwrap().path;
        let unused = Unused::of(path.clone()).unwrap();
        thread::scope(|scope| {
            let opening = scope.spawn(|| held.of_blocks("model").unwrap());
            // Most likely it waits for the lock by now. The result is the same if it does not.
            thread::sleep(Duration::from_millis(50));
            fs::remove_dir_all(&path).unwrap();
            drop(unused);
            assert!(opening.join().unwrap().path.join(ABOUT).exists());
        });
    }
}
