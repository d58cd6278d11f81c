//! Receives a file whose size is known. A transfer that breaks off continues where it ended, also in a later process.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use reqwest::{RequestBuilder, Response, StatusCode};
use tokio::time::timeout;

use super::attempts::{self, STALL};
use super::progress::Progress;

/// Why an attempt failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum TransferError {
    #[error(transparent)]
    Http(#[from] reqwest::Error),
    #[error("nothing arrived for a minute")]
    Stalled,
    #[error("the connection broke off after {arrived} of {bytes} bytes")]
    BrokeOff { arrived: u64, bytes: u64 },
    #[error("more than the expected {0} bytes arrived")]
    TooLong(u64),
    #[error(transparent)]
    Disk(#[from] io::Error),
}

impl TransferError {
    /// Whether a retry may help.
    pub(super) fn is_transient(&self) -> bool {
        match self {
            TransferError::Http(error) => attempts::is_transient(error),
            TransferError::Stalled | TransferError::BrokeOff { .. } => true,
            TransferError::TooLong(_) | TransferError::Disk(_) => false,
        }
    }
}

/// Opens the file for what has arrived, and waits until no other process writes it.
pub(super) async fn open_part(path: &Path) -> io::Result<File> {
    const PAUSE: Duration = Duration::from_millis(100);
    let file = OpenOptions::new().create(true).truncate(false).write(true).open(path)?;
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => tokio::time::sleep(PAUSE).await,
            Err(TryLockError::Error(error)) => return Err(error),
        }
    }
}

/// What is received.
pub(super) struct Transfer<'a, P> {
    /// A request for all bytes from one on.
    pub request: &'a dyn Fn(u64) -> RequestBuilder,
    /// The size of the file.
    pub bytes: u64,
    pub progress: &'a P,
}

impl<P: Progress> Transfer<'_, P> {
    /// One attempt, which continues behind the bytes that the file has.
    ///
    /// # Errors
    /// [`TransferError`]. The file keeps what has arrived.
    pub(super) async fn attempt(&self, file: &mut File) -> Result<(), TransferError> {
        let mut arrived = file.metadata()?.len();
        if arrived > self.bytes {
            arrived = 0;
        }
        if arrived < self.bytes {
            let request = (self.request)(arrived).send();
            let response = timeout(STALL, request).await.map_err(|_| TransferError::Stalled)??.error_for_status()?;
            // A server that knows no ranges sends all of it.
            let continues = response.status() == StatusCode::PARTIAL_CONTENT;
            arrived = if continues { arrived } else { 0 };
            file.set_len(arrived)?;
            file.seek(SeekFrom::Start(arrived))?;
            self.progress.advance(arrived);
            self.write(response, arrived, file).await?;
        }
        self.progress.finish();
        Ok(())
    }

    async fn write(&self, mut data: Response, begin: u64, file: &mut File) -> Result<(), TransferError> {
        let bytes = self.bytes;
        let mut arrived = begin;
        loop {
            let chunk = match timeout(STALL, data.chunk()).await.map_err(|_| TransferError::Stalled)? {
                Ok(Some(chunk)) => chunk,
                Ok(None) if arrived == bytes => return Ok(()),
                Ok(None) => return Err(TransferError::BrokeOff { arrived, bytes }),
                Err(error) if error.is_body() || error.is_decode() => {
                    return Err(TransferError::BrokeOff { arrived, bytes });
                }
                Err(error) => return Err(error.into()),
            };
            arrived += chunk.len() as u64;
            if arrived > bytes {
                file.set_len(0)?;
                return Err(TransferError::TooLong(bytes));
            }
            file.write_all(&chunk)?;
            self.progress.advance(chunk.len() as u64);
        }
    }
}

/// Removes a file that may be missing.
pub(super) fn remove_if_there(path: &Path) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
