//! Device memory: few large buffers, each an allocation of its own, reached by address.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ash::vk;
use cuelight_shaders::gpu::Region;
use gpu_allocator::vulkan::{Allocation, AllocationCreateDesc, AllocationScheme, Allocator, AllocatorCreateDesc};
use gpu_allocator::{AllocationError, AllocationSizes, AllocatorDebugSettings, MemoryLocation};

use super::device::Device;
use super::error::VulkanError;
use super::probe::DeviceInfo;

/// Where a buffer should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Place {
    /// Next to the device.
    Device,
    /// Where the processor reads and writes fast, and the device can too.
    Host,
}

/// The allocator of a device.
pub(super) struct Memory {
    allocator: Mutex<Allocator>,
    device_type: u32,
    host_type: u32,
}

impl Memory {
    pub fn new(instance: &ash::Instance, device: &ash::Device, info: &DeviceInfo) -> Result<Self, VulkanError> {
        let allocator = Allocator::new(&AllocatorCreateDesc {
            instance: instance.clone(),
            device: device.clone(),
            physical_device: info.raw,
            debug_settings: AllocatorDebugSettings::default(),
            buffer_device_address: true,
            // Every buffer is an allocation of its own; these only bound what the allocator takes beyond that.
            allocation_sizes: AllocationSizes::new(BLOCK_BYTES, BLOCK_BYTES),
        });
        Ok(Memory {
            allocator: Mutex::new(allocator.map_err(|error| out_of_memory("the allocator", 0, &error))?),
            device_type: choose_type(&info.memory, Place::Device),
            host_type: choose_type(&info.memory, Place::Host),
        })
    }

    fn allocator(&self) -> MutexGuard<'_, Allocator> {
        self.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const BLOCK_BYTES: u64 = 4 << 20;

/// The memory type to use. The device's own is that of its largest heap next to it.
fn choose_type(memory: &vk::PhysicalDeviceMemoryProperties, place: Place) -> u32 {
    use vk::MemoryPropertyFlags as Flags;
    let score = |memory_type: &vk::MemoryType| {
        let flags = memory_type.property_flags;
        let heap = memory.memory_heaps[memory_type.heap_index as usize].size;
        match place {
            Place::Device => (flags.contains(Flags::DEVICE_LOCAL), heap, flags.contains(Flags::HOST_VISIBLE), true),
            Place::Host => (
                flags.contains(Flags::HOST_VISIBLE | Flags::HOST_COHERENT),
                u64::from(flags.contains(Flags::HOST_CACHED)),
                !flags.contains(Flags::DEVICE_LOCAL),
                true,
            ),
        }
    };
    let types = &memory.memory_types[..memory.memory_type_count as usize];
    // Of equals the first: drivers list the better ones first.
    let best = types.iter().enumerate().rev().max_by_key(|(_, memory_type)| score(memory_type));
    best.map_or(0, |(index, _)| index as u32)
}

fn out_of_memory(what: &str, bytes: u64, _error: &AllocationError) -> VulkanError {
    // The allocator reports what the driver lacks in several ways; all that is asked of it here is memory.
    VulkanError::OutOfMemory { what: what.to_owned(), bytes }
}

/// A buffer, freed when dropped.
pub(super) struct Buffer {
    pub raw: vk::Buffer,
    pub region: Region,
    place: Place,
    allocation: Option<Allocation>,
    device: Arc<Device>,
}

/// A part of a buffer.
#[derive(Debug, Clone, Copy)]
pub(super) struct BufferPart {
    pub raw: vk::Buffer,
    pub start: u64,
    pub region: Region,
}

impl BufferPart {
    /// So many bytes from `start` on.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn part(self, start: u64, bytes: u64) -> BufferPart {
        assert!(start.checked_add(bytes).is_some_and(|end| end <= self.region.bytes), "a part is inside another");
        let region = Region { address: self.region.address + start, bytes };
        BufferPart { start: self.start + start, region, ..self }
    }
}

impl Buffer {
    /// So many bytes from `start` on.
    ///
    /// # Panics
    /// When there are not so many.
    pub fn part(&self, start: u64, bytes: u64) -> BufferPart {
        assert!(start.checked_add(bytes).is_some_and(|end| end <= self.region.bytes), "a part is inside its buffer");
        BufferPart { raw: self.raw, start, region: Region { address: self.region.address + start, bytes } }
    }

    /// Allocates `bytes` for `what`.
    pub fn new(device: &Arc<Device>, what: &str, bytes: u64, place: Place) -> Result<Self, VulkanError> {
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
            Buffer { raw, region: Region { address: 0, bytes }, place, allocation: None, device: Arc::clone(device) };
        // SAFETY: the buffer is the device's.
        let mut requirements = unsafe { device.raw.get_buffer_memory_requirements(raw) };
        requirements.memory_type_bits &= 1
            << match place {
                Place::Device => device.memory.device_type,
                Place::Host => device.memory.host_type,
            };
        let allocation = device.memory.allocator().allocate(&AllocationCreateDesc {
            name: what,
            requirements,
            location: MemoryLocation::Unknown,
            linear: true,
            allocation_scheme: AllocationScheme::DedicatedBuffer(raw),
        });
        let allocation = allocation.map_err(|error| out_of_memory(what, bytes, &error))?;
        // SAFETY: buffer and memory are the device's, the memory is large enough and bound to nothing else.
        let bound = unsafe { device.raw.bind_buffer_memory(raw, allocation.memory(), allocation.offset()) };
        buffer.allocation = Some(allocation);
        bound.map_err(VulkanError::of("vkBindBufferMemory"))?;
        let info = vk::BufferDeviceAddressInfo::default().buffer(raw);
        // SAFETY: the buffer is bound, and was made for it.
        buffer.region.address = unsafe { device.raw.get_buffer_device_address(&info) };
        Ok(buffer)
    }

    /// The bytes, where the processor can write them.
    pub fn mapped(&mut self) -> Option<&mut [u8]> {
        let apart = self.place == Place::Device && self.device.options.force_staging;
        if apart { None } else { self.allocation.as_mut()?.mapped_slice_mut() }
    }

    /// The bytes, where the processor reads them fast.
    pub fn readable(&self) -> Option<&[u8]> {
        let allocation = self.allocation.as_ref()?;
        let cached = allocation.memory_properties().contains(vk::MemoryPropertyFlags::HOST_CACHED);
        let direct = self.place == Place::Host || (cached && !self.device.options.force_staging);
        if direct { allocation.mapped_slice() } else { None }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // SAFETY: whoever drops a buffer has waited for the device (see `Device::drop` and the engine's).
        unsafe { self.device.raw.destroy_buffer(self.raw, None) };
        if let Some(allocation) = self.allocation.take() {
            // It can only fail for memory of another allocator.
            let _ = self.device.memory.allocator().free(allocation);
        }
    }
}
