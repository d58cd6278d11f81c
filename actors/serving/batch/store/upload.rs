//! The content of a new file, which goes to the disk as it arrives.

use std::path::PathBuf;
use std::sync::Arc;

use tokio::fs::{self, File};
use tokio::io::AsyncWriteExt;

use super::BatchStore;
use super::catalogue::sync_directory;
use super::disk::RECORD_BYTES;
use super::error::BatchStoreError;
use super::file_record::Content;

/// A file that is being written. It is removed when this is dropped before [`Self::finish`].
#[derive(Debug)]
pub struct Upload {
    store: Arc<BatchStore>,
    id: String,
    path: PathBuf,
    file: File,
    bytes: u64,
    is_finished: bool,
}

impl Upload {
    /// Largest file in bytes.
    pub const MOST_BYTES: u64 = 512 << 20;

    /// Begins a file.
    ///
    /// # Errors
    /// [`BatchStoreError::DiskFull`], or [`BatchStoreError::Io`] when it cannot be made.
    pub async fn begin(store: &Arc<BatchStore>) -> Result<Self, BatchStoreError> {
        store.disk.take(RECORD_BYTES)?;
        let id = BatchStore::new_id("file-");
        let path = store.content_path(&id).with_extension("tmp");
        match File::create(&path).await {
            Ok(file) => Ok(Upload { store: store.clone(), id, path, file, bytes: 0, is_finished: false }),
            Err(error) => {
                store.disk.give_back(RECORD_BYTES);
                Err(BatchStoreError::io(&path)(error))
            }
        }
    }

    /// Appends data.
    ///
    /// # Errors
    /// [`BatchStoreError`] when the file is too large, the space is used up, or the disk fails.
    pub async fn write(&mut self, data: &[u8]) -> Result<(), BatchStoreError> {
        let length = data.len() as u64;
        if self.bytes + length > Self::MOST_BYTES {
            return Err(BatchStoreError::FileTooLarge(Self::MOST_BYTES));
        }
        self.store.disk.take(length)?;
        self.bytes += length;
        self.file.write_all(data).await.map_err(BatchStoreError::io(&self.path))
    }

    /// Ends the file. A restarted server removes it unless a record names it.
    ///
    /// # Errors
    /// [`BatchStoreError::Io`] when the disk fails.
    pub async fn finish(mut self) -> Result<Content, BatchStoreError> {
        self.complete().await.map_err(BatchStoreError::io(&self.path))?;
        self.is_finished = true;
        Ok(Content { id: self.id.clone(), bytes: self.bytes })
    }

    async fn complete(&mut self) -> std::io::Result<()> {
        self.file.flush().await?;
        self.file.sync_all().await?;
        let path = self.store.content_path(&self.id);
        fs::rename(&self.path, &path).await?;
        tokio::task::spawn_blocking(move || sync_directory(&path)).await.map_err(std::io::Error::other)?
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if self.is_finished {
            return;
        }
        self.store.disk.give_back(self.bytes + RECORD_BYTES);
        let path = std::mem::take(&mut self.path);
        let remove = move || {
            if let Err(error) = std::fs::remove_file(&path) {
                tracing::debug!(%error, path = %path.display(), "an unfinished upload could not be removed");
            }
        };
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}
