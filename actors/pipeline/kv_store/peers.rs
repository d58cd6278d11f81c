//! Loads KV blocks and recurrent states from other servers.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use cuelight_engine::engine::UnitKind;
use cuelight_engine::host_memory::{HostCopy, HostMemory};
use reqwest::header::CONTENT_TYPE;
use reqwest::redirect::Policy;
use reqwest::{Client, Response, StatusCode};
use tokio::sync::watch;
use tokio::time::timeout;

use super::hashing::hash_aside;
use super::peer_key::{PeerKey, Seal};
use super::peer_protocol::{PATH, UnitsRequest};
use super::peer_rules::PeerRule;
use super::unit_file::HEADER_BYTES;
use crate::core::cached_unit::UnitContent;
use crate::core::error_chain::error_chain;
use crate::core::kv_transfer::PeerAddress;

/// Longest time until a connection is made, and between two parts of an answer.
const SILENCE: Duration = Duration::from_secs(2);

/// Longest time for one read.
const READ_LIMIT: Duration = Duration::from_secs(60);

/// How long a read waits for host memory.
const MEMORY_PATIENCE: Duration = Duration::from_millis(500);

/// How long a server that has failed is not asked.
const FAILURE_PAUSE: Duration = Duration::from_secs(5);

/// Bytes of the reason for a refusal that are read.
const REASON_BYTES: usize = 500;

/// Least time between two warnings.
const PAUSE: Duration = Duration::from_secs(60);

/// The servers from which blocks may be loaded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerOptions {
    /// Requests may name these servers. Empty: blocks are loaded from no server.
    pub allowed: Vec<PeerRule>,
    /// The key that the servers require, and that their blocks are sealed with.
    pub key: Option<PeerKey>,
}

impl PeerOptions {
    /// Whether blocks may be loaded from a server. A key is used only where a rule names the port, because any
    /// client may name a server.
    fn allows(&self, peer: &PeerAddress) -> bool {
        let mut rules = self.allowed.iter().filter(|rule| self.key.is_none() || rule.port.is_some());
        rules.any(|rule| rule.allows(peer))
    }
}

/// Why a unit was not loaded.
#[derive(Debug, thiserror::Error)]
enum PeerError {
    #[error("no rule allows it")]
    NotAllowed,
    #[error("this server does not know yet what its own blocks mean")]
    TooEarly,
    #[error("{}", error_chain(.0))]
    Http(#[from] reqwest::Error),
    #[error("it answers {0}: {1}")]
    Refused(StatusCode, String),
    #[error("its answer ends inside a block or a state")]
    Truncated,
    #[error("a block or a state is damaged")]
    Damaged,
    #[error("a block or a state is damaged, or does not come from a server with the same key")]
    NotSealed,
    #[error("it takes too long")]
    TooLong,
    #[error("no host memory is free")]
    NoMemory,
}

impl PeerError {
    /// Whether the other server has failed, and not this one.
    fn is_failure_of_peer(&self) -> bool {
        !matches!(self, PeerError::NotAllowed | PeerError::TooEarly | PeerError::NoMemory)
    }
}

/// What the units of this server mean, once it is known.
pub(super) type Meaning = watch::Receiver<Option<String>>;

/// The other servers.
pub(super) struct Peers {
    options: PeerOptions,
    client: Client,
    memory: HostMemory,
    last_warning: Mutex<Option<Instant>>,
    /// The servers that have failed, and when.
    failed: Mutex<HashMap<PeerAddress, Instant>>,
}

impl Peers {
    /// Reads blocks to `memory`.
    pub fn new(options: PeerOptions, memory: HostMemory) -> Result<Self, reqwest::Error> {
        // A redirection would lead to a server that no rule allows.
        let client = Client::builder().no_proxy().redirect(Policy::none()).connect_timeout(SILENCE);
        let client = client.read_timeout(SILENCE).build()?;
        Ok(Peers { options, client, memory, last_warning: Mutex::default(), failed: Mutex::default() })
    }

    /// The leading blocks of `contents` that a server has and that arrive in time and as they should. A server that has failed is
    /// not asked for some seconds.
    pub async fn read(
        &self,
        peer: &PeerAddress,
        meaning: Meaning,
        contents: &[UnitContent],
        time_limit: Duration,
    ) -> Vec<Arc<HostCopy>> {
        let mut units = Vec::with_capacity(contents.len());
        if lock(&self.failed).get(peer).is_some_and(|failed| failed.elapsed() < FAILURE_PAUSE) {
            return units;
        }
        let is_early = || meaning.borrow().is_none();
        let read = timeout(time_limit.min(READ_LIMIT), self.try_read(peer, meaning.clone(), contents, &mut units));
        let too_long = |_| Err(if is_early() { PeerError::TooEarly } else { PeerError::TooLong });
        if let Err(error) = read.await.unwrap_or_else(too_long) {
            if error.is_failure_of_peer() {
                self.record_failure(peer);
            }
            self.warn(peer, &error);
        }
        units
    }

    fn record_failure(&self, peer: &PeerAddress) {
        let mut failed = lock(&self.failed);
        failed.retain(|_, failed| failed.elapsed() < FAILURE_PAUSE);
        failed.insert(peer.clone(), Instant::now());
    }

    async fn try_read(
        &self,
        peer: &PeerAddress,
        mut meaning: Meaning,
        contents: &[UnitContent],
        units: &mut Vec<Arc<HostCopy>>,
    ) -> Result<(), PeerError> {
        if !self.options.allows(peer) {
            return Err(PeerError::NotAllowed);
        }
        let known = timeout(SILENCE, meaning.wait_for(Option::is_some)).await;
        let meaning = known.ok().and_then(Result::ok).and_then(|known| known.clone()).ok_or(PeerError::TooEarly)?;
        let Some(request) = UnitsRequest::of(&meaning, contents) else { return Ok(()) };
        let body = serde_json::to_vec(&request).unwrap_or_default();
        let request =
            self.client.post(format!("http://{peer}{PATH}")).header(CONTENT_TYPE, "application/json").body(body);
        let request = match &self.options.key {
            Some(key) => request.bearer_auth(key.token()),
            None => request,
        };
        let response = request.send().await?;
        if !response.status().is_success() {
            return Err(PeerError::Refused(response.status(), reason_of(response).await));
        }
        let seal = Seal { key: self.options.key.clone(), meaning };
        let mut answer = Answer { response, rest: Bytes::new() };
        for content in contents {
            let mut head = [0; HEADER_BYTES];
            if !answer.fill(&mut head).await? {
                return Ok(());
            }
            let mut unit = self.take_memory(content.kind).await.ok_or(PeerError::NoMemory)?;
            if !answer.fill(&mut unit).await? {
                return Err(PeerError::Truncated);
            }
            let (sealed, content) = (seal.clone(), *content);
            let checked = hash_aside(unit.len(), move || sealed.is_on(&head, &content, &unit).then_some(unit)).await;
            let refused = if seal.key.is_some() { PeerError::NotSealed } else { PeerError::Damaged };
            units.push(Arc::new(checked.flatten().ok_or(refused)?));
        }
        Ok(())
    }

    /// Memory for a unit. Reads whose results are on their way to the device hold some of it for a short time.
    async fn take_memory(&self, kind: UnitKind) -> Option<HostCopy> {
        let until = Instant::now() + MEMORY_PATIENCE;
        loop {
            match self.memory.take(kind) {
                Some(unit) => return Some(unit),
                None if Instant::now() > until => return None,
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    }

    fn warn(&self, peer: &PeerAddress, error: &PeerError) {
        let mut last = lock(&self.last_warning);
        if last.is_none_or(|last| last.elapsed() > PAUSE) {
            tracing::warn!(%peer, %error, "KV blocks of another server are computed instead of loaded");
            *last = Some(Instant::now());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The beginning of the body of a refusal.
async fn reason_of(mut response: Response) -> String {
    let mut reason = Vec::new();
    while reason.len() < REASON_BYTES
        && let Ok(Some(part)) = response.chunk().await
    {
        reason.extend_from_slice(&part[..part.len().min(REASON_BYTES - reason.len())]);
    }
    String::from_utf8_lossy(&reason).into_owned()
}

/// The body of an answer.
struct Answer {
    response: Response,
    /// What has arrived and was not read.
    rest: Bytes,
}

impl Answer {
    /// Reads bytes until `out` is full. Returns `false` at the end of the body.
    async fn fill(&mut self, out: &mut [u8]) -> Result<bool, PeerError> {
        let mut filled = 0;
        while filled < out.len() {
            if self.rest.is_empty() {
                match self.response.chunk().await? {
                    Some(chunk) => self.rest = chunk,
                    None if filled == 0 => return Ok(false),
                    None => return Err(PeerError::Truncated),
                }
            }
            let count = self.rest.len().min(out.len() - filled);
            self.rest.copy_to_slice(&mut out[filled..filled + count]);
            filled += count;
        }
        Ok(true)
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::core::block_hash::BlockHash;
    use crate::core::cached_unit::UnitBytes;
    use crate::core::prefix_scope::PrefixScope;

    #[tokio::test]
    async fn a_read_ends_at_its_time_limit_and_its_server_is_not_asked_again_at_once() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let peer = PeerAddress { host: "127.0.0.1".to_owned(), port: silent.local_addr().unwrap().port() };
        let options = PeerOptions { allowed: vec!["*".parse().unwrap()], key: None };
        let peers = Peers::new(options, HostMemory::new(32, UnitBytes { block: 8, state: 0 })).unwrap();
        let (_known, meaning) = watch::channel(Some("model".to_owned()));
        let blocks = BlockHash::of_scope(&PrefixScope::default()).blocks_after(&[1; 16]);
        let contents: Vec<_> = blocks.map(UnitContent::of_block).collect();
        let limit = Duration::from_millis(300);
        for (least, most) in [(limit, SILENCE), (Duration::ZERO, limit)] {
            let began = Instant::now();
            assert!(peers.read(&peer, meaning.clone(), &contents, limit).await.is_empty());
            assert!((least..most).contains(&began.elapsed()), "{:?}", began.elapsed());
        }
    }
}
