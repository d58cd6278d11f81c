//! Keys and values on a device, and what [`Attention`] runs there.
//!
//! - `kv_store.comp`: the rows' keys and values into the cache, rotated on their way where they come as they were projected
//! - few rows of a sequence: `attend.comp`, a workgroup for each row and at most 8 heads
//! - more, or many heads for one KV head: `attend_tile.comp`, a workgroup for up to 32 queries together
//! - `merge.comp`: where each piece of a context had a workgroup of its own
//!
//! # What a tile reads
//!
//! A row alone reads 16 bytes of queries from shared memory for 4 multiply-adds, and keys and values anew. A tile forms scores
//! for 4 queries and 4 positions at a time, 64 multiply-adds for 8 reads of 16 bytes, and values 16 for a read of 8 bytes
//! of the cache. The scores of a whole piece stand in shared memory, so that its softmax is that of a row alone, bit for
//! bit: 32 KiB for 32 queries. With what is staged of keys and queries that is 46.5 KiB; for devices that offer 32 KiB there
//! are tiles of 16 queries (27.8 KiB).

use super::cache::BLOCK_TOKENS;
use super::{Attention, KvShape, KvType, Window};
use crate::fusion::FusesWith;
use crate::gpu::{DeviceLimits, DeviceValue, Dispatch, GpuArgs, Module, Push, Region};
use crate::op::Op;
use crate::rope::Rope;

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

    /// Whether it is at least half full with so many rows of each sequence, and more queries share what is read than would
    /// of a row alone.
    fn pays(&self, rows_of_sequence: usize, heads_of_row: usize) -> bool {
        let queries = self.heads * rows_of_sequence.min(self.rows);
        2 * queries >= self.queries && queries >= 2 * heads_of_row
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
    let stored = store(attention, args, None);
    [stored].into_iter().chain(Run::new(attention, args).attend()).collect()
}

/// What is rotated while keys and values are stored.
struct Rotation<'a> {
    rope: &'a Rope,
    frequencies: Region,
    /// As it was projected; the rotated one is the attention's input.
    query: DeviceValue,
}

/// Rotates, stores and attends: keys go to the cache without a stop between.
impl FusesWith<Attention> for Rope {
    const NAME: &'static str = "rotated_attention";
    const INPUTS: usize = 2;
    const GIVES_BETWEEN: bool = false;

    fn fuses_with(&self, attention: &Attention) -> bool {
        self.head_dim() == attention.kv.key_dim
    }

    fn widths_between(&self, attention: &Attention) -> Vec<usize> {
        vec![attention.n_heads * attention.kv.key_dim, attention.kv.key_width()]
    }

    fn scratch_bytes_with(
        &self,
        attention: &Attention,
        device: &DeviceLimits,
        rows: usize,
        context_tokens: usize,
    ) -> u64 {
        query_bytes(attention, rows) + scratch_bytes(attention, device, rows, context_tokens)
    }

    fn dispatches_with(&self, attention: &Attention, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let query = args.inputs[0];
        let (rotated, scratch) = args.scratch.split_at(query_bytes(attention, args.rows.most()));
        let rotated = DeviceValue { region: Region { bytes: query.region.bytes, ..rotated }, ..query };
        let inputs = [&[rotated], &args.inputs[1..]].concat();
        let (tables, of_attention) = args.tables.split_at(self.gpu_tables().len());
        let rotation = Rotation { rope: self, frequencies: tables[0], query };
        let args = &GpuArgs { inputs: &inputs, tables: of_attention, scratch, ..*args };
        let stored = store(attention, args, Some(&rotation));
        [stored].into_iter().chain(Run::new(attention, args).attend()).collect()
    }
}

/// Bytes of the rotated queries of so many rows, and what aligns the next thing.
fn query_bytes(attention: &Attention, rows: usize) -> u64 {
    let width = attention.n_heads * attention.kv.key_dim;
    ((rows * width * size_of::<f32>()) as u64).next_multiple_of(256)
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

/// Stores the keys and values of all rows, and rotates what is to be rotated.
fn store(attention: &Attention, args: &GpuArgs<'_>, rotation: Option<&Rotation<'_>>) -> Dispatch {
    let Attention { n_heads, kv, layer, .. } = *attention;
    let [keys, values] = args.kv.layers[layer];
    let (key, value) = (args.inputs[1].region, args.inputs.get(2).map(|value| value.region));
    let rotated = args.inputs[0].region;
    let query = rotation.map(|rotation| rotation.query.region);
    let push = Push::new()
        .address(key.address)
        .address(value.map_or(0, |value| value.address))
        .address(keys.address)
        .address(value.map_or(0, |_| values.address))
        .address(query.map_or(0, |query| query.address))
        .address(query.map_or(0, |_| rotated.address))
        .address(rotation.map_or(0, |rotation| rotation.frequencies.address))
        .address(args.step)
        .size(kv.n_kv_heads)
        .size(n_heads)
        .float(rotation.map_or(0.0, |rotation| rotation.rope.magnitude()));
    let stretches = |dim: usize| dim.div_ceil(values_together(args.kv.kv_type));
    let of_values = value.map_or(0, |_| kv.n_kv_heads * stretches(kv.value_dim));
    let of_queries = query.map_or(0, |_| n_heads * stretches(kv.key_dim));
    let invocations = kv.n_kv_heads * stretches(kv.key_dim) + of_values + of_queries;
    let mut dispatch = args.each_column(Module::KvStore, push, invocations);
    dispatch.constants.extend(head_constants(attention, args.kv.kv_type));
    if let Some(Rotation { rope, .. }) = rotation {
        dispatch.constants.extend([(24, 1), (25, rope.n_pairs() as u32), (26, u32::from(rope.is_interleaved()))]);
    }
    let reads = [Some(key), value, query].into_iter().flatten().collect();
    let writes = [Some(keys), value.map(|_| values), query.map(|_| rotated)].into_iter().flatten().collect();
    Dispatch { reads, writes, ..dispatch }
}

/// Which rows a dispatch has (`attention/runs.glsl`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// All of the step, at most so many.
    All(usize),
    /// Those that are alone of their sequence, of at most so many sequences.
    Alone(usize),
}

impl Rows {
    fn most(self) -> usize {
        match self {
            Rows::All(most) | Rows::Alone(most) => most,
        }
    }

    /// For a shader that tells rows alone from others.
    fn constant(self) -> (u32, u32) {
        (4, u32::from(matches!(self, Rows::Alone(_))))
    }
}

/// What is the same for all dispatches of a step.
struct Run<'a> {
    attention: &'a Attention,
    args: &'a GpuArgs<'a>,
    keys: Region,
    values: Region,
}

impl<'a> Run<'a> {
    fn new(attention: &'a Attention, args: &'a GpuArgs<'a>) -> Self {
        let [keys, values] = args.kv.layers[attention.layer];
        Run { attention, args, keys, values: if attention.kv.values_in_keys { keys } else { values } }
    }

    fn attend(&self) -> Vec<Dispatch> {
        let (args, rows) = (self.args, self.args.rows.most());
        let cut = |rows| Cut::new(self.attention, args.device, rows, args.context_tokens);
        let cut_of_all = cut(rows);
        let pays = |tile: &QueryTile, rows_of_sequence| tile.pays(rows_of_sequence, cut_of_all.heads);
        let tile = QueryTile::fitting(self.attention, args.device);
        let Some(tile) = tile.filter(|tile| pays(tile, rows / args.sequences)) else {
            return self.rows(&cut_of_all, Rows::All(rows)).collect();
        };
        if cut_of_all.split || args.sequences == 1 || pays(&tile, 1) {
            let merged = self.merge(&cut_of_all, Rows::All(rows));
            return [self.tiles(&tile, &cut_of_all, false)].into_iter().chain(merged).collect();
        }
        // What is alone in its sequence would leave most of a tile empty, and go through a long context piece after piece.
        let alone = Rows::Alone(args.sequences);
        let mut dispatches: Vec<Dispatch> = self.rows(&cut(args.sequences), alone).collect();
        dispatches.insert(1, self.tiles(&tile, &cut_of_all, true));
        dispatches
    }

    /// Each row by itself, then with a split the merging.
    fn rows(&self, cut: &Cut, rows: Rows) -> impl Iterator<Item = Dispatch> {
        let constants = vec![(0, self.lanes()), (1, cut.heads as u32), rows.constant()];
        let attend = self.dispatch(Module::Attend, cut, constants, [cut.tiles, rows.most()]);
        [attend].into_iter().chain(self.merge(cut, rows))
    }

    /// Rows together, all or but those alone.
    fn tiles(&self, tile: &QueryTile, cut: &Cut, but_alone: bool) -> Dispatch {
        let size = QueryTile::workgroup_size(tile.queries);
        let constants = vec![(0, size), (1, tile.heads as u32), (3, self.lanes()), (4, u32::from(but_alone))];
        let count = tile.most(self.args.rows.most(), self.args.sequences);
        self.dispatch(Module::AttendTile, cut, constants, [tile.head_tiles(self.attention), count])
    }

    /// Invocations of a workgroup of a row.
    fn lanes(&self) -> u32 {
        self.args.workgroup_size().min(MAX_LANES as u32)
    }

    fn dispatch(&self, module: Module, cut: &Cut, mut constants: Vec<(u32, u32)>, [x, y]: [usize; 2]) -> Dispatch {
        let Run { attention, args, keys, values } = *self;
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
        constants.push((2, u32::from(cut.split)));
        constants.extend(head_constants(attention, args.kv.kv_type));
        Dispatch {
            module,
            constants,
            push,
            groups: [x, y, if cut.split { cut.pieces } else { 1 }].map(|groups| groups as u32),
            reads: vec![args.inputs[0].region, keys, values],
            writes: vec![output],
        }
    }

    /// With a split, what merges the pieces.
    fn merge(&self, cut: &Cut, rows: Rows) -> Option<Dispatch> {
        let (attention, args) = (self.attention, self.args);
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
        let mut constants = vec![(0, args.device.subgroup_size), rows.constant()];
        constants.extend(head_constants(attention, args.kv.kv_type));
        cut.split.then(|| Dispatch {
            module: Module::AttentionMerge,
            constants,
            push,
            groups: [attention.n_heads as u32, rows.most() as u32, 1],
            reads: vec![args.scratch],
            writes: vec![output],
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::cases::{of_shape, shaped};
    use super::*;
    use proptest::prelude::*;

    fn device(shared_memory_bytes: u32) -> DeviceLimits {
        DeviceLimits {
            subgroup_size: 32,
            max_workgroup_size: 1024,
            max_groups: [65535; 3],
            shared_memory_bytes,
            cooperative_matrix: None,
        }
    }

    #[test]
    fn a_block_on_a_device_takes_what_its_type_says() {
        let bytes = |shape| [KvType::F32, KvType::F16, KvType::Q8_0].map(|kv_type| plane_block_bytes(shape, kv_type));
        assert_eq!(bytes(KvShape::grouped(2, 64)), [[8192; 2], [4096; 2], [2176; 2]]);
        let unequal = KvShape { value_dim: 128, ..KvShape::grouped(1, 192) };
        assert_eq!(bytes(unequal)[1..], [[16 * 384, 16 * 256], [16 * 204, 16 * 136]]);
        assert_eq!(bytes(KvShape::latent(576, 512))[1..], [[16 * 1152, 0], [16 * 612, 0]], "only keys");
    }

    #[test]
    fn tiles_are_as_large_as_shared_memory_allows() {
        let latent = of_shape(KvShape::latent(576, 512), 128, None, None);
        for attention in [shaped(64, 8, 1, None, None), shaped(256, 1, 8, None, None), latent] {
            let queries = |kib: u32| QueryTile::fitting(&attention, &device(kib << 10)).map(|tile| tile.queries);
            assert_eq!([227, 48, 32, 16].map(queries), [Some(32), Some(32), Some(16), None]);
        }
        let small = DeviceLimits { max_workgroup_size: 64, ..device(48 << 10) };
        assert_eq!(QueryTile::fitting(&shaped(64, 2, 4, None, None), &small).unwrap().queries, 16);
    }

    #[test]
    fn a_tile_has_all_heads_of_a_kv_head_that_it_has_room_for_and_as_many_rows() {
        let shape = |group| {
            let tile = QueryTile::fitting(&shaped(64, 2, group, None, None), &device(48 << 10)).unwrap();
            (tile.heads, tile.rows)
        };
        assert_eq!([1, 3, 4, 7, 32, 48, 128].map(shape), [(1, 32), (3, 10), (4, 8), (7, 4), (32, 1), (24, 1), (32, 1)]);
    }

    #[test]
    fn tiles_pay_for_prompts_and_for_many_heads_of_one_kv_head() {
        let pays = |group, rows| {
            let tile = QueryTile::fitting(&shaped(64, 2, group, None, None), &device(48 << 10)).unwrap();
            tile.pays(rows, group.min(8))
        };
        assert_eq!([1, 8, 16, 512].map(|rows| pays(1, rows)), [false, false, true, true]);
        assert_eq!([1, 2, 4, 512].map(|rows| pays(4, rows)), [false, false, true, true]);
        assert_eq!([1, 2].map(|rows| pays(8, rows)), [false, true]);
        assert!(pays(128, 1), "a row of latent attention");
    }

    proptest! {
        #[test]
        fn every_row_is_in_one_tile_however_rows_belong_to_sequences(
            runs in prop::collection::vec(1usize..70, 1..20), rows in 1usize..33,
        ) {
            let tile = QueryTile { queries: 32, heads: 1, rows };
            let starts: Vec<usize> = runs.iter().scan(0, |next, run| { *next += run; Some(*next - run) }).collect();
            let all: usize = runs.iter().sum();
            let mut times = vec![0; all];
            // As `find_rows` of the shader does.
            for index in 0..tile.most(all, runs.len()) {
                let run = (0..runs.len()).rfind(|&run| starts[run] / rows + run <= index).unwrap();
                let first = starts[run] + (index - (starts[run] / rows + run)) * rows;
                let end = starts[run] + runs[run];
                times[first.min(end)..(first + rows).min(end)].iter_mut().for_each(|times| *times += 1);
            }
            prop_assert_eq!(times, vec![1; all]);
        }
    }
}
