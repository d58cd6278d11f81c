//! The KV blocks and recurrent states that other servers may load: those in the host memory of all models of this process.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use async_stream::stream;
use bytes::Bytes;
use cuelight_engine::host_memory::HostCopy;
use futures_util::Stream;
use tokio::sync::Notify;
use tokio::time::{Instant, timeout_at};

use super::hashing::hash_aside;
use super::peer_key::{PeerKey, Seal};
use super::peer_protocol::{InvalidRequest, UnitsRequest};
use crate::core::cached_unit::UnitContent;
use crate::core::kv_transfer::PeerAddress;

/// How long an answer waits for a unit. Its copy may be on its way from the device, behind a step.
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
    /// The request is malformed.
    #[error(transparent)]
    Invalid(#[from] InvalidRequest),
}

/// Where shared units are.
pub(super) trait UnitSource: Send + Sync {
    /// Whether a server that knows its units by this hash of their meaning may use those of this source.
    fn means(&self, meaning: &str) -> bool;

    /// The length of the model's context.
    fn context_tokens(&self) -> usize;

    /// A unit, if it is there.
    fn unit(&self, content: &UnitContent) -> Option<Arc<HostCopy>>;
}

/// The units that other servers may load from this one. Cheap to clone.
#[derive(Clone)]
pub struct SharedBlocks(Arc<Shared>);

struct Shared {
    address: Arc<PeerAddress>,
    sources: Mutex<Vec<Weak<dyn UnitSource>>>,
    /// Signals that a unit has arrived in some source.
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
    /// No units yet. Other servers reach this one at `address`.
    #[must_use]
    pub fn new(address: PeerAddress) -> Self {
        SharedBlocks(Arc::new(Shared { address: Arc::new(address), sources: Mutex::default(), arrived: Notify::new() }))
    }

    /// Where other servers reach this one.
    #[must_use]
    pub fn address(&self) -> &Arc<PeerAddress> {
        &self.0.address
    }

    /// Shares the units of a source as long as it exists.
    pub(super) fn add(&self, source: Weak<dyn UnitSource>) {
        let mut sources = self.0.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|source| source.strong_count() > 0);
        sources.push(source);
    }

    /// The sources whose units a server may use.
    fn sources(&self, meaning: &str) -> Vec<Arc<dyn UnitSource>> {
        let sources = self.0.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.iter().filter_map(Weak::upgrade).filter(|source| source.means(meaning)).collect()
    }

    /// A unit has arrived in a source.
    pub(super) fn unit_arrived(&self) {
        self.0.arrived.notify_waiters();
    }

    /// The bytes of the answer to a request, sealed with the key of the server that asks, if it has one. The stream holds the
    /// tokens of the request, and no more than one unit.
    ///
    /// # Errors
    /// [`ShareError`].
    pub fn answer(
        &self,
        request: UnitsRequest,
        key: Option<PeerKey>,
    ) -> Result<impl Stream<Item = Bytes> + Send + use<>, ShareError> {
        let sources = self.sources(&request.meaning);
        let most = sources.iter().map(|source| source.context_tokens()).max().ok_or(ShareError::OtherModel)?;
        let tokens = request.tokens.len();
        if tokens > most {
            return Err(ShareError::TooLong { tokens, most });
        }
        request.units().map(drop)?;
        let (shared, seal) = (self.clone(), Seal { key, meaning: request.meaning.clone() });
        Ok(stream! {
            // Checked above.
            for content in request.units().into_iter().flatten() {
                let Some(unit) = shared.wait_for(&sources, &content).await else { break };
                let (seal, bytes) = (seal.clone(), Arc::clone(&unit));
                let header = hash_aside(unit.len(), move || seal.header(&content, &bytes)).await;
                let Some(header) = header else { break };
                yield Bytes::copy_from_slice(&header);
                yield Bytes::from_owner(UnitBytes(unit));
            }
        })
    }

    async fn wait_for(&self, sources: &[Arc<dyn UnitSource>], content: &UnitContent) -> Option<Arc<HostCopy>> {
        let until = Instant::now() + ARRIVAL_PATIENCE;
        loop {
            let arrived = self.0.arrived.notified();
            if let Some(unit) = sources.iter().find_map(|source| source.unit(content)) {
                return Some(unit);
            }
            timeout_at(until, arrived).await.ok()?;
        }
    }
}

/// The bytes of a unit, without a copy.
struct UnitBytes(Arc<HostCopy>);

impl AsRef<[u8]> for UnitBytes {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use cuelight_engine::cache_unit::{self, UnitKind};
    use cuelight_engine::host_memory::HostMemory;
    use futures_util::StreamExt;

    use super::*;
    use crate::core::block_hash::BlockHash;
    use crate::core::prefix_scope::PrefixScope;

    /// Has the first blocks that it is asked for.
    struct First {
        blocks: usize,
        asked: AtomicUsize,
    }

    impl UnitSource for First {
        fn means(&self, meaning: &str) -> bool {
            meaning == "model"
        }

        fn context_tokens(&self) -> usize {
            64
        }

        fn unit(&self, _: &UnitContent) -> Option<Arc<HostCopy>> {
            let is_there = self.asked.fetch_add(1, Ordering::Relaxed) < self.blocks;
            let memory = HostMemory::new(8, cache_unit::UnitBytes { block: 8, state: 0 });
            is_there.then(|| Arc::new(memory.take(UnitKind::Block).unwrap()))
        }
    }

    fn request(tokens: usize) -> UnitsRequest {
        let before = BlockHash::of_scope(&PrefixScope::default()).to_string();
        UnitsRequest { meaning: "model".to_owned(), before, tokens: vec![1; tokens], state: false }
    }

    #[tokio::test]
    async fn an_answer_ends_before_the_first_missing_block_and_looks_for_no_other() {
        let shared = SharedBlocks::new(PeerAddress { host: "here".to_owned(), port: 1 });
        let first = Arc::new(First { blocks: 2, asked: AtomicUsize::new(0) });
        let source: Arc<dyn UnitSource> = first.clone();
        shared.add(Arc::downgrade(&source));
        let answer: Vec<Bytes> = shared.answer(request(64), None).unwrap().collect().await;
        assert_eq!(answer.len(), 2 * 2, "a header and the bytes of each");
        assert_eq!(first.asked.load(Ordering::Relaxed), 3);
    }

    #[test]
    fn more_tokens_than_a_prompt_can_have_are_refused() {
        let shared = SharedBlocks::new(PeerAddress { host: "here".to_owned(), port: 1 });
        let source: Arc<dyn UnitSource> = Arc::new(First { blocks: 0, asked: AtomicUsize::new(0) });
        shared.add(Arc::downgrade(&source));
        let refused = |request| shared.answer(request, None).map(drop);
        assert_eq!(refused(request(64)), Ok(()));
        assert_eq!(refused(request(65)), Err(ShareError::TooLong { tokens: 65, most: 64 }));
        assert!(matches!(refused(UnitsRequest { before: "a".into(), ..request(1) }), Err(ShareError::Invalid(_))));
        assert!(matches!(refused(UnitsRequest { state: true, ..request(17) }), Err(ShareError::Invalid(_))));
        assert_eq!(refused(UnitsRequest { meaning: "other".into(), ..request(1) }), Err(ShareError::OtherModel));
    }
}
