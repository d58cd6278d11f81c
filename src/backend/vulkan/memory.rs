//! The allocator of a device: kinds of memory and the memory type used for each.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ash::vk;
use gpu_allocator::vulkan::{Allocator, AllocatorCreateDesc};
use gpu_allocator::{AllocationError, AllocationSizes, AllocatorDebugSettings};

use super::error::VulkanError;
use super::probe::DeviceInfo;

/// Where the memory of a buffer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MemoryKind {
    /// Device-local memory.
    Device,
    /// Host memory that the CPU reads and writes fast and the device can access.
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
            // Every buffer is a dedicated allocation; these sizes only bound what the allocator reserves beyond that.
            allocation_sizes: AllocationSizes::new(BLOCK_BYTES, BLOCK_BYTES),
        });
        Ok(Memory {
            allocator: Mutex::new(allocator.map_err(|error| out_of_memory("the allocator", 0, &error))?),
            device_type: choose_type(&info.memory, MemoryKind::Device),
            host_type: choose_type(&info.memory, MemoryKind::Host),
        })
    }

    /// The index of the memory type used for a kind of memory.
    pub fn memory_type(&self, kind: MemoryKind) -> u32 {
        match kind {
            MemoryKind::Device => self.device_type,
            MemoryKind::Host => self.host_type,
        }
    }

    pub fn allocator(&self) -> MutexGuard<'_, Allocator> {
        self.allocator.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const BLOCK_BYTES: u64 = 4 << 20;

/// The memory type to use for a kind of memory. Device memory is in the largest device-local heap. Nothing is flushed or
/// invalidated, so memory that the CPU accesses must be coherent.
fn choose_type(memory: &vk::PhysicalDeviceMemoryProperties, kind: MemoryKind) -> u32 {
    use vk::MemoryPropertyFlags as Flags;
    let score = |memory_type: &vk::MemoryType| {
        let flags = memory_type.property_flags;
        let heap = memory.memory_heaps[memory_type.heap_index as usize].size;
        match kind {
            MemoryKind::Device => {
                let access = match flags.contains(Flags::HOST_VISIBLE) {
                    true if flags.contains(Flags::HOST_COHERENT) => 2,
                    true => 0,
                    false => 1,
                };
                (flags.contains(Flags::DEVICE_LOCAL), heap, access)
            }
            MemoryKind::Host => (
                flags.contains(Flags::HOST_VISIBLE | Flags::HOST_COHERENT),
                u64::from(flags.contains(Flags::HOST_CACHED)),
                u8::from(!flags.contains(Flags::DEVICE_LOCAL)),
            ),
        }
    };
    // Buffers cannot use these, or only slowly.
    let special = Flags::PROTECTED | Flags::LAZILY_ALLOCATED | Flags::DEVICE_COHERENT_AMD | Flags::DEVICE_UNCACHED_AMD;
    let types = &memory.memory_types[..memory.memory_type_count as usize];
    let usual = types.iter().enumerate().filter(|(_, memory_type)| !memory_type.property_flags.intersects(special));
    // The first of equal types: drivers list better types first.
    let best = usual.rev().max_by_key(|(_, memory_type)| score(memory_type));
    best.map_or(0, |(index, _)| index as u32)
}

pub(super) fn out_of_memory(what: &str, bytes: u64, _error: &AllocationError) -> VulkanError {
    // The allocator has several errors, but every request here is for memory, so each means that memory is short.
    VulkanError::OutOfMemory { what: what.to_owned(), bytes }
}

#[cfg(test)]
mod tests {
    use vk::MemoryPropertyFlags as Flags;

    use super::*;

    const LOCAL: Flags = Flags::DEVICE_LOCAL;
    const SHARED: Flags = Flags::from_raw(Flags::HOST_VISIBLE.as_raw() | Flags::HOST_COHERENT.as_raw());

    /// The types chosen for device and host memory, of types in one heap.
    fn chosen(types: &[Flags]) -> [u32; 2] {
        let memory_type_count = types.len() as u32;
        let mut memory = vk::PhysicalDeviceMemoryProperties { memory_type_count, ..Default::default() };
        memory.memory_heaps[0].size = 1 << 30;
        for (memory_type, flags) in memory.memory_types.iter_mut().zip(types) {
            memory_type.property_flags = *flags;
        }
        [MemoryKind::Device, MemoryKind::Host].map(|kind| choose_type(&memory, kind))
    }

    #[test]
    fn device_memory_is_visible_to_the_cpu_only_if_it_is_coherent() {
        let managed = LOCAL | Flags::HOST_VISIBLE | Flags::HOST_CACHED;
        assert_eq!(chosen(&[LOCAL, SHARED, managed]), [0, 1]);
        assert_eq!(chosen(&[LOCAL, SHARED | Flags::HOST_CACHED, LOCAL | SHARED]), [2, 1]);
    }

    #[test]
    fn special_types_are_not_used() {
        assert_eq!(chosen(&[LOCAL | Flags::PROTECTED, LOCAL, SHARED]), [1, 2]);
        assert_eq!(chosen(&[LOCAL | SHARED | Flags::DEVICE_COHERENT_AMD, LOCAL, SHARED]), [1, 2]);
    }
}
