//! What is done with the blocks of the KV cache beyond the device: lower tiers, other servers, and events for routers.

use std::net::IpAddr;

use super::CliError;
use crate::config::{Config, Origin};
use crate::core::kv_transfer::PeerAddress;
use crate::kv_events::{KvEvents, KvEventsOptions};
use crate::pipeline::kv_store::{
    InvalidPeerRule, KvDirectory, KvStoreOptions, PeerKey, PeerOptions, PeerRule, SharedBlocks,
};

/// The lower tiers of the KV cache. Takes the directory of the disk tier for this process.
///
/// # Errors
/// [`CliError`] when settings contradict each other, or the directory cannot be used.
pub fn kv_store(config: &Config) -> Result<KvStoreOptions, CliError> {
    let host_bytes = config.kv_host_memory.map_or(0, |size| size.0);
    if config.no_prefix_cache && (host_bytes > 0 || config.kv_disk.is_some()) {
        let advice = "--kv-host-memory and --kv-disk keep blocks of the prefix cache: leave --no-prefix-cache out";
        return Err(CliError::Usage(advice.to_owned()));
    }
    if config.kv_disk.is_none() && matches!(config.origin("kv_disk_size"), Origin::Flag(_)) {
        return Err(CliError::Usage("--kv-disk-size needs --kv-disk, the directory that it limits".to_owned()));
    }
    let (peers, shared) = (peers(config)?, shared_blocks(config, host_bytes)?);
    let directory = config.kv_disk.as_deref().map(KvDirectory::open).transpose().map_err(CliError::other)?;
    Ok(KvStoreOptions {
        host_bytes,
        disk: directory.map(|directory| (directory, config.kv_disk_size.0)),
        peers,
        shared,
    })
}

/// The servers from which KV blocks are loaded.
fn peers(config: &Config) -> Result<PeerOptions, CliError> {
    let rules = config.kv_peer.iter().map(|rule| rule.parse());
    let allowed: Vec<PeerRule> = rules
        .collect::<Result<_, InvalidPeerRule>>()
        .map_err(|error| CliError::Usage(format!("--kv-peer: {error}")))?;
    if !allowed.is_empty() && config.no_prefix_cache {
        let advice = "--kv-peer loads blocks into the prefix cache: leave --no-prefix-cache out";
        return Err(CliError::Usage(advice.to_owned()));
    }
    if allowed.is_empty() && config.kv_peer_key.is_some() {
        return Err(CliError::Usage("--kv-peer-key needs --kv-peer, the servers that require the key".to_owned()));
    }
    if config.kv_peer_key.is_some() && allowed.iter().any(|rule| rule.port.is_none()) {
        let advice = "--kv-peer-key is for the ports that --kv-peer names: add them, like 10.0.0.0/8:8080";
        return Err(CliError::Usage(advice.to_owned()));
    }
    Ok(PeerOptions { allowed, key: config.kv_peer_key.as_ref().map(|key| PeerKey::of(&key.0)) })
}

/// What shares KV blocks with other servers, if they are shared.
fn shared_blocks(config: &Config, host_bytes: u64) -> Result<Option<SharedBlocks>, CliError> {
    let Some(text) = &config.kv_share else { return Ok(None) };
    if host_bytes == 0 {
        let advice = "--kv-share needs --kv-host-memory, the memory from which other servers load blocks";
        return Err(CliError::Usage(advice.to_owned()));
    }
    let address: PeerAddress = text.parse().map_err(|error| CliError::Usage(format!("--kv-share: {error}")))?;
    if is_loopback(&config.host) && !is_loopback(&address.host) {
        let host = &config.host;
        let advice =
            format!("--kv-share {address} cannot be reached: the server listens on {host}; add --host 0.0.0.0");
        return Err(CliError::Usage(advice));
    }
    Ok(Some(SharedBlocks::new(address)))
}

/// Whether only programs of this machine reach a host.
fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// What tells routers about the KV cache, if they are told.
///
/// # Errors
/// [`CliError`] when settings contradict each other, or the address cannot be used.
pub async fn kv_events(config: &Config) -> Result<KvEvents, CliError> {
    let Some(endpoint) = &config.kv_events else {
        return match config.kv_events_replay {
            Some(_) => {
                Err(CliError::Usage("--kv-events-replay needs --kv-events, whose messages it repeats".to_owned()))
            }
            None => Ok(KvEvents::default()),
        };
    };
    if config.no_prefix_cache {
        let advice = "--kv-events tells what the prefix cache holds: leave --no-prefix-cache out";
        return Err(CliError::Usage(advice.to_owned()));
    }
    let options = KvEventsOptions {
        endpoint: endpoint.0.clone(),
        replay_endpoint: config.kv_events_replay.clone().map(|address| address.0),
        topic: config.kv_events_topic.clone(),
        format: config.kv_events_format,
    };
    KvEvents::start(options).await.map_err(CliError::other)
}

#[allow(clippy::unwrap_used)]
#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::environment::Environment;

    #[test]
    fn blocks_are_shared_only_where_other_servers_reach_this_one() {
        let shared = |host: &str, address: &str| {
            let mut config = Config::defaults(&Environment::default().home());
            (config.host, config.kv_share) = (host.to_owned(), Some(address.to_owned()));
            shared_blocks(&config, 1 << 30).map(|shared| shared.is_some()).map_err(|error| error.to_string())
        };
        for (host, address) in [("0.0.0.0", "10.0.0.7:8080"), ("10.0.0.7", "box:80"), ("127.0.0.1", "localhost:8080")] {
            assert_eq!(shared(host, address), Ok(true), "{host} {address}");
        }
        for host in ["127.0.0.1", "localhost", "::1"] {
            let error = shared(host, "10.0.0.7:8080").unwrap_err();
            let expected = format!("the server listens on {host}; add --host 0.0.0.0");
            assert!(
                error.contains("--kv-share 10.0.0.7:8080 cannot be reached") && error.contains(&expected),
                "{error}"
            );
        }
    }
}
