//! Loads blocks from other servers.

use std::net::IpAddr;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use cuelight_engine::host_blocks::{HostBlock, HostBlocks};
use reqwest::header::CONTENT_TYPE;
use reqwest::{Client, Response, StatusCode};
use tokio::sync::watch;
use tokio::time::timeout;

use super::block_file::{HEADER_BYTES, header};
use super::peer_protocol::{BlocksRequest, PATH};
use crate::core::block_hash::BlockContent;
use crate::core::error_chain::error_chain;
use crate::core::kv_transfer::{PeerAddress, is_name};

/// Longest time until a connection is made, and between two parts of an answer.
const SILENCE: Duration = Duration::from_secs(2);

/// Longest time for one read.
const READ_LIMIT: Duration = Duration::from_secs(60);

/// How long a read waits for host memory.
const MEMORY_PATIENCE: Duration = Duration::from_secs(1);

/// Least time between two warnings.
const PAUSE: Duration = Duration::from_secs(60);

/// The servers from which blocks may be loaded.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PeerOptions {
    /// Requests may name these servers. Empty: blocks are loaded from no server.
    pub allowed: Vec<PeerRule>,
    /// The key that the servers require.
    pub key: Option<PeerKey>,
}

/// A key, which is not shown.
#[derive(Clone, PartialEq, Eq)]
pub struct PeerKey(pub String);

impl std::fmt::Debug for PeerKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PeerKey(hidden)")
    }
}

/// Some servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerRule {
    /// All.
    Any,
    /// Those with addresses in a network: an address and the number of leading bits that count.
    Network(IpAddr, u8),
    /// Those with a host name.
    Name(String),
}

/// A text that names no servers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} names no servers: give a host name, an IP address, a network like 10.0.0.0/8, or * for all")]
pub struct InvalidPeerRule(String);

impl FromStr for PeerRule {
    type Err = InvalidPeerRule;

    fn from_str(text: &str) -> Result<Self, InvalidPeerRule> {
        let invalid = || InvalidPeerRule(text.to_owned());
        if text == "*" {
            return Ok(PeerRule::Any);
        }
        if let Ok(address) = text.parse() {
            return Ok(PeerRule::Network(address, width(address)));
        }
        if let Some((address, bits)) = text.split_once('/') {
            let (address, bits): (IpAddr, u8) =
                (address.parse().map_err(|_| invalid())?, bits.parse().map_err(|_| invalid())?);
            return if bits <= width(address) { Ok(PeerRule::Network(address, bits)) } else { Err(invalid()) };
        }
        match is_name(text) {
            true => Ok(PeerRule::Name(text.to_owned())),
            false => Err(invalid()),
        }
    }
}

fn width(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The leading bits of an address.
fn leading_bits(address: IpAddr, bits: u8) -> u128 {
    let number = match address {
        IpAddr::V4(address) => u128::from(u32::from(address)),
        IpAddr::V6(address) => u128::from(address),
    };
    number.checked_shr(u32::from(width(address) - bits)).unwrap_or(0)
}

impl PeerRule {
    /// Whether it names a server.
    #[must_use]
    pub fn allows(&self, peer: &PeerAddress) -> bool {
        match self {
            PeerRule::Any => true,
            PeerRule::Name(name) => name.eq_ignore_ascii_case(&peer.host),
            PeerRule::Network(network, bits) => peer.host.parse::<IpAddr>().is_ok_and(|address| {
                address.is_ipv4() == network.is_ipv4() && leading_bits(address, *bits) == leading_bits(*network, *bits)
            }),
        }
    }
}

/// Why a block was not loaded.
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
    #[error("its answer ends inside a block")]
    Truncated,
    #[error("a block is damaged")]
    Damaged,
    #[error("it takes longer than {} s", READ_LIMIT.as_secs())]
    TooLong,
    #[error("no host memory is free")]
    NoMemory,
}

/// What the blocks of this server mean, once it is known.
pub(super) type Meaning = watch::Receiver<Option<String>>;

/// The other servers.
pub(super) struct Peers {
    options: PeerOptions,
    client: Client,
    memory: HostBlocks,
    last_warning: Mutex<Option<Instant>>,
}

impl Peers {
    /// Reads blocks to `memory`.
    pub fn new(options: PeerOptions, memory: HostBlocks) -> Result<Self, reqwest::Error> {
        let client = Client::builder().no_proxy().connect_timeout(SILENCE).read_timeout(SILENCE).build()?;
        Ok(Peers { options, client, memory, last_warning: Mutex::default() })
    }

    /// The leading blocks of `contents` that a server has and that arrive as they should.
    pub async fn read(&self, peer: &PeerAddress, meaning: Meaning, contents: &[BlockContent]) -> Vec<Arc<HostBlock>> {
        let mut blocks = Vec::with_capacity(contents.len());
        let read = timeout(READ_LIMIT, self.try_read(peer, meaning, contents, &mut blocks));
        if let Err(error) = read.await.unwrap_or(Err(PeerError::TooLong)) {
            self.warn(peer, &error);
        }
        blocks
    }

    async fn try_read(
        &self,
        peer: &PeerAddress,
        mut meaning: Meaning,
        contents: &[BlockContent],
        blocks: &mut Vec<Arc<HostBlock>>,
    ) -> Result<(), PeerError> {
        if !self.options.allowed.iter().any(|rule| rule.allows(peer)) {
            return Err(PeerError::NotAllowed);
        }
        let known = timeout(SILENCE, meaning.wait_for(Option::is_some)).await;
        let meaning = known.ok().and_then(Result::ok).and_then(|known| known.clone()).ok_or(PeerError::TooEarly)?;
        let Some(request) = BlocksRequest::of(&meaning, contents) else { return Ok(()) };
        let body = serde_json::to_vec(&request).unwrap_or_default();
        let request =
            self.client.post(format!("http://{peer}{PATH}")).header(CONTENT_TYPE, "application/json").body(body);
        let request = match &self.options.key {
            Some(PeerKey(key)) => request.bearer_auth(key),
            None => request,
        };
        let response = request.send().await?;
        if !response.status().is_success() {
            let status = response.status();
            let reason: String = response.text().await.unwrap_or_default().chars().take(500).collect();
            return Err(PeerError::Refused(status, reason));
        }
        let mut answer = Answer { response, rest: Bytes::new() };
        for content in contents {
            let mut head = [0; HEADER_BYTES];
            if !answer.fill(&mut head).await? {
                return Ok(());
            }
            let mut block = self.take_memory().await.ok_or(PeerError::NoMemory)?;
            if !answer.fill(&mut block).await? {
                return Err(PeerError::Truncated);
            }
            if head != header(content, &block) {
                return Err(PeerError::Damaged);
            }
            blocks.push(Arc::new(block));
        }
        Ok(())
    }

    /// Memory for a block. Reads whose results are on their way to the device hold some of it for a short time.
    async fn take_memory(&self) -> Option<HostBlock> {
        let until = Instant::now() + MEMORY_PATIENCE;
        loop {
            match self.memory.take() {
                Some(block) => return Some(block),
                None if Instant::now() > until => return None,
                None => tokio::time::sleep(Duration::from_millis(1)).await,
            }
        }
    }

    fn warn(&self, peer: &PeerAddress, error: &PeerError) {
        let mut last = self.last_warning.lock().unwrap_or_else(PoisonError::into_inner);
        if last.is_none_or(|last| last.elapsed() > PAUSE) {
            tracing::warn!(%peer, %error, "KV blocks of another server are computed instead of loaded");
            *last = Some(Instant::now());
        }
    }
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
    use super::*;

    #[test]
    fn rules_name_hosts_addresses_and_networks() {
        let allows = |rule: &str, host: &str| {
            rule.parse::<PeerRule>().unwrap().allows(&PeerAddress { host: host.to_owned(), port: 1 })
        };
        for (rule, host) in [
            ("*", "anything"),
            ("prefill.local", "Prefill.local"),
            ("10.1.2.3", "10.1.2.3"),
            ("10.0.0.0/8", "10.255.0.1"),
            ("0.0.0.0/0", "1.2.3.4"),
            ("fd00::/8", "fd12::1"),
            ("::1", "::1"),
            ("::/0", "fd12::1"),
        ] {
            assert!(allows(rule, host), "{rule} {host}");
        }
        for (rule, host) in [
            ("prefill.local", "prefill.localhost"),
            ("10.1.2.3", "10.1.2.4"),
            ("10.0.0.0/8", "11.0.0.1"),
            ("10.0.0.0/8", "ten"),
            ("0.0.0.0/0", "::1"),
            ("fd00::/8", "fe00::1"),
        ] {
            assert!(!allows(rule, host), "{rule} {host}");
        }
        for wrong in ["", "10.0.0.0/33", "10.0.0.0/", "host:80", "http://host", "a b", "10.0.0/8"] {
            assert!(wrong.parse::<PeerRule>().is_err(), "{wrong}");
        }
    }
}
