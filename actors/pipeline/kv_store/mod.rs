//! Keeps copies of KV blocks outside of the engine: in host memory, and in files of a directory.
//!
//! The store decides nothing. The scheduler's policy says what is copied, moved, read and removed, and the store reports what has
//! happened. It lives as long as the model, so its contents outlive the engine and the scheduler.
//!
//! - `checksum`, `block_file`: the file of one block
//! - `directory`, `model_content`: where the files of a model are
//! - `disk`: the threads that write and read files
//! - `shared`: the blocks that other servers may load
//! - `peers`: loads blocks from other servers
//! - `peer_rules`: from which servers
//! - `peer_protocol`: what servers send each other
//! - `peer_key`: how they know each other

mod block_file;
mod checksum;
mod directory;
mod disk;
mod model_content;
mod peer_key;
mod peer_protocol;
mod peer_rules;
mod peers;
mod shared;

use std::collections::HashMap;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use cuelight_engine::engine::BlockLayout;
use cuelight_engine::host_blocks::{HostBlock, HostBlocks};
use ractor::ActorRef;
use sha2::{Digest, Sha256};
use tokio::sync::watch;

pub use self::directory::{DirectoryError, KvDirectory};
pub use self::disk::Fetched;
use self::disk::{Disk, DiskArguments, Report};
pub use self::model_content::ModelIdentity;
use self::model_content::{hex, meaning};
pub use self::peer_key::PeerKey;
pub use self::peer_protocol::{BlocksRequest, PATH as BLOCKS_PATH};
pub use self::peer_rules::{InvalidPeerRule, PeerHosts, PeerRule};
pub use self::peers::PeerOptions;
use self::peers::{Meaning, Peers};
use self::shared::BlockSource;
pub use self::shared::{ShareError, SharedBlocks};
use super::messages::SchedulerMsg;
use super::policy::{PolicyEvent, TierReport};
use crate::core::block_hash::{BlockContent, BlockHash};
use crate::core::kv_transfer::PeerAddress;
use crate::core::tier::{FetchId, Tier, TierLimits};

/// Host memory for blocks that wait to be written to the disk, and for those that are read from it or from other servers.
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
    /// The servers from which blocks are loaded.
    pub peers: PeerOptions,
    /// Where blocks are shared with other servers, if they are.
    pub shared: Option<SharedBlocks>,
}

impl KvStoreOptions {
    /// Whether any tier is used.
    #[must_use]
    pub fn is_used(&self) -> bool {
        self.host_bytes > 0 || self.transfers()
    }

    /// Whether blocks are on their way for some time, because they come from the disk or from other servers.
    fn transfers(&self) -> bool {
        self.disk.is_some() || !self.peers.allowed.is_empty()
    }

    /// Host memory that the tiers reserve for each replica of a model. `transfers`: with a disk tier or other servers.
    #[must_use]
    pub fn reserved_bytes(host_bytes: u64, transfers: bool, replicas: usize) -> u64 {
        host_bytes / replicas.max(1) as u64 + if transfers { TRANSFER_BYTES } else { 0 }
    }
}

/// Copies of KV blocks of one replica. Cheap to clone.
#[derive(Clone)]
pub struct KvStore(Arc<Store>);

struct Store {
    layout: BlockLayout,
    context_tokens: usize,
    memory: HostBlocks,
    host_limits: TierLimits,
    host: Mutex<HostTier>,
    disk: Option<Disk>,
    peers: Option<Arc<Peers>>,
    /// Blocks that are read from other servers at once.
    peer_piece: usize,
    /// What the blocks mean, as a hash. Set once the model's files are hashed, if other servers are to know.
    meaning: Meaning,
    shared: Option<SharedBlocks>,
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
    /// A store for the blocks of an engine with this layout and length of the context, which is one of the `replicas` replicas of a
    /// model. `replica` is its index. The replicas share the memory and the disk.
    ///
    /// # Errors
    /// When the system starts no thread, or no client for other servers can be made.
    pub fn start(
        options: &KvStoreOptions,
        (layout, context_tokens): (BlockLayout, usize),
        model: ModelIdentity,
        (replica, replicas): (usize, usize),
    ) -> io::Result<Self> {
        let blocks_in = |bytes: u64| usize::try_from(bytes / layout.bytes.max(1) as u64).unwrap_or(usize::MAX);
        let host = blocks_in(options.host_bytes / replicas.max(1) as u64);
        let piece = (PIECE_BYTES / layout.bytes.max(1)).max(1);
        let transfer = if options.transfers() { blocks_in(TRANSFER_BYTES).max(2) } else { 0 };
        let read = (PIECES * piece).min(transfer / 2);
        let memory = HostBlocks::new(host + transfer, layout.bytes);
        let host_limits = TierLimits { blocks: host, arriving: host, piece };
        let limits = TierLimits { blocks: 0, arriving: transfer - read, piece: piece.min(read.max(1)) };
        let disk = options.disk.as_ref().map(|(directory, bytes)| DiskArguments {
            directory: directory.clone(),
            bytes: *bytes,
            block_bytes: layout.bytes,
            layout: layout.description.clone(),
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
        let (shared, peer_piece) = (options.shared.clone(), limits.piece);
        let mut failed = None;
        let store = Arc::new_cyclic(|store: &Weak<Store>| {
            let disk =
                disk.and_then(|disk| Disk::start(disk, report_to(store)).map_err(|error| failed = Some(error)).ok());
            Store {
                layout,
                context_tokens,
                memory,
                host_limits,
                host: Mutex::default(),
                disk,
                peers,
                peer_piece,
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
        if self.0.host_limits.blocks > 0 {
            self.0.report(Tier::Host, TierReport::Ready(self.0.host_limits, self.0.host_blocks()));
        }
        if let Some(disk) = &self.0.disk {
            disk.list();
        }
        if self.0.peers.is_some() {
            let limits = TierLimits { piece: self.0.peer_piece, ..TierLimits::default() };
            self.0.report(Tier::Peer, TierReport::Ready(limits, Vec::new()));
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
            (Tier::Disk, None) | (Tier::Peer, _) => {}
        }
    }

    /// Reads blocks from a tier, or from another server within a time limit, for a scheduler, which gets the result as a message.
    pub fn fetch(
        &self,
        fetch: FetchId,
        (tier, peer): (Tier, Option<Arc<PeerAddress>>),
        (blocks, time_limit): (Vec<BlockContent>, Duration),
        scheduler: ActorRef<SchedulerMsg>,
    ) {
        // Fails only when the scheduler is gone.
        let reply = move |fetched| drop(scheduler.cast(SchedulerMsg::Fetched(fetched)));
        match (tier, &self.0.disk, &self.0.peers, peer) {
            (Tier::Disk, Some(disk), ..) => disk.read(fetch, blocks, Box::new(reply)),
            (Tier::Peer, _, Some(peers), Some(peer)) => {
                let (peers, meaning) = (Arc::clone(peers), self.0.meaning.clone());
                tokio::spawn(async move {
                    let began = Instant::now();
                    let found = peers.read(&peer, meaning, &blocks, time_limit).await;
                    reply(Fetched::of(fetch, tier, &blocks, found, began));
                });
            }
            _ => reply(self.0.fetch_from_host(fetch, &blocks)),
        }
    }
}

/// Finds out on a thread of its own what the blocks of a model mean.
fn find_meaning(found: watch::Sender<Option<String>>, layout: &BlockLayout, model: ModelIdentity) -> io::Result<()> {
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

    fn put_in_host(&self, content: BlockContent, block: Arc<HostBlock>) {
        let mut host = lock(&self.host);
        host.arrivals += 1;
        let arrival = host.arrivals;
        host.blocks.insert(content.hash, Kept { arrival, content, block });
        drop(host);
        if let Some(shared) = &self.shared {
            shared.block_arrived();
        }
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
        let blocks = contents.iter().map_while(|content| self.block(content)).collect();
        Fetched::of(fetch, Tier::Host, contents, blocks, began)
    }
}

impl BlockSource for Store {
    fn means(&self, meaning: &str) -> bool {
        self.meaning.borrow().as_deref() == Some(meaning)
    }

    fn context_tokens(&self) -> usize {
        self.context_tokens
    }

    /// A block in host memory.
    fn block(&self, content: &BlockContent) -> Option<Arc<HostBlock>> {
        let host = lock(&self.host);
        let kept = host.blocks.get(&content.hash)?;
        (kept.content == *content).then(|| Arc::clone(&kept.block))
    }
}
