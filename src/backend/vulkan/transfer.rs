//! Copies of values between the host and a graph: the outputs of the previous part of the model go in; logits, or the inputs
//! of the next part, come out.

use std::ops::Range;
use std::sync::Arc;

use ash::vk;
use cuelight_shaders::op::Batch;

use super::bucket::Bucket;
use super::buffer::{Buffer, HostBuffer, readable, writable};
use super::device::Device;
use super::error::VulkanError;
use super::record::{CommandPool, Recorder};
use crate::backend::ragged::count_rows;
use crate::engine::EngineLimits;
use crate::graph::{Graph, MemoryLayout, Rows, ValueId};

/// Copies some values of a graph to or from the device.
pub(super) struct Transfer {
    values: Vec<ValueCopy>,
}

/// The copy of one value.
struct ValueCopy {
    rows: Rows,
    width: usize,
    /// Offset among the graph's values, in bytes.
    start: u64,
    /// Offset in the staging buffer, in bytes.
    staging_start: u64,
}

/// Bytes of some values for the largest step.
pub(super) fn bytes(graph: &Graph, values: &[ValueId], limits: &EngineLimits) -> u64 {
    values.iter().map(|value| value_bytes(graph, *value, limits)).sum()
}

fn value_bytes(graph: &Graph, value: ValueId, limits: &EngineLimits) -> u64 {
    let rows = limits.most_rows().of(graph.rows(value));
    (rows * graph.width(value) * size_of::<f32>()) as u64
}

/// A staging buffer of `bytes` bytes; `None` if the CPU accesses the values directly (`is_direct`).
pub(super) fn staging_buffer(
    device: &Arc<Device>,
    bytes: u64,
    is_direct: bool,
) -> Result<Option<HostBuffer>, VulkanError> {
    (!is_direct).then(|| HostBuffer::new(device, "staged values", bytes)).transpose()
}

impl Transfer {
    /// Copies `values`.
    pub fn new(graph: &Graph, layout: &MemoryLayout, values: &[ValueId], limits: &EngineLimits) -> Self {
        let mut staging_bytes = 0;
        let copy = |value: &ValueId| {
            let staging_start = staging_bytes;
            staging_bytes += value_bytes(graph, *value, limits);
            let start = (layout.offset(*value) * size_of::<f32>()) as u64;
            ValueCopy { rows: graph.rows(*value), width: graph.width(*value), start, staging_start }
        };
        Transfer { values: values.iter().map(copy).collect() }
    }

    /// Records the copy from the staging buffer to the graph's values.
    pub fn record_upload(
        &self,
        recorder: &mut Recorder<'_>,
        bucket: Bucket,
        work: &Buffer,
        staging: Option<&HostBuffer>,
    ) {
        let Some(staging) = staging else { return };
        for value in &self.values {
            recorder.copy((staging.as_buffer(), value.staging_start), (work, value.start), value.bytes(bucket));
        }
    }

    /// Records the copy from the graph's values to the staging buffer.
    pub fn record_download(
        &self,
        recorder: &mut Recorder<'_>,
        bucket: Bucket,
        work: &Buffer,
        staging: Option<&HostBuffer>,
    ) {
        let Some(staging) = staging else { return };
        for value in self.values.iter().filter(|value| value.bytes(bucket) > 0) {
            recorder.copy((work, value.start), (staging.as_buffer(), value.staging_start), value.bytes(bucket));
        }
    }

    /// Writes the values, each [rows, width], to the staging buffer, or to the graph's memory if there is none.
    pub fn write<'a>(
        &self,
        work: &mut Buffer,
        staging: Option<&mut HostBuffer>,
        values: impl Iterator<Item = &'a [f32]>,
    ) {
        let is_staged = staging.is_some();
        let bytes = writable(work, staging);
        for (copy, values) in self.values.iter().zip(values) {
            let start = if is_staged { copy.staging_start } else { copy.start } as usize;
            let bytes = &mut bytes[start..start + size_of_val(values)];
            for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                *bytes = value.to_le_bytes();
            }
        }
    }

    /// Reads the values after the step has run.
    pub fn read(&self, work: &Buffer, staging: Option<&HostBuffer>, batch: &Batch<'_>) -> Vec<Vec<f32>> {
        let bytes = readable(work, staging);
        let read = |value: &ValueCopy| {
            let start = if staging.is_some() { value.staging_start } else { value.start } as usize;
            let length = count_rows(value.rows, batch) * value.width * size_of::<f32>();
            let bytes = &bytes[start..start + length];
            bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
        };
        self.values.iter().map(read).collect()
    }
}

impl ValueCopy {
    /// Bytes of the rows of a bucket.
    fn bytes(&self, bucket: Bucket) -> u64 {
        (bucket.rows(self.rows).most() * self.width * size_of::<f32>()) as u64
    }
}

/// Copies rows of logits back. Rows are large and few are needed, so the rows to copy are selected in each step.
pub(super) struct LogitsTransfer {
    width: usize,
    /// Offset of the logits among the graph's values, in bytes.
    start: u64,
    /// A staging buffer for the rows and the commands that copy them; `None` if the CPU reads the graph's memory directly.
    staging: Option<(HostBuffer, vk::CommandBuffer)>,
}

impl LogitsTransfer {
    /// Copies the logits of `graph`. `is_direct`: the CPU reads the graph's memory directly.
    pub fn new(
        device: &Arc<Device>,
        pool: &CommandPool,
        graph: &Graph,
        (logits, layout): (ValueId, &MemoryLayout),
        limits: &EngineLimits,
        is_direct: bool,
    ) -> Result<Self, VulkanError> {
        let start = (layout.offset(logits) * size_of::<f32>()) as u64;
        let staging = match is_direct {
            true => None,
            false => {
                let bytes = value_bytes(graph, logits, limits);
                Some((HostBuffer::new(device, "staged logits", bytes)?, pool.allocate()?))
            }
        };
        Ok(LogitsTransfer { width: graph.width(logits), start, staging })
    }

    /// The commands that copy these rows to the staging buffer; `None` if no copy is needed.
    pub fn record(
        &self,
        device: &Device,
        work: &Buffer,
        rows: &[Range<usize>],
    ) -> Result<Option<vk::CommandBuffer>, VulkanError> {
        let Some((staging, commands)) = self.staging.as_ref().filter(|_| !rows.is_empty()) else { return Ok(None) };
        let mut recorder = Recorder::begin(device, *commands)?;
        let mut staging_start = 0;
        for rows in rows {
            let bytes = self.bytes(rows.len());
            recorder.copy((work, self.start + self.bytes(rows.start)), (staging.as_buffer(), staging_start), bytes);
            staging_start += bytes;
        }
        recorder.end().map(Some)
    }

    /// Reads the rows after the step has run.
    pub fn read(&self, work: &Buffer, rows: &[Range<usize>]) -> Vec<f32> {
        let bytes = readable(work, self.staging.as_ref().map(|(staging, _)| staging));
        let mut values = Vec::with_capacity(rows.iter().map(Range::len).sum::<usize>() * self.width);
        let mut staging_start = 0;
        for rows in rows {
            let length = self.bytes(rows.len());
            let start = if self.staging.is_some() { staging_start } else { self.start + self.bytes(rows.start) };
            let bytes = &bytes[start as usize..(start + length) as usize];
            values.extend(bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)));
            staging_start += length;
        }
        values
    }

    fn bytes(&self, rows: usize) -> u64 {
        (rows * self.width * size_of::<f32>()) as u64
    }
}
