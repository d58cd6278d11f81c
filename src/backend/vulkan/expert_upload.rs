//! The way of experts to pools on the device, beside what the device computes.
//!
//! Whoever brings experts has a thread of its own: it writes one to memory that the device reads, hands the device the
//! copies to the expert's place, and writes the next one meanwhile. There is one queue, so that what is computed later
//! finds it there.

use std::collections::HashMap;
use std::sync::Arc;

use ash::vk;
use cuelight_shaders::experts::Experts;
use cuelight_shaders::experts::pool::Target;

use super::arena::Arena;
use super::device::Device;
use super::error::VulkanError;
use super::memory::{Buffer, BufferPart, Place};
use super::record::{CommandPool, Recorder};
use crate::backend::stage::ExpertUpload;
use crate::engine::EngineError;

/// Where a pool has its tensors and tables.
#[derive(Clone)]
pub(super) struct PoolParts {
    pub pool: Experts,
    pub weights: Vec<BufferPart>,
    pub tables: Vec<BufferPart>,
}

/// Brings experts, one after the other.
pub(super) struct DeviceUpload {
    // Dropped first: it waits until the device copies nothing any more.
    _commands: CommandPool,
    /// Used in turn.
    stages: [Stage; 2],
    current: usize,
    /// By the piece that computes with them.
    pools: HashMap<usize, PoolParts>,
    /// Keeps the pools' memory.
    _arena: Arc<Arena>,
    device: Arc<Device>,
}

/// Memory that an expert is written to.
struct Stage {
    buffer: Buffer,
    commands: vk::CommandBuffer,
    /// When the device has read it.
    emptied: u64,
}

/// Bytes of the machine's memory through which experts of so many bytes come to a device.
pub(super) fn upload_bytes(expert_bytes: usize) -> u64 {
    2 * expert_bytes.next_multiple_of(16) as u64
}

impl DeviceUpload {
    pub fn new(
        device: &Arc<Device>,
        arena: &Arc<Arena>,
        pools: HashMap<usize, PoolParts>,
    ) -> Result<Self, VulkanError> {
        let commands = CommandPool::new(device)?;
        let bytes = pools.values().map(|parts| parts.pool.expert_bytes()).max().unwrap_or(0);
        let stage = || -> Result<Stage, VulkanError> {
            let buffer = Buffer::new(device, "experts on their way", bytes as u64, Place::Host)?;
            Ok(Stage { buffer, commands: commands.allocate()?, emptied: 0 })
        };
        let stages = [stage()?, stage()?];
        let (_arena, device) = (Arc::clone(arena), Arc::clone(device));
        Ok(DeviceUpload { _commands: commands, stages, current: 0, pools, _arena, device })
    }

    fn upload(
        &mut self,
        (piece, place): (usize, usize),
        (experts, number): (&Experts, usize),
    ) -> Result<u64, VulkanError> {
        let PoolParts { pool, weights, tables } = &self.pools[&piece];
        let stage = &mut self.stages[self.current];
        self.device.wait(stage.emptied)?;
        let bytes = experts.expert_bytes();
        let lacking = || VulkanError::OutOfMemory { what: "experts on their way".to_owned(), bytes: bytes as u64 };
        let written = stage.buffer.mapped().and_then(|stage| stage.get_mut(..bytes)).ok_or_else(lacking)?;
        experts.write_expert(number, written);
        let mut recorder = Recorder::begin(&self.device, stage.commands)?;
        for part in pool.parts_at(place) {
            let target = match part.target {
                Target::Weight(index) => weights[index],
                Target::Table(index) => tables[index],
            };
            let len = part.bytes.len() as u64;
            recorder.copy_part(stage.buffer.part(part.bytes.start as u64, len), target.part(part.start, len));
        }
        stage.emptied = self.device.submit(&[recorder.end()?])?;
        self.current = (self.current + 1) % self.stages.len();
        Ok(bytes as u64)
    }
}

impl ExpertUpload for DeviceUpload {
    fn bring(&mut self, to: (usize, usize), expert: (&Experts, usize)) -> Result<u64, EngineError> {
        self.upload(to, expert).map_err(|error| EngineError::DeviceLost(error.to_string()))
    }
}
