//! A graph recorded for a bucket of steps: once, and then replayed.

use ash::vk;
use cuelight_shaders::gpu::{DeviceLimits, DeviceValue, GpuArgs, Region, RowCount};
use cuelight_shaders::op::Batch;

use super::VulkanEngine;
use super::error::VulkanError;
use super::record::Recorder;
use crate::engine::EngineLimits;
use crate::graph::{Graph, Node, Rows, ValueId};

/// Steps that run the same commands: they have at most so many rows, and so long contexts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Bucket {
    pub rows: usize,
    pub selected: usize,
    pub context_tokens: usize,
}

impl Bucket {
    /// The bucket of a step: powers of two, so that there are few, within what the engine takes.
    pub fn of(batch: &Batch<'_>, limits: &EngineLimits) -> Self {
        const SHORTEST_CONTEXT: usize = 256;
        let up_to = |count: usize, most: usize| count.max(1).next_power_of_two().min(most.max(1));
        let longest = batch.positions.iter().max().map_or(0, |position| *position as usize + 1);
        Bucket {
            rows: up_to(batch.rows(), limits.max_batched_tokens),
            selected: up_to(batch.selected.len(), limits.max_logits_rows),
            context_tokens: up_to(longest.max(SHORTEST_CONTEXT), limits.context_tokens.max(SHORTEST_CONTEXT)),
        }
    }

    fn rows(self, rows: Rows) -> RowCount {
        match rows {
            Rows::All => RowCount::All(self.rows),
            Rows::Selected => RowCount::Selected(self.selected),
        }
    }
}

/// The most scratch that any op wants, in bytes.
pub(super) fn scratch_bytes(graph: &Graph, device: &DeviceLimits, limits: &EngineLimits) -> u64 {
    let of_node = |node: &Node| {
        let rows = match graph.input_rows(node) {
            Rows::All => limits.max_batched_tokens,
            Rows::Selected => limits.max_logits_rows,
        };
        node.op.gpu_scratch_bytes(device, rows, limits.context_tokens)
    };
    graph.nodes().iter().map(of_node).max().unwrap_or(0)
}

/// The commands of a bucket.
pub(super) struct Plan {
    pub commands: vk::CommandBuffer,
}

impl Plan {
    /// Records the engine's graph.
    pub fn record(engine: &VulkanEngine, bucket: Bucket) -> Result<Self, VulkanError> {
        let mut recorder = Recorder::begin(&engine.device, engine.pool.allocate()?)?;
        for (index, node) in engine.graph.nodes().iter().enumerate() {
            record_node(&mut recorder, engine, bucket, index, node)?;
        }
        if let Some(logits) = &engine.buffers.logits {
            let bytes = (bucket.selected * engine.limits.vocab_size * size_of::<f32>()) as u64;
            recorder.copy((&engine.buffers.work, engine.logits_start()), (logits, 0), bytes);
        }
        Ok(Plan { commands: recorder.end()? })
    }
}

fn record_node(
    recorder: &mut Recorder<'_>,
    engine: &VulkanEngine,
    bucket: Bucket,
    index: usize,
    node: &Node,
) -> Result<(), VulkanError> {
    let work = engine.buffers.work.region;
    let scratch_start = engine.buffers.scratch_start;
    let value = |value: &ValueId| {
        let width = engine.graph.width(*value);
        let rows = bucket.rows(engine.graph.rows(*value)).most();
        let address = work.address + (engine.layout.offset(*value) * size_of::<f32>()) as u64;
        DeviceValue { region: Region { address, bytes: (rows * width * size_of::<f32>()) as u64 }, width }
    };
    let inputs: Vec<DeviceValue> = node.inputs.iter().map(value).collect();
    let outputs: Vec<DeviceValue> = node.outputs.iter().map(value).collect();
    let (weights, tables) = &engine.weights.of_nodes[index];
    let dispatches = node.op.dispatches(&GpuArgs {
        device: &engine.device.info.limits,
        deterministic: engine.options.deterministic,
        step: engine.buffers.step.region.address,
        rows: bucket.rows(engine.graph.input_rows(node)),
        selected: bucket.selected,
        context_tokens: bucket.context_tokens,
        inputs: &inputs,
        outputs: &outputs,
        weights,
        tables,
        kv: &engine.cache.kv,
        scratch: Region { address: work.address + scratch_start, bytes: work.bytes - scratch_start },
    });
    dispatches.iter().try_for_each(|dispatch| recorder.dispatch(dispatch))
}
