//! Buffers on a device. Each has its own allocation and is accessed by address.

use std::sync::Arc;

use ash::vk;
use cuelight_shaders::gpu::Region;
use gpu_allocator::MemoryLocation;
use gpu_allocator::vulkan::{Allocation, AllocationCreateDesc, AllocationScheme};

use super::device::Device;
use super::error::VulkanError;
use super::memory::{MemoryKind, out_of_memory};

/// A buffer, freed when dropped.
pub(super) struct Buffer {
    pub raw: vk::Buffer,
    pub region: Region,
    kind: MemoryKind,
    allocation: Option<Allocation>,
    device: Arc<Device>,
}

/// A slice of a buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct BufferSlice {
    pub raw: vk::Buffer,
    pub start: u64,
    pub region: Region,
}

impl BufferSlice {
    /// The `bytes` bytes from offset `start`.
    ///
    /// # Panics
    /// When the range is out of bounds.
    pub fn slice(self, start: u64, bytes: u64) -> BufferSlice {
        assert!(start.checked_add(bytes).is_some_and(|end| end <= self.region.bytes), "a slice lies within its parent");
        let region = Region { address: self.region.address + start, bytes };
        BufferSlice { start: self.start + start, region, ..self }
    }
}

impl Buffer {
    /// The `bytes` bytes from offset `start`.
    ///
    /// # Panics
    /// When the range is out of bounds.
    pub fn slice(&self, start: u64, bytes: u64) -> BufferSlice {
        assert!(start.checked_add(bytes).is_some_and(|end| end <= self.region.bytes), "a slice lies within its buffer");
        BufferSlice { raw: self.raw, start, region: Region { address: self.region.address + start, bytes } }
    }

    /// Allocates `bytes` for `what`, which errors name.
    pub fn new(device: &Arc<Device>, what: &str, bytes: u64, kind: MemoryKind) -> Result<Self, VulkanError> {
        let bytes = bytes.max(16).next_multiple_of(16);
        let limit = device.info.max_allocation_bytes;
        if bytes > limit {
            return Err(VulkanError::TooLargeAtOnce { what: what.to_owned(), bytes, limit });
        }
        let usage = vk::BufferUsageFlags::STORAGE_BUFFER
            | vk::BufferUsageFlags::SHADER_DEVICE_ADDRESS
            | vk::BufferUsageFlags::TRANSFER_SRC
            | vk::BufferUsageFlags::TRANSFER_DST;
        let info = vk::BufferCreateInfo::default().size(bytes).usage(usage);
        // SAFETY: the device is alive.
        let raw = unsafe { device.raw.create_buffer(&info, None) }.map_err(VulkanError::of("vkCreateBuffer"))?;
        let mut buffer =
            Buffer { raw, region: Region { address: 0, bytes }, kind, allocation: None, device: Arc::clone(device) };
        // SAFETY: the buffer belongs to the device.
        let mut requirements = unsafe { device.raw.get_buffer_memory_requirements(raw) };
        requirements.memory_type_bits &= 1 << device.memory.memory_type(kind);
        let allocation = device.memory.allocator().allocate(&AllocationCreateDesc {
            name: what,
            requirements,
            location: MemoryLocation::Unknown,
            linear: true,
            allocation_scheme: AllocationScheme::DedicatedBuffer(raw),
        });
        let allocation = allocation.map_err(|error| out_of_memory(what, bytes, &error))?;
        // SAFETY: buffer and memory belong to the device; the memory is large enough and bound to nothing else.
        let bound = unsafe { device.raw.bind_buffer_memory(raw, allocation.memory(), allocation.offset()) };
        buffer.allocation = Some(allocation);
        bound.map_err(VulkanError::of("vkBindBufferMemory"))?;
        let info = vk::BufferDeviceAddressInfo::default().buffer(raw);
        // SAFETY: the buffer is bound and was created with the address usage.
        buffer.region.address = unsafe { device.raw.get_buffer_device_address(&info) };
        Ok(buffer)
    }

    /// The bytes, if the CPU can write them directly.
    pub fn mapped(&mut self) -> Option<&mut [u8]> {
        let is_unreachable = self.kind == MemoryKind::Device && self.device.options.force_staging;
        if is_unreachable { None } else { self.allocation.as_mut()?.mapped_slice_mut() }
    }

    /// The bytes, if the CPU can read them directly and fast.
    pub fn readable(&self) -> Option<&[u8]> {
        let allocation = self.allocation.as_ref()?;
        let cached = allocation.memory_properties().contains(vk::MemoryPropertyFlags::HOST_CACHED);
        let direct = self.kind == MemoryKind::Host || (cached && !self.device.options.force_staging);
        if direct { allocation.mapped_slice() } else { None }
    }
}

/// A buffer in host memory, which the CPU and the device read and write.
pub(super) struct HostBuffer(Buffer);

impl HostBuffer {
    /// Allocates `bytes` for `what`, which errors name.
    pub fn new(device: &Arc<Device>, what: &str, bytes: u64) -> Result<Self, VulkanError> {
        let buffer = Buffer::new(device, what, bytes, MemoryKind::Host)?;
        match buffer.readable() {
            Some(_) => Ok(HostBuffer(buffer)),
            None => Err(VulkanError::OutOfMemory { what: what.to_owned(), bytes }),
        }
    }

    /// The buffer, for copies on the device.
    pub fn as_buffer(&self) -> &Buffer {
        &self.0
    }

    /// Its bytes.
    pub fn bytes(&self) -> &[u8] {
        self.0.readable().expect(IS_MAPPED)
    }

    /// Its bytes, to be written.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.mapped().expect(IS_MAPPED)
    }
}

/// Why the bytes of a [`HostBuffer`] are there.
const IS_MAPPED: &str = "HostBuffer::new refuses memory that is not mapped";

/// The bytes with which the CPU writes a buffer: those of its staging buffer, or its own if it has none.
pub(super) fn writable<'a>(buffer: &'a mut Buffer, staging: Option<&'a mut HostBuffer>) -> &'a mut [u8] {
    match staging {
        Some(staging) => staging.bytes_mut(),
        None => buffer.mapped().expect("a buffer that the CPU cannot write has a staging buffer"),
    }
}

/// The bytes in which the CPU reads a buffer: those of its staging buffer, or its own if it has none.
pub(super) fn readable<'a>(buffer: &'a Buffer, staging: Option<&'a HostBuffer>) -> &'a [u8] {
    match staging {
        Some(staging) => staging.bytes(),
        None => buffer.readable().expect("a buffer that the CPU cannot read has a staging buffer"),
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: owners wait for the device before they drop buffers (see `Drop` of `VulkanStage` and of `CommandPool`).
        unsafe { self.device.raw.destroy_buffer(self.raw, None) };
        if let Some(allocation) = self.allocation.take() {
            // This fails only for memory of another allocator.
            let _ = self.device.memory.allocator().free(allocation);
        }
    }
}
