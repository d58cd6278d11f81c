//! The blocks that other servers may load: those in the host memory of all models of this process.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_stream::stream;
use bytes::Bytes;
use cuelight_engine::host_blocks::HostBlock;
use futures_util::Stream;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::block_file;
use super::peer_protocol::BlocksRequest;
use crate::core::block_hash::{BlockContent, NotAHash};
use crate::core::kv_transfer::PeerAddress;

/// How long an answer waits for a block. Its copy may be on its way from the device, behind a step.
const ARRIVAL_PATIENCE: Duration = Duration::from_millis(500);

/// Why no blocks are given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShareError {
    /// No model has these blocks.
    #[error(
        "no loaded model of this server computes the same KV blocks: model, device, kernels and --kv-type must be equal"
    )]
    OtherModel,
    /// The hash is malformed.
    #[error("`before` is malformed: {0}")]
    NotAHash(#[from] NotAHash),
}

/// Where shared blocks are.
pub(super) trait BlockSource: Send + Sync {
    /// Whether a server that knows its blocks by this hash of their meaning may use those of this source.
    fn means(&self, meaning: &str) -> bool;

    /// A block, if it is there.
    fn block(&self, content: &BlockContent) -> Option<Arc<HostBlock>>;
}

/// The blocks that other servers may load from this one. Cheap to clone.
#[derive(Clone)]
pub struct SharedBlocks(Arc<Shared>);

struct Shared {
    address: Arc<PeerAddress>,
    sources: Mutex<Vec<Weak<dyn BlockSource>>>,
    /// Signals that a block has arrived in some source.
    arrived: Notify,
}

impl fmt::Debug for SharedBlocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("SharedBlocks").field(&self.0.address).finish()
    }
}

impl PartialEq for SharedBlocks {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedBlocks {}

impl SharedBlocks {
    /// No blocks yet. Other servers reach this one at `address`.
    #[must_use]
    pub fn new(address: PeerAddress) -> Self {
        SharedBlocks(Arc::new(Shared { address: Arc::new(address), sources: Mutex::default(), arrived: Notify::new() }))
    }

    /// Where other servers reach this one.
    #[must_use]
    pub fn address(&self) -> &Arc<PeerAddress> {
        &self.0.address
    }

    /// Shares the blocks of a source as long as it exists.
    pub(super) fn add(&self, source: Weak<dyn BlockSource>) {
        let mut sources = self.0.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|source| source.strong_count() > 0);
        sources.push(source);
    }

    /// The sources whose blocks a server may use.
    fn sources(&self, meaning: &str) -> Vec<Arc<dyn BlockSource>> {
        let sources = self.0.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.iter().filter_map(Weak::upgrade).filter(|source| source.means(meaning)).collect()
    }

    /// A block has arrived in a source.
    pub(super) fn block_arrived(&self) {
        self.0.arrived.notify_waiters();
    }

    /// The bytes of the answer to a request.
    ///
    /// # Errors
    /// [`ShareError`].
    pub fn answer(&self, request: &BlocksRequest) -> Result<impl Stream<Item = Bytes> + Send + use<>, ShareError> {
        let sources = self.sources(&request.meaning);
        if sources.is_empty() {
            return Err(ShareError::OtherModel);
        }
        let (shared, contents) = (self.clone(), request.blocks()?);
        Ok(stream! {
            for content in contents {
                let Some(block) = shared.wait_for(&sources, &content).await else { break };
                yield Bytes::copy_from_slice(&block_file::header(&content, &block));
                yield Bytes::from_owner(BlockBytes(block));
            }
        })
    }

    async fn wait_for(&self, sources: &[Arc<dyn BlockSource>], content: &BlockContent) -> Option<Arc<HostBlock>> {
        let until = Instant::now() + ARRIVAL_PATIENCE;
        loop {
            let arrived = self.0.arrived.notified();
            if let Some(block) = sources.iter().find_map(|source| source.block(content)) {
                return Some(block);
            }
            timeout_at(until, arrived).await.ok()?;
        }
    }
}

/// The bytes of a block, without a copy.
struct BlockBytes(Arc<HostBlock>);

impl AsRef<[u8]> for BlockBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}
