//! The memory that a server needs besides its models, in bytes.

use crate::api::ServerOptions;
use crate::config::{ByteSize, Config};
use crate::models::Machine;

/// Memory for the bodies of requests.
pub fn request_memory(config: &Config) -> u64 {
    share(config.request_memory, 16, ServerOptions::REQUEST_MEMORY_BYTES, config)
}

/// Memory for the responses that are kept.
pub fn response_store(config: &Config) -> u64 {
    share(config.response_store, 128, ServerOptions::RESPONSE_STORE_BYTES, config)
}

/// The size that is set, or else one part in `parts` of the memory, at most `most`.
fn share(set: Option<ByteSize>, parts: u64, most: usize, config: &Config) -> u64 {
    let available = || [config.memory.map(|size| size.0), Machine::now().available_bytes].into_iter().flatten().min();
    let default = || available().map_or(u64::MAX, |bytes| bytes / parts).min(most as u64);
    set.map_or_else(default, |size| size.0)
}
