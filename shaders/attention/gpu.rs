//! Keys and values on a device, and what [`Attention`] runs there.

use super::{Attention, KvShape, KvType};
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs, Module, Push, Region};

use super::cache::BLOCK_TOKENS;

/// Positions that have a softmax of their own (`attention/pieces.glsl`).
const PIECE_TOKENS: usize = 256;

/// The KV cache of all layers on a device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceKv {
    /// How values are stored.
    pub kv_type: KvType,
    /// For each layer its keys and its values: `[block, kv head]` records (`attention/cache.glsl`).
    pub layers: Vec<[Region; 2]>,
}

/// Bytes of the keys, or of the values, of one block of a layer.
#[must_use]
pub fn plane_block_bytes(shape: KvShape, kv_type: KvType) -> u64 {
    let stride = shape.head_dim.next_multiple_of(values_together(kv_type));
    let value_bytes = match kv_type {
        KvType::F32 => 4 * stride,
        KvType::F16 => 2 * stride,
        // A scale of two bytes for 32 values.
        KvType::Q8_0 => stride + stride / 16,
    };
    (shape.n_kv_heads * BLOCK_TOKENS * value_bytes) as u64
}

/// Values that one invocation stores.
fn values_together(kv_type: KvType) -> usize {
    match kv_type {
        KvType::F32 | KvType::F16 => 8,
        KvType::Q8_0 => 32,
    }
}

/// How an attention is cut into workgroups.
struct Cut {
    /// Query heads of a tile, which share the keys and values they read.
    heads: usize,
    /// Tiles of all heads.
    tiles: usize,
    /// Pieces of the longest context.
    pieces: usize,
    /// Whether each piece has a workgroup of its own.
    split: bool,
}

impl Cut {
    fn new(attention: &Attention, device: &DeviceLimits, rows: usize, context_tokens: usize) -> Cut {
        const MOST_HEADS: usize = 8;
        let of_kv_head = attention.n_heads / attention.n_kv_heads;
        // Of the shared memory a head takes its query, the scores of a piece, and a lane for each invocation.
        let head_bytes = 4 * (attention.head_dim.next_multiple_of(32) + PIECE_TOKENS + MAX_LANES);
        let heads = (device.shared_memory_bytes as usize / head_bytes).clamp(1, MOST_HEADS).min(of_kv_head);
        let tiles = attention.n_kv_heads * of_kv_head.div_ceil(heads);
        let pieces = context_tokens.div_ceil(PIECE_TOKENS).max(1);
        Cut { heads, tiles, pieces, split: pieces > 1 && rows * tiles * pieces <= MOST_SPLIT_GROUPS }
    }
}

/// With more workgroups than this there is no need of more: and partial results take memory.
const MOST_SPLIT_GROUPS: usize = 4096;

/// Most invocations of a workgroup.
const MAX_LANES: usize = 128;

/// Bytes of the partial results of the pieces.
pub(super) fn scratch_bytes(attention: &Attention, device: &DeviceLimits, rows: usize, context_tokens: usize) -> u64 {
    let cut = Cut::new(attention, device, rows, context_tokens);
    if cut.pieces == 1 {
        return 0;
    }
    // The largest step that is split, be it few rows of a long context or more rows of a shorter one.
    let pieces_of_rows = (MOST_SPLIT_GROUPS / cut.tiles).min(rows * cut.pieces);
    let record = attention.head_dim.next_multiple_of(32) + 4;
    (pieces_of_rows * attention.n_heads * record * size_of::<f32>()) as u64
}

/// Stores keys and values, then attends; with a split also merges.
pub(super) fn dispatches(attention: &Attention, args: &GpuArgs<'_>) -> Vec<Dispatch> {
    let [keys, values] = args.kv.layers[attention.layer];
    let mut dispatches = vec![store(attention, args, 1, keys), store(attention, args, 2, values)];
    let cut = Cut::new(attention, args.device, args.rows.most(), args.context_tokens);
    dispatches.push(attend(attention, args, &cut, [keys, values]));
    if cut.split {
        dispatches.push(merge(attention, args, &cut));
    }
    dispatches
}

/// The specialization constants of `attention/cache.glsl`.
fn cache_constants(attention: &Attention, kv_type: KvType) -> [(u32, u32); 2] {
    let kind = match kv_type {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::Q8_0 => 2,
    };
    [(20, kind), (21, attention.head_dim as u32)]
}

fn store(attention: &Attention, args: &GpuArgs<'_>, input: usize, cache: Region) -> Dispatch {
    let input = args.inputs[input].region;
    let push = Push::new().address(input.address).address(cache.address).address(args.step).size(attention.n_kv_heads);
    let stretches = attention.head_dim.div_ceil(values_together(args.kv.kv_type));
    let mut dispatch = args.each_column(Module::KvStore, push, attention.n_kv_heads * stretches);
    dispatch.constants.extend(cache_constants(attention, args.kv.kv_type));
    Dispatch { reads: vec![input], writes: vec![cache], ..dispatch }
}

fn attend(attention: &Attention, args: &GpuArgs<'_>, cut: &Cut, [keys, values]: [Region; 2]) -> Dispatch {
    let output = if cut.split { args.scratch } else { args.outputs[0].region };
    let push = Push::new()
        .address(args.inputs[0].region.address)
        .address(keys.address)
        .address(values.address)
        .address(output.address)
        .address(args.step)
        .size(attention.n_heads)
        .size(attention.n_kv_heads)
        .size(attention.window.unwrap_or(0))
        .size(cut.pieces)
        .float(attention.scale)
        .float(attention.softcap.unwrap_or(0.0));
    let lanes = args.workgroup_size().min(MAX_LANES as u32);
    let mut constants = vec![(0, lanes), (1, cut.heads as u32), (2, u32::from(cut.split))];
    constants.extend(cache_constants(attention, args.kv.kv_type));
    let groups = [cut.tiles, args.rows.most(), if cut.split { cut.pieces } else { 1 }];
    Dispatch {
        module: Module::Attend,
        constants,
        push,
        groups: groups.map(|groups| groups as u32),
        reads: vec![args.inputs[0].region, keys, values],
        writes: vec![output],
    }
}

fn merge(attention: &Attention, args: &GpuArgs<'_>, cut: &Cut) -> Dispatch {
    let output = args.outputs[0].region;
    let push = Push::new()
        .address(args.scratch.address)
        .address(output.address)
        .address(args.step)
        .size(attention.n_heads)
        .size(attention.window.unwrap_or(0))
        .size(cut.pieces);
    let mut constants = vec![(0, args.device.subgroup_size)];
    constants.extend(cache_constants(attention, args.kv.kv_type));
    Dispatch {
        module: Module::AttentionMerge,
        constants,
        push,
        groups: [attention.n_heads as u32, args.rows.most() as u32, 1],
        reads: vec![args.scratch],
        writes: vec![output],
    }
}
