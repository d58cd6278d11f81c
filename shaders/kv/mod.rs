//! The storage of keys and values, and of index keys: the KV cache, on the CPU and on a device.
//!
//! - `shape`: how values are stored, and the shape of a layer's keys and values
//! - `cache`: the cache of all layers on the CPU
//! - `planes`: keys and values in half or single precision
//! - `scaled`: keys and values in eight bits
//! - `cells`: memory that threads write through shared references
//! - `device`: the cache on a GPU

mod cache;
mod cells;
mod device;
mod planes;
mod scaled;
mod shape;

pub use cache::{KvCache, PositionBytes};
pub(crate) use cache::{Layer, Store};
pub(crate) use device::values_together;
pub use device::{DeviceKv, plane_block_bytes};
pub(crate) use planes::{PlainHead, Storage, StoredHead};
pub(crate) use shape::SCALE_GROUP;
pub use shape::{BLOCK_TOKENS, BlockCounts, KvShape, KvType, MAX_HEAD_DIM, UnknownKvType};
