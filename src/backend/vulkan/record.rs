//! Records dispatches into command buffers. Barriers follow from the regions that dispatches declare to read and write.

use std::sync::Arc;

use ash::vk;
use cuelight_shaders::gpu::{Dispatch, Region};

use super::buffer::{Buffer, BufferSlice};
use super::device::Device;
use super::error::VulkanError;

// These flags are built from numbers, because `|` of flags is no constant expression.

/// The stages of all commands that are recorded.
const WORK: vk::PipelineStageFlags2 = vk::PipelineStageFlags2::from_raw(
    vk::PipelineStageFlags2::COMPUTE_SHADER.as_raw() | vk::PipelineStageFlags2::TRANSFER.as_raw(),
);

/// How these commands write.
const WRITES: vk::AccessFlags2 = vk::AccessFlags2::from_raw(
    vk::AccessFlags2::SHADER_STORAGE_WRITE.as_raw() | vk::AccessFlags2::TRANSFER_WRITE.as_raw(),
);

/// How these commands read and write. `MEMORY_READ` and `MEMORY_WRITE` include caches that they do not use; with them a barrier
/// takes 8 us on an H100, and 2 us without.
const READS_AND_WRITES: vk::AccessFlags2 = vk::AccessFlags2::from_raw(
    WRITES.as_raw() | vk::AccessFlags2::SHADER_STORAGE_READ.as_raw() | vk::AccessFlags2::TRANSFER_READ.as_raw(),
);

/// The command buffers of one thread. They are freed when the pool is dropped.
pub(super) struct CommandPool {
    raw: vk::CommandPool,
    device: Arc<Device>,
}

impl CommandPool {
    pub fn new(device: &Arc<Device>) -> Result<Self, VulkanError> {
        let info = vk::CommandPoolCreateInfo::default()
            .queue_family_index(device.queue.family)
            .flags(vk::CommandPoolCreateFlags::RESET_COMMAND_BUFFER);
        // SAFETY: the device is alive.
        let raw = unsafe { device.raw.create_command_pool(&info, None) };
        Ok(CommandPool { raw: raw.map_err(VulkanError::of("vkCreateCommandPool"))?, device: Arc::clone(device) })
    }

    /// Allocates an empty command buffer.
    pub fn allocate(&self) -> Result<vk::CommandBuffer, VulkanError> {
        let info = vk::CommandBufferAllocateInfo::default().command_pool(self.raw).command_buffer_count(1);
        // SAFETY: the pool belongs to the device and is used by one thread at a time, as its type is not shared.
        let buffers = unsafe { self.device.raw.allocate_command_buffers(&info) };
        Ok(buffers.map_err(VulkanError::of("vkAllocateCommandBuffers"))?[0])
    }

    /// Frees buffers that the device will not run again.
    pub fn free(&self, buffers: &[vk::CommandBuffer]) {
        // SAFETY: the buffers belong to this pool, and their submissions have completed.
        unsafe { self.device.raw.free_command_buffers(self.raw, buffers) };
    }
}

impl Drop for CommandPool {
    fn drop(&mut self) {
        // After an error the owner may not have waited for its submissions.
        self.device.settle();
        // SAFETY: the device is idle, and only this pool's owner uses its buffers.
        unsafe { self.device.raw.destroy_command_pool(self.raw, None) };
    }
}

/// A command buffer that is being recorded.
pub(super) struct Recorder<'a> {
    device: &'a Device,
    raw: vk::CommandBuffer,
    hazards: Hazards,
    bound: Option<vk::Pipeline>,
}

impl<'a> Recorder<'a> {
    /// Begins recording. A buffer that was recorded before is overwritten.
    pub fn begin(device: &'a Device, raw: vk::CommandBuffer) -> Result<Self, VulkanError> {
        let info = vk::CommandBufferBeginInfo::default();
        // SAFETY: the buffer belongs to the device, and the device is not running it.
        unsafe { device.raw.begin_command_buffer(raw, &info) }.map_err(VulkanError::of("vkBeginCommandBuffer"))?;
        Ok(Recorder { device, raw, hazards: Hazards::default(), bound: None })
    }

    /// Records a dispatch, after a barrier if it depends on earlier commands.
    pub fn dispatch(&mut self, dispatch: &Dispatch) -> Result<(), VulkanError> {
        let pipeline = self.device.pipelines.get(&self.device.raw, dispatch)?;
        if self.hazards.add(&dispatch.reads, &dispatch.writes) {
            self.barrier();
        }
        let layout = self.device.pipelines.layout;
        let [x, y, z] = dispatch.groups;
        // SAFETY: recording; the pipeline has this layout, whose range covers all push constants.
        unsafe {
            if self.bound.replace(pipeline) != Some(pipeline) {
                self.device.raw.cmd_bind_pipeline(self.raw, vk::PipelineBindPoint::COMPUTE, pipeline);
            }
            let (stage, push) = (vk::ShaderStageFlags::COMPUTE, dispatch.push.as_bytes());
            self.device.raw.cmd_push_constants(self.raw, layout, stage, 0, push);
            self.device.raw.cmd_dispatch(self.raw, x, y, z);
        }
        Ok(())
    }

    /// Copies `bytes` bytes from an offset in one buffer to an offset in another.
    pub fn copy(&mut self, (from, start): (&Buffer, u64), (to, to_start): (&Buffer, u64), bytes: u64) {
        self.copy_slice(from.slice(start, bytes), to.slice(to_start, bytes));
    }

    /// Copies a slice to another slice of the same length.
    pub fn copy_slice(&mut self, from: BufferSlice, to: BufferSlice) {
        if self.hazards.add(&[from.region], &[to.region]) {
            self.barrier();
        }
        let copy = vk::BufferCopy::default().src_offset(from.start).dst_offset(to.start).size(from.region.bytes);
        // SAFETY: recording; a slice lies within its buffer.
        unsafe { self.device.raw.cmd_copy_buffer(self.raw, from.raw, to.raw, &[copy]) };
    }

    /// Fills a buffer with zeros.
    pub fn clear(&mut self, buffer: &Buffer) {
        if self.hazards.add(&[], &[buffer.region]) {
            self.barrier();
        }
        // SAFETY: recording.
        unsafe { self.device.raw.cmd_fill_buffer(self.raw, buffer.raw, 0, vk::WHOLE_SIZE, 0) };
    }

    /// Records the time at which all earlier commands have completed. Later commands start after that.
    pub fn timestamp(&mut self, queries: vk::QueryPool, index: u32) {
        self.barrier();
        let stage = vk::PipelineStageFlags2::ALL_COMMANDS;
        // SAFETY: recording; the query exists and was reset.
        unsafe { self.device.raw.cmd_write_timestamp2(self.raw, stage, queries, index) };
    }

    /// Ends recording. All writes become visible to the host and to later submissions.
    pub fn end(mut self) -> Result<vk::CommandBuffer, VulkanError> {
        let all = vk::AccessFlags2::MEMORY_READ | vk::AccessFlags2::MEMORY_WRITE;
        self.barrier_before(WORK | vk::PipelineStageFlags2::HOST, all);
        // SAFETY: recording.
        unsafe { self.device.raw.end_command_buffer(self.raw) }.map_err(VulkanError::of("vkEndCommandBuffer"))?;
        Ok(self.raw)
    }

    /// Records a barrier: later commands start when all earlier ones have completed, and see what they wrote.
    pub fn barrier(&mut self) {
        self.barrier_before(WORK, READS_AND_WRITES);
    }

    /// Makes all writes visible to later accesses in these stages. Only the last barrier names the host, because a device may
    /// have to write its caches back for it.
    fn barrier_before(&mut self, stages: vk::PipelineStageFlags2, accesses: vk::AccessFlags2) {
        let barriers = [vk::MemoryBarrier2::default()
            .src_stage_mask(WORK)
            .src_access_mask(WRITES)
            .dst_stage_mask(stages)
            .dst_access_mask(accesses)];
        let dependency = vk::DependencyInfo::default().memory_barriers(&barriers);
        // SAFETY: recording.
        unsafe { self.device.raw.cmd_pipeline_barrier2(self.raw, &dependency) };
    }
}

/// The regions read and written since the last barrier.
#[derive(Default)]
pub(super) struct Hazards {
    reads: Vec<Region>,
    writes: Vec<Region>,
}

impl Hazards {
    /// Adds the next command. Returns whether it needs a barrier before it.
    pub fn add(&mut self, reads: &[Region], writes: &[Region]) -> bool {
        let overlap = |ours: &[Region], theirs: &[Region]| ours.iter().any(|a| theirs.iter().any(|b| a.overlaps(b)));
        let needed = overlap(reads, &self.writes) || overlap(writes, &self.writes) || overlap(writes, &self.reads);
        if needed {
            self.reads.clear();
            self.writes.clear();
        }
        self.reads.extend(reads);
        self.writes.extend(writes);
        needed
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_barrier_is_needed_exactly_after_conflicting_accesses() {
        let region = |address, bytes| Region { address, bytes };
        let (a, b, c) = (region(0, 10), region(10, 10), region(20, 10));
        let mut hazards = Hazards::default();
        assert!(!hazards.add(&[a], &[b]), "first");
        assert!(!hazards.add(&[a], &[c]), "reads the same, writes elsewhere");
        assert!(hazards.add(&[b], &[region(30, 10)]), "reads what was written");
        assert!(!hazards.add(&[a], &[c]), "the barrier has resolved earlier conflicts");
        assert!(hazards.add(&[], &[region(25, 1)]), "writes again");
        assert!(!hazards.add(&[a], &[]));
        assert!(hazards.add(&[], &[region(9, 1)]), "writes a region that is being read");
    }

    /// The bytes read and written in a memory of 64 bytes, one byte per bit.
    #[derive(Debug, Clone, Copy)]
    struct Bytes {
        read: u64,
        written: u64,
    }

    impl Bytes {
        fn of(reads: &[Region], writes: &[Region]) -> Bytes {
            let bits = |regions: &[Region]| {
                regions
                    .iter()
                    .flat_map(|region| region.address..region.address + region.bytes)
                    .fold(0, |all, byte| all | 1 << byte)
            };
            Bytes { read: bits(reads), written: bits(writes) }
        }

        fn conflicts(self, other: Bytes) -> bool {
            (self.written & (other.read | other.written)) | (self.read & other.written) != 0
        }
    }

    fn regions() -> impl Strategy<Value = Vec<Region>> {
        prop::collection::vec((0_u64..56, 0_u64..9).prop_map(|(address, bytes)| Region { address, bytes }), 0..3)
    }

    proptest! {
        #[test]
        fn barriers_separate_all_conflicting_accesses_and_no_others(
            accesses in prop::collection::vec((regions(), regions()), 1..40),
        ) {
            let mut hazards = Hazards::default();
            let barriers: Vec<bool> = accesses.iter().map(|(reads, writes)| hazards.add(reads, writes)).collect();
            let bytes: Vec<Bytes> = accesses.iter().map(|(reads, writes)| Bytes::of(reads, writes)).collect();
            for (index, later) in bytes.iter().enumerate() {
                // The first access since the last barrier before this one.
                let since = barriers[..index].iter().rposition(|barrier| *barrier).unwrap_or(0);
                let conflicts = bytes[since..index].iter().any(|earlier| earlier.conflicts(*later));
                prop_assert_eq!(barriers[index], conflicts, "access {}", index);
                for (earlier, other) in bytes[..index].iter().enumerate() {
                    let separated = barriers[earlier + 1..=index].contains(&true);
                    prop_assert!(separated || !other.conflicts(*later), "{earlier} and {index} conflict");
                }
            }
        }
    }
}
