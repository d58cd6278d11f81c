//! Values on their way between the processor and a graph: what the part of the model before gave, and logits or what the next
//! part takes.

use std::ops::Range;
use std::sync::Arc;

use ash::vk;
use cuelight_shaders::op::Batch;

use super::device::Device;
use super::error::VulkanError;
use super::memory::{Buffer, Place};
use super::plan::Bucket;
use super::record::{CommandPool, Recorder};
use crate::backend::ragged::count_rows;
use crate::engine::EngineLimits;
use crate::graph::{Graph, MemoryLayout, Rows, ValueId};

/// Some values of a graph, on their way in or out.
pub(super) struct Transfer {
    values: Vec<Moved>,
}

/// One of the values.
struct Moved {
    rows: Rows,
    width: usize,
    /// Where it is among the graph's values, in bytes.
    start: u64,
    /// Where it is in the stage, in bytes.
    stage_start: u64,
}

/// Bytes of some values of the largest step.
pub(super) fn bytes(graph: &Graph, values: &[ValueId], limits: &EngineLimits) -> u64 {
    values.iter().map(|value| value_bytes(graph, *value, limits)).sum()
}

fn value_bytes(graph: &Graph, value: ValueId, limits: &EngineLimits) -> u64 {
    let rows = match graph.rows(value) {
        Rows::All => limits.max_batched_tokens,
        Rows::Selected => limits.max_logits_rows,
    };
    (rows * graph.width(value) * size_of::<f32>()) as u64
}

/// Memory that values of any of the pieces go through, where the processor does not reach their own: `bytes` is what they
/// take at most.
pub(super) fn stage(device: &Arc<Device>, bytes: u64, is_direct: bool) -> Result<Option<Buffer>, VulkanError> {
    let is_needed = !is_direct && bytes > 0;
    is_needed.then(|| Buffer::new(device, "values on their way", bytes, Place::Host)).transpose()
}

impl Transfer {
    /// For these values.
    pub fn new(graph: &Graph, layout: &MemoryLayout, values: &[ValueId], limits: &EngineLimits) -> Self {
        let mut stage_bytes = 0;
        let moved = |value: &ValueId| {
            let stage_start = stage_bytes;
            stage_bytes += value_bytes(graph, *value, limits);
            let start = (layout.offset(*value) * size_of::<f32>()) as u64;
            Moved { rows: graph.rows(*value), width: graph.width(*value), start, stage_start }
        };
        Transfer { values: values.iter().map(moved).collect() }
    }

    /// Records the way from the stage to the graph's values.
    pub fn record_in(&self, recorder: &mut Recorder<'_>, bucket: Bucket, work: &Buffer, stage: Option<&Buffer>) {
        let Some(stage) = stage else { return };
        for value in &self.values {
            recorder.copy((stage, value.stage_start), (work, value.start), value.bytes(bucket));
        }
    }

    /// Records the way back.
    pub fn record_out(&self, recorder: &mut Recorder<'_>, bucket: Bucket, work: &Buffer, stage: Option<&Buffer>) {
        let Some(stage) = stage else { return };
        for value in &self.values {
            recorder.copy((work, value.start), (stage, value.stage_start), value.bytes(bucket));
        }
    }

    /// Writes the values, each [rows, width], where the device or the recorded commands take them.
    pub fn write<'a>(&self, work: &mut Buffer, stage: Option<&mut Buffer>, values: impl Iterator<Item = &'a [f32]>) {
        let staged = stage.is_some();
        let bytes = stage.unwrap_or(work).mapped().unwrap_or_default();
        for (moved, values) in self.values.iter().zip(values) {
            let start = if staged { moved.stage_start } else { moved.start } as usize;
            let bytes = &mut bytes[start..start + size_of_val(values)];
            for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                *bytes = value.to_le_bytes();
            }
        }
    }

    /// Reads the values of a step that has run.
    pub fn read(&self, work: &Buffer, stage: Option<&Buffer>, batch: &Batch<'_>) -> Vec<Vec<f32>> {
        let bytes = stage.unwrap_or(work).readable().unwrap_or_default();
        let read = |value: &Moved| {
            let start = if stage.is_some() { value.stage_start } else { value.start } as usize;
            let length = count_rows(value.rows, batch) * value.width * size_of::<f32>();
            let bytes = &bytes[start..start + length];
            bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)).collect()
        };
        self.values.iter().map(read).collect()
    }
}

impl Moved {
    /// Bytes of as many rows as a bucket has.
    fn bytes(&self, bucket: Bucket) -> u64 {
        (bucket.rows(self.rows).most() * self.width * size_of::<f32>()) as u64
    }
}

/// Rows of the logits on their way back. A row is large and few are wanted, so that which of them come is decided anew in
/// each step.
pub(super) struct LogitsTransfer {
    width: usize,
    /// Where the logits are among the graph's values, in bytes.
    start: u64,
    /// Where rows go one after the other where the processor does not reach the graph's own memory, and the commands that
    /// bring them there.
    stage: Option<(Buffer, vk::CommandBuffer)>,
}

impl LogitsTransfer {
    /// For the logits of `graph`; `is_direct` where the processor reaches the graph's own memory.
    pub fn new(
        device: &Arc<Device>,
        pool: &CommandPool,
        graph: &Graph,
        (logits, layout): (ValueId, &MemoryLayout),
        limits: &EngineLimits,
        is_direct: bool,
    ) -> Result<Self, VulkanError> {
        let start = (layout.offset(logits) * size_of::<f32>()) as u64;
        let stage = match is_direct {
            true => None,
            false => {
                let bytes = value_bytes(graph, logits, limits);
                Some((Buffer::new(device, "logits on their way", bytes, Place::Host)?, pool.allocate()?))
            }
        };
        Ok(LogitsTransfer { width: graph.width(logits), start, stage })
    }

    /// The commands that bring these rows to the stage; none where they need not be brought.
    pub fn record(
        &self,
        device: &Device,
        work: &Buffer,
        rows: &[Range<usize>],
    ) -> Result<Option<vk::CommandBuffer>, VulkanError> {
        let Some((stage, commands)) = self.stage.as_ref().filter(|_| !rows.is_empty()) else { return Ok(None) };
        let mut recorder = Recorder::begin(device, *commands)?;
        let mut stage_start = 0;
        for rows in rows {
            let bytes = self.bytes(rows.len());
            recorder.copy((work, self.start + self.bytes(rows.start)), (stage, stage_start), bytes);
            stage_start += bytes;
        }
        recorder.end().map(Some)
    }

    /// Reads the rows of a step that has run.
    pub fn read(&self, work: &Buffer, rows: &[Range<usize>]) -> Vec<f32> {
        let bytes = self.stage.as_ref().map_or(work, |(stage, _)| stage).readable().unwrap_or_default();
        let mut values = Vec::with_capacity(rows.iter().map(Range::len).sum::<usize>() * self.width);
        let mut stage_start = 0;
        for rows in rows {
            let length = self.bytes(rows.len());
            let start = if self.stage.is_some() { stage_start } else { self.start + self.bytes(rows.start) };
            let bytes = &bytes[start as usize..(start + length) as usize];
            values.extend(bytes.as_chunks::<4>().0.iter().map(|value| f32::from_le_bytes(*value)));
            stage_start += length;
        }
        values
    }

    fn bytes(&self, rows: usize) -> u64 {
        (rows * self.width * size_of::<f32>()) as u64
    }
}
