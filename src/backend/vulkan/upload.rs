//! Copies from host memory to device memory, through staging buffers where the CPU cannot write the device's memory.

use std::sync::Arc;

use cuelight_shaders::gpu::weight::WeightLayout;
use cuelight_shaders::weight::Weight;

use super::buffer::{Buffer, BufferSlice, HostBuffer};
use super::device::Device;
use super::error::VulkanError;
use super::record::{CommandPool, Recorder};

/// The number of staging buffers.
const STAGING_BUFFERS: usize = 2;

/// Copies bytes from host memory to device memory.
///
/// If the CPU can write the device's memory, it writes there directly. Otherwise bytes pass through two staging buffers: one is
/// filled while the device reads the other.
pub(super) struct Upload {
    device: Arc<Device>,
    pool: CommandPool,
    /// Bytes of a staging buffer.
    staging_bytes: usize,
    staging: Vec<StagingBuffer>,
    /// Index of the staging buffer that is being filled.
    current: usize,
}

struct StagingBuffer {
    buffer: HostBuffer,
    commands: ash::vk::CommandBuffer,
    filled: u64,
    /// The copies from this buffer to their targets.
    copies: Vec<(BufferSlice, BufferSlice)>,
    /// The submission that reads it last.
    last_read: u64,
}

impl Upload {
    /// Allocates nothing yet. A staging buffer will have `staging_bytes` bytes.
    pub fn new(device: &Arc<Device>, staging_bytes: usize) -> Result<Self, VulkanError> {
        let pool = CommandPool::new(device)?;
        Ok(Upload { device: Arc::clone(device), pool, staging_bytes, staging: Vec::new(), current: 0 })
    }

    /// Bytes of both staging buffers.
    pub fn memory_bytes(staging_bytes: usize) -> u64 {
        (STAGING_BUFFERS * staging_bytes) as u64
    }

    /// Packs a weight and writes it at offset `start`, a number of rows at a time.
    pub fn weight(
        &mut self,
        weight: &Weight,
        layout: &WeightLayout,
        buffer: &mut Buffer,
        start: u64,
    ) -> Result<(), VulkanError> {
        let rows_at_once = (self.staging_bytes / weight.row_bytes().max(1)).clamp(1, weight.rows.max(1));
        for first in (0..weight.rows).step_by(rows_at_once) {
            let count = rows_at_once.min(weight.rows - first);
            for (offset, bytes) in layout.pack(weight, first, count) {
                self.write(buffer, start + offset, &bytes)?;
            }
        }
        weight.release();
        Ok(())
    }

    /// Writes bytes at offset `start`. They are on the device after [`Upload::finish`].
    pub fn write(&mut self, to: &mut Buffer, start: u64, bytes: &[u8]) -> Result<(), VulkanError> {
        if let Some(mapped) = to.mapped() {
            mapped[start as usize..start as usize + bytes.len()].copy_from_slice(bytes);
            return Ok(());
        }
        let (mut start, mut rest) = (start, bytes);
        while !rest.is_empty() {
            let staging_bytes = self.staging_bytes;
            let staging = self.current_staging()?;
            let (filled, free) = (staging.filled as usize, staging_bytes - staging.filled as usize);
            let (chunk, later) = rest.split_at(rest.len().min(free));
            staging.buffer.bytes_mut()[filled..filled + chunk.len()].copy_from_slice(chunk);
            let len = chunk.len() as u64;
            staging.copies.push((staging.buffer.as_buffer().slice(staging.filled, len), to.slice(start, len)));
            // Aligned copies are faster on some devices.
            staging.filled = (staging.filled + len).next_multiple_of(16).min(staging_bytes as u64);
            (start, rest) = (start + len, later);
            if staging.filled as usize == staging_bytes {
                self.submit()?;
            }
        }
        Ok(())
    }

    /// The staging buffer that is being filled; allocated on first use.
    fn current_staging(&mut self) -> Result<&mut StagingBuffer, VulkanError> {
        if self.staging.len() <= self.current {
            let buffer = HostBuffer::new(&self.device, "uploads", self.staging_bytes as u64)?;
            let commands = self.pool.allocate()?;
            self.staging.push(StagingBuffer { buffer, commands, filled: 0, copies: Vec::new(), last_read: 0 });
        }
        let staging = &mut self.staging[self.current];
        if staging.filled == 0 {
            self.device.wait(staging.last_read)?;
        }
        Ok(staging)
    }

    /// Submits the copies that have not been submitted yet.
    fn submit(&mut self) -> Result<(), VulkanError> {
        let Some(staging) = self.staging.get_mut(self.current).filter(|staging| staging.filled > 0) else {
            return Ok(());
        };
        let mut recorder = Recorder::begin(&self.device, staging.commands)?;
        for (from, to) in staging.copies.drain(..) {
            recorder.copy_slice(from, to);
        }
        staging.last_read = self.device.submit(&[recorder.end()?])?;
        staging.filled = 0;
        self.current = (self.current + 1) % STAGING_BUFFERS;
        Ok(())
    }

    /// Submits the remaining copies and waits for all of them.
    pub fn finish(&mut self) -> Result<(), VulkanError> {
        self.submit()?;
        self.device.wait_for_all()
    }
}
