//! Copies of KV blocks and recurrent states between the device and host memory, through a staging buffer.

use std::sync::Arc;

use ash::vk;

use super::buffer::{BufferSlice, HostBuffer};
use super::device::Device;
use super::error::VulkanError;
use super::record::{CommandPool, Recorder};
use super::resident::DeviceCache;
use crate::engine::CacheUnit;

/// Bytes of the staging buffer: what is copied at once.
const STAGING_BYTES: u64 = 16 << 20;

/// Copies units of the cache. Its memory is allocated at the first copy.
#[derive(Default)]
pub(super) struct CacheCopies(Option<Staging>);

struct Staging {
    buffer: HostBuffer,
    commands: vk::CommandBuffer,
    /// Keeps the command buffer. Dropped before the device, after it has settled.
    _pool: CommandPool,
}

/// The direction of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    FromDevice,
    ToDevice,
}

/// A part of a unit that fits into the staging buffer.
struct Piece {
    on_device: BufferSlice,
    /// The index of the unit's copy, and where the part begins in it.
    copy: usize,
    start: usize,
}

impl Piece {
    fn bytes(&self) -> usize {
        self.on_device.region.bytes as usize
    }
}

impl CacheCopies {
    /// Copies units to host memory.
    pub fn read(
        &mut self,
        device: &Arc<Device>,
        cache: &DeviceCache,
        copies: &mut [(CacheUnit, &mut [u8])],
    ) -> Result<(), VulkanError> {
        let staging = self.staging(device)?;
        for batch in batches(pieces(cache, copies.iter().map(|(unit, _)| *unit))) {
            staging.run(device, &batch, Direction::FromDevice)?;
            let mut staged = staging.buffer.bytes();
            for piece in &batch {
                let (here, later) = staged.split_at(piece.bytes());
                copies[piece.copy].1[piece.start..][..here.len()].copy_from_slice(here);
                staged = later;
            }
        }
        Ok(())
    }

    /// Copies units from host memory.
    pub fn write(
        &mut self,
        device: &Arc<Device>,
        cache: &DeviceCache,
        contents: &[(CacheUnit, &[u8])],
    ) -> Result<(), VulkanError> {
        let staging = self.staging(device)?;
        for batch in batches(pieces(cache, contents.iter().map(|(unit, _)| *unit))) {
            let mut staged = staging.buffer.bytes_mut();
            for piece in &batch {
                let (here, later) = staged.split_at_mut(piece.bytes());
                here.copy_from_slice(&contents[piece.copy].1[piece.start..][..here.len()]);
                staged = later;
            }
            staging.run(device, &batch, Direction::ToDevice)?;
        }
        Ok(())
    }

    fn staging(&mut self, device: &Arc<Device>) -> Result<&mut Staging, VulkanError> {
        let staging = match self.0.take() {
            Some(staging) => staging,
            None => Staging::new(device)?,
        };
        Ok(self.0.insert(staging))
    }
}

/// The parts of units, in the order of their bytes.
fn pieces(cache: &DeviceCache, units: impl Iterator<Item = CacheUnit>) -> Vec<Piece> {
    units.enumerate().flat_map(|(copy, unit)| pieces_of(copy, cache.slices(unit))).collect()
}

/// The parts of one unit, which consists of slices of the device's memory.
fn pieces_of(copy: usize, slices: Vec<BufferSlice>) -> Vec<Piece> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for slice in slices {
        let bytes = slice.region.bytes;
        for from in (0..bytes).step_by(STAGING_BYTES as usize) {
            let piece = Piece { on_device: slice.slice(from, (bytes - from).min(STAGING_BYTES)), copy, start };
            start += piece.bytes();
            pieces.push(piece);
        }
    }
    pieces
}

/// Groups of consecutive parts that fit into the staging buffer together.
fn batches(pieces: Vec<Piece>) -> Vec<Vec<Piece>> {
    let mut batches: Vec<Vec<Piece>> = Vec::new();
    let mut left = 0;
    for piece in pieces {
        let bytes = piece.bytes() as u64;
        match batches.last_mut().filter(|_| bytes <= left) {
            Some(batch) => {
                left -= bytes;
                batch.push(piece);
            }
            None => {
                left = STAGING_BYTES - bytes;
                batches.push(vec![piece]);
            }
        }
    }
    batches
}

impl Staging {
    fn new(device: &Arc<Device>) -> Result<Self, VulkanError> {
        let buffer = HostBuffer::new(device, "copies of the cache", STAGING_BYTES)?;
        let pool = CommandPool::new(device)?;
        Ok(Staging { buffer, commands: pool.allocate()?, _pool: pool })
    }

    /// Copies parts between the cache and the staging buffer, and waits until that is done.
    fn run(&self, device: &Device, pieces: &[Piece], direction: Direction) -> Result<(), VulkanError> {
        let mut recorder = Recorder::begin(device, self.commands)?;
        let mut start = 0;
        for piece in pieces {
            let staged = self.buffer.as_buffer().slice(start, piece.on_device.region.bytes);
            start += staged.region.bytes;
            match direction {
                Direction::FromDevice => recorder.copy_slice(piece.on_device, staged),
                Direction::ToDevice => recorder.copy_slice(staged, piece.on_device),
            }
        }
        device.wait(device.submit(&[recorder.end()?])?)
    }
}

#[cfg(test)]
mod tests {
    use cuelight_shaders::gpu::Region;

    use super::*;

    fn slice(start: u64, bytes: u64) -> BufferSlice {
        BufferSlice { raw: vk::Buffer::null(), start, region: Region { address: start, bytes } }
    }

    /// A small unit, and a state of several times the staging buffer.
    #[test]
    fn units_are_copied_in_parts_that_fit_into_the_staging_buffer() {
        const MIB: u64 = 1 << 20;
        let large = vec![slice(0, 10 * MIB), slice(100 * MIB, 37 * MIB)];
        let all = pieces_of(0, vec![slice(0, 300)]).into_iter().chain(pieces_of(1, large.clone())).collect();
        let batches = batches(all);
        assert!(
            batches.iter().all(|batch| batch.iter().map(|piece| piece.bytes() as u64).sum::<u64>() <= STAGING_BYTES)
        );
        let pieces: Vec<&Piece> = batches.iter().flatten().collect();
        assert_eq!(pieces[0].copy, 0);
        let (mut next, mut copied) = (0, 0);
        for piece in &pieces[1..] {
            assert_eq!((piece.copy, piece.start), (1, next));
            let start = if piece.start < 10 << 20 { 0 } else { 90 * MIB };
            assert_eq!(piece.on_device.start, start + piece.start as u64);
            next += piece.bytes();
            copied += 1;
        }
        assert_eq!((next as u64, copied), (47 * MIB, 4));
        assert_eq!(batches.len(), 4, "the small unit, and what fits next to it");
    }
}
