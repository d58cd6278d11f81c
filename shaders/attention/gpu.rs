//! The dispatches of [`Attention`].
//!
//! - `kv_store.comp` stores the keys and values of the rows in the cache, and rotates keys and queries if rope is
//!   fused.
//! - `attend_row.comp` is for few rows of a sequence: one workgroup for each row and at most 8 heads.
//! - `attend.comp` takes its place in steps that must be deterministic: its sums are those of `attend_tile.comp`.
//! - `attend_tile.comp` is for more rows, or for many heads of one KV head: one workgroup for up to 32 queries.
//! - `attend_matrices.comp` takes its place where the device multiplies float16 matrices: one workgroup for up to 64
//!   queries.
//! - `merge.comp` merges the pieces of a context if each had its own workgroup.
//!
//! # Memory traffic of a tile
//!
//! `attend.comp` reads 16 bytes of queries from shared memory for 4 multiply-adds, and reads keys and values again for
//! each row. A tile computes the scores of 4 queries and 4 positions at a time: 64 multiply-adds for 8 reads of 16
//! bytes. For values it does 16 multiply-adds for a read of 8 bytes of the cache. The scores of a whole piece are in
//! shared memory, 32 KiB for 32 queries, so that the softmax has the same bits as in `attend.comp`. With the staged
//! keys and queries that is 46.5 KiB. Devices with 32 KiB of shared memory use tiles of 16 queries (27.8 KiB).
//!
//! # Matrices
//!
//! Queries and weights are rounded to float16, so steps that must be deterministic and caches in float32 use the other
//! kernels. So do heads of more than 256 values, whose sums would not fit into registers. Each subgroup has the queries
//! of one matrix, and keeps them and its sums in registers. Each span of keys and values is staged once for all
//! subgroups; a value that a matrix reads from shared memory is multiplied as often as a subgroup has queries. With 4
//! subgroups, spans of 64 positions and heads of 128 values a workgroup has 35 KiB of shared memory.

use super::{Attention, EachOther, PIECE_TOKENS, Window};
use crate::fusion::FusesWith;
use crate::gpu::{DeviceLimits, DeviceValue, Dispatch, GpuArgs, Module, Push, Region, word};
use crate::kv::{KvShape, KvType, values_together};
use crate::op::Op;
use crate::rope::Rope;

/// Queries that share the keys and values that are read: heads of one KV head in consecutive rows of one sequence
/// (`attention/query_tile.glsl`).
struct QueryTile {
    queries: usize,
    heads: usize,
    rows: usize,
    /// How they are multiplied in `attention/attend_matrices.comp`; `None`: they are not.
    matrices: Option<Matrices>,
}

/// The matrices of a tile.
#[derive(Clone, Copy)]
struct Matrices {
    /// M, N and K.
    shape: [u32; 3],
    subgroups: usize,
    /// Positions whose keys or values are in shared memory at once.
    span_tokens: usize,
}

impl Matrices {
    /// The numbers of subgroups, and of matrices of a span, of tiles; the largest first.
    const SIZES: [(usize, usize); 6] = [(8, 2), (4, 4), (4, 2), (2, 4), (2, 2), (1, 2)];

    /// The longest keys and values.
    const MOST_DIM: usize = 256;

    /// The tiles that fit the device, the largest first.
    fn fitting<'a>(attention: &'a Attention, device: &'a DeviceLimits) -> impl Iterator<Item = QueryTile> + 'a {
        let tile = |shape: [u32; 3]| {
            let all = Self::SIZES.into_iter();
            all.map(move |(subgroups, columns)| Matrices { shape, subgroups, span_tokens: columns * shape[1] as usize })
                .filter(|matrices| matrices.fits(attention.kv, device))
                .map(|matrices| QueryTile::new(attention, matrices.queries(), Some(matrices)))
        };
        device.cooperative_matrix.into_iter().flat_map(tile)
    }

    fn queries(self) -> usize {
        self.subgroups * self.shape[0] as usize
    }

    fn fits(self, kv: KvShape, device: &DeviceLimits) -> bool {
        let [m, n, k] = self.shape;
        // The invocations of a query have at least 16 scores of a span each, and matrices start at 16 bytes.
        let parts = (device.subgroup_size / m) as usize;
        let shape_fits = parts > 0 && device.subgroup_size.is_multiple_of(m) && n >= 8;
        shape_fits
            && self.span_tokens.is_multiple_of(16 * parts)
            && self.span_tokens.is_multiple_of(k as usize)
            && kv.key_dim.max(kv.value_dim) <= Self::MOST_DIM
            && self.workgroup_size(device) <= device.max_workgroup_size
            && self.shared_bytes(kv, device) <= device.shared_memory_bytes as usize
    }

    fn workgroup_size(self, device: &DeviceLimits) -> u32 {
        self.subgroups as u32 * device.subgroup_size
    }

    /// Bytes of the staged keys or values and of the scores, with 16 bytes of padding after each row, or at first of the
    /// queries; and of a value for each invocation, a softmax for each query and a number for each subgroup.
    fn shared_bytes(self, kv: KvShape, device: &DeviceLimits) -> usize {
        const PADDING: usize = 16;
        let key_bytes = 2 * kv.key_dim.next_multiple_of(32);
        let staged_bytes = key_bytes.max(2 * kv.value_dim.next_multiple_of(16)) + PADDING;
        let in_loop = self.span_tokens * staged_bytes + self.queries() * (4 * self.span_tokens + PADDING);
        let at_first = self.queries() * (key_bytes + PADDING);
        let others = 4 * self.workgroup_size(device) as usize + 8 * self.queries() + 4 * self.subgroups;
        in_loop.max(at_first) + others
    }
}

impl QueryTile {
    /// Positions whose keys are in shared memory at once, and quads of each key; one quad of padding follows each.
    const SPAN_TOKENS: usize = 64;
    const STAGE_QUADS: usize = 8;

    fn new(attention: &Attention, queries: usize, matrices: Option<Matrices>) -> QueryTile {
        let group = attention.group();
        let heads = group.div_ceil(group.div_ceil(queries));
        QueryTile { queries, heads, rows: queries / heads, matrices }
    }

    /// The fastest tile for `rows_of_sequence` rows of each sequence, if any is worthwhile.
    fn choose(
        attention: &Attention,
        args: &GpuArgs<'_>,
        rows_of_sequence: usize,
        heads_of_row: usize,
    ) -> Option<QueryTile> {
        let is_worthwhile = |tile: &QueryTile| tile.is_worthwhile(rows_of_sequence, heads_of_row);
        let rounds = !args.deterministic && args.kv.kv_type != KvType::F32;
        let with_matrices = Matrices::fitting(attention, args.device).filter(|_| rounds).find(is_worthwhile);
        with_matrices.or_else(|| QueryTile::fitting(attention, args.device).filter(is_worthwhile))
    }

    /// The larger of the two tiles in float32 that fits the device. A tile has 4 invocations for each query.
    fn fitting(attention: &Attention, device: &DeviceLimits) -> Option<QueryTile> {
        let fits = |queries: &usize| {
            Self::workgroup_size(*queries) <= device.max_workgroup_size
                && Self::shared_bytes(*queries) <= device.shared_memory_bytes as usize
        };
        let queries = [32, 16].into_iter().find(fits)?;
        Some(QueryTile::new(attention, queries, None))
    }

    fn workgroup_size(queries: usize) -> u32 {
        4 * queries as u32
    }

    /// Bytes of the weights of a piece and of the staged queries and keys, with a quad of padding after each; and of
    /// two factors and a softmax for each query.
    fn shared_bytes(queries: usize) -> usize {
        const QUAD: usize = 4 * size_of::<f32>();
        let stage = (queries + Self::SPAN_TOKENS) * (Self::STAGE_QUADS + 1);
        (queries * (PIECE_TOKENS / 4 + 1) + stage + queries) * QUAD
    }

    /// Whether the tile is faster with `rows_of_sequence` rows of each sequence: it is at least half full, and at least
    /// twice as many queries share the keys and values that are read as in a workgroup of one row.
    fn is_worthwhile(&self, rows_of_sequence: usize, heads_of_row: usize) -> bool {
        let queries = self.heads * rows_of_sequence.min(self.rows);
        2 * queries >= self.queries && queries >= 2 * heads_of_row
    }

    /// The number of tiles for all heads of a row.
    fn head_tiles(&self, attention: &Attention) -> usize {
        attention.kv.n_kv_heads * attention.group().div_ceil(self.heads)
    }

    /// The maximum number of tiles for rows of `sequences` sequences. The tiles of a run of rows start at
    /// (its first row) / (rows of a tile) + (its index).
    fn most(&self, rows: usize, sequences: usize) -> usize {
        rows / self.rows + sequences
    }
}

/// How an attention is divided into workgroups.
struct Division {
    /// Query heads of a workgroup, which share the keys and values that are read.
    heads: usize,
    /// Workgroups for all heads.
    tiles: usize,
    /// Positions of a piece.
    piece_tokens: usize,
    /// Pieces of the longest context.
    pieces: usize,
    /// Whether each piece has its own workgroup.
    split: bool,
}

impl Division {
    const MOST_HEADS: usize = 8;

    /// The division for `attend.comp` and for tiles. Their pieces, and so the bits of their results, are always the same.
    fn in_fixed_pieces(attention: &Attention, device: &DeviceLimits, rows: usize, context_tokens: usize) -> Division {
        // A head needs shared memory for its query, the scores of a piece, and one value for each invocation.
        let head_bytes = 4 * (attention.kv.key_dim.next_multiple_of(32) + PIECE_TOKENS + MAX_LANES);
        let mut division = Division::whole(attention, device.shared_memory_bytes as usize / head_bytes);
        division.pieces = context_tokens.div_ceil(PIECE_TOKENS).max(1);
        division.split = division.pieces > 1 && rows * division.tiles * division.pieces <= device.saturating_groups();
        division
    }

    /// The division for `attend_row.comp`. Short contexts are not split, because merging takes as long as their rounds.
    /// Others are split into enough pieces to keep the device busy.
    fn in_pieces_of_any_length(
        attention: &Attention,
        device: &DeviceLimits,
        rows: usize,
        context_tokens: usize,
    ) -> Division {
        const SHORT_TOKENS: usize = 512;
        const GROUPS_OF_UNIT: usize = 4;
        let mut division = Division::whole(attention, heads_of_row(attention.kv, device));
        let seen = match attention.window.filter(|_| attention.kv.pool == 0) {
            Some(Window::Last(positions) | Window::Chunk(positions) | Window::Before(positions)) => {
                positions.min(context_tokens)
            }
            Some(Window::From(_)) | None => context_tokens,
        };
        let (groups, busy) = (rows * division.tiles, GROUPS_OF_UNIT * device.busy_groups());
        let tokens_of_most = context_tokens.div_ceil((device.saturating_groups() / groups).max(1));
        let tokens_of_busy = seen.div_ceil((busy / groups).max(1));
        division.piece_tokens = tokens_of_most.max(tokens_of_busy).next_multiple_of(ROW_LANES);
        division.pieces = context_tokens.div_ceil(division.piece_tokens);
        division.split = seen > SHORT_TOKENS && seen > division.piece_tokens;
        division
    }

    /// A division of at most `most_heads` heads, whose contexts are not split.
    fn whole(attention: &Attention, most_heads: usize) -> Division {
        let of_kv_head = attention.group();
        let heads = of_kv_head.div_ceil(of_kv_head.div_ceil(most_heads.clamp(1, Self::MOST_HEADS)));
        let tiles = attention.kv.n_kv_heads * of_kv_head.div_ceil(heads);
        Division { heads, tiles, piece_tokens: PIECE_TOKENS, pieces: 1, split: false }
    }

    /// The specialization constant of `attention/pieces.glsl`.
    fn constant(&self) -> (u32, u32) {
        (19, self.piece_tokens as u32)
    }

    /// The most partial results of a head of all rows, if up to `rows` rows are divided like this.
    fn most_partials(&self, device: &DeviceLimits, rows: usize) -> usize {
        if self.pieces == 1 { 0 } else { (device.saturating_groups() / self.tiles).min(rows * self.pieces) }
    }
}

/// The maximum number of invocations of a workgroup of `attend.comp`.
const MAX_LANES: usize = 128;

/// The number of invocations of a workgroup of `attend_row.comp`.
const ROW_LANES: usize = 128;

/// The most heads of a workgroup of `attend_row.comp`. Each needs shared memory for its query and its weights, and then
/// for eight values of each invocation.
fn heads_of_row(kv: KvShape, device: &DeviceLimits) -> usize {
    const WORD: usize = size_of::<f32>();
    // The slots of a round, and partial results of up to 8 heads.
    const OTHERS: usize = WORD * (ROW_LANES + 8 * 16);
    let in_loop = WORD * (kv.key_dim.next_multiple_of(32) + ROW_LANES);
    (device.shared_memory_bytes as usize - OTHERS) / in_loop.max(8 * WORD * ROW_LANES)
}

/// Bytes of the partial results of all pieces.
pub(super) fn scratch_bytes(attention: &Attention, device: &DeviceLimits, rows: usize, context_tokens: usize) -> u64 {
    let context_tokens = attention.most_visible(context_tokens);
    let fixed = Division::in_fixed_pieces(attention, device, rows, context_tokens);
    // The largest step that is split: few rows of a long context, or more rows of a shorter one.
    let one_row = Division::in_pieces_of_any_length(attention, device, 1, context_tokens);
    let partials = fixed.most_partials(device, rows).max(one_row.most_partials(device, rows));
    let record = attention.kv.value_dim.next_multiple_of(4) + 4;
    (partials * attention.n_heads * record * size_of::<f32>()) as u64
}

/// Stores keys and values, then computes the attention; merges the pieces if contexts are split.
pub(super) fn dispatches(attention: &Attention, args: &GpuArgs<'_>) -> Vec<Dispatch> {
    let stored = attention.stores.then(|| Stored::of(attention, args).dispatch(args, None));
    stored.into_iter().chain(Run::new(attention, args).attend()).collect()
}

/// The rotation that is fused into the storing of keys.
struct Rotation<'a> {
    rope: &'a Rope,
    frequencies: Region,
    /// The query before the rotation.
    query: DeviceValue,
    /// The rotated query, which is the input of the attention.
    rotated: Region,
}

/// Keys are rotated while they are stored in the cache.
impl FusesWith<Attention> for Rope {
    const NAME: &'static str = "rotated_attention";
    const INPUTS: usize = 2;
    const GIVES_BETWEEN: bool = false;

    fn fuses_with(&self, attention: &Attention) -> bool {
        attention.stores
            && !attention.lists_cells(usize::MAX)
            && self.head_dim() == attention.kv.key_dim
            && self.pool() == 1
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
        let rotation = Rotation { rope: self, frequencies: tables[0], query, rotated: rotated.region };
        let args = &GpuArgs { inputs: &inputs, tables: of_attention, scratch, ..*args };
        let stored = Stored::of(attention, args).dispatch(args, Some(&rotation));
        [stored].into_iter().chain(Run::new(attention, args).attend()).collect()
    }
}

/// Bytes of the rotated queries of `rows` rows, rounded up to align what follows.
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

/// The specialization constants of `attention/heads.glsl`, of `attention/pools.glsl` and of the cache.
pub(crate) fn head_constants(kv: KvShape, kv_type: KvType) -> [(u32, u32); 6] {
    let KvShape { key_dim, value_dim, values_in_keys, pool, is_windowed, .. } = kv;
    let lengths = [(21, key_dim as u32), (22, value_dim as u32)];
    let flags = [(23, u32::from(values_in_keys)), (35, u32::from(is_windowed))];
    [(11, pool as u32), cache_constant(kv_type), lengths[0], lengths[1], flags[0], flags[1]]
}

/// The specialization constants for rows that see later rows (`attention/runs.glsl`).
fn later_constants(attention: &Attention) -> [(u32, u32); 2] {
    let each_other = match attention.each_other {
        EachOther::All => 0,
        EachOther::FromWindow => 1,
        EachOther::Before => 2,
    };
    [(5, u32::from(attention.sees_later)), (10, each_other)]
}

/// The address of the sinks, which are the first table, or 0.
fn sinks_address(attention: &Attention, args: &GpuArgs<'_>) -> u64 {
    args.tables.first().filter(|_| attention.sinks.is_some()).map_or(0, |sinks| sinks.address)
}

/// The address of the slopes, which are the last table, or 0.
fn slopes_address(attention: &Attention, args: &GpuArgs<'_>) -> u64 {
    args.tables.last().filter(|_| attention.slopes.is_some()).map_or(0, |slopes| slopes.address)
}

/// The dispatch that stores keys of all rows, whose values are part of them, in this region of the cache.
pub(crate) fn store_keys(kv: KvShape, [key, keys]: [Region; 2], args: &GpuArgs<'_>) -> Dispatch {
    let push = Push::new().address(key.address).address(0).address(keys.address);
    let push = push.address(0).address(0).address(0).address(0).address(args.step);
    let push = push.size(kv.n_kv_heads).size(0).float(0.0);
    let groups = kv.key_dim.div_ceil(values_together(args.kv.kv_type));
    let mut dispatch = args.each_column(Module::AttentionKvStore, push, kv.n_kv_heads * groups);
    dispatch.constants.extend(head_constants(kv, args.kv.kv_type));
    Dispatch { reads: vec![key], writes: vec![keys], ..dispatch }
}

/// The selected positions, which are the last input, if a row does not see all of its positions.
fn selected(attention: &Attention, args: &GpuArgs<'_>) -> Option<Region> {
    args.inputs.last().filter(|_| attention.selects(args.context_tokens).is_some()).map(|selected| selected.region)
}

/// The dispatch that stores keys and values, which are the inputs, in a layer of the cache.
pub(super) fn store_keys_and_values(layer: usize, kv: KvShape, args: &GpuArgs<'_>) -> Dispatch {
    let [key, value] = [0, 1].map(|input| args.inputs[input].region);
    Stored { layer, kv, key, value: Some(value) }.dispatch(args, None)
}

/// What is stored in a layer of the cache.
struct Stored {
    layer: usize,
    kv: KvShape,
    key: Region,
    /// Values, or entries of pools; `None` where values are part of their keys.
    value: Option<Region>,
}

impl Stored {
    fn of(attention: &Attention, args: &GpuArgs<'_>) -> Stored {
        let Attention { kv, layer, .. } = *attention;
        let value = args.inputs.get(2).filter(|_| kv.stored_value_dim() > 0).map(|value| value.region);
        Stored { layer, kv, key: args.inputs[1].region, value }
    }

    /// The dispatch that stores the keys and values of all rows, with an optional rotation.
    fn dispatch(&self, args: &GpuArgs<'_>, rotation: Option<&Rotation<'_>>) -> Dispatch {
        let Stored { layer, kv, key, value } = *self;
        let [keys, values] = args.kv.layers[layer];
        let query = rotation.map(|rotation| rotation.query.region);
        let rotated = rotation.map(|rotation| rotation.rotated);
        let n_heads = rotation.map_or(0, |rotation| rotation.query.width / kv.key_dim);
        let push = Push::new()
            .address(key.address)
            .address(value.map_or(0, |value| value.address))
            .address(keys.address)
            .address(value.map_or(0, |_| values.address))
            .address(query.map_or(0, |query| query.address))
            .address(rotated.map_or(0, |rotated| rotated.address))
            .address(rotation.map_or(0, |rotation| rotation.frequencies.address))
            .address(args.step)
            .size(kv.n_kv_heads)
            .size(n_heads)
            .float(rotation.map_or(0.0, |rotation| rotation.rope.magnitude()));
        let groups_of_values = |dim: usize| dim.div_ceil(values_together(args.kv.kv_type));
        let of_values = value.map_or(0, |_| kv.n_kv_heads * groups_of_values(kv.value_dim));
        let invocations = (kv.n_kv_heads + n_heads) * groups_of_values(kv.key_dim) + of_values;
        let mut dispatch = args.each_column(Module::AttentionKvStore, push, invocations);
        dispatch.constants.extend(head_constants(kv, args.kv.kv_type));
        if let Some(Rotation { rope, .. }) = rotation {
            dispatch.constants.extend([(24, 1), (25, rope.n_pairs() as u32), (26, rope.distance() as u32)]);
            dispatch.constants.extend(rope.axes().constants());
        }
        let reads = [Some(key), value, query].into_iter().flatten().collect();
        let writes = [Some(keys), value.map(|_| values), rotated].into_iter().flatten().collect();
        Dispatch { reads, writes, ..dispatch }
    }
}

/// The rows of a dispatch (`attention/runs.glsl`).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Rows {
    /// All rows of the step. The value is their maximum number.
    All(usize),
    /// The rows that are alone in their sequence. The value is the maximum number of sequences.
    Alone(usize),
}

impl Rows {
    fn most(self) -> usize {
        match self {
            Rows::All(most) | Rows::Alone(most) => most,
        }
    }

    /// The specialization constant that selects the rows.
    fn constant(self) -> (u32, u32) {
        (4, u32::from(matches!(self, Rows::Alone(_))))
    }
}

/// What all dispatches of a step share.
struct Run<'a> {
    attention: &'a Attention,
    args: &'a GpuArgs<'a>,
    keys: Region,
    values: Region,
}

impl<'a> Run<'a> {
    fn new(attention: &'a Attention, args: &'a GpuArgs<'a>) -> Self {
        let [keys, values] = args.kv.layers[attention.layer];
        Run { attention, args, keys, values: if attention.kv.stored_value_dim() == 0 { keys } else { values } }
    }

    fn attend(&self) -> Vec<Dispatch> {
        let (args, rows) = (self.args, self.args.rows.most());
        let division = Division::in_fixed_pieces(self.attention, args.device, rows, self.context_tokens());
        let heads_of_row = self.divide(rows).heads;
        // Rows that see different cells share no keys.
        let lists_cells = self.attention.lists_cells(args.context_tokens);
        let choose = |rows| QueryTile::choose(self.attention, args, rows, heads_of_row);
        let Some(tile) = choose(rows / args.sequences).filter(|_| !lists_cells) else {
            return self.rows(Rows::All(rows)).collect();
        };
        if division.split || args.sequences == 1 || tile.is_worthwhile(1, heads_of_row) {
            let merged = self.merge(&division, Rows::All(rows));
            return [self.tiles(&tile, &division, false)].into_iter().chain(merged).collect();
        }
        // A row that is alone in its sequence would leave most of a tile empty, and process a long context piece after
        // piece.
        let alone = Rows::Alone(args.sequences);
        let mut dispatches: Vec<Dispatch> = self.rows(alone).collect();
        dispatches.insert(1, self.tiles(&tile, &division, true));
        dispatches
    }

    /// The positions of the longest context that a row sees.
    fn context_tokens(&self) -> usize {
        self.attention.most_visible(self.args.context_tokens)
    }

    /// The division of rows that are computed each by itself.
    fn divide(&self, rows: usize) -> Division {
        let divide =
            if self.args.deterministic { Division::in_fixed_pieces } else { Division::in_pieces_of_any_length };
        divide(self.attention, self.args.device, rows, self.context_tokens())
    }

    /// The dispatches that compute each row by itself, and merge the pieces if contexts are split.
    fn rows(&self, rows: Rows) -> impl Iterator<Item = Dispatch> {
        let division = self.divide(rows.most());
        let (module, lanes) = match self.args.deterministic {
            true => (Module::AttentionAttend, self.lanes()),
            false => (Module::AttentionAttendRow, ROW_LANES as u32),
        };
        let mut constants = vec![(0, lanes), (1, division.heads as u32), rows.constant()];
        constants.extend(self.selection_constants());
        let attend = self.dispatch(module, &division, constants, [division.tiles, rows.most()]);
        [attend].into_iter().chain(self.merge(&division, rows))
    }

    /// The specialization constants of `attention/selection.glsl` and of `attention/cells.glsl`.
    fn selection_constants(&self) -> [(u32, u32); 3] {
        let selection = self.attention.selects(self.args.context_tokens);
        let pool = selection.map_or(0, |selection| word(selection.pool));
        let has_own_pool = selection.is_some_and(|selection| selection.has_own_pool());
        [(6, pool), (12, u32::from(has_own_pool)), (13, selection.map_or(1, |selection| word(selection.lists)))]
    }

    /// The dispatch that computes rows in tiles: all rows, or all except those alone in their sequence.
    fn tiles(&self, tile: &QueryTile, division: &Division, except_alone: bool) -> Dispatch {
        let mut constants = vec![(1, tile.heads as u32), (4, u32::from(except_alone))];
        let module = match tile.matrices {
            None => {
                constants.extend([(0, QueryTile::workgroup_size(tile.queries)), (3, self.lanes())]);
                Module::AttentionAttendTile
            }
            Some(matrices) => {
                let device = self.args.device;
                constants.extend([(0, matrices.workgroup_size(device)), (3, device.subgroup_size)]);
                constants.extend((6..).zip(matrices.shape));
                constants.push((9, matrices.span_tokens as u32));
                Module::AttentionAttendMatrices
            }
        };
        let count = tile.most(self.args.rows.most(), self.args.sequences);
        self.dispatch(module, division, constants, [tile.head_tiles(self.attention), count])
    }

    /// Invocations of a workgroup of `attend.comp`.
    fn lanes(&self) -> u32 {
        self.args.workgroup_size().min(MAX_LANES as u32)
    }

    fn dispatch(
        &self,
        module: Module,
        division: &Division,
        mut constants: Vec<(u32, u32)>,
        [x, y]: [usize; 2],
    ) -> Dispatch {
        let Run { attention, args, keys, values } = *self;
        let output = if division.split { args.scratch } else { args.outputs[0].region };
        let [window, kind_of_window] = Window::push(attention.window);
        let selected = selected(attention, args);
        let push = Push::new()
            .address(args.inputs[0].region.address)
            .address(keys.address)
            .address(values.address)
            .address(output.address)
            .address(args.step)
            .address(sinks_address(attention, args))
            .address(slopes_address(attention, args))
            .address(selected.map_or(0, |selected| selected.address))
            .size(attention.n_heads)
            .size(attention.kv.n_kv_heads)
            .size(window)
            .size(kind_of_window)
            .size(division.pieces)
            .size(attention.selects(args.context_tokens).map_or(0, |selection| selection.most))
            .float(attention.scale)
            .float(attention.softcap.unwrap_or(0.0));
        constants.extend([(2, u32::from(division.split)), division.constant()]);
        constants.extend(later_constants(attention));
        constants.extend(head_constants(attention.kv, args.kv.kv_type));
        // The validation layer (1.4.309) looks up the matrix shapes by index and not by id. The ids of
        // `attend_matrices.comp` up to these have no gaps, so after sorting the index of each is its id.
        constants.sort_unstable();
        Dispatch {
            module,
            constants,
            push,
            groups: [x, y, if division.split { division.pieces } else { 1 }].map(|groups| groups as u32),
            reads: [args.inputs[0].region, keys, values].into_iter().chain(selected).collect(),
            writes: vec![output],
        }
    }

    /// The dispatch that merges the pieces, if contexts are split.
    fn merge(&self, division: &Division, rows: Rows) -> Option<Dispatch> {
        let (attention, args) = (self.attention, self.args);
        let output = args.outputs[0].region;
        let [window, kind_of_window] = Window::push(attention.window);
        let push = Push::new()
            .address(args.scratch.address)
            .address(output.address)
            .address(args.step)
            .address(sinks_address(attention, args))
            .size(attention.n_heads)
            .size(window)
            .size(kind_of_window)
            .size(division.pieces)
            .size(attention.selects(args.context_tokens).map_or(0, |selection| selection.most));
        let mut constants = vec![(0, args.device.subgroup_size), rows.constant(), division.constant()];
        constants.extend(self.selection_constants());
        constants.extend(later_constants(attention));
        constants.extend(head_constants(attention.kv, args.kv.kv_type));
        division.split.then(|| Dispatch {
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
mod tests {
    use super::super::cases::{of_shape, shaped};
    use super::*;
    use proptest::prelude::*;

    fn device(shared_memory_bytes: u32) -> DeviceLimits {
        DeviceLimits { cooperative_matrix: None, ..DeviceLimits::of_large_gpu(shared_memory_bytes) }
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
    fn a_tile_has_as_many_heads_of_a_kv_head_and_rows_as_fit() {
        let shape = |group| {
            let tile = QueryTile::fitting(&shaped(64, 2, group, None, None), &device(48 << 10)).unwrap();
            (tile.heads, tile.rows)
        };
        assert_eq!([1, 3, 4, 7, 32, 48, 128].map(shape), [(1, 32), (3, 10), (4, 8), (7, 4), (32, 1), (24, 1), (32, 1)]);
    }

    #[test]
    fn tiles_are_used_for_prompts_and_for_many_heads_of_one_kv_head() {
        let is_worthwhile = |group, rows| {
            let tile = QueryTile::fitting(&shaped(64, 2, group, None, None), &device(48 << 10)).unwrap();
            tile.is_worthwhile(rows, group.min(8))
        };
        assert_eq!([1, 8, 16, 512].map(|rows| is_worthwhile(1, rows)), [false, false, true, true]);
        assert_eq!([1, 2, 4, 512].map(|rows| is_worthwhile(4, rows)), [false, false, true, true]);
        assert_eq!([1, 2].map(|rows| is_worthwhile(8, rows)), [false, true]);
        assert!(is_worthwhile(128, 1), "a row of latent attention");
    }

    proptest! {
        #[test]
        fn every_row_is_in_exactly_one_tile_for_any_runs_of_rows(
            runs in prop::collection::vec(1usize..70, 1..20), rows in 1usize..33,
        ) {
            let tile = QueryTile { queries: 32, heads: 1, rows, matrices: None };
            let starts: Vec<usize> = runs.iter().scan(0, |next, run| { *next += run; Some(*next - run) }).collect();
            let all: usize = runs.iter().sum();
            let mut times = vec![0; all];
            // The same computation as `find_rows` in the shader.
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
