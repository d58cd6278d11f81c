//! Files mapped read-only, and whether they still are what was mapped.
//!
//! A mapped file is not a copy: a process that writes to it changes the weights of a running model, and one that truncates it
//! removes them. So every mapping keeps its file open and remembers the size and the time of the last change. A step's results
//! are used only if [`ModelFiles::check`] has found both unchanged after the step. A file that was renamed over the path, or
//! removed, does not matter to the mapping.

mod bus_errors;

use std::fs::{File, Metadata};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;

use cuelight_shaders::weight::Bytes;

use bus_errors::Region;

/// A model file is not what it was when it was loaded.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the model file {} changed while it was loaded ({change}); reload the model", path.display())]
pub struct FileChange {
    /// The file.
    pub path: PathBuf,
    /// The difference.
    pub change: Change,
}

/// How a file differs from what was mapped.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs)] // Each variant's message explains its fields.
pub enum Change {
    #[error("it had {before} bytes and has {after} now")]
    Size { before: u64, after: u64 },
    #[error("it was written to")]
    Written,
    #[error("a part of it could not be read")]
    Lost,
    #[error("another file is at this path now")]
    Replaced,
    #[error("it can no longer be read: {0}")]
    Unreadable(String),
}

/// The size of a file and the time of its last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Version {
    bytes: u64,
    modified: Option<SystemTime>,
}

impl Version {
    fn of(metadata: &Metadata) -> Self {
        Version { bytes: metadata.len(), modified: metadata.modified().ok() }
    }

    /// The change from this version to another one.
    fn change_to(self, other: Version) -> Option<Change> {
        if self.bytes != other.bytes {
            return Some(Change::Size { before: self.bytes, after: other.bytes });
        }
        (self != other).then_some(Change::Written)
    }
}

/// The number of a file on its machine, which a file that replaces it does not have. 0 where the system has no such numbers.
fn file_number(metadata: &Metadata) -> (u64, u64) {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        (metadata.dev(), metadata.ino())
    }
    #[cfg(not(unix))]
    {
        let _ = metadata;
        (0, 0)
    }
}

/// An open file, and what it was when it was mapped.
struct WatchedFile {
    path: PathBuf,
    file: File,
    number: (u64, u64),
    version: Version,
    region: Region,
}

impl WatchedFile {
    fn changed(&self, change: Change) -> FileChange {
        FileChange { path: self.path.clone(), change }
    }

    fn check(&self) -> Result<(), FileChange> {
        if self.region.is_lost() {
            return Err(self.changed(Change::Lost));
        }
        let metadata = self.file.metadata().map_err(|error| self.changed(Change::Unreadable(error.to_string())))?;
        let change = self.version.change_to(Version::of(&metadata));
        change.map_or(Ok(()), |change| Err(self.changed(change)))
    }

    fn check_path(&self) -> Result<(), FileChange> {
        let metadata =
            std::fs::metadata(&self.path).map_err(|error| self.changed(Change::Unreadable(error.to_string())))?;
        if file_number(&metadata) != self.number {
            return Err(self.changed(Change::Replaced));
        }
        let change = self.version.change_to(Version::of(&metadata));
        change.map_or(Ok(()), |change| Err(self.changed(change)))
    }

    fn is_replaced(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|metadata| file_number(&metadata) != self.number)
    }
}

/// The open files of a model; none for a model without files. Cheap to clone.
#[derive(Clone, Default)]
pub struct ModelFiles(Arc<[Arc<WatchedFile>]>);

impl ModelFiles {
    /// The files of these mappings.
    pub(crate) fn new<'a>(mapped: impl Iterator<Item = &'a MappedFile>) -> Self {
        ModelFiles(mapped.map(|mapped| Arc::clone(&mapped.file)).collect())
    }

    /// These files and others.
    #[must_use]
    pub fn with(&self, others: &ModelFiles) -> Self {
        ModelFiles(self.0.iter().chain(others.0.iter()).map(Arc::clone).collect())
    }

    /// The path and version of each file. Another text means other contents.
    #[must_use]
    pub fn fingerprint(&self) -> String {
        self.0.iter().map(|file| format!("{} {:?}\n", file.path.display(), file.version)).collect()
    }

    /// The path of each file.
    #[must_use]
    pub fn paths(&self) -> Vec<&Path> {
        self.0.iter().map(|file| file.path.as_path()).collect()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Checks that the mapped files are unchanged and that all of their pages that were read existed. One system call for each
    /// file.
    ///
    /// # Errors
    /// [`FileChange`] naming the file and the change.
    pub fn check(&self) -> Result<(), FileChange> {
        self.0.iter().try_for_each(|file| file.check())
    }

    /// Checks that opening the paths again gives the same unchanged files, so that a second load gives the same model.
    ///
    /// # Errors
    /// [`FileChange`] naming the file and the change.
    pub fn check_paths(&self) -> Result<(), FileChange> {
        self.0.iter().try_for_each(|file| file.check_path())
    }

    /// A path at which there is another file now. The mapping is not affected by it.
    #[must_use]
    pub fn replaced(&self) -> Option<&Path> {
        self.0.iter().find(|file| file.is_replaced()).map(|file| file.path.as_path())
    }
}

/// A read-only mapping of a file.
pub(crate) struct MappedFile {
    file: Arc<WatchedFile>,
    map: memmap2::Mmap,
}

impl MappedFile {
    /// Maps a file.
    pub fn open(path: &Path) -> std::io::Result<Self> {
        let file = File::open(path)?;
        // Read before the mapping is made, so that every later change is noticed.
        let metadata = file.metadata()?;
        if metadata.is_dir() {
            return Err(std::io::Error::other("it is a directory"));
        }
        // SAFETY: the mapping is read-only and private. No code relies on the bytes staying the same between two reads: ranges
        // were checked against the mapping's length, and text is checked each time it is read. Pages that a process removes by
        // truncating the file read as zeros, because the region is watched.
        let map = unsafe { memmap2::Mmap::map(&file)? };
        let start = map.as_ptr() as usize;
        let region = Region::watch(start..start + map.len());
        let (path, number, version) = (path.to_owned(), file_number(&metadata), Version::of(&metadata));
        Ok(MappedFile { file: Arc::new(WatchedFile { path, file, number, version, region }), map })
    }
}

impl Drop for MappedFile {
    fn drop(&mut self) {
        // Before the fields are dropped, and so before other memory may get these addresses.
        self.file.region.close();
    }
}

impl AsRef<[u8]> for MappedFile {
    fn as_ref(&self) -> &[u8] {
        &self.map
    }
}

impl Bytes for MappedFile {
    fn is_in_file(&self) -> bool {
        true
    }

    fn release(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            // SAFETY: pages of a read-only mapping of a file are read from the file again on the next access.
            let advised = unsafe {
                self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, range.start, range.len())
            };
            // If the system ignores the advice, the pages stay in memory; nothing else changes.
            let _ = advised;
        }
        #[cfg(not(unix))]
        let _ = range;
    }

    fn prefetch(&self, range: Range<usize>) {
        #[cfg(unix)]
        {
            // If the system ignores the advice, the first access is slower; nothing else changes.
            let _ = self.map.advise_range(memmap2::Advice::WillNeed, range.start, range.len());
        }
        #[cfg(not(unix))]
        let _ = range;
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const PAGES: usize = 16;

    /// A file of some pages, all bytes 7.
    fn file(folder: &Path) -> PathBuf {
        let path = folder.join("model.gguf");
        std::fs::write(&path, vec![7; PAGES * 4096]).unwrap();
        path
    }

    fn mapped(path: &Path) -> (MappedFile, ModelFiles) {
        let mapped = MappedFile::open(path).unwrap();
        let files = ModelFiles::new(std::iter::once(&mapped));
        (mapped, files)
    }

    #[test]
    #[cfg(unix)]
    fn missing_pages_read_as_zeros_and_the_file_is_lost() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(folder.path());
        let (mapped, files) = mapped(&path);
        assert_eq!(files.check(), Ok(()));
        File::options().write(true).open(&path).unwrap().set_len(4096).unwrap();
        let sum = || mapped.as_ref().iter().map(|byte| u64::from(*byte)).sum::<u64>();
        assert_eq!(std::thread::scope(|scope| scope.spawn(sum).join().unwrap()), 7 * 4096, "no thread dies");
        assert!(matches!(files.check(), Err(FileChange { change: Change::Lost, .. })));
        // The content comes back, but what was computed in the meantime is wrong.
        std::fs::write(&path, vec![7; PAGES * 4096]).unwrap();
        assert!(files.check().is_err());
        drop(mapped);
        assert!(files.check().is_err(), "also after the mapping is gone");
    }

    #[test]
    fn a_write_in_place_is_a_change_and_a_rename_over_the_path_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = file(folder.path());
        let (mapped, files) = mapped(&path);
        let newer = folder.path().join("newer");
        std::fs::write(&newer, b"other").unwrap();
        std::fs::rename(&newer, &path).unwrap();
        #[cfg(unix)]
        {
            assert_eq!((files.check(), files.replaced()), (Ok(()), Some(path.as_path())));
            let error = files.check_paths().unwrap_err().to_string();
            assert!(error.contains("(another file is at this path now); reload the model"), "{error}");
        }
        drop(mapped);

        let (_mapped, files) = self::mapped(&path);
        std::thread::sleep(std::time::Duration::from_millis(20));
        File::options().write(true).open(&path).unwrap().write_all(b"OTHER").unwrap();
        let error = files.check().unwrap_err();
        assert_eq!(error.change, Change::Written);
        assert_eq!(
            error.to_string(),
            format!(
                "the model file {} changed while it was loaded (it was written to); reload the model",
                path.display()
            )
        );
        assert_eq!(files.replaced(), None);
    }
}
