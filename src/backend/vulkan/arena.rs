//! Many things of any size in few buffers.

use std::sync::Arc;

use cuelight_shaders::gpu::Region;

use super::device::Device;
use super::error::VulkanError;
use super::memory::{Buffer, BufferPart, Place};

/// Where things start: a multiple of what any shader loads at once, and of a cache line.
const ALIGNMENT: u64 = 256;

/// Buffers with things in them.
pub(super) struct Arena {
    pub buffers: Vec<Buffer>,
    places: Vec<(usize, Region)>,
}

impl Arena {
    /// Room for things of these sizes, in buffers no larger than the device allocates at once.
    pub fn new(device: &Arc<Device>, what: &str, sizes: &[u64]) -> Result<Self, VulkanError> {
        let (places, buffer_bytes) = pack(sizes, device.info.max_allocation_bytes);
        let make = |bytes: &u64| Buffer::new(device, what, *bytes, Place::Device);
        let buffers = buffer_bytes.iter().map(make).collect::<Result<Vec<_>, _>>()?;
        let places = places.into_iter().zip(sizes).map(|((buffer, start), bytes)| {
            (buffer, Region { address: buffers[buffer].region.address + start, bytes: *bytes })
        });
        Ok(Arena { places: places.collect(), buffers })
    }

    /// Where the thing of that number is.
    pub fn region(&self, index: usize) -> Region {
        self.places[index].1
    }

    /// The part of a buffer that a region is.
    pub fn part(&self, region: Region) -> Option<BufferPart> {
        let start = |buffer: &Buffer| region.address.checked_sub(buffer.region.address);
        let has = |buffer: &&Buffer| start(buffer).is_some_and(|start| start + region.bytes <= buffer.region.bytes);
        let buffer = self.buffers.iter().find(has)?;
        Some(buffer.part(start(buffer)?, region.bytes))
    }

    /// The buffer that the thing is in, and where.
    pub fn place(&mut self, index: usize) -> (&mut Buffer, u64) {
        let (buffer, region) = self.places[index];
        let buffer = &mut self.buffers[buffer];
        let start = region.address - buffer.region.address;
        (buffer, start)
    }
}

/// Bytes that things of these sizes take.
pub(super) fn total_bytes(sizes: impl IntoIterator<Item = u64>) -> u64 {
    sizes.into_iter().map(|bytes| bytes.next_multiple_of(ALIGNMENT)).sum()
}

/// For each thing its buffer and where in it, and the sizes of the buffers.
fn pack(sizes: &[u64], most: u64) -> (Vec<(usize, u64)>, Vec<u64>) {
    let mut buffers: Vec<u64> = Vec::new();
    let mut places = Vec::with_capacity(sizes.len());
    for bytes in sizes {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        match buffers.last_mut().filter(|used| **used + bytes <= most) {
            Some(used) => {
                *used += bytes;
                places.push((buffers.len() - 1, buffers[buffers.len() - 1] - bytes));
            }
            None => {
                places.push((buffers.len(), 0));
                buffers.push(bytes);
            }
        }
    }
    (places, buffers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn things_share_buffers_as_long_as_they_fit() {
        let (places, buffers) = pack(&[100, 300, 256, 2000, 1], 1024);
        assert_eq!(places, [(0, 0), (0, 256), (0, 768), (1, 0), (2, 0)]);
        assert_eq!(buffers, [1024, 2048, 256], "what is too large for any buffer has one, which is refused");
        assert_eq!(total_bytes([100, 300]), 768);
    }
}
