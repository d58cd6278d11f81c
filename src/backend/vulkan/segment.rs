//! A segment: a graph that runs on the device without interruption.

use std::sync::Arc;

use super::buffer::Buffer;
use super::device::Device;
use super::error::VulkanError;
use super::footprint::output_values;
use super::record::CommandPool;
use super::transfer::{LogitsTransfer, Transfer};
use crate::engine::EngineLimits;
use crate::graph::{Graph, MemoryLayout};
use crate::profile::Profiler;

/// A graph that runs on the device without interruption. All segments share the memory for values.
pub(super) struct Segment {
    pub graph: Graph,
    pub layout: MemoryLayout,
    /// The index of its first op among the ops of all segments.
    pub first_op: usize,
    /// Copies the graph's inputs to the device.
    pub inputs: Transfer,
    /// Copies its outputs back, except logits from which tokens are sampled.
    pub outputs: Transfer,
    /// Copies back the rows of logits from which the device samples no token; `None` if the graph samples none.
    pub logits: Option<LogitsTransfer>,
    /// Labels the measured times of ops; `None` if ops are not measured.
    pub profiler: Option<Profiler>,
}

impl Segment {
    /// A segment whose values are in `work`. With `profile` its ops are measured.
    pub fn new(
        (device, pool): (&Arc<Device>, &CommandPool),
        (graph, first_op): (Graph, usize),
        limits: &EngineLimits,
        work: &Buffer,
        profile: bool,
    ) -> Result<Self, VulkanError> {
        let layout = MemoryLayout::new(&graph, limits.most_rows());
        let inputs = Transfer::new(&graph, &layout, graph.inputs(), limits);
        let outputs = Transfer::new(&graph, &layout, &output_values(&graph), limits);
        let is_readable = work.readable().is_some();
        let logits = graph
            .token_sampling()
            .map(|sampling| LogitsTransfer::new(device, pool, &graph, (sampling.logits, &layout), limits, is_readable));
        let logits = logits.transpose()?;
        let profiler = profile.then(|| Profiler::new(&graph));
        Ok(Segment { graph, layout, first_op, inputs, outputs, logits, profiler })
    }
}
