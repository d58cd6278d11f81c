//! Keys and values on a device, and what [`Attention`] runs there.

use super::{Attention, KvShape, KvType, Window};
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

/// Bytes of the keys, and of the values, of one block of a layer; the latter are 0 where values are part of the keys.
#[must_use]
pub fn plane_block_bytes(shape: KvShape, kv_type: KvType) -> [u64; 2] {
    [shape.key_dim, shape.stored_value_dim()].map(|dim| {
        let stride = dim.next_multiple_of(values_together(kv_type));
        let head_bytes = match kv_type {
            KvType::F32 => 4 * stride,
            KvType::F16 => 2 * stride,
            // A scale of two bytes for 32 values.
            KvType::Q8_0 => stride + stride / 16,
        };
        (shape.n_kv_heads * BLOCK_TOKENS * head_bytes) as u64
    })
}

/// Values that one invocation stores.
fn values_together(kv_type: KvType) -> usize {
    match kv_type {
        KvType::F32 | KvType::F16 => 8,
        KvType::Q8_0 => 32,
    }
}

/// Queries that share what is read of the keys and values (`attention/attend_tile.comp`): heads of one KV head in
/// successive rows of one sequence.
struct QueryTile {
    queries: usize,
    heads: usize,
    rows: usize,
}

impl QueryTile {
    /// Positions whose keys are in shared memory at once, and quads of each; a quad more stands behind each.
    const SPAN_TOKENS: usize = 64;
    const STAGE_QUADS: usize = 8;

    /// The larger of two that the device has room for. They have 4 invocations for each query.
    fn fitting(attention: &Attention, device: &DeviceLimits) -> Option<QueryTile> {
        let fits = |queries: &usize| {
            Self::workgroup_size(*queries) <= device.max_workgroup_size
                && Self::shared_bytes(*queries) <= device.shared_memory_bytes as usize
        };
        let queries = [32, 16].into_iter().find(fits)?;
        let group = attention.group();
        let heads = group.div_ceil(group.div_ceil(queries));
        Some(QueryTile { queries, heads, rows: queries / heads })
    }

    fn workgroup_size(queries: usize) -> u32 {
        4 * queries as u32
    }

    /// The weights of a piece, and stretches of queries and keys, with a quad behind each; two numbers and a softmax of each query.
    fn shared_bytes(queries: usize) -> usize {
        const QUAD: usize = 4 * size_of::<f32>();
        let stage = (queries + Self::SPAN_TOKENS) * (Self::STAGE_QUADS + 1);
        (queries * (PIECE_TOKENS / 4 + 1) + stage + queries) * QUAD
    }

    /// Tiles of all heads of a row.
    fn head_tiles(&self, attention: &Attention) -> usize {
        attention.kv.n_kv_heads * attention.group().div_ceil(self.heads)
    }

    /// Tiles that rows of so many sequences have at most, where the tiles of a run of rows begin at (its first row) / (rows
    /// of a tile) + (its index).
    fn most(&self, rows: usize, sequences: usize) -> usize {
        rows / self.rows + sequences
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
        let of_kv_head = attention.group();
        // Of the shared memory a head takes its query, the scores of a piece, and a lane for each invocation.
        let head_bytes = 4 * (attention.kv.key_dim.next_multiple_of(32) + PIECE_TOKENS + MAX_LANES);
        let heads = (device.shared_memory_bytes as usize / head_bytes).clamp(1, MOST_HEADS).min(of_kv_head);
        let tiles = attention.kv.n_kv_heads * of_kv_head.div_ceil(heads);
        let pieces = context_tokens.div_ceil(PIECE_TOKENS).max(1);
        Cut { heads, tiles, pieces, split: pieces > 1 && rows * tiles * pieces <= MOST_SPLIT_GROUPS }
    }
}

/// With more workgroups than this there is no need of more: and partial results take memory.
const MOST_SPLIT_GROUPS: usize = 4096;

/// Most invocations of a workgroup of a row.
const MAX_LANES: usize = 128;

/// With so many rows for each sequence of a bucket, rows are attended to in tiles. In a tile of fewer most queries would be
/// none, and so would they in those of sequences with one row; but there keys and values are read once at least.
const ROWS_FOR_TILES: usize = 4;

/// Bytes of the partial results of the pieces.
pub(super) fn scratch_bytes(attention: &Attention, device: &DeviceLimits, rows: usize, context_tokens: usize) -> u64 {
    let cut = Cut::new(attention, device, rows, context_tokens);
    if cut.pieces == 1 {
        return 0;
    }
    // The largest step that is split, be it few rows of a long context or more rows of a shorter one.
    let pieces_of_rows = (MOST_SPLIT_GROUPS / cut.tiles).min(rows * cut.pieces);
    let record = attention.kv.value_dim.next_multiple_of(4) + 4;
    (pieces_of_rows * attention.n_heads * record * size_of::<f32>()) as u64
}

/// Stores keys and values, then attends; with a split also merges.
pub(super) fn dispatches(attention: &Attention, args: &GpuArgs<'_>) -> Vec<Dispatch> {
    let planes = args.kv.layers[attention.layer];
    let mut dispatches = vec![store(attention, args, 1, attention.kv.key_dim, planes[0])];
    if !attention.kv.values_in_keys {
        dispatches.push(store(attention, args, 2, attention.kv.value_dim, planes[1]));
    }
    let [keys, values] = if attention.kv.values_in_keys { [planes[0]; 2] } else { planes };
    let cut = Cut::new(attention, args.device, args.rows.most(), args.context_tokens);
    dispatches.push(attend(attention, args, &cut, [keys, values]));
    if cut.split {
        dispatches.push(merge(attention, args, &cut));
    }
    dispatches
}

/// The specialization constant of `attention/cache.glsl`.
fn cache_constant(kv_type: KvType) -> (u32, u32) {
    let kind = match kv_type {
        KvType::F32 => 0,
        KvType::F16 => 1,
        KvType::Q8_0 => 2,
    };
    (20, kind)
}

/// Those of `attention/heads.glsl`, and of the cache.
fn head_constants(attention: &Attention, kv_type: KvType) -> [(u32, u32); 4] {
    let KvShape { key_dim, value_dim, values_in_keys, .. } = attention.kv;
    [cache_constant(kv_type), (21, key_dim as u32), (22, value_dim as u32), (23, u32::from(values_in_keys))]
}

/// Where the sinks are, or 0.
fn sinks_address(args: &GpuArgs<'_>) -> u64 {
    args.tables.first().map_or(0, |sinks| sinks.address)
}

fn store(attention: &Attention, args: &GpuArgs<'_>, input: usize, head_dim: usize, cache: Region) -> Dispatch {
    let (input, n_kv_heads) = (args.inputs[input].region, attention.kv.n_kv_heads);
    let push = Push::new().address(input.address).address(cache.address).address(args.step).size(n_kv_heads);
    let stretches = head_dim.div_ceil(values_together(args.kv.kv_type));
    let mut dispatch = args.each_column(Module::KvStore, push, n_kv_heads * stretches);
    dispatch.constants.extend([cache_constant(args.kv.kv_type), (21, head_dim as u32)]);
    Dispatch { reads: vec![input], writes: vec![cache], ..dispatch }
}

fn attend(attention: &Attention, args: &GpuArgs<'_>, cut: &Cut, [keys, values]: [Region; 2]) -> Dispatch {
    let output = if cut.split { args.scratch } else { args.outputs[0].region };
    let [window, chunk] = Window::push(attention.window);
    let push = Push::new()
        .address(args.inputs[0].region.address)
        .address(keys.address)
        .address(values.address)
        .address(output.address)
        .address(args.step)
        .address(sinks_address(args))
        .size(attention.n_heads)
        .size(attention.kv.n_kv_heads)
        .size(window)
        .size(chunk)
        .size(cut.pieces)
        .float(attention.scale)
        .float(attention.softcap.unwrap_or(0.0));
    let (rows, lanes) = (args.rows.most(), args.workgroup_size().min(MAX_LANES as u32));
    let pieces = if cut.split { cut.pieces } else { 1 };
    let tile = QueryTile::fitting(attention, args.device).filter(|_| rows >= ROWS_FOR_TILES * args.sequences);
    let (module, mut constants, groups) = match tile {
        Some(tile) => (
            Module::AttendTile,
            vec![(0, QueryTile::workgroup_size(tile.queries)), (1, tile.heads as u32), (3, lanes)],
            [tile.head_tiles(attention), tile.most(rows, args.sequences), pieces],
        ),
        None => (Module::Attend, vec![(0, lanes), (1, cut.heads as u32)], [cut.tiles, rows, pieces]),
    };
    constants.push((2, u32::from(cut.split)));
    constants.extend(head_constants(attention, args.kv.kv_type));
    Dispatch {
        module,
        constants,
        push,
        groups: groups.map(|groups| groups as u32),
        reads: vec![args.inputs[0].region, keys, values],
        writes: vec![output],
    }
}

fn merge(attention: &Attention, args: &GpuArgs<'_>, cut: &Cut) -> Dispatch {
    let output = args.outputs[0].region;
    let [window, chunk] = Window::push(attention.window);
    let push = Push::new()
        .address(args.scratch.address)
        .address(output.address)
        .address(args.step)
        .address(sinks_address(args))
        .size(attention.n_heads)
        .size(window)
        .size(chunk)
        .size(cut.pieces);
    let mut constants = vec![(0, args.device.subgroup_size)];
    constants.extend(head_constants(attention, args.kv.kv_type));
    Dispatch {
        module: Module::AttentionMerge,
        constants,
        push,
        groups: [attention.n_heads as u32, args.rows.most() as u32, 1],
        reads: vec![args.scratch],
        writes: vec![output],
    }
}
