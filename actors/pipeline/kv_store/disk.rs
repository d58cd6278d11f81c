//! The disk tier: a thread that writes and removes files of units, and a thread that reads them.
//!
//! The writer also opens the directory: it hashes the model's files, removes what is unfinished, and reports which units are there.
//! No other thread waits for the disk.

use std::fs::{self, DirEntry};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use cuelight_engine::engine::{CacheLayout, UnitBytes, UnitKind};
use cuelight_engine::host_memory::{HostCopy, HostMemory};

use super::directory::{BlockDirectory, KvDirectory};
use super::model_content::{ModelIdentity, meaning};
use super::unit_file::{self, HEADER_BYTES, UNFINISHED};
use crate::core::cached_unit::{KeptUnit, UnitContent, UnitId};
use crate::core::tier::{FetchId, Tier, TierLimits};
use crate::pipeline::policy::{Found, TierReport};

/// Space that a file system needs for a file beyond its bytes.
const FILE_OVERHEAD: usize = 512;

/// How long a read waits for host memory.
const MEMORY_PATIENCE: Duration = Duration::from_secs(1);

/// Receives what the disk holds.
pub(super) type Report = Box<dyn Fn(TierReport) + Send>;

/// Receives the units of a read.
pub(super) type Reply = Box<dyn FnOnce(Fetched) + Send>;

/// The result of a read.
pub struct Fetched {
    /// The read.
    pub fetch: FetchId,
    /// Where they were.
    pub tier: Tier,
    /// The units that were found, from the first on.
    pub units: Vec<Arc<HostCopy>>,
    /// Whether the tier does not have the next unit, or not as it was.
    pub next_is_lost: bool,
    /// How long it took.
    pub elapsed: Duration,
}

impl Fetched {
    /// The result of a read that finds all units that are there.
    pub(super) fn of(
        fetch: FetchId,
        tier: Tier,
        contents: &[UnitContent],
        units: Vec<Arc<HostCopy>>,
        began: Instant,
    ) -> Self {
        let next_is_lost = units.len() < contents.len();
        Fetched { fetch, tier, units, next_is_lost, elapsed: began.elapsed() }
    }

    /// The result for the policy.
    #[must_use]
    pub fn found(&self) -> Found {
        Found { units: self.units.len(), next_is_lost: self.next_is_lost }
    }
}

/// What the disk tier is for.
pub(super) struct DiskArguments {
    pub directory: KvDirectory,
    /// Most bytes of the files of all replicas of the model together, and of those that no model uses.
    pub bytes: u64,
    /// The layout of the units.
    pub layout: CacheLayout,
    /// Index of the replica. Each has a directory of its own.
    pub replica: usize,
    /// Number of replicas of the model.
    pub replicas: usize,
    /// The files of the model, or its content if it has none.
    pub model: ModelIdentity,
    /// What may wait to be written, and what is read at once.
    pub limits: TierLimits,
    /// Memory for what is read.
    pub memory: HostMemory,
}

enum WriteJob {
    Write(UnitContent, Arc<HostCopy>),
    Remove(UnitId),
    /// Report which units are there.
    List,
}

struct ReadJob {
    fetch: FetchId,
    units: Vec<UnitContent>,
    began: Instant,
    reply: Reply,
}

/// The threads of the disk tier. They end when it is dropped; writes that were sent before are made.
pub(super) struct Disk {
    writes: Sender<WriteJob>,
    reads: Sender<ReadJob>,
}

/// The directory once it is open.
type Opened = Arc<OnceLock<BlockDirectory>>;

impl Disk {
    /// Starts the threads. The disk reports when it is ready.
    ///
    /// # Errors
    /// When the system starts no thread.
    pub fn start(arguments: DiskArguments, report: Report) -> io::Result<Self> {
        let opened = Opened::default();
        let ((writes, to_write), (reads, to_read)) = (channel(), channel());
        let reader = Reader { opened: Arc::clone(&opened), memory: arguments.memory.clone() };
        let writer = Writer { arguments, opened, report };
        thread::Builder::new().name("cuelight-kv-write".into()).spawn(move || writer.run(&to_write))?;
        thread::Builder::new().name("cuelight-kv-read".into()).spawn(move || reader.run(to_read))?;
        Ok(Disk { writes, reads })
    }

    /// Writes a unit. The result is reported.
    pub fn write(&self, content: UnitContent, unit: Arc<HostCopy>) {
        // The thread ends only after this is dropped.
        let _ = self.writes.send(WriteJob::Write(content, unit));
    }

    /// Removes a unit.
    pub fn remove(&self, id: UnitId) {
        let _ = self.writes.send(WriteJob::Remove(id));
    }

    /// Reports which units are there, after the writes that were sent before.
    pub fn list(&self) {
        let _ = self.writes.send(WriteJob::List);
    }

    /// Reads units.
    pub fn read(&self, fetch: FetchId, units: Vec<UnitContent>, reply: Reply) {
        // As above.
        let _ = self.reads.send(ReadJob { fetch, units, began: Instant::now(), reply });
    }
}

/// The thread that writes.
struct Writer {
    arguments: DiskArguments,
    opened: Opened,
    report: Report,
}

impl Writer {
    fn run(self, jobs: &Receiver<WriteJob>) {
        let path = self.arguments.directory.path().display();
        match catch_unwind(AssertUnwindSafe(|| self.open())) {
            Ok(Ok(())) => self.list(),
            Ok(Err(error)) => {
                tracing::error!(%path, %error, "the disk tier of the KV cache is off: its directory cannot be opened");
            }
            Err(_) => tracing::error!(%path, "the disk tier of the KV cache is off: opening its directory panicked"),
        }
        let mut last_warning: Option<Instant> = None;
        for job in jobs {
            if let Err(error) = self.perform(job) {
                const PAUSE: Duration = Duration::from_secs(60);
                if last_warning.is_none_or(|last| last.elapsed() > PAUSE) {
                    tracing::warn!(%path, %error, "a KV block or a recurrent state was not written");
                    last_warning = Some(Instant::now());
                }
            }
        }
    }

    /// Opens the directory, and removes unfinished files and directories that are too large.
    fn open(&self) -> io::Result<()> {
        let DiskArguments { directory, bytes, layout, model, replica, replicas, .. } = &self.arguments;
        let content = model.content(Some(directory.path()))?;
        let about =
            |replica: usize| meaning(&content, layout.bytes, &format!("{}\nreplica {replica}", layout.description));
        let opened = directory.of_blocks(&about(*replica))?;
        for entry in fs::read_dir(&opened.path)?.flatten() {
            if entry.path().extension().is_some_and(|extension| extension == UNFINISHED) {
                fs::remove_file(entry.path())?;
            }
        }
        // Set once, because this is the only caller.
        let _ = self.opened.set(opened);
        let replicas: Vec<String> = (0..*replicas).map(about).collect();
        if let Err(error) = directory.trim(*bytes, &replicas) {
            let path = directory.path().display();
            tracing::warn!(%path, %error, "blocks of models that are not loaded any more were not removed");
        }
        Ok(())
    }

    fn perform(&self, job: WriteJob) -> io::Result<()> {
        let Some(directory) = self.opened.get() else {
            if let WriteJob::Write(content, _) = job {
                (self.report)(TierReport::Refused(vec![content.id()]));
            }
            return Ok(());
        };
        match job {
            WriteJob::Write(content, unit) => {
                let write = || unit_file::write(&directory.path, &content, &unit);
                let written = catch_unwind(AssertUnwindSafe(write));
                let written = written.unwrap_or_else(|_| Err(io::Error::other("the write panicked")));
                self.report_written(&content, written)
            }
            WriteJob::Remove(id) => match fs::remove_file(unit_file::path(&directory.path, &id)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
                _ => Ok(()),
            },
            WriteJob::List => {
                self.list();
                Ok(())
            }
        }
    }

    fn report_written(&self, content: &UnitContent, written: io::Result<()>) -> io::Result<()> {
        match &written {
            Ok(()) => (self.report)(TierReport::Kept(vec![content.kept()])),
            Err(error) => {
                (self.report)(TierReport::Refused(vec![content.id()]));
                if matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded) {
                    (self.report)(TierReport::Full);
                }
            }
        }
        written
    }

    /// Reports the units that are there, the least recently used first.
    fn list(&self) {
        let Some(directory) = self.opened.get() else { return };
        let units = self.units_in(&directory.path).unwrap_or_else(|error| {
            let path = directory.path.display();
            tracing::warn!(%path, %error, "the KV blocks on disk are not used: the directory cannot be read");
            Vec::new()
        });
        let UnitBytes { block, state } = self.arguments.layout.bytes;
        let of_unit = UnitBytes { block: file_bytes(block), state: file_bytes(state) };
        let bytes = self.arguments.bytes / self.arguments.replicas.max(1) as u64;
        (self.report)(TierReport::Ready(TierLimits { bytes, of_unit, ..self.arguments.limits }, units));
    }

    fn units_in(&self, path: &Path) -> io::Result<Vec<KeptUnit>> {
        let mut found: Vec<(SystemTime, UnitId)> = Vec::new();
        for entry in fs::read_dir(path)? {
            match entry.and_then(|entry| self.unit_of(&entry)) {
                Ok(unit) => found.extend(unit),
                // The others are of use without it.
                Err(error) => {
                    tracing::warn!(path = %path.display(), %error, "a file of the KV cache is left out: it cannot be read or removed");
                }
            }
        }
        found.sort_unstable();
        Ok(found.into_iter().map(|(_, id)| KeptUnit { id, is_portable: true }).collect())
    }

    /// The time of the last use and the unit of a file. A file of another length is removed.
    fn unit_of(&self, entry: &DirEntry) -> io::Result<Option<(SystemTime, UnitId)>> {
        let Some(id) = unit_file::id_of(&entry.file_name().to_string_lossy()) else { return Ok(None) };
        let metadata = entry.metadata()?;
        if metadata.len() == (self.arguments.layout.bytes.of(id.kind) + HEADER_BYTES) as u64 {
            return Ok(Some((metadata.modified()?, id)));
        }
        fs::remove_file(entry.path())?;
        Ok(None)
    }
}

/// The space of the file of a unit that has `bytes` bytes. No file is written for none.
fn file_bytes(bytes: usize) -> usize {
    if bytes == 0 { 0 } else { bytes + HEADER_BYTES + FILE_OVERHEAD }
}

/// The thread that reads.
struct Reader {
    opened: Opened,
    memory: HostMemory,
}

impl Reader {
    fn run(self, jobs: Receiver<ReadJob>) {
        for ReadJob { fetch, units: contents, began, reply } in jobs {
            let mut units = Vec::with_capacity(contents.len());
            let read = catch_unwind(AssertUnwindSafe(|| self.read(&contents, &mut units)));
            let next_is_lost = read.unwrap_or(true);
            reply(Fetched { fetch, tier: Tier::Disk, units, next_is_lost, elapsed: began.elapsed() });
        }
    }

    /// Reads units until one cannot be read. Returns whether that one is of no use.
    fn read(&self, contents: &[UnitContent], units: &mut Vec<Arc<HostCopy>>) -> bool {
        let Some(directory) = self.opened.get() else { return true };
        let now = SystemTime::now();
        for (index, content) in (0..).zip(contents) {
            let Some(mut unit) = self.take_memory(content.kind) else { return false };
            // The end of a prefix is removed before its beginning.
            let used = now - Duration::from_millis(index);
            if let Err(error) = unit_file::read(&directory.path, content, used, &mut unit) {
                let file = unit_file::path(&directory.path, &content.id());
                tracing::warn!(file = %file.display(), %error, "a file of the KV cache is not used");
                let _ = fs::remove_file(file);
                return true;
            }
            units.push(Arc::new(unit));
        }
        false
    }

    /// Memory for a unit. Reads whose results are on their way to the device hold some of it for a short time.
    fn take_memory(&self, kind: UnitKind) -> Option<HostCopy> {
        let until = Instant::now() + MEMORY_PATIENCE;
        loop {
            match self.memory.take(kind) {
                Some(unit) => return Some(unit),
                None if Instant::now() > until => return None,
                None => thread::sleep(Duration::from_millis(1)),
            }
        }
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::block_hash::BlockHash;

    const UNITS: UnitBytes = UnitBytes { block: 64, state: 100 };

    fn writer(directory: &KvDirectory, bytes: u64, replica: usize) -> Writer {
        let arguments = DiskArguments {
            directory: directory.clone(),
            bytes,
            layout: CacheLayout { bytes: UNITS, description: "layout".to_owned() },
            replica,
            replicas: 3,
            model: ModelIdentity::Name("model".to_owned()),
            limits: TierLimits::default(),
            memory: HostMemory::new(0, UNITS),
        };
        Writer { arguments, opened: Opened::default(), report: Box::new(|_| {}) }
    }

    fn open(directory: &KvDirectory, bytes: u64, replica: usize) -> BlockDirectory {
        let writer = writer(directory, bytes, replica);
        writer.open().unwrap();
        Arc::into_inner(writer.opened).unwrap().into_inner().unwrap()
    }

    #[test]
    fn a_file_that_cannot_be_removed_does_not_hide_the_others() {
        let directory = tempfile::tempdir().unwrap();
        let writer = writer(&KvDirectory::open(directory.path()).unwrap(), 3000, 0);
        let files = tempfile::tempdir().unwrap();
        let id = |number: u8, kind| UnitId { block: BlockHash([number; 32]), kind };
        let path = |number: u8| unit_file::path(files.path(), &id(number, UnitKind::Block));
        // A directory has another length than a file, and removing a file does not remove it.
        fs::create_dir(path(1)).unwrap();
        fs::write(path(2), [0; 5]).unwrap();
        fs::write(path(3), [0; 64 + HEADER_BYTES]).unwrap();
        let state = id(4, UnitKind::State);
        fs::write(unit_file::path(files.path(), &state), [0; 100 + HEADER_BYTES]).unwrap();
        let mut found = writer.units_in(files.path()).unwrap();
        found.sort_unstable();
        assert_eq!(found, [id(3, UnitKind::Block), state].map(|id| KeptUnit { id, is_portable: true }));
        assert_eq!((path(1).exists(), path(2).exists()), (true, false));
    }

    #[test]
    fn the_replica_that_starts_first_keeps_the_blocks_of_the_others() {
        let directory = tempfile::tempdir().unwrap();
        let held = KvDirectory::open(directory.path()).unwrap();
        let kept = [0, 1, 2].map(|replica| {
            let file = open(&held, 3000, replica).path.join("block.kv");
            fs::write(&file, [0; 1000]).unwrap();
            file
        });
        let _first = open(&held, 3000, 0);
        assert_eq!(kept.each_ref().map(|file| file.exists()), [true; 3]);
    }
}
