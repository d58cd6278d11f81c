//! Writes the entries of a server to a file.
//!
//! An entry goes through a bounded channel to a thread that writes it. When the disk cannot keep up, entries are dropped and
//! counted, and no request waits. A disk that cannot be written ends the recording and not the server.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use cuelight_engine::engine::TokenId;
use tokio::time::Instant;

use super::entry::{Content, Entry, EntryTimes};
use crate::core::ended_request::EndedRequest;
use crate::core::request::GenerationRequest;

/// Entries that wait for the disk.
const CHANNEL_ENTRIES: usize = 1024;

/// Time between two flushes.
const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// A handle through which ended requests are recorded. The default records nothing.
#[derive(Clone, Default)]
pub struct Recorder(Option<Arc<Recording>>);

struct Recording {
    started: Instant,
    with_texts: bool,
    secret: u64,
    entries: SyncSender<Option<Box<Entry>>>,
    dropped: AtomicU64,
    /// Requests with media, which are not recorded.
    with_media: AtomicU64,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Recorder {
    /// Creates a file in `directory`, which is created if it is missing, and a thread that writes to it.
    ///
    /// # Errors
    /// When the directory or the file cannot be created, or the thread cannot be started.
    pub fn start(directory: &Path, with_texts: bool) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        let (path, file) = create(directory)?;
        let (sender, receiver) = sync_channel(CHANNEL_ENTRIES);
        let write = move || write_entries(BufWriter::new(file), &receiver, &path);
        let thread = thread::Builder::new().name("cuelight-record".into()).spawn(write)?;
        Ok(Recorder(Some(Arc::new(Recording {
            started: Instant::now(),
            with_texts,
            secret: uuid::Uuid::new_v4().as_u64_pair().0,
            entries: sender,
            dropped: AtomicU64::new(0),
            with_media: AtomicU64::new(0),
            thread: Mutex::new(Some(thread)),
        }))))
    }

    /// Records a request. `tokens`: those of the answer.
    pub fn ended(
        &self,
        model: &str,
        request: &GenerationRequest,
        ended: &EndedRequest,
        tokens: impl FnOnce() -> Vec<TokenId>,
    ) {
        let Some(recording) = &self.0 else { return };
        if !request.media.is_empty() {
            // An entry has no media, so a replay would be another request.
            recording.with_media.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let mut entry = Entry::new(model, request, ended, recording.times(ended), recording.secret);
        entry.content = recording.with_texts.then(|| Content::new(request, tokens()));
        if recording.entries.try_send(Some(Box::new(entry))).is_err() {
            recording.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Ends the recording, and waits until all entries are written.
    pub fn finish(&self) {
        let Some(recording) = &self.0 else { return };
        let thread = recording.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Fails only when the thread has ended.
        let _ = recording.entries.send(None);
        if let Some(thread) = thread {
            // An error means that the thread panicked, which the panic hook has reported.
            let _ = thread.join();
        }
        match recording.with_media.load(Ordering::Relaxed) {
            0 => {}
            requests => tracing::warn!(requests, "requests with media were not recorded"),
        }
        match recording.dropped.load(Ordering::Relaxed) {
            0 => {}
            dropped => tracing::warn!(dropped, "requests were not recorded, because the disk was too slow or failed"),
        }
    }
}

impl Recording {
    fn times(&self, ended: &EndedRequest) -> EntryTimes {
        let submitted = ended.times.submitted;
        EntryTimes {
            arrived_ms: millis(submitted.saturating_duration_since(self.started)),
            first_token_ms: ended.times.first_token.map(|first| millis(first.duration_since(submitted))),
            total_ms: millis(ended.at.duration_since(submitted)),
        }
    }
}

impl PartialEq for Recorder {
    /// Whether both record to the same file.
    fn eq(&self, other: &Self) -> bool {
        self.0.as_ref().map(Arc::as_ptr) == other.0.as_ref().map(Arc::as_ptr)
    }
}

impl Eq for Recorder {}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").field("is_on", &self.0.is_some()).finish()
    }
}

/// A new file that only its owner can read.
fn create(directory: &Path) -> io::Result<(PathBuf, File)> {
    let now = jiff::Timestamp::now().strftime("%Y-%m-%dT%H-%M-%SZ");
    let path = directory.join(format!("{now}-{}.jsonl", std::process::id()));
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let file = options.open(&path)?;
    Ok((path, file))
}

fn write_entries(mut file: impl Write, entries: &Receiver<Option<Box<Entry>>>, path: &Path) {
    loop {
        let written = match entries.recv_timeout(FLUSH_INTERVAL) {
            Ok(Some(entry)) => write_entry(&mut file, &entry),
            Err(RecvTimeoutError::Timeout) => file.flush(),
            Ok(None) | Err(RecvTimeoutError::Disconnected) => break,
        };
        if let Err(error) = written {
            tracing::error!(%error, file = %path.display(), "requests are not recorded any longer");
            return;
        }
    }
    if let Err(error) = file.flush() {
        tracing::error!(%error, file = %path.display(), "the last requests were not recorded");
    }
}

fn write_entry(file: &mut impl Write, entry: &Entry) -> io::Result<()> {
    let mut line = serde_json::to_vec(entry)?;
    line.push(b'\n');
    file.write_all(&line)
}

/// Milliseconds, rounded to a microsecond.
fn millis(duration: Duration) -> f64 {
    (duration.as_secs_f64() * 1e6).round() / 1e3
}
