//! Keeps copies of KV blocks outside of the engine: in host memory, and in files of a directory.
//!
//! The store decides nothing. The scheduler's policy says what is copied, moved, read and removed, and the store reports what has
//! happened. It lives as long as the model, so its contents outlive the engine and the scheduler.
//!
//! - `checksum`, `block_file`: the file of one block
//! - `directory`, `model_content`: where the files of a model are
//! - `disk`: the threads that write and read files

mod block_file;
mod checksum;
mod directory;
mod disk;
mod model_content;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use cuelight_engine::engine::BlockLayout;
use cuelight_engine::host_blocks::{HostBlock, HostBlocks};
use ractor::ActorRef;

pub use self::directory::{DirectoryError, KvDirectory};
use self::disk::{Disk, DiskArguments, Report};
pub use self::disk::{Fetched, ModelIdentity};
use super::messages::SchedulerMsg;
use super::policy::{PolicyEvent, TierReport};
use crate::core::block_hash::{BlockContent, BlockHash};
use crate::core::tier::{FetchId, Tier, TierLimits};

/// Host memory for blocks that wait to be written to the disk, and for those that are read from it.
pub const TRANSFER_BYTES: u64 = 256 << 20;

/// Bytes that are read at once. The device writes them between two steps.
const PIECE_BYTES: usize = 8 << 20;

/// Reads that may have results in memory: those that the policy has under way, and as many that are on their way to the device.
const PIECES: usize = 8;

/// The tiers that the configuration asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KvStoreOptions {
    /// Bytes of host memory for blocks of each model, of all its replicas together; 0 for none.
    pub host_bytes: u64,
    /// The directory for blocks, and the bytes that each model may use there.
    pub disk: Option<(KvDirectory, u64)>,
}

impl KvStoreOptions {
    /// Whether any tier is used.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.host_bytes > 0 || self.disk.is_some()
    }

    /// Host memory that the tiers reserve for each replica of a model.
    #[must_use]
    pub fn reserved_bytes(host_bytes: u64, has_disk: bool, replicas: usize) -> u64 {
        host_bytes / replicas.max(1) as u64 + if has_disk { TRANSFER_BYTES } else { 0 }
    }

    /// The part of one of `replicas` replicas.
    #[must_use]
    pub fn of_replica(&self, replicas: usize) -> Self {
        let replicas = replicas.max(1) as u64;
        let disk = self.disk.as_ref().map(|(directory, bytes)| (directory.clone(), bytes / replicas));
        KvStoreOptions { host_bytes: self.host_bytes / replicas, disk }
    }
}

/// Copies of KV blocks of one replica. Cheap to clone.
#[derive(Clone)]
pub struct KvStore(Arc<Store>);

struct Store {
    layout: BlockLayout,
    memory: HostBlocks,
    host_limits: TierLimits,
    host: Mutex<HostTier>,
    disk: Option<Disk>,
    /// Receives the reports.
    scheduler: Mutex<Option<ActorRef<SchedulerMsg>>>,
}

/// The blocks in host memory.
#[derive(Default)]
struct HostTier {
    blocks: HashMap<BlockHash, Kept>,
    arrivals: u64,
}

struct Kept {
    arrival: u64,
    content: BlockContent,
    block: Arc<HostBlock>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KvStore {
    /// A store for the blocks of an engine with this layout. `replica` is the index of the replica.
    ///
    /// # Errors
    /// When the system starts no thread.
    pub fn start(
        options: &KvStoreOptions,
        layout: BlockLayout,
        model: ModelIdentity,
        replica: usize,
    ) -> io::Result<Self> {
        let blocks_in = |bytes: u64| usize::try_from(bytes / layout.bytes.max(1) as u64).unwrap_or(usize::MAX);
        let host = blocks_in(options.host_bytes);
        let piece = (PIECE_BYTES / layout.bytes.max(1)).max(1);
        let transfer = if options.disk.is_some() { blocks_in(TRANSFER_BYTES).max(2) } else { 0 };
        let read = (PIECES * piece).min(transfer / 2);
        let memory = HostBlocks::new(host + transfer, layout.bytes);
        let host_limits = TierLimits { blocks: host, arriving: host, piece };
        let limits = TierLimits { blocks: 0, arriving: transfer - read, piece: piece.min(read.max(1)) };
        let disk = options.disk.as_ref().map(|(directory, bytes)| DiskArguments {
            directory: directory.clone(),
            bytes: *bytes,
            block_bytes: layout.bytes,
            about: format!("{}\nreplica {replica}", layout.description),
            model,
            limits,
            memory: memory.clone(),
        });
        let mut failed = None;
        let store = Arc::new_cyclic(|store: &Weak<Store>| {
            let disk =
                disk.and_then(|disk| Disk::start(disk, report_to(store)).map_err(|error| failed = Some(error)).ok());
            Store { layout, memory, host_limits, host: Mutex::default(), disk, scheduler: Mutex::default() }
        });
        failed.map_or(Ok(KvStore(store)), Err)
    }

    /// Sends all reports to this scheduler from now on, and reports what the tiers hold.
    pub fn connect(&self, scheduler: ActorRef<SchedulerMsg>) {
        *lock(&self.0.scheduler) = Some(scheduler);
        if self.0.host_limits.blocks > 0 {
            self.0.report(Tier::Host, TierReport::Ready(self.0.host_limits, self.0.host_blocks()));
        }
        if let Some(disk) = &self.0.disk {
            disk.list();
        }
    }

    /// The layout of the blocks.
    #[must_use]
    pub fn layout(&self) -> &BlockLayout {
        &self.0.layout
    }

    /// Memory for the copy of a block. `None` when all of it is in use.
    #[must_use]
    pub fn take_memory(&self) -> Option<HostBlock> {
        self.0.memory.take()
    }

    /// Keeps a block. `None` instead of its bytes means that there was no memory for the copy.
    pub fn put(&self, content: BlockContent, tier: Tier, block: Option<HostBlock>) {
        match (block, tier, &self.0.disk) {
            (Some(block), Tier::Host, _) => {
                self.0.put_in_host(content, Arc::new(block));
                self.0.report(tier, TierReport::Kept(vec![(content.hash, content.is_portable)]));
            }
            (Some(block), Tier::Disk, Some(disk)) => disk.write(content, Arc::new(block)),
            _ => self.0.report(tier, TierReport::Refused(vec![content.hash])),
        }
    }

    /// Moves a block from host memory to the disk.
    pub fn demote(&self, hash: BlockHash) {
        let kept = lock(&self.0.host).blocks.remove(&hash);
        match (kept, &self.0.disk) {
            (Some(Kept { content, block, .. }), Some(disk)) => disk.write(content, block),
            _ => self.0.report(Tier::Disk, TierReport::Refused(vec![hash])),
        }
    }

    /// Removes a block from a tier.
    pub fn discard(&self, tier: Tier, hash: BlockHash) {
        match (tier, &self.0.disk) {
            (Tier::Host, _) => drop(lock(&self.0.host).blocks.remove(&hash)),
            (Tier::Disk, Some(disk)) => disk.remove(hash),
            (Tier::Disk, None) => {}
        }
    }

    /// Reads blocks from a tier for a scheduler, which gets the result as a message.
    pub fn fetch(&self, fetch: FetchId, tier: Tier, blocks: Vec<BlockContent>, scheduler: ActorRef<SchedulerMsg>) {
        // Fails only when the scheduler is gone.
        let reply = move |fetched| drop(scheduler.cast(SchedulerMsg::Fetched(fetched)));
        match (tier, &self.0.disk) {
            (Tier::Disk, Some(disk)) => disk.read(fetch, blocks, Box::new(reply)),
            _ => reply(self.0.fetch_from_host(fetch, &blocks)),
        }
    }
}

/// Reports of the disk, as long as the store exists.
fn report_to(store: &Weak<Store>) -> Report {
    let store = store.clone();
    Box::new(move |report| {
        if let Some(store) = store.upgrade() {
            store.report(Tier::Disk, report);
        }
    })
}

impl Store {
    fn report(&self, tier: Tier, report: TierReport) {
        if let Some(scheduler) = &*lock(&self.scheduler) {
            // A scheduler that is gone is replaced, and the next one gets a list.
            let _ = scheduler.cast(PolicyEvent::Tier(tier, report).into());
        }
    }

    fn put_in_host(&self, content: BlockContent, block: Arc<HostBlock>) {
        let mut host = lock(&self.host);
        host.arrivals += 1;
        let arrival = host.arrivals;
        host.blocks.insert(content.hash, Kept { arrival, content, block });
    }

    /// The blocks in host memory, in the order of their arrival.
    fn host_blocks(&self) -> Vec<(BlockHash, bool)> {
        let host = lock(&self.host);
        let mut blocks: Vec<&Kept> = host.blocks.values().collect();
        blocks.sort_unstable_by_key(|kept| kept.arrival);
        blocks.into_iter().map(|kept| (kept.content.hash, kept.content.is_portable)).collect()
    }

    fn fetch_from_host(&self, fetch: FetchId, contents: &[BlockContent]) -> Fetched {
        let began = Instant::now();
        let host = lock(&self.host);
        let found = contents.iter().map_while(|content| {
            let kept = host.blocks.get(&content.hash)?;
            (kept.content == *content).then(|| Arc::clone(&kept.block))
        });
        let blocks: Vec<_> = found.collect();
        drop(host);
        let next_is_lost = blocks.len() < contents.len();
        Fetched { fetch, tier: Tier::Host, blocks, next_is_lost, elapsed: began.elapsed() }
    }
}
