//! Leaf types that every other module uses: requests, their events and errors, and what a running model reports about
//! itself. This module imports nothing from the rest of the crate.

pub mod adapter_counts;
pub mod block_hash;
pub mod byte_tokenizer;
pub mod cache_change;
pub mod cached_unit;
pub mod counts;
pub mod draft;
pub mod ended_request;
pub mod error_chain;
pub mod kv_transfer;
pub mod panic_message;
pub mod prefill_rows;
pub mod prefix_scope;
pub mod printable;
pub mod private_directory;
pub mod prompt_media;
pub mod request;
pub mod request_context;
pub mod shared_limit;
pub mod status;
pub mod stop_strings;
pub mod tier;
