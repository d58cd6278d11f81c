//! The adapters on a device: a number of slots, of which each holds one.
//!
//! Steps carry adapters themselves, not slots. The first step that uses an adapter copies it to a slot and replaces the
//! one that no step has used for longest.

use std::sync::Arc;

use cuelight_shaders::gpu::Region;
use cuelight_shaders::lora::{Adapter, AdapterUse, DeviceAdapters, Target};
use cuelight_shaders::op::Op;

use super::arena::{Arena, total_bytes};
use super::device::Device;
use super::error::VulkanError;
use super::upload::Upload;

/// The most bytes that are copied to a device at once.
const STAGING_BYTES: usize = 1 << 20;

/// The adapters on a device.
pub(super) struct AdapterSlots {
    /// The projections on the device.
    targets: Vec<Target>,
    /// Their memory.
    pub regions: DeviceAdapters,
    held: Vec<Held>,
    /// Counts steps with adapters.
    clock: u64,
    arena: Arena,
    upload: Upload,
}

/// What a slot holds.
#[derive(Clone, Copy, Default)]
struct Held {
    adapter: Option<u64>,
    /// The last step that used it.
    last_use: u64,
}

/// The projections of ops.
fn targets_of<'a>(ops: &[&'a dyn Op]) -> impl Iterator<Item = &'a Target> {
    ops.iter().flat_map(|op| op.adapter_targets())
}

/// Bytes that the adapters of some ops need: their slots, and the memory through which they are copied.
pub(super) fn adapters_bytes(ops: &[&dyn Op], slots: usize) -> u64 {
    let bytes = total_bytes(targets_of(ops).map(|target| target.slot_bytes() * slots as u64));
    if bytes == 0 { 0 } else { bytes + Upload::memory_bytes(STAGING_BYTES) }
}

impl AdapterSlots {
    /// Allocates `slots` slots for the projections of ops.
    pub fn new(device: &Arc<Device>, ops: &[&dyn Op], slots: usize) -> Result<Self, VulkanError> {
        let targets: Vec<Target> = targets_of(ops).cloned().collect();
        let sizes: Vec<u64> = targets.iter().map(|target| target.slot_bytes() * slots as u64).collect();
        let arena = Arena::new(device, "the adapters", &sizes)?;
        let count = targets.iter().map(|target| target.index + 1).max().unwrap_or(0);
        let mut regions = vec![Region::default(); count];
        for (number, target) in targets.iter().enumerate() {
            regions[target.index] = arena.region(number);
        }
        Ok(AdapterSlots {
            targets,
            regions: DeviceAdapters { targets: regions },
            held: vec![Held::default(); slots],
            clock: 0,
            arena,
            upload: Upload::new(device, STAGING_BYTES)?,
        })
    }

    /// The slot of each adapter, which is copied there if it is in none; 0 for a sequence without one. No step runs meanwhile.
    ///
    /// # Errors
    /// [`VulkanError`] when there are more different adapters than slots, or a copy fails.
    pub fn place(&mut self, adapters: &[Option<&AdapterUse>]) -> Result<Vec<u32>, VulkanError> {
        if adapters.is_empty() {
            return Ok(Vec::new());
        }
        self.clock += 1;
        let used = || adapters.iter().flatten().map(|used| &*used.adapter);
        // First those that have a slot, so that none of them is replaced.
        let (_, missing): (Vec<_>, Vec<_>) = used().partition(|adapter| self.find(adapter).is_some());
        for adapter in missing {
            if self.find(adapter).is_none() {
                self.load(adapter)?;
            }
        }
        let slot = |used: &Option<&AdapterUse>| used.and_then(|used| self.find(&used.adapter)).unwrap_or(0);
        Ok(adapters.iter().map(slot).collect())
    }

    /// The slot that holds an adapter, which this step uses.
    fn find(&mut self, adapter: &Adapter) -> Option<u32> {
        let slot = self.held.iter().position(|held| held.adapter == Some(adapter.id()))?;
        self.held[slot].last_use = self.clock;
        u32::try_from(slot).ok()
    }

    /// Copies an adapter to a slot that this step does not use.
    fn load(&mut self, adapter: &Adapter) -> Result<(), VulkanError> {
        let free = self.held.iter().enumerate().filter(|(_, held)| held.last_use < self.clock);
        let slot = free.min_by_key(|(_, held)| held.last_use).map(|(slot, _)| slot);
        let slot = slot.ok_or(VulkanError::OutOfMemory { what: "the adapters of a step".to_owned(), bytes: 0 })?;
        // A copy that fails leaves the slot without an adapter.
        self.held[slot] = Held { adapter: None, last_use: self.clock };
        for (number, target) in self.targets.iter().enumerate() {
            let (buffer, start) = self.arena.buffer_and_offset(number);
            let start = start + target.slot_bytes() * slot as u64;
            for matrix in 0..target.count {
                let start = start + target.change_bytes() * matrix as u64;
                self.upload.write(buffer, start, &target.content(adapter, matrix))?;
            }
        }
        self.upload.finish()?;
        self.held[slot].adapter = Some(adapter.id());
        Ok(())
    }
}
