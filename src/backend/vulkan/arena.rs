//! Many memory regions of any size in few buffers.

use std::sync::Arc;

use cuelight_shaders::gpu::Region;

use super::buffer::{Buffer, BufferSlice};
use super::device::Device;
use super::error::VulkanError;
use super::memory::MemoryKind;

/// Regions start at multiples of this: a multiple of the largest load of any shader, and of a cache line.
const ALIGNMENT: u64 = 256;

/// The most bytes of several regions in one buffer. Drivers support buffers of this size best.
const BUFFER_BYTES: u64 = 2 << 30;

/// Buffers that hold regions.
pub(super) struct Arena {
    pub buffers: Vec<Buffer>,
    regions: Vec<(usize, Region)>,
}

impl Arena {
    /// Allocates regions of these sizes, in buffers of up to [`BUFFER_BYTES`]. A larger region has its own buffer.
    pub fn new(device: &Arc<Device>, what: &str, sizes: &[u64]) -> Result<Self, VulkanError> {
        let (offsets, buffer_bytes) = pack(sizes, device.info.max_allocation_bytes.min(BUFFER_BYTES));
        let make = |bytes: &u64| Buffer::new(device, what, *bytes, MemoryKind::Device);
        let buffers = buffer_bytes.iter().map(make).collect::<Result<Vec<_>, _>>()?;
        let regions = offsets.into_iter().zip(sizes).map(|((buffer, start), bytes)| {
            (buffer, Region { address: buffers[buffer].region.address + start, bytes: *bytes })
        });
        Ok(Arena { regions: regions.collect(), buffers })
    }

    /// The region of index `index`.
    pub fn region(&self, index: usize) -> Region {
        self.regions[index].1
    }

    /// The slice of a buffer that holds a region.
    pub fn slice(&self, region: Region) -> Option<BufferSlice> {
        let start = |buffer: &Buffer| region.address.checked_sub(buffer.region.address);
        let has = |buffer: &&Buffer| start(buffer).is_some_and(|start| start + region.bytes <= buffer.region.bytes);
        let buffer = self.buffers.iter().find(has)?;
        Some(buffer.slice(start(buffer)?, region.bytes))
    }

    /// The buffer that holds the region of index `index`, and the offset in it.
    pub fn buffer_and_offset(&mut self, index: usize) -> (&mut Buffer, u64) {
        let (buffer, region) = self.regions[index];
        let buffer = &mut self.buffers[buffer];
        let start = region.address - buffer.region.address;
        (buffer, start)
    }
}

/// Bytes that regions of these sizes occupy.
pub(super) fn total_bytes(sizes: impl IntoIterator<Item = u64>) -> u64 {
    sizes.into_iter().map(|bytes| bytes.next_multiple_of(ALIGNMENT)).sum()
}

/// The buffer and offset of each region, and the sizes of the buffers.
fn pack(sizes: &[u64], most: u64) -> (Vec<(usize, u64)>, Vec<u64>) {
    let mut buffers: Vec<u64> = Vec::new();
    let mut offsets = Vec::with_capacity(sizes.len());
    for bytes in sizes {
        let bytes = bytes.next_multiple_of(ALIGNMENT);
        match buffers.last_mut().filter(|used| **used + bytes <= most) {
            Some(used) => {
                *used += bytes;
                offsets.push((buffers.len() - 1, buffers[buffers.len() - 1] - bytes));
            }
            None => {
                offsets.push((buffers.len(), 0));
                buffers.push(bytes);
            }
        }
    }
    (offsets, buffers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_share_buffers_as_long_as_they_fit() {
        let (offsets, buffers) = pack(&[100, 300, 256, 2000, 1], 1024);
        assert_eq!(offsets, [(0, 0), (0, 256), (0, 768), (1, 0), (2, 0)]);
        assert_eq!(buffers, [1024, 2048, 256], "a larger region has its own buffer");
        assert_eq!(total_bytes([100, 300]), 768);
    }
}
