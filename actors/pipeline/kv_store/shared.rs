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

use super::peer_key::{PeerKey, Seal};
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
    /// No prompt of the model is as long.
    #[error("{tokens} tokens are more than the {most} of the model's context")]
    TooLong {
        /// The tokens of the request.
        tokens: usize,
        /// The tokens of the context.
        most: usize,
    },
    /// The hash is malformed.
    #[error("`before` is malformed: {0}")]
    NotAHash(#[from] NotAHash),
}

/// Where shared blocks are.
pub(super) trait BlockSource: Send + Sync {
    /// Whether a server that knows its blocks by this hash of their meaning may use those of this source.
    fn means(&self, meaning: &str) -> bool;

    /// The length of the model's context.
    fn context_tokens(&self) -> usize;

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

    /// The bytes of the answer to a request, sealed with the key of the server that asks, if it has one. The stream holds the
    /// tokens of the request, and no more than one block.
    ///
    /// # Errors
    /// [`ShareError`].
    pub fn answer(
        &self,
        request: BlocksRequest,
        key: Option<PeerKey>,
    ) -> Result<impl Stream<Item = Bytes> + Send + use<>, ShareError> {
        let sources = self.sources(&request.meaning);
        let most = sources.iter().map(|source| source.context_tokens()).max().ok_or(ShareError::OtherModel)?;
        let tokens = request.tokens.len();
        if tokens > most {
            return Err(ShareError::TooLong { tokens, most });
        }
        request.blocks().map(drop)?;
        let (shared, seal) = (self.clone(), Seal { key, meaning: request.meaning.clone() });
        Ok(stream! {
            // Checked above.
            for content in request.blocks().into_iter().flatten() {
                let Some(block) = shared.wait_for(&sources, &content).await else { break };
                yield Bytes::copy_from_slice(&seal.header(&content, &block));
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

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use cuelight_engine::host_blocks::HostBlocks;
    use futures_util::StreamExt;

    use super::*;
    use crate::core::block_hash::BlockHash;
    use crate::core::prefix_scope::PrefixScope;

    /// Has the first blocks that it is asked for.
    struct First {
        blocks: usize,
        asked: AtomicUsize,
    }

    impl BlockSource for First {
        fn means(&self, meaning: &str) -> bool {
            meaning == "model"
        }

        fn context_tokens(&self) -> usize {
            64
        }

        fn block(&self, _: &BlockContent) -> Option<Arc<HostBlock>> {
            let is_there = self.asked.fetch_add(1, Ordering::Relaxed) < self.blocks;
            is_there.then(|| Arc::new(HostBlocks::new(1, 8).take().unwrap()))
        }
    }

    fn request(tokens: usize) -> BlocksRequest {
        let before = BlockHash::of_scope(&PrefixScope::default()).to_string();
        BlocksRequest { meaning: "model".to_owned(), before, tokens: vec![1; tokens] }
    }

    #[tokio::test]
    async fn an_answer_ends_before_the_first_missing_block_and_looks_for_no_other() {
        let shared = SharedBlocks::new(PeerAddress { host: "here".to_owned(), port: 1 });
        let first = Arc::new(First { blocks: 2, asked: AtomicUsize::new(0) });
        let source: Arc<dyn BlockSource> = first.clone();
        shared.add(Arc::downgrade(&source));
        let answer: Vec<Bytes> = shared.answer(request(64), None).unwrap().collect().await;
        assert_eq!(answer.len(), 2 * 2, "a header and the bytes of each");
        assert_eq!(first.asked.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn more_tokens_than_a_prompt_can_have_are_refused() {
        let shared = SharedBlocks::new(PeerAddress { host: "here".to_owned(), port: 1 });
        let source: Arc<dyn BlockSource> = Arc::new(First { blocks: 0, asked: AtomicUsize::new(0) });
        shared.add(Arc::downgrade(&source));
        let refused = |request| shared.answer(request, None).map(drop);
        assert_eq!(refused(request(64)), Ok(()));
        assert_eq!(refused(request(65)), Err(ShareError::TooLong { tokens: 65, most: 64 }));
        assert!(matches!(refused(BlocksRequest { before: "a".into(), ..request(1) }), Err(ShareError::NotAHash(_))));
        assert_eq!(refused(BlocksRequest { meaning: "other".into(), ..request(1) }), Err(ShareError::OtherModel));
    }
}
