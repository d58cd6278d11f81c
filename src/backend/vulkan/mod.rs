//! The Vulkan backend: a [`PipelineStage`](super::stage::PipelineStage) that runs a graph on a GPU.
//!
//! The backend has no code per op. Each op describes its dispatches as data ([`Op::dispatches`]), and one recorder turns them
//! into command buffers. In reading order:
//!
//! - `instance`, `probe`: the loader; the devices, their properties and features
//! - `device`: an open device, its queue and its timeline
//! - `memory`, `buffer`, `arena`: memory types, buffers, and many regions in few buffers
//! - `footprint`: the memory that graphs need
//! - `resident`: weights, tables and the KV cache, which stay on the device from load to unload
//! - `upload`: copies to device memory while a model is loaded; `adapters`: slots for adapters
//! - `cache_copies`: copies of KV blocks and recurrent states to and from host memory
//! - `expert_upload`: uploads of experts during execution
//! - `pipeline`, `record`: compiled shaders; dispatches and barriers in command buffers
//! - `bucket`, `plan`: the commands of a graph, recorded once per bucket of steps and replayed
//! - `step_buffers`, `transfer`: the memory of a step; inputs and outputs of a graph
//! - `segment`, `stage`: a step from its rows to its outputs
//! - [`roofline`]: the peak rates of a device

mod adapters;
mod arena;
mod bucket;
mod buffer;
mod cache_copies;
mod device;
mod error;
mod expert_upload;
#[cfg(debug_assertions)]
pub mod faults;
mod footprint;
mod instance;
mod memory;
mod pipeline;
mod plan;
mod probe;
mod record;
mod resident;
pub mod roofline;
mod segment;
mod stage;
mod step_buffers;
mod transfer;
mod upload;

use cuelight_shaders::op::Op;

pub use device::{Device, VulkanOptions};
pub use error::{NVIDIA_CONTAINER_HINT, VulkanError};
pub use footprint::Footprint;
pub use instance::{Instance, InstanceOptions};
pub use probe::DeviceInfo;
pub use stage::{ExecutionOptions, VulkanStage};

/// Bytes of device memory that the weights and tables of ops need.
#[must_use]
pub fn weights_bytes(ops: &[&dyn Op]) -> u64 {
    resident::weights_bytes(ops)
}

/// Bytes of host memory that one uploader of experts of `expert_bytes` bytes needs.
#[must_use]
pub fn upload_bytes(expert_bytes: usize) -> u64 {
    expert_upload::upload_bytes(expert_bytes)
}

/// A device's name in reports: "vulkan:0 (NVIDIA H200)".
#[must_use]
pub fn describe(info: &DeviceInfo) -> String {
    format!("vulkan:{} ({})", info.index, info.name)
}

#[cfg(test)]
mod tests;
