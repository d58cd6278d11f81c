//! Removes files and batches: on request, and when their time is over.

use std::fs;
use std::io;

use super::disk::RECORD_BYTES;
use super::error::BatchStoreError;
use super::{BatchRecord, BatchStore, FileRecord, Protocol, RETENTION};

/// How long the results of an Anthropic batch are kept after it was made, in seconds.
const ANTHROPIC_RETENTION: u64 = 29 * 24 * 3600;

/// When a batch is removed. `None`: it is not at its end.
fn removed_at(batch: &BatchRecord) -> Option<u64> {
    let ended_at = batch.ended_at()?;
    Some(match batch.protocol {
        Protocol::OpenAi => ended_at + RETENTION,
        Protocol::Anthropic => ended_at.max(batch.created_at() + ANTHROPIC_RETENTION),
    })
}

impl BatchStore {
    /// Removes files and batches whose time is over. What the disk refuses is tried again the next time.
    pub(in crate::serving::batch) fn remove_expired(&self, now: u64) {
        let unfinished = self.unfinished();
        let is_needed = |id: &str| unfinished.iter().any(|batch| batch.input_file == id);
        for file in self.files.all() {
            if file.expires_at <= now && !is_needed(&file.id) {
                // It is logged.
                let _ = self.remove_file(&file);
            }
        }
        for batch in self.batches.all() {
            if removed_at(&batch).is_some_and(|at| at <= now) {
                let _ = self.remove_batch(&batch);
            }
        }
    }

    /// Removes a file: first its record, so that no record is without content.
    pub(super) fn remove_file(&self, file: &FileRecord) -> Result<(), BatchStoreError> {
        if self.files.remove(&file.id).map_err(BatchStoreError::io(&self.directory))? {
            self.disk.give_back(RECORD_BYTES);
            self.remove_content(&file.id)?;
        }
        Ok(())
    }

    /// Removes a batch, with the content that only the batch shows.
    pub(super) fn remove_batch(&self, batch: &BatchRecord) -> Result<(), BatchStoreError> {
        if self.batches.remove(&batch.id).map_err(BatchStoreError::io(&self.directory))? {
            self.disk.give_back(RECORD_BYTES);
            self.tell_change();
            if batch.protocol == Protocol::Anthropic {
                for id in [&batch.input_file, &batch.output_file, &batch.error_file] {
                    self.remove_content(id)?;
                }
            }
        }
        Ok(())
    }

    /// Removes content that may not be there.
    pub(in crate::serving::batch) fn remove_content(&self, id: &str) -> Result<(), BatchStoreError> {
        let path = self.content_path(id);
        let removed = fs::metadata(&path).and_then(|metadata| fs::remove_file(&path).map(|()| metadata.len()));
        match removed {
            Ok(bytes) => self.disk.give_back(bytes),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(BatchStoreError::io(&path)(error)),
        }
        Ok(())
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::{Content, NewBatch, Status, Upload, now};
    use super::*;
    use crate::core::shared_limit::Client;

    const DAY: u64 = 24 * 3600;

    fn content(store: &BatchStore, id: &str) -> Content {
        fs::write(store.content_path(id), "{}\n").unwrap();
        Content { id: id.to_owned(), bytes: 3 }
    }

    fn add_batch(store: &BatchStore, protocol: Protocol, input: &str) -> Arc<BatchRecord> {
        let (endpoint, input_file) = ("/v1/messages".to_owned(), input.to_owned());
        let new = NewBatch { owner: None, protocol, endpoint, input_file, metadata: None, total: 1 };
        store.add_batch(new).unwrap()
    }

    #[test]
    fn files_are_removed_when_their_time_is_over_unless_a_batch_needs_them() {
        let directory = tempfile::tempdir().unwrap();
        let store = BatchStore::open(directory.path(), 1 << 20).unwrap();
        let add = |id: &str| store.add_file(&None, content(&store, id), String::new(), RETENTION).unwrap();
        let (file, needed) = (add("file-1"), add("file-2"));
        let batch = add_batch(&store, Protocol::OpenAi, &needed.id);
        let is_kept = |id: &str| store.file(&None, id).is_ok() && store.content_path(id).exists();
        store.remove_expired(now() + RETENTION - DAY);
        assert!(is_kept(&file.id) && is_kept(&needed.id));
        store.remove_expired(now() + RETENTION + DAY);
        assert!(!is_kept(&file.id) && is_kept(&needed.id) && !store.content_path(&file.id).exists());
        store.change(&batch.id, |batch| batch.enter(Status::Completed, now())).unwrap();
        store.remove_expired(now() + RETENTION + DAY);
        assert!(!is_kept(&needed.id));
        assert!(store.batch(&None, Protocol::OpenAi, &batch.id).is_err(), "the batch has ended 31 days ago");
    }

    #[test]
    fn a_batch_of_messages_goes_with_its_content() {
        let directory = tempfile::tempdir().unwrap();
        let store = BatchStore::open(directory.path(), 1 << 20).unwrap();
        let batch = add_batch(&store, Protocol::Anthropic, &content(&store, "file-1").id);
        content(&store, &batch.output_file);
        store.remove_expired(now() + 40 * DAY);
        assert!(store.batch(&None, Protocol::Anthropic, &batch.id).is_ok(), "it is not at its end");
        store.change(&batch.id, |batch| batch.enter(Status::Expired, now())).unwrap();
        store.remove_expired(now() + 28 * DAY);
        assert!(store.batch(&None, Protocol::Anthropic, &batch.id).is_ok());
        store.remove_expired(now() + 30 * DAY);
        assert!(store.batch(&None, Protocol::Anthropic, &batch.id).is_err());
        assert_eq!(fs::read_dir(directory.path().join("files")).unwrap().count(), 0);
    }

    #[tokio::test]
    async fn an_owner_is_found_again_and_an_upload_that_was_broken_off_is_not() {
        let directory = tempfile::tempdir().unwrap();
        let store = BatchStore::open(directory.path(), 1 << 20).unwrap();
        let owner: Client = Some("digest".into());
        let mut upload = Upload::begin(&store).await.unwrap();
        upload.write(b"{}\n").await.unwrap();
        let file = store.add_file(&owner, upload.finish().await.unwrap(), "a".to_owned(), RETENTION).unwrap();
        // As after a crash between the content and its record.
        content(&store, "file-1");
        fs::write(directory.path().join("files/file-2.tmp"), "{").unwrap();
        drop(store);
        let store = BatchStore::open(directory.path(), 1 << 20).unwrap();
        assert_eq!(store.file(&owner, &file.id).unwrap().bytes, 3);
        assert!(store.file(&None, &file.id).is_err());
        assert_eq!(fs::read_dir(directory.path().join("files")).unwrap().count(), 2, "a record and its content");
    }
}
