//! Why a file or a batch of a client cannot be kept or used.

use std::io;
use std::path::{Path, PathBuf};

/// Why the directory of batches cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// It cannot be made, read or written.
    #[error("the directory {} for batches cannot be used: {source}", path.display())]
    Io {
        /// The directory, or a file in it.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// Another process uses it.
    #[error("the directory {} for batches is used by another process; give each server a directory of its own", .0.display())]
    Held(PathBuf),
}

impl DirectoryError {
    /// For `map_err` on an I/O error.
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| DirectoryError::Io { path: path.to_owned(), source }
    }
}

/// Why a client's file or batch is not kept, changed or found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum BatchStoreError {
    /// The operator has named no directory.
    #[error("this server keeps no files and batches of clients; start it with --batches DIR")]
    Off,
    /// The caller has no such file.
    #[error("there is no file `{0}`")]
    NoFile(String),
    /// The caller has no such batch.
    #[error("there is no batch `{0}`")]
    NoBatch(String),
    /// The file is too long.
    #[error("the file is larger than the {0} bytes that this server accepts")]
    FileTooLarge(u64),
    /// All space is used.
    #[error(
        "the files of all batches may have {0} bytes together, and these are used; delete files, or wait until some expire"
    )]
    DiskFull(u64),
    /// A batch reads the file.
    #[error("the batch `{batch}` still needs this file; cancel the batch, or wait for its end")]
    FileInUse {
        /// The batch.
        batch: String,
    },
    /// The batch is not at its end.
    #[error("the batch `{0}` is not at its end; cancel it, or wait for its end")]
    NotEnded(String),
    /// The batch is at its end.
    #[error("the batch `{0}` is at its end and cannot be cancelled")]
    Ended(String),
    /// The disk failed. The log has the cause.
    #[error("the server could not read or write its files of batches; the cause is in its log")]
    Io,
}

impl BatchStoreError {
    /// For `map_err` on an I/O error, which is logged and not shown to clients.
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| {
            tracing::error!(%error, path = %path.display(), "a file of a batch could not be read or written");
            BatchStoreError::Io
        }
    }
}
