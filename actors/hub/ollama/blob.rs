//! Downloads the data of a layer. A broken download is resumed, also by a later command, and a complete one is verified.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use reqwest::{Response, StatusCode};
use tokio::time::timeout;

use super::manifest::Blob;
use super::name::OllamaName;
use super::registry::Registry;
use super::store::OllamaStore;
use crate::hub::attempts::{STALL, is_transient, repeated};
use crate::hub::download::{block_on_wanted, sha256};
use crate::hub::error::HubError;
use crate::hub::progress::Progress;

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    #[error("nothing arrived for a minute")]
    Stalled,
    #[error("the connection broke off after {arrived} of {bytes} bytes")]
    BrokeOff { arrived: u64, bytes: u64 },
    #[error("more than the {0} bytes of the manifest arrived")]
    TooLong(u64),
    #[error(transparent)]
    Disk(#[from] io::Error),
}

impl Failure {
    fn is_transient(&self) -> bool {
        match self {
            Failure::Http(error) => is_transient(error),
            Failure::Stalled | Failure::BrokeOff { .. } => true,
            Failure::TooLong(_) | Failure::Disk(_) => false,
        }
    }
}

/// Downloads the blobs of one model.
pub(super) struct Downloader<'a, P> {
    pub registry: &'a Registry,
    pub store: &'a OllamaStore,
    pub name: &'a OllamaName,
    pub progress: &'a P,
}

impl<P: Progress> Downloader<'_, P> {
    /// Downloads a blob, unless it is in the store; then there is nothing to keep.
    ///
    /// # Errors
    /// [`HubError::Request`], [`HubError::NoSuchModel`], [`HubError::Io`] or [`HubError::Cancelled`] when it does not arrive.
    pub fn receive<'b>(&self, blob: &'b Blob) -> Result<Option<Arrived<'b>>, HubError> {
        let (path, part) = (self.store.blob_path(blob), self.store.part_path(blob));
        if self.store.has(blob) {
            self.progress.layer_is_here(&blob.sha256, blob.bytes);
            return Ok(None);
        }
        let label = format!("{} {}", self.name, &blob.sha256[..12]);
        let io = |what: &'static str| HubError::io(what, &part);
        let mut options = OpenOptions::new();
        let mut file = options.create(true).truncate(false).write(true).open(&part).map_err(io("write"))?;
        // Another process may download the same data.
        file.lock().map_err(io("lock"))?;
        if self.store.has(blob) {
            return remove_if_there(&part).map(|()| None).map_err(io("remove"));
        }
        let attempt = || block_on_wanted(self.attempt(blob, &label, &mut file), self.progress);
        match repeated(&label, self.progress, Failure::is_transient, attempt)? {
            Ok(()) => Ok(Some(Arrived { blob, label, file, part, path })),
            Err(Failure::Http(error)) => Err(self.registry.explain(self.name, &label, error)),
            Err(Failure::Disk(error)) => Err(io("write")(error)),
            Err(other) => Err(self.registry.failed(&label, other)),
        }
    }

    /// One attempt, which continues behind the bytes that the file has.
    async fn attempt(&self, blob: &Blob, label: &str, file: &mut File) -> Result<(), Failure> {
        let mut arrived = file.metadata()?.len();
        if arrived > blob.bytes {
            arrived = 0;
        }
        self.progress.start_layer(label, &blob.sha256, blob.bytes);
        if arrived < blob.bytes {
            let request = self.registry.blob(self.name, blob, arrived).send();
            let response = timeout(STALL, request).await.map_err(|_| Failure::Stalled)??.error_for_status()?;
            // A server that knows no ranges sends all of it.
            let continues = response.status() == StatusCode::PARTIAL_CONTENT;
            arrived = if continues { arrived } else { 0 };
            file.set_len(arrived)?;
            file.seek(SeekFrom::Start(arrived))?;
            self.progress.advance(arrived);
            self.write(response, blob, arrived, file).await?;
        }
        self.progress.finish();
        Ok(())
    }

    async fn write(&self, mut data: Response, blob: &Blob, begin: u64, file: &mut File) -> Result<(), Failure> {
        let bytes = blob.bytes;
        let mut arrived = begin;
        loop {
            let chunk = match timeout(STALL, data.chunk()).await.map_err(|_| Failure::Stalled)? {
                Ok(Some(chunk)) => chunk,
                Ok(None) if arrived == bytes => return Ok(()),
                Ok(None) => return Err(Failure::BrokeOff { arrived, bytes }),
                Err(error) if error.is_body() || error.is_decode() => return Err(Failure::BrokeOff { arrived, bytes }),
                Err(error) => return Err(error.into()),
            };
            arrived += chunk.len() as u64;
            if arrived > bytes {
                file.set_len(0)?;
                return Err(Failure::TooLong(bytes));
            }
            file.write_all(&chunk)?;
            self.progress.advance(chunk.len() as u64);
        }
    }
}

/// The data of a blob that has arrived. No other process changes it.
pub(super) struct Arrived<'a> {
    blob: &'a Blob,
    label: String,
    file: File,
    part: PathBuf,
    path: PathBuf,
}

impl Arrived<'_> {
    /// Verifies the data and puts it into the store.
    ///
    /// # Errors
    /// [`HubError::Checksum`] when it is not that of the manifest, [`HubError::Io`].
    pub fn keep(self) -> Result<(), HubError> {
        let found = sha256(&self.part)?;
        if found != self.blob.sha256 {
            // Emptied and not removed, because another process may wait for its lock.
            self.file.set_len(0).map_err(HubError::io("write", &self.part))?;
            return Err(HubError::Checksum { file: self.label, expected: self.blob.sha256.clone(), found });
        }
        std::fs::rename(&self.part, &self.path).map_err(HubError::io("rename", &self.part))
    }
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
