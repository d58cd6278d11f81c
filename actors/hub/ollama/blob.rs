//! Downloads the data of a layer. A broken download is resumed, also by a later command, and a complete one is verified.

use std::fs::File;
use std::path::PathBuf;

use super::manifest::Blob;
use super::name::OllamaName;
use super::registry::Registry;
use super::store::OllamaStore;
use crate::hub::attempts::repeated;
use crate::hub::download::{block_on_wanted, sha256};
use crate::hub::error::HubError;
use crate::hub::progress::Progress;
use crate::hub::transfer::{Transfer, TransferError, open_part, remove_if_there};

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
        // Another process may download the same data.
        let mut file = block_on_wanted(open_part(&part), self.progress)?.map_err(io("write"))?;
        if self.store.has(blob) {
            return remove_if_there(&part).map(|()| None).map_err(io("remove"));
        }
        let attempt = || block_on_wanted(self.attempt(blob, &label, &mut file), self.progress);
        match repeated(&label, self.progress, TransferError::is_transient, attempt)? {
            Ok(()) => Ok(Some(Arrived { blob, label, file, part, path })),
            Err(TransferError::Http(error)) => Err(self.registry.explain(self.name, &label, error)),
            Err(TransferError::Disk(error)) => Err(io("write")(error)),
            Err(other) => Err(self.registry.failed(&label, other)),
        }
    }

    /// One attempt, which continues behind the bytes that the file has.
    async fn attempt(&self, blob: &Blob, label: &str, file: &mut File) -> Result<(), TransferError> {
        self.progress.start_layer(label, &blob.sha256, blob.bytes);
        let request = |first_byte| self.registry.blob(self.name, blob, first_byte);
        Transfer { request: &request, bytes: blob.bytes, progress: self.progress }.attempt(file).await
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
