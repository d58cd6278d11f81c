//! Keeps copies of KV blocks and recurrent states, the *units* of a cache, outside of the engine: in host memory, and in files of a
//! directory.
//!
//! The store decides nothing. The scheduler's policy says what is copied, moved, read and removed, and the store reports what has
//! happened. It lives as long as the model, so its contents outlive the engine and the scheduler.
//!
//! - `checksum`, `unit_file`: the file of one unit; `hashing`: on which thread bytes are hashed
//! - `directory`, `model_content`: where the files of a model are
//! - `disk`: the threads that write and read files
//! - `shared`: the units that other servers may load
//! - `peers`: loads units from other servers
//! - `peer_rules`: from which servers
//! - `peer_protocol`: what servers send each other
//! - `peer_key`: how they know each other

mod checksum;
mod directory;
mod disk;
mod hashing;
mod model_content;
mod peer_key;
mod peer_protocol;
mod peer_rules;
mod peers;
mod shared;
mod unit_file;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use cuelight_engine::engine::{CacheLayout, UnitBytes, UnitKind};
use cuelight_engine::host_memory::{HostCopy, HostMemory};
use cuelight_engine::load::TierMemory;
use ractor::ActorRef;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

pub use self::directory::{DirectoryError, KvDirectory};
pub use self::disk::Fetched;
use self::disk::{Disk, DiskArguments, Report};
pub use self::model_content::ModelIdentity;
use self::model_content::{hex, meaning};
pub use self::peer_key::PeerKey;
pub use self::peer_protocol::{InvalidRequest, PATH as BLOCKS_PATH, UnitsRequest};
pub use self::peer_rules::{InvalidPeerRule, PeerHosts, PeerRule};
pub use self::peers::PeerOptions;
use self::peers::{Meaning, Peers};
use self::shared::UnitSource;
pub use self::shared::{ShareError, SharedBlocks};
use super::messages::SchedulerMsg;
use super::policy::{PolicyEvent, TierReport};
use crate::core::cached_unit::{KeptUnit, UnitContent, UnitId};
use crate::core::kv_transfer::PeerAddress;
use crate::core::tier::{FetchId, Tier, TierLimits};

/// Host memory for blocks that wait to be written to the disk, and for those that are read from it or from other servers.
pub const TRANSFER_BYTES: u64 = 256 << 20;

/// Recurrent states for which there is memory in addition. One half waits to be written, the other is read.
pub const TRANSFER_STATES: usize = 4;

/// Bytes that are read at once. The device writes them between two steps.
const PIECE_BYTES: u64 = 8 << 20;

/// Reads of blocks that may have results in memory: those that the policy has under way, and as many that are on their way to the
/// device.
const PIECES: u64 = 8;

/// The tiers that the configuration asks for.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KvStoreOptions {
    /// Bytes of host memory for units of each model, of all its replicas together; 0 for none.
    pub host_bytes: u64,
    /// The directory for units, and the bytes that each model may use there.
    pub disk: Option<(KvDirectory, u64)>,
    /// The servers from which units are loaded.
    pub peers: PeerOptions,
    /// Where units are shared with other servers, if they are.
    pub shared: Option<SharedBlocks>,
}

impl KvStoreOptions {
    /// Whether any tier is used.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.host_bytes > 0 || self.transfers()
    }

    /// Whether units are on their way for some time, because they come from the disk or from other servers.
    fn transfers(&self) -> bool {
        self.disk.is_some() || !self.peers.allowed.is_empty()
    }

    /// Host memory that the tiers reserve for each replica of a model. `transfers`: with a disk tier or other servers.
    #[must_use]
    pub fn reserved(host_bytes: u64, transfers: bool, replicas: usize) -> TierMemory {
        let bytes = host_bytes / replicas.max(1) as u64;
        match transfers {
            true => TierMemory { bytes: bytes + TRANSFER_BYTES, states: TRANSFER_STATES },
            false => TierMemory { bytes, states: 0 },
        }
    }

    /// Whether some tier is used and none of them can hold a recurrent state of `state_bytes` bytes.
    #[must_use]
    pub fn is_too_small_for(&self, state_bytes: usize, replicas: usize) -> bool {
        let disk_bytes = self.disk.as_ref().map_or(0, |(_, bytes)| *bytes);
        let most = self.host_bytes.max(disk_bytes) / replicas.max(1) as u64;
        most > 0 && most < state_bytes as u64
    }

    /// For units of these sizes: the host memory for those on their way, and how much of it may wait to be written to the disk.
    fn transfer_memory(&self, of_unit: UnitBytes) -> (u64, u64) {
        if !self.transfers() {
            return (0, 0);
        }
        let states = (TRANSFER_STATES * of_unit.state) as u64;
        // Two blocks, should one be that large.
        let bytes = TRANSFER_BYTES.max(2 * of_unit.block as u64) + states;
        let piece = PIECE_BYTES.max(of_unit.block as u64);
        let read = (PIECES * piece).min(bytes / 2) + states / 2;
        (bytes, bytes - read)
    }
}

/// Copies of units of one replica. Cheap to clone.
#[derive(Clone)]
pub struct KvStore(Arc<Store>);

struct Store {
    context_tokens: usize,
    memory: HostMemory,
    host_limits: TierLimits,
    host: Mutex<HostTier>,
    disk: Option<Disk>,
    peers: Option<Arc<Peers>>,
    /// What the units mean, as a hash. Set once the model's files are hashed, if other servers are to know.
    meaning: Meaning,
    shared: Option<SharedBlocks>,
    /// Receives the reports.
    scheduler: Mutex<Option<ActorRef<SchedulerMsg>>>,
}

/// The units in host memory.
#[derive(Default)]
struct HostTier {
    units: HashMap<UnitId, Kept>,
    arrivals: u64,
}

struct Kept {
    arrival: u64,
    content: UnitContent,
    unit: Arc<HostCopy>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl KvStore {
    /// A store for the units of an engine with this layout and length of the context, which is one of the `replicas` replicas of a
    /// model. `replica` is its index. The replicas share the memory and the disk.
    ///
    /// # Errors
    /// When the system starts no thread, or no client for other servers can be made.
    pub fn start(
        options: &KvStoreOptions,
        (layout, context_tokens): (CacheLayout, usize),
        model: ModelIdentity,
        (replica, replicas): (usize, usize),
    ) -> io::Result<Self> {
        let host = options.host_bytes / replicas.max(1) as u64;
        let (transfer, arriving) = options.transfer_memory(layout.bytes);
        let memory = HostMemory::new(host + transfer, layout.bytes);
        let host_limits = TierLimits { bytes: host, arriving: host, piece: PIECE_BYTES, of_unit: layout.bytes };
        let limits = TierLimits { bytes: 0, arriving, ..host_limits };
        let disk = options.disk.as_ref().map(|(directory, bytes)| DiskArguments {
            directory: directory.clone(),
            bytes: *bytes,
            layout: layout.clone(),
            replica,
            replicas,
            model: model.clone(),
            limits,
            memory: memory.clone(),
        });
        let (found, meaning) = watch::channel(None);
        let has_peers = !options.peers.allowed.is_empty();
        if has_peers || options.shared.is_some() {
            find_meaning(found, &layout, model)?;
        }
        let peers = has_peers.then(|| Peers::new(options.peers.clone(), memory.clone()).map(Arc::new));
        let peers = peers.transpose().map_err(io::Error::other)?;
        let shared = options.shared.clone();
        let mut failed = None;
        let store = Arc::new_cyclic(|store: &Weak<Store>| {
            let disk =
                disk.and_then(|disk| Disk::start(disk, report_to(store)).map_err(|error| failed = Some(error)).ok());
            Store {
                context_tokens,
                memory,
                host_limits,
                host: Mutex::default(),
                disk,
                peers,
                meaning,
                shared,
                scheduler: Mutex::default(),
            }
        });
        if let Some(shared) = &store.shared {
            let source: Weak<Store> = Arc::downgrade(&store);
            shared.add(source);
        }
        failed.map_or(Ok(KvStore(store)), Err)
    }

    /// Sends all reports to this scheduler from now on, and reports what the tiers hold.
    pub fn connect(&self, scheduler: ActorRef<SchedulerMsg>) {
        *lock(&self.0.scheduler) = Some(scheduler);
        let limits = self.0.host_limits;
        if limits.bytes > 0 {
            self.0.report(Tier::Host, TierReport::Ready(limits, self.0.host_units()));
        }
        if let Some(disk) = &self.0.disk {
            disk.list();
        }
        if self.0.peers.is_some() {
            let limits = TierLimits { bytes: 0, arriving: 0, ..limits };
            self.0.report(Tier::Peer, TierReport::Ready(limits, Vec::new()));
        }
    }

    /// Memory for the copy of a unit. `None` when there is not enough.
    #[must_use]
    pub fn take_memory(&self, kind: UnitKind) -> Option<HostCopy> {
        self.0.memory.take(kind)
    }

    /// Keeps a unit. `None` instead of its bytes means that there was no memory for the copy.
    pub fn put(&self, content: UnitContent, tier: Tier, unit: Option<HostCopy>) {
        match (unit, tier, &self.0.disk) {
            (Some(unit), Tier::Host, _) => {
                self.0.put_in_host(content, Arc::new(unit));
                self.0.report(tier, TierReport::Kept(vec![content.kept()]));
            }
            (Some(unit), Tier::Disk, Some(disk)) => disk.write(content, Arc::new(unit)),
            _ => self.0.report(tier, TierReport::Refused(vec![content.id()])),
        }
    }

    /// Moves a unit from host memory to the disk.
    pub fn demote(&self, id: UnitId) {
        let kept = lock(&self.0.host).units.remove(&id);
        match (kept, &self.0.disk) {
            (Some(Kept { content, unit, .. }), Some(disk)) => disk.write(content, unit),
            _ => self.0.report(Tier::Disk, TierReport::Refused(vec![id])),
        }
    }

    /// Removes a unit from a tier.
    pub fn discard(&self, tier: Tier, id: UnitId) {
        match (tier, &self.0.disk) {
            (Tier::Host, _) => drop(lock(&self.0.host).units.remove(&id)),
            (Tier::Disk, Some(disk)) => disk.remove(id),
            (Tier::Disk, None) | (Tier::Peer, _) => {}
        }
    }

    /// Reads units of one kind from a tier, or from another server within a time limit, for a scheduler, which gets the result as a
    /// message.
    pub fn fetch(
        &self,
        fetch: FetchId,
        (tier, peer): (Tier, Option<Arc<PeerAddress>>),
        (units, time_limit): (Vec<UnitContent>, Duration),
        scheduler: ActorRef<SchedulerMsg>,
    ) {
        // Fails only when the scheduler is gone.
        let reply = move |fetched| drop(scheduler.cast(SchedulerMsg::Fetched(fetched)));
        match (tier, &self.0.disk, &self.0.peers, peer) {
            (Tier::Disk, Some(disk), ..) => disk.read(fetch, units, Box::new(reply)),
            (Tier::Peer, _, Some(peers), Some(peer)) => {
                let (peers, meaning) = (Arc::clone(peers), self.0.meaning.clone());
                tokio::spawn(async move {
                    let began = Instant::now();
                    let found = peers.read(&peer, meaning, &units, time_limit).await;
                    reply(Fetched::of(fetch, tier, &units, found, began));
                });
            }
            _ => reply(self.0.fetch_from_host(fetch, &units)),
        }
    }
}

/// Finds out on a thread of its own what the units of a model mean.
fn find_meaning(found: watch::Sender<Option<String>>, layout: &CacheLayout, model: ModelIdentity) -> io::Result<()> {
    let layout = layout.clone();
    let find = move || match model.content(None) {
        Ok(content) => {
            let text = meaning(&content, layout.bytes, &layout.description);
            found.send_replace(Some(hex(&Sha256::digest(text))));
        }
        Err(error) => {
            tracing::error!(%error, "KV blocks are exchanged with no server: the model's files cannot be hashed");
        }
    };
    thread::Builder::new().name("cuelight-kv-meaning".into()).spawn(find).map(drop)
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

    fn put_in_host(&self, content: UnitContent, unit: Arc<HostCopy>) {
        let mut host = lock(&self.host);
        host.arrivals += 1;
        let arrival = host.arrivals;
        host.units.insert(content.id(), Kept { arrival, content, unit });
        drop(host);
        if let Some(shared) = &self.shared {
            shared.unit_arrived();
        }
    }

    /// The units in host memory, in the order of their arrival.
    fn host_units(&self) -> Vec<KeptUnit> {
        let host = lock(&self.host);
        let mut units: Vec<&Kept> = host.units.values().collect();
        units.sort_unstable_by_key(|kept| kept.arrival);
        units.into_iter().map(|kept| kept.content.kept()).collect()
    }

    fn fetch_from_host(&self, fetch: FetchId, contents: &[UnitContent]) -> Fetched {
        let began = Instant::now();
        let units = contents.iter().map_while(|content| self.unit(content)).collect();
        Fetched::of(fetch, Tier::Host, contents, units, began)
    }
}

impl UnitSource for Store {
    fn means(&self, meaning: &str) -> bool {
        self.meaning.borrow().as_deref() == Some(meaning)
    }

    fn context_tokens(&self) -> usize {
        self.context_tokens
    }

    /// A unit in host memory.
    fn unit(&self, content: &UnitContent) -> Option<Arc<HostCopy>> {
        let host = lock(&self.host);
        let kept = host.units.get(&content.id())?;
        (kept.content == *content).then(|| Arc::clone(&kept.unit))
    }
}
