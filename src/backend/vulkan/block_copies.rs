//! Copies of KV blocks between the device and host memory, through a staging buffer.

use std::sync::Arc;

use ash::vk;

use super::buffer::Buffer;
use super::device::Device;
use super::error::VulkanError;
use super::memory::MemoryKind;
use super::record::{CommandPool, Recorder};
use super::resident::DeviceCache;
use crate::engine::BlockId;

/// Copies KV blocks. Its memory is allocated at the first copy.
#[derive(Default)]
pub(super) struct BlockCopies(Option<Staging>);

struct Staging {
    buffer: Buffer,
    commands: vk::CommandBuffer,
    /// Blocks that fit.
    blocks: usize,
    /// Keeps the command buffer. Dropped before the device, after it has settled.
    _pool: CommandPool,
}

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    FromDevice,
    ToDevice,
}

impl BlockCopies {
    const STAGING_BYTES: u64 = 16 << 20;

    /// Copies blocks to host memory.
    pub fn read(
        &mut self,
        device: &Arc<Device>,
        cache: &DeviceCache,
        copies: &mut [(BlockId, &mut [u8])],
    ) -> Result<(), VulkanError> {
        let bytes = cache.block_bytes();
        let staging = self.staging(device, bytes)?;
        for copies in copies.chunks_mut(staging.blocks) {
            let blocks = copies.iter().map(|(block, _)| *block);
            staging.run(device, cache, blocks, Direction::FromDevice)?;
            let staged = staging.buffer.readable().ok_or_else(|| unreachable_staging(bytes))?;
            for ((_, out), staged) in copies.iter_mut().zip(staged.chunks_exact(bytes as usize)) {
                out.copy_from_slice(staged);
            }
        }
        Ok(())
    }

    /// Copies blocks from host memory.
    pub fn write(
        &mut self,
        device: &Arc<Device>,
        cache: &DeviceCache,
        contents: &[(BlockId, &[u8])],
    ) -> Result<(), VulkanError> {
        let bytes = cache.block_bytes();
        let staging = self.staging(device, bytes)?;
        for contents in contents.chunks(staging.blocks) {
            let staged = staging.buffer.mapped().ok_or_else(|| unreachable_staging(bytes))?;
            for ((_, content), staged) in contents.iter().zip(staged.chunks_exact_mut(bytes as usize)) {
                staged.copy_from_slice(content);
            }
            staging.run(device, cache, contents.iter().map(|(block, _)| *block), Direction::ToDevice)?;
        }
        Ok(())
    }

    fn staging(&mut self, device: &Arc<Device>, block_bytes: u64) -> Result<&mut Staging, VulkanError> {
        if self.0.is_none() {
            let blocks = (Self::STAGING_BYTES / block_bytes.max(1)).max(1);
            let buffer = Buffer::new(device, "copies of KV blocks", blocks * block_bytes, MemoryKind::Host)?;
            let pool = CommandPool::new(device)?;
            let commands = pool.allocate()?;
            self.0 = Some(Staging { buffer, commands, blocks: blocks as usize, _pool: pool });
        }
        self.0.as_mut().ok_or_else(|| unreachable_staging(block_bytes))
    }
}

impl Staging {
    /// Copies blocks between the cache and the staging buffer, and waits until that is done.
    fn run(
        &self,
        device: &Device,
        cache: &DeviceCache,
        blocks: impl Iterator<Item = BlockId>,
        direction: Direction,
    ) -> Result<(), VulkanError> {
        let mut recorder = Recorder::begin(device, self.commands)?;
        let mut start = 0;
        for plane in blocks.flat_map(|block| cache.block_slices(block)) {
            let staged = self.buffer.slice(start, plane.region.bytes);
            start += plane.region.bytes;
            match direction {
                Direction::FromDevice => recorder.copy_slice(plane, staged),
                Direction::ToDevice => recorder.copy_slice(staged, plane),
            }
        }
        device.wait(device.submit(&[recorder.end()?])?)
    }
}

fn unreachable_staging(bytes: u64) -> VulkanError {
    VulkanError::OutOfMemory { what: "copies of KV blocks".to_owned(), bytes }
}
