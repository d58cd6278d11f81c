//! What a request has to do with the KV caches of other servers: one server computes a prompt, another continues it.

use std::fmt;
use std::net::Ipv6Addr;
use std::str::FromStr;
use std::sync::Arc;

/// What a request has to do with the KV caches of other servers.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct KvTransfer {
    /// The server that has computed the prompt. Its blocks are loaded from there, as far as it has them.
    pub from: Option<Arc<PeerAddress>>,
    /// Where another server finds the blocks of the prompt, if it continues the request: they are kept for it in host memory.
    pub shared_at: Option<Arc<PeerAddress>>,
}

/// Where another server listens.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PeerAddress {
    /// A host name or an IP address.
    pub host: String,
    /// A TCP port.
    pub port: u16,
}

/// A text that is no address of a server.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not the address of a server: give a host name or an IP address and a port, like 10.0.0.7:8080 or [fd00::7]:8080"
)]
pub struct InvalidPeerAddress(String);

impl FromStr for PeerAddress {
    type Err = InvalidPeerAddress;

    fn from_str(text: &str) -> Result<Self, InvalidPeerAddress> {
        let parse = || {
            let (host, port) = text.rsplit_once(':')?;
            let port: u16 = port.parse().ok().filter(|port| *port > 0)?;
            let bracketed = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
            let host = bracketed.filter(|host| host.parse::<Ipv6Addr>().is_ok()).or(is_name(host).then_some(host))?;
            Some(PeerAddress { host: host.to_owned(), port })
        };
        parse().ok_or_else(|| InvalidPeerAddress(text.to_owned()))
    }
}

/// Whether a text can be a host name or an IPv4 address.
#[must_use]
pub fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte))
}

impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host.contains(':') {
            true => write!(f, "[{}]:{}", self.host, self.port),
            false => write!(f, "{}:{}", self.host, self.port),
        }
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_host_and_a_port() {
        for text in ["10.0.0.7:8080", "host-1.example:1", "[fd00::7]:8080"] {
            assert_eq!(text.parse::<PeerAddress>().unwrap().to_string(), text);
        }
        for wrong in ["", "host", "host:", "host:0", "host:70000", "fd00::7:80", "[host]:80", "http://host:80", ":80"] {
            assert!(wrong.parse::<PeerAddress>().is_err(), "{wrong}");
        }
    }
}
