//! Dispatches into command buffers. Barriers come from what dispatches say they read and write.

use std::sync::Arc;

use ash::vk;
use cuelight_shaders::gpu::{Dispatch, Region};

use super::device::Device;
use super::error::VulkanError;
use super::memory::{Buffer, BufferPart};

/// Command buffers of one thread, freed when dropped.
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

    /// An empty command buffer, to be recorded.
    pub fn allocate(&self) -> Result<vk::CommandBuffer, VulkanError> {
        let info = vk::CommandBufferAllocateInfo::default().command_pool(self.raw).command_buffer_count(1);
        // SAFETY: the pool is the device's, and used by one thread at a time (`&self` of a type that is not shared).
        let buffers = unsafe { self.device.raw.allocate_command_buffers(&info) };
        Ok(buffers.map_err(VulkanError::of("vkAllocateCommandBuffers"))?[0])
    }
}

impl CommandPool {
    /// Frees buffers that the device will not run again.
    pub fn free(&self, buffers: &[vk::CommandBuffer]) {
        // SAFETY: they are of this pool, and what was submitted of them has ended.
        unsafe { self.device.raw.free_command_buffers(self.raw, buffers) };
    }
}

impl Drop for CommandPool {
    fn drop(&mut self) {
        // Whoever fails half-way has not waited.
        self.device.settle();
        // SAFETY: the device is idle, and nobody else has the buffers of this pool.
        unsafe { self.device.raw.destroy_command_pool(self.raw, None) };
    }
}

/// A command buffer in the making.
pub(super) struct Recorder<'a> {
    device: &'a Device,
    raw: vk::CommandBuffer,
    hazards: Hazards,
    bound: Option<vk::Pipeline>,
}

impl<'a> Recorder<'a> {
    /// Begins to record; the buffer may be one that was recorded before.
    pub fn begin(device: &'a Device, raw: vk::CommandBuffer) -> Result<Self, VulkanError> {
        let info = vk::CommandBufferBeginInfo::default();
        // SAFETY: the buffer is the device's, and the device does not run it now.
        unsafe { device.raw.begin_command_buffer(raw, &info) }.map_err(VulkanError::of("vkBeginCommandBuffer"))?;
        Ok(Recorder { device, raw, hazards: Hazards::default(), bound: None })
    }

    /// Runs a shader after whatever it depends on.
    pub fn dispatch(&mut self, dispatch: &Dispatch) -> Result<(), VulkanError> {
        let pipeline = self.device.pipelines.get(&self.device.raw, dispatch)?;
        if self.hazards.add(&dispatch.reads, &dispatch.writes) {
            self.barrier();
        }
        let layout = self.device.pipelines.layout;
        let [x, y, z] = dispatch.groups;
        // SAFETY: recording; the pipeline has this layout, whose range is as long as any push constants.
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

    /// Copies `bytes` from one buffer to another, each from an offset on.
    pub fn copy(&mut self, (from, start): (&Buffer, u64), (to, to_start): (&Buffer, u64), bytes: u64) {
        self.copy_part(from.part(start, bytes), to.part(to_start, bytes));
    }

    /// Copies a part of a buffer to a part of another one, as long.
    pub fn copy_part(&mut self, from: BufferPart, to: BufferPart) {
        if self.hazards.add(&[from.region], &[to.region]) {
            self.barrier();
        }
        let copy = vk::BufferCopy::default().src_offset(from.start).dst_offset(to.start).size(from.region.bytes);
        // SAFETY: recording; a part is inside its buffer.
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

    /// Notes the time when everything before is done, and lets nothing begin before it is.
    pub fn timestamp(&mut self, queries: vk::QueryPool, index: u32) {
        self.barrier();
        let stage = vk::PipelineStageFlags2::ALL_COMMANDS;
        // SAFETY: recording; the query exists and was reset.
        unsafe { self.device.raw.cmd_write_timestamp2(self.raw, stage, queries, index) };
    }

    /// Ends, with everything visible to the processor and to later submissions.
    pub fn end(mut self) -> Result<vk::CommandBuffer, VulkanError> {
        self.barrier();
        // SAFETY: recording.
        unsafe { self.device.raw.end_command_buffer(self.raw) }.map_err(VulkanError::of("vkEndCommandBuffer"))?;
        Ok(self.raw)
    }

    fn barrier(&mut self) {
        let work = vk::PipelineStageFlags2::COMPUTE_SHADER | vk::PipelineStageFlags2::TRANSFER;
        let all = vk::AccessFlags2::MEMORY_READ | vk::AccessFlags2::MEMORY_WRITE;
        let barriers = [vk::MemoryBarrier2::default()
            .src_stage_mask(work)
            .src_access_mask(vk::AccessFlags2::MEMORY_WRITE)
            .dst_stage_mask(work | vk::PipelineStageFlags2::HOST)
            .dst_access_mask(all)];
        let dependency = vk::DependencyInfo::default().memory_barriers(&barriers);
        // SAFETY: recording.
        unsafe { self.device.raw.cmd_pipeline_barrier2(self.raw, &dependency) };
    }
}

/// What ran since the last barrier read and wrote.
#[derive(Default)]
pub(super) struct Hazards {
    reads: Vec<Region>,
    writes: Vec<Region>,
}

impl Hazards {
    /// Adds what comes next; whether it needs a barrier before.
    pub fn add(&mut self, reads: &[Region], writes: &[Region]) -> bool {
        let meets = |ours: &[Region], theirs: &[Region]| ours.iter().any(|a| theirs.iter().any(|b| a.overlaps(b)));
        let needed = meets(reads, &self.writes) || meets(writes, &self.writes) || meets(writes, &self.reads);
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
    fn barriers_stand_where_something_is_read_or_written_again_and_nowhere_else() {
        let region = |address, bytes| Region { address, bytes };
        let (a, b, c) = (region(0, 10), region(10, 10), region(20, 10));
        let mut hazards = Hazards::default();
        assert!(!hazards.add(&[a], &[b]), "first");
        assert!(!hazards.add(&[a], &[c]), "reads the same, writes elsewhere");
        assert!(hazards.add(&[b], &[region(30, 10)]), "reads what was written");
        assert!(!hazards.add(&[a], &[c]), "the barrier settled what was before");
        assert!(hazards.add(&[], &[region(25, 1)]), "writes again");
        assert!(!hazards.add(&[a], &[]));
        assert!(hazards.add(&[], &[region(9, 1)]), "writes what is being read");
    }

    /// Two sets of bytes of a memory of 64, one in each bit.
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
        fn of_two_that_conflict_a_barrier_stands_between_and_none_without_a_conflict(
            accesses in prop::collection::vec((regions(), regions()), 1..40),
        ) {
            let mut hazards = Hazards::default();
            let barriers: Vec<bool> = accesses.iter().map(|(reads, writes)| hazards.add(reads, writes)).collect();
            let bytes: Vec<Bytes> = accesses.iter().map(|(reads, writes)| Bytes::of(reads, writes)).collect();
            for (index, later) in bytes.iter().enumerate() {
                // The first since the last barrier before this one.
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
