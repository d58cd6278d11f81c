//! The files and batches of clients, in a directory that one server uses at a time.
//!
//! `files/ID.jsonl` is the content of a file, `files/ID.json` its record, and `batches/ID.json` the record of a batch. Content
//! without a record belongs to a batch whose clients do not see it, or is left from an upload that was broken off: a restart
//! removes it then. All records are in memory, so that only content is read for an answer.

mod batch_record;
mod catalogue;
mod directory;
mod disk;
pub mod error;
mod file_record;
mod retention;
mod upload;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use metrics::gauge;
use serde_json::Value;
use tokio::sync::watch;

pub use self::batch_record::{BatchRecord, Problem, Protocol, Status};
use self::catalogue::Catalogue;
use self::disk::{DiskUse, RECORD_BYTES};
use self::error::{BatchStoreError, DirectoryError};
pub use self::file_record::{Content, FileRecord, Purpose};
pub use self::upload::Upload;
use super::answer::Tally;
use crate::core::shared_limit::Client;
use crate::metrics::catalogue::BATCHES;

/// How long files and ended batches are kept, in seconds.
pub const RETENTION: u64 = 30 * 24 * 3600;

/// How long the requests of a batch may take, in seconds.
const WINDOW: u64 = 24 * 3600;

/// The files and batches of all clients.
#[derive(Debug)]
pub struct BatchStore {
    directory: PathBuf,
    files: Catalogue<FileRecord>,
    batches: Catalogue<BatchRecord>,
    disk: DiskUse,
    last_order: AtomicU64,
    changes: watch::Sender<()>,
    _lock: File,
}

/// What a client says of a new batch.
#[derive(Debug)]
pub struct NewBatch {
    /// The client.
    pub owner: Client,
    /// The protocol by which it comes.
    pub protocol: Protocol,
    /// The route of its requests.
    pub endpoint: String,
    /// The file with its requests.
    pub input_file: String,
    /// What the client wants to be told of it.
    pub metadata: Option<Value>,
    /// Its requests; 0 until they are counted.
    pub total: usize,
}

impl BatchStore {
    /// Opens a directory, or makes it, for this process. `disk_bytes`: the most that all files in it may have together.
    ///
    /// # Errors
    /// [`DirectoryError`] when it cannot be used, or another process uses it.
    pub fn open(directory: &Path, disk_bytes: u64) -> Result<Arc<Self>, DirectoryError> {
        let lock = directory::take(directory)?;
        let failed = || DirectoryError::io(directory);
        let files = Catalogue::open(&directory.join("files")).map_err(failed())?;
        let batches: Catalogue<BatchRecord> = Catalogue::open(&directory.join("batches")).map_err(failed())?;
        let used = directory::clean(directory, &files, &batches).map_err(failed())?;
        let orders =
            files.all().into_iter().map(|file| file.order).chain(batches.all().into_iter().map(|batch| batch.order));
        let store = BatchStore {
            directory: directory.to_owned(),
            last_order: AtomicU64::new(orders.max().unwrap_or(0)),
            files,
            batches,
            disk: DiskUse::new(disk_bytes, used),
            changes: watch::Sender::new(()),
            _lock: lock,
        };
        store.remove_expired(now());
        Ok(Arc::new(store))
    }

    /// Keeps the record of a file whose content is on the disk.
    ///
    /// # Errors
    /// [`BatchStoreError::Io`] when it cannot be written.
    pub fn add_file(
        &self,
        owner: &Client,
        content: Content,
        filename: String,
        lifetime: u64,
    ) -> Result<Arc<FileRecord>, BatchStoreError> {
        let (Content { id, bytes }, created_at) = (content, now());
        let (owner, order, purpose) = (owner.clone(), self.next_order(), Purpose::Batch);
        let expires_at = created_at + lifetime;
        let record = FileRecord { id, owner, order, filename, purpose, bytes, created_at, expires_at };
        self.files.insert(record).map_err(BatchStoreError::io(&self.directory))
    }

    /// A file of a client.
    ///
    /// # Errors
    /// [`BatchStoreError::NoFile`] when it has no such file.
    pub fn file(&self, owner: &Client, id: &str) -> Result<Arc<FileRecord>, BatchStoreError> {
        let file = self.files.get(id).filter(|file| file.owner == *owner);
        file.ok_or_else(|| BatchStoreError::NoFile(crate::serving::error::clip(id)))
    }

    /// The files of a client, the oldest first.
    #[must_use]
    pub fn files(&self, owner: &Client) -> Vec<Arc<FileRecord>> {
        self.files.all().into_iter().filter(|file| file.owner == *owner).collect()
    }

    /// Where the content of a file is. The id is one of a record.
    #[must_use]
    pub fn content_path(&self, id: &str) -> PathBuf {
        directory::content_path(&self.directory, id)
    }

    /// Deletes a file of a client.
    ///
    /// # Errors
    /// [`BatchStoreError`] when it has no such file, a batch needs it, or the disk fails.
    pub fn delete_file(&self, owner: &Client, id: &str) -> Result<(), BatchStoreError> {
        let file = self.file(owner, id)?;
        if let Some(batch) = self.unfinished().iter().find(|batch| batch.input_file == file.id) {
            return Err(BatchStoreError::FileInUse { batch: batch.id.clone() });
        }
        self.remove_file(&file)
    }

    /// Keeps a new batch, which the worker then finds. An Anthropic batch takes over the content of its requests.
    ///
    /// # Errors
    /// [`BatchStoreError`] when the space is used up or the disk fails.
    pub fn add_batch(&self, new: NewBatch) -> Result<Arc<BatchRecord>, BatchStoreError> {
        // Content without a record has taken the space for one.
        if new.protocol == Protocol::OpenAi {
            self.disk.take(RECORD_BYTES)?;
        }
        let (NewBatch { owner, protocol, endpoint, input_file, metadata, total }, now) = (new, now());
        let prefix = match protocol {
            Protocol::OpenAi => "batch_",
            Protocol::Anthropic => "msgbatch_",
        };
        let record = BatchRecord {
            id: Self::new_id(prefix),
            owner,
            order: self.next_order(),
            protocol,
            endpoint,
            input_file,
            output_file: Self::new_id("file-"),
            error_file: Self::new_id("file-"),
            metadata,
            expires_at: now + WINDOW,
            status: Status::Validating,
            entered: BTreeMap::from([(Status::Validating, now)]),
            total,
            tally: Tally::default(),
            problem: None,
        };
        let input_file = record.input_file.clone();
        let added = self.batches.insert(record).map_err(BatchStoreError::io(&self.directory));
        if added.is_err() {
            self.disk.give_back(RECORD_BYTES);
            if protocol == Protocol::Anthropic {
                self.remove_content(&input_file)?;
            }
        }
        self.tell_change();
        added
    }

    /// A batch of a client.
    ///
    /// # Errors
    /// [`BatchStoreError::NoBatch`] when it has no such batch in this protocol.
    pub fn batch(&self, owner: &Client, protocol: Protocol, id: &str) -> Result<Arc<BatchRecord>, BatchStoreError> {
        let batch = self.batches.get(id).filter(|batch| batch.owner == *owner && batch.protocol == protocol);
        batch.ok_or_else(|| BatchStoreError::NoBatch(crate::serving::error::clip(id)))
    }

    /// The batches of a client, the oldest first.
    #[must_use]
    pub fn batches(&self, owner: &Client, protocol: Protocol) -> Vec<Arc<BatchRecord>> {
        let is_theirs = |batch: &Arc<BatchRecord>| batch.owner == *owner && batch.protocol == protocol;
        self.batches.all().into_iter().filter(is_theirs).collect()
    }

    /// Cancels a batch of a client. One that is being cancelled stays as it is.
    ///
    /// # Errors
    /// [`BatchStoreError`] when there is no such batch, it is at its end, or the disk fails.
    pub fn cancel(&self, owner: &Client, protocol: Protocol, id: &str) -> Result<Arc<BatchRecord>, BatchStoreError> {
        let batch = self.batch(owner, protocol, id)?;
        if batch.status.is_end() {
            return Err(BatchStoreError::Ended(batch.id.clone()));
        }
        let cancelled = self.change(&batch.id, |batch| batch.enter(Status::Cancelling, now()))?;
        Ok(cancelled.unwrap_or(batch))
    }

    /// Deletes an ended batch of a client, with its requests and answers.
    ///
    /// # Errors
    /// [`BatchStoreError`] when there is no such batch, it is not at its end, or the disk fails.
    pub fn delete_batch(&self, owner: &Client, protocol: Protocol, id: &str) -> Result<(), BatchStoreError> {
        let batch = self.batch(owner, protocol, id)?;
        if !batch.status.is_end() {
            return Err(BatchStoreError::NotEnded(batch.id.clone()));
        }
        self.remove_batch(&batch)
    }

    /// The batches that are not at their end, the oldest first.
    pub(super) fn unfinished(&self) -> Vec<Arc<BatchRecord>> {
        self.batches.all().into_iter().filter(|batch| !batch.status.is_end()).collect()
    }

    /// Any batch.
    pub(super) fn any_batch(&self, id: &str) -> Option<Arc<BatchRecord>> {
        self.batches.get(id)
    }

    /// Changes a batch on the disk, too.
    pub(super) fn change(
        &self,
        id: &str,
        change: impl FnOnce(&mut BatchRecord),
    ) -> Result<Option<Arc<BatchRecord>>, BatchStoreError> {
        let changed = self.batches.change(id, change).map_err(BatchStoreError::io(&self.directory));
        self.tell_change();
        changed
    }

    /// Keeps in memory how many requests have an answer. A restart counts them again.
    pub(super) fn note_progress(&self, id: &str, tally: Tally) {
        self.batches.note(id, |batch| batch.tally = tally);
    }

    /// Makes a file of answers visible to its client.
    pub(super) fn publish(&self, batch: &BatchRecord, id: &str, filename: String) -> Result<(), BatchStoreError> {
        if self.files.get(id).is_some() {
            return Ok(());
        }
        let path = self.content_path(id);
        let bytes = fs::metadata(&path).map_err(BatchStoreError::io(&path))?.len();
        let (created_at, order, owner) = (now(), self.next_order(), batch.owner.clone());
        let (expires_at, purpose) = (created_at + RETENTION, Purpose::BatchOutput);
        let record = FileRecord { id: id.to_owned(), owner, order, filename, purpose, bytes, created_at, expires_at };
        self.files.insert(record).map_err(BatchStoreError::io(&self.directory))?;
        self.disk.add(RECORD_BYTES);
        Ok(())
    }

    /// Counts answers that were written.
    pub(super) fn add_written(&self, bytes: usize) {
        self.disk.add(bytes as u64);
    }

    /// Whether answers may be written.
    pub(super) fn has_room(&self) -> bool {
        self.disk.has_room()
    }

    /// Is told of every change on the disk of a batch.
    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    fn tell_change(&self) {
        self.count_batches();
        self.changes.send_replace(());
    }

    /// Publishes the number of batches by status.
    pub(super) fn count_batches(&self) {
        let batches = self.batches.all();
        for status in Status::ALL {
            let count = batches.iter().filter(|batch| batch.status == status).count();
            gauge!(BATCHES, "status" => status.name()).set(count as f64);
        }
    }

    fn next_order(&self) -> u64 {
        self.last_order.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn new_id(prefix: &str) -> String {
        format!("{prefix}{}", uuid::Uuid::new_v4().simple())
    }
}

/// The current time in seconds of Unix time; 0 when the clock is before 1970.
pub(super) fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}
