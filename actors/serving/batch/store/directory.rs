//! The directory of a store: its lock, its paths, and what a crash has left in it.

use std::collections::HashSet;
use std::fs::{self, File, TryLockError};
use std::io;
use std::path::{Path, PathBuf};

use super::batch_record::{BatchRecord, Protocol};
use super::catalogue::Catalogue;
use super::disk::RECORD_BYTES;
use super::error::DirectoryError;
use super::file_record::FileRecord;
use crate::core::private_directory;

/// Makes a directory with its parts, if there is none, and takes it for this process until the file is dropped.
pub(super) fn take(directory: &Path) -> Result<File, DirectoryError> {
    for path in [directory.to_owned(), directory.join("files"), directory.join("batches")] {
        private_directory::make(&path).map_err(DirectoryError::io(&path))?;
    }
    let lock = private_directory::open_lock(directory).map_err(DirectoryError::io(directory))?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => Err(DirectoryError::Held(directory.to_owned())),
        Err(TryLockError::Error(source)) => Err(DirectoryError::io(directory)(source)),
    }
}

/// Where the content of a file is.
pub(super) fn content_path(directory: &Path, id: &str) -> PathBuf {
    directory.join("files").join(format!("{id}.jsonl"))
}

/// Removes content that no record names, and files that were not written to their end. Returns the space that the others take.
pub(super) fn clean(
    directory: &Path,
    files: &Catalogue<FileRecord>,
    batches: &Catalogue<BatchRecord>,
) -> io::Result<u64> {
    let (files, batches) = (files.all(), batches.all());
    let mut named: HashSet<PathBuf> = files.iter().map(|file| content_path(directory, &file.id)).collect();
    let needed = batches.iter().filter(|batch| !batch.status.is_end() || batch.protocol == Protocol::Anthropic);
    let of_batches = needed.flat_map(|batch| [&batch.input_file, &batch.output_file, &batch.error_file]);
    named.extend(of_batches.map(|id| content_path(directory, id)));
    let mut bytes = RECORD_BYTES * (files.len() + batches.len()) as u64;
    for folder in ["files", "batches"] {
        for entry in fs::read_dir(directory.join(folder))? {
            let path = entry?.path();
            let ending = path.extension().and_then(|ending| ending.to_str());
            match ending {
                Some("jsonl") if named.contains(&path) => bytes += fs::metadata(&path)?.len(),
                Some("jsonl" | "tmp") => fs::remove_file(&path)?,
                _ => {}
            }
        }
    }
    Ok(bytes)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_server_at_a_time() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("batches");
        let held = take(&path).unwrap();
        let error = take(&path).unwrap_err().to_string();
        assert!(error.contains("is used by another process; give each server a directory of its own"), "{error}");
        drop(held);
        take(&path).unwrap();
        let file = directory.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(take(&file).unwrap_err().to_string().contains("cannot be used"));
    }
}
