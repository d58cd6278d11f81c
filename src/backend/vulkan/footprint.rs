//! The device memory that graphs need, known before anything is allocated.

use cuelight_shaders::attention::KvType;
use cuelight_shaders::gpu::StepLayout;
use cuelight_shaders::layer_state::LayerState;
use cuelight_shaders::op::Op;

use super::probe::DeviceInfo;
use super::{adapters, arena, resident, transfer};
use crate::engine::{BLOCK_TOKENS, EngineLimits};
use crate::graph::{Graph, MemoryLayout, Node, ValueId};
use crate::memory::BlockBytes;

/// Bytes of device memory that a model needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footprint {
    /// Weights as they are packed on the device.
    pub weights: u64,
    /// Slots for adapters.
    pub adapters: u64,
    /// Values between ops, logits, and the step's own tables.
    pub scratch: u64,
    /// One KV block over all layers.
    pub kv_block: BlockBytes,
    /// The recurrent state of one sequence over all layers.
    pub state_slot: u64,
}

impl Footprint {
    /// The memory that graphs need for steps within the limits. The limits' numbers of KV blocks and slots are not used.
    #[must_use]
    pub fn new(
        graphs: &[Graph],
        info: &DeviceInfo,
        limits: &EngineLimits,
        states: &[LayerState],
        kv_type: KvType,
    ) -> Self {
        let values = values_bytes(graphs, limits);
        let logits = graphs.iter().filter_map(|graph| {
            graph.token_sampling().map(|sampling| transfer::bytes(graph, &[sampling.logits], limits))
        });
        let transfers = input_bytes(graphs, limits) + output_bytes(graphs, limits) + logits.sum::<u64>();
        let scratch = scratch_bytes(graphs, info, limits);
        let ops: Vec<&dyn Op> = graphs.iter().flat_map(Graph::ops).collect();
        Footprint {
            weights: resident::weights_bytes(&ops),
            adapters: adapters::adapters_bytes(&ops, limits.adapters.slots),
            scratch: arena::total_bytes([values, scratch, transfers, 2 * step_layout(limits).bytes()]),
            kv_block: resident::kv_block_bytes(states, kv_type),
            state_slot: states.iter().map(LayerState::slot_bytes).sum(),
        }
    }
}

/// Bytes of the values of the graph that needs most.
pub(super) fn values_bytes(graphs: &[Graph], limits: &EngineLimits) -> u64 {
    let of_graph = |graph| MemoryLayout::new(graph, limits.most_rows()).arena_len();
    graphs.iter().map(of_graph).max().unwrap_or(0) as u64 * size_of::<f32>() as u64
}

/// Bytes of the inputs of the graph with the largest inputs.
pub(super) fn input_bytes(graphs: &[Graph], limits: &EngineLimits) -> u64 {
    graphs.iter().map(|graph| transfer::bytes(graph, graph.inputs(), limits)).max().unwrap_or(0)
}

/// Bytes of the outputs of the graph with the largest outputs, except logits from which tokens are sampled.
pub(super) fn output_bytes(graphs: &[Graph], limits: &EngineLimits) -> u64 {
    graphs.iter().map(|graph| transfer::bytes(graph, &output_values(graph), limits)).max().unwrap_or(0)
}

/// The outputs of a graph; of a graph that samples tokens, the tokens instead of the logits.
pub(super) fn output_values(graph: &Graph) -> Vec<ValueId> {
    match graph.token_sampling() {
        Some(sampling) => graph.hidden().into_iter().chain([sampling.tokens]).collect(),
        None => graph.outputs(),
    }
}

/// Bytes of scratch of the op that needs most.
pub(super) fn scratch_bytes(graphs: &[Graph], info: &DeviceInfo, limits: &EngineLimits) -> u64 {
    let of_node = |graph: &Graph, node: &Node| {
        let rows = limits.most_rows().of(graph.input_rows(node));
        node.op.gpu_scratch_bytes(&info.limits, rows, limits.context_tokens)
    };
    let of_graph = |graph: &Graph| graph.nodes().iter().map(|node| of_node(graph, node)).max().unwrap_or(0);
    graphs.iter().map(of_graph).max().unwrap_or(0)
}

/// The layout of the tables of a step.
pub(super) fn step_layout(limits: &EngineLimits) -> StepLayout {
    let blocks_of_sequence = limits.context_tokens.div_ceil(BLOCK_TOKENS);
    // Where layers keep windows, each sequence has two tables.
    let tables = if limits.window.is_some() { 2 } else { 1 };
    let table_entries = limits.max_sequences * blocks_of_sequence * tables;
    let selected = [limits.max_logits_rows, limits.hidden.max_rows];
    StepLayout::new(limits.max_batched_tokens, selected, limits.max_sequences, table_entries)
}
