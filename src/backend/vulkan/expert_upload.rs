//! Uploads of experts to pools on the device, concurrent with its computation.
//!
//! Each uploader runs on its own thread. It writes an expert to a staging buffer, submits the copies to the expert's slot, and
//! writes the next expert while the device copies. All submissions share one queue, so later computations see the expert.

use std::collections::HashMap;
use std::sync::Arc;

use ash::vk;
use cuelight_shaders::experts::Experts;
use cuelight_shaders::experts::pool::Target;

use super::arena::Arena;
use super::buffer::{BufferSlice, HostBuffer};
use super::device::Device;
use super::error::VulkanError;
use super::record::{CommandPool, Recorder};
use crate::backend::stage::ExpertUpload;
use crate::engine::EngineError;

/// The tensors and tables of a pool.
#[derive(Clone)]
pub(super) struct PoolBuffers {
    pub pool: Experts,
    pub weights: Vec<BufferSlice>,
    pub tables: Vec<BufferSlice>,
}

/// Uploads experts, one after the other.
pub(super) struct DeviceUpload {
    // Dropped first: it waits until the device has finished all copies.
    _commands: CommandPool,
    /// Used alternately.
    staging: [StagingBuffer; 2],
    current: usize,
    /// By the segment that computes with the pool.
    pools: HashMap<usize, PoolBuffers>,
    /// Keeps the memory of the pools alive.
    _arena: Arc<Arena>,
    device: Arc<Device>,
}

/// Host memory that an expert is written to.
struct StagingBuffer {
    buffer: HostBuffer,
    commands: vk::CommandBuffer,
    /// The submission that reads it last.
    last_read: u64,
}

/// Bytes of host memory that an uploader of experts of `expert_bytes` bytes needs.
pub(super) fn upload_bytes(expert_bytes: usize) -> u64 {
    2 * expert_bytes.next_multiple_of(16) as u64
}

impl DeviceUpload {
    pub fn new(
        device: &Arc<Device>,
        arena: &Arc<Arena>,
        pools: HashMap<usize, PoolBuffers>,
    ) -> Result<Self, VulkanError> {
        let commands = CommandPool::new(device)?;
        let bytes = pools.values().map(|parts| parts.pool.expert_bytes()).max().unwrap_or(0);
        let staging = || -> Result<StagingBuffer, VulkanError> {
            let buffer = HostBuffer::new(device, "expert uploads", bytes as u64)?;
            Ok(StagingBuffer { buffer, commands: commands.allocate()?, last_read: 0 })
        };
        let staging = [staging()?, staging()?];
        let (_arena, device) = (Arc::clone(arena), Arc::clone(device));
        Ok(DeviceUpload { _commands: commands, staging, current: 0, pools, _arena, device })
    }

    fn upload(
        &mut self,
        (segment, slot): (usize, usize),
        (experts, number): (&Experts, usize),
    ) -> Result<u64, VulkanError> {
        let PoolBuffers { pool, weights, tables } = &self.pools[&segment];
        let staging = &mut self.staging[self.current];
        self.device.wait(staging.last_read)?;
        let bytes = experts.expert_bytes();
        experts.write_expert(number, &mut staging.buffer.bytes_mut()[..bytes]);
        let mut recorder = Recorder::begin(&self.device, staging.commands)?;
        for part in pool.parts_at(slot) {
            let target = match part.target {
                Target::Weight(index) => weights[index],
                Target::Table(index) => tables[index],
            };
            let len = part.bytes.len() as u64;
            recorder.copy_slice(
                staging.buffer.as_buffer().slice(part.bytes.start as u64, len),
                target.slice(part.start, len),
            );
        }
        staging.last_read = self.device.submit(&[recorder.end()?])?;
        self.current = (self.current + 1) % self.staging.len();
        Ok(bytes as u64)
    }
}

impl ExpertUpload for DeviceUpload {
    fn upload(&mut self, slot: (usize, usize), expert: (&Experts, usize)) -> Result<u64, EngineError> {
        self.upload(slot, expert).map_err(|error| EngineError::DeviceLost(error.to_string()))
    }
}
