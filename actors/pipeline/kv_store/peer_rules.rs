//! Rules that say from which servers blocks may be loaded.

use std::net::IpAddr;
use std::str::FromStr;

use crate::core::kv_transfer::{PeerAddress, is_name};

/// Some servers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerRule {
    /// Where they are.
    pub hosts: PeerHosts,
    /// Where they listen; `None` for any port.
    pub port: Option<u16>,
}

/// Some hosts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PeerHosts {
    /// All.
    Any,
    /// Those with addresses in a network: an address and the number of leading bits that count.
    Network(IpAddr, u8),
    /// Those with a host name.
    Name(String),
}

/// A text that names no servers.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} names no servers: give a host name, an IP address, a network like 10.0.0.0/8, or * for all, and a port if only one is \
     allowed, like 10.0.0.0/8:8080 or [fd00::/8]:8080"
)]
pub struct InvalidPeerRule(String);

impl FromStr for PeerRule {
    type Err = InvalidPeerRule;

    fn from_str(text: &str) -> Result<Self, InvalidPeerRule> {
        let parse = || {
            let (hosts, port) = split_port(text)?;
            Some(PeerRule { hosts: PeerHosts::parse(hosts)?, port })
        };
        parse().ok_or_else(|| InvalidPeerRule(text.to_owned()))
    }
}

/// Splits a text into hosts and a port. IPv6 addresses with a port are in brackets.
fn split_port(text: &str) -> Option<(&str, Option<u16>)> {
    if let Some(bracketed) = text.strip_prefix('[') {
        let (hosts, rest) = bracketed.split_once(']').filter(|(hosts, _)| hosts.contains(':'))?;
        return if rest.is_empty() { Some((hosts, None)) } else { Some((hosts, Some(port(rest.strip_prefix(':')?)?))) };
    }
    match text.split_once(':') {
        Some((hosts, after)) if !after.contains(':') => Some((hosts, Some(port(after)?))),
        _ => Some((text, None)),
    }
}

fn port(text: &str) -> Option<u16> {
    text.parse().ok().filter(|port| *port > 0)
}

impl PeerHosts {
    fn parse(text: &str) -> Option<Self> {
        if text == "*" {
            return Some(PeerHosts::Any);
        }
        if let Ok(address) = text.parse() {
            return Some(PeerHosts::Network(address, width(address)));
        }
        if let Some((address, bits)) = text.split_once('/') {
            let (address, bits): (IpAddr, u8) = (address.parse().ok()?, bits.parse().ok()?);
            return (bits <= width(address)).then_some(PeerHosts::Network(address, bits));
        }
        is_name(text).then(|| PeerHosts::Name(text.to_owned()))
    }

    fn include(&self, host: &str) -> bool {
        match self {
            PeerHosts::Any => true,
            PeerHosts::Name(name) => name.eq_ignore_ascii_case(host),
            PeerHosts::Network(network, bits) => host.parse::<IpAddr>().is_ok_and(|address| {
                address.is_ipv4() == network.is_ipv4() && leading_bits(address, *bits) == leading_bits(*network, *bits)
            }),
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
        self.port.is_none_or(|port| port == peer.port) && self.hosts.include(&peer.host)
    }
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_name_hosts_addresses_networks_and_ports() {
        let allows = |rule: &str, host: &str, port| {
            rule.parse::<PeerRule>().unwrap().allows(&PeerAddress { host: host.to_owned(), port })
        };
        for (rule, host) in [
            ("*", "anything"),
            ("*:80", "anything"),
            ("prefill.local", "Prefill.local"),
            ("prefill.local:80", "prefill.local"),
            ("10.1.2.3", "10.1.2.3"),
            ("10.0.0.0/8", "10.255.0.1"),
            ("10.0.0.0/8:80", "10.255.0.1"),
            ("0.0.0.0/0", "1.2.3.4"),
            ("fd00::/8", "fd12::1"),
            ("[fd00::/8]:80", "fd12::1"),
            ("[::1]", "::1"),
            ("::1", "::1"),
            ("::/0", "fd12::1"),
        ] {
            assert!(allows(rule, host, 80), "{rule} {host}");
            assert_eq!(allows(rule, host, 81), rule.parse::<PeerRule>().unwrap().port.is_none(), "{rule} {host}");
        }
        for (rule, host) in [
            ("prefill.local", "prefill.localhost"),
            ("10.1.2.3", "10.1.2.4"),
            ("10.0.0.0/8", "11.0.0.1"),
            ("10.0.0.0/8:80", "11.0.0.1"),
            ("10.0.0.0/8", "ten"),
            ("0.0.0.0/0", "::1"),
            ("fd00::/8", "fe00::1"),
        ] {
            assert!(!allows(rule, host, 80), "{rule} {host}");
        }
        for wrong in [
            "",
            "10.0.0.0/33",
            "10.0.0.0/",
            "host:",
            "host:0",
            "host:70000",
            "http://host",
            "a b",
            "10.0.0/8",
            "[host]:80",
            "[::1",
            "[::1]80",
            ":80",
        ] {
            assert!(wrong.parse::<PeerRule>().is_err(), "{wrong}");
        }
    }
}
