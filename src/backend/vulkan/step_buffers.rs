//! The device memory of the step in progress.

use std::ops::Range;
use std::sync::Arc;

use ash::vk;
use cuelight_shaders::gpu::StepLayout;

use super::buffer::{Buffer, HostBuffer, writable};
use super::device::Device;
use super::error::VulkanError;
use super::memory::MemoryKind;
use super::record::{CommandPool, Recorder};
use super::{footprint, transfer};
use crate::engine::EngineLimits;
use crate::graph::Graph;

/// The memory of the step in progress.
pub(super) struct StepBuffers {
    /// All values, followed by the scratch of ops.
    pub work: Buffer,
    pub scratch_start: u64,
    /// The step's rows (see [`StepLayout`]).
    pub step: Buffer,
    /// A staging buffer for the rows and the commands that copy them, if the CPU cannot write `step` directly.
    step_staging: Option<(HostBuffer, vk::CommandBuffer)>,
    /// Staging buffers for a segment's inputs and outputs, if the CPU cannot access `work` directly.
    pub input_staging: Option<HostBuffer>,
    pub output_staging: Option<HostBuffer>,
    /// The rows as last written; kept to reuse the allocation.
    pub words: Vec<u32>,
}

impl StepBuffers {
    pub fn new(
        device: &Arc<Device>,
        pool: &CommandPool,
        graphs: &[Graph],
        limits: &EngineLimits,
        step_layout: &StepLayout,
    ) -> Result<Self, VulkanError> {
        let scratch_start = footprint::values_bytes(graphs, limits).next_multiple_of(256);
        let work_bytes = scratch_start + footprint::scratch_bytes(graphs, &device.info, limits);
        let mut work = Buffer::new(device, "the values between ops", work_bytes, MemoryKind::Device)?;
        let (input_bytes, output_bytes) =
            (footprint::input_bytes(graphs, limits), footprint::output_bytes(graphs, limits));
        let input_staging = transfer::staging_buffer(device, input_bytes, work.mapped().is_some())?;
        let output_staging = transfer::staging_buffer(device, output_bytes, work.readable().is_some())?;
        let mut step = Buffer::new(device, "the rows of a step", step_layout.bytes(), MemoryKind::Device)?;
        let step_staging = match step.mapped() {
            Some(_) => None,
            None => {
                let staging = HostBuffer::new(device, "the rows of a step", step_layout.bytes())?;
                Some((staging, pool.allocate()?))
            }
        };
        let mut words = vec![0; step_layout.bytes() as usize / size_of::<u32>()];
        step_layout.write_header(step.region.address, &mut words);
        let mut buffers = StepBuffers { work, scratch_start, step, step_staging, input_staging, output_staging, words };
        let all = Range { start: 0, end: buffers.words.len() };
        if let Some(commands) = buffers.write_step(device, &[all])? {
            device.wait(device.submit(&[commands])?)?;
        }
        Ok(buffers)
    }

    /// Copies ranges of `words` to the device. Returns the commands that complete the copy if it needs a staging buffer.
    pub fn write_step(
        &mut self,
        device: &Device,
        written: &[Range<usize>],
    ) -> Result<Option<vk::CommandBuffer>, VulkanError> {
        const WORD: usize = size_of::<u32>();
        let bytes = writable(&mut self.step, self.step_staging.as_mut().map(|(staging, _)| staging));
        for range in written {
            for (bytes, word) in
                bytes[range.start * WORD..range.end * WORD].as_chunks_mut().0.iter_mut().zip(&self.words[range.clone()])
            {
                *bytes = word.to_le_bytes();
            }
        }
        let Some((staging, commands)) = &self.step_staging else { return Ok(None) };
        let mut recorder = Recorder::begin(device, *commands)?;
        for range in written {
            let start = (range.start * WORD) as u64;
            recorder.copy((staging.as_buffer(), start), (&self.step, start), (range.len() * WORD) as u64);
        }
        recorder.end().map(Some)
    }
}
