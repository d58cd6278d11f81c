//! The GPU dispatches of [`Linear`].
//!
//! - few rows, or any number of rows with `deterministic`: `mat_vec.comp`
//! - more rows in float32: `tile.comp`
//! - more rows on a device that multiplies float16 matrices: `halves.comp` once, then `few_rows.comp` up to 64 rows and
//!   `cooperative.comp` from there on
//! - one weight per head: `mat_vec.comp` or `tile.comp`, where each workgroup computes outputs of one head
//!
//! # The number of rows
//!
//! A workgroup of `mat_vec.comp` unpacks its weights once for up to 8 rows, but rounds and multiplies each row by itself:
//! every row adds about half of the time of the first. A tile of 16 rows in matrices takes as long as 4 rows there, even
//! if it is mostly empty, so matrices are used from 5 rows on. Float32 tiles are used from 9 rows on, where `mat_vec.comp`
//! would unpack each weight at least twice. Steps are recorded for powers of two of rows, so 9 rows cost as much as 16.
//!
//! # Some tens of rows
//!
//! Up to 64 rows the time is that of reading the weights, if enough of them are on their way at any time. So in
//! `few_rows.comp` every subgroup has a range of columns and 32 outputs of its own, and loads the next runs of its
//! weights while it multiplies. A compute unit needs about [`SUBGROUPS_OF_UNIT`](super::few_rows) such subgroups. There are as many
//! ranges of columns as give that number, up to 8 in a workgroup. A tile has all rows, so that each weight is decoded
//! once; it has 64 outputs, where that leaves enough tiles, so that subgroups share the rows that they read. A gated
//! product has 32 outputs of both weights in a tile and applies the activation.
//!
//! # The tile
//!
//! A tile of R rows and O outputs reads R + O values for R O multiply-adds, so large tiles read less. But cores are
//! idle if there are fewer tiles than cores, and the missing rows of a tile are wasted work. So the product uses the
//! largest tile that is not higher than the step and gives at least [`DeviceLimits::busy_groups`] tiles. If there is
//! none, it uses the tile that gives the most.
//!
//! | | tile | invocations | shared memory | multiply-adds per value read | per 16 bytes of shared memory |
//! |---|---|---|---|---|---|
//! | float32 | 128 x 128 | 256 | 36 KiB | 64 | 16 |
//! | | 128 x 64 | 128 | 27 KiB | 42.7 | 16 |
//! | | 64 x 64 | 128 | 18 KiB | 32 | 10.7 |
//! | | 32 x 32 | 64 | 9 KiB | 16 | 8 |
//! | | 16 x 64 | 64 | 11 KiB | 12.8 | 8 |
//! | float16 | 128 x 128 | 4 subgroups | 20 KiB | 64 | 256, in matrices of 16 x 16 |
//! | | 64 x 64 | 4 subgroups | 18 KiB | 32 | 128 |
//! | | 32 x 32 | 2 subgroups | 17 KiB | 16 | 85 |
//! | | 16 x 64 | 4 subgroups | 11 KiB | 12.8 | 64 |
//!
//! Float32 tiles load 32 columns at a time, and so does the largest float16 tile: with few invocations and little shared
//! memory, a compute unit has two of its workgroups, and one multiplies while the other decodes. Other float16 tiles load 64
//! columns, the 32 x 32 tile 128. Every tile fits into 48 KiB, which can be the limit even of a large GPU. Shared memory
//! delivers 128 bytes per cycle and core, which is enough for 2048 multiply-adds per cycle with the first float16 tile; the
//! peak of a core of an H100 or H200 is 2048.

use super::Linear;
use super::few_rows::{BLOCK_ROWS, FewRows, MOST_FEW_ROWS};
use super::mat_vec::{MAX_ROWS_BEFORE_MATRICES, MAX_ROWS_TOGETHER, MatVec};
use crate::fusion::FusesWith;
use crate::glu::{Activation, Glu};
use crate::gpu::weight::{RUN_COLUMNS, WeightLayout};
use crate::gpu::{DeviceLimits, DeviceValue, DeviceWeight, Dispatch, GpuArgs, Module, Push, Region, word};
use crate::op::Op;
use crate::quant::Format;
use crate::weight::Weight;

/// A tile of `tile.glsl` or `cooperative.glsl`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Tile {
    pub rows: usize,
    pub outputs: usize,
    /// The part that one invocation (`tile.glsl`) or one subgroup (`cooperative.glsl`) computes.
    part_rows: usize,
    part_outputs: usize,
    /// Runs of columns in shared memory at a time.
    runs: usize,
}

const fn tile(rows: usize, outputs: usize, part_rows: usize, part_outputs: usize, runs: usize) -> Tile {
    Tile { rows, outputs, part_rows, part_outputs, runs }
}

/// The tiles of `tile.glsl`, the largest first.
const TILES: [Tile; 5] = [
    tile(128, 128, 8, 8, 1),
    tile(128, 64, 8, 8, 1),
    tile(64, 64, 4, 8, 1),
    tile(32, 32, 4, 4, 1),
    tile(16, 64, 4, 4, 1),
];

/// The tiles of `cooperative.glsl`, the largest first. Their parts are whole matrices of every shape that
/// [`cooperative_shape_fits`] accepts.
const COOPERATIVE_TILES: [Tile; 4] =
    [tile(128, 128, 64, 64, 1), tile(64, 64, 32, 32, 2), tile(32, 32, 32, 16, 4), tile(16, 64, 16, 16, 2)];

/// Whether `cooperative.comp` can use matrices of this shape (M, N, K).
#[must_use]
pub fn cooperative_shape_fits([m, n, k]: [u32; 3]) -> bool {
    // K must divide a run and be a multiple of 16 bytes; results are stored four at a time.
    let divides = |whole: u32, part: u32| part > 0 && whole.is_multiple_of(part);
    divides(16, m) && divides(16, n) && n >= 4 && divides(32, k) && k >= 8
}

impl Tile {
    /// The number of parts of the tile: invocations or subgroups.
    fn parts(self) -> usize {
        self.rows / self.part_rows * (self.outputs / self.part_outputs)
    }

    /// The number of tiles that cover a product.
    fn count(self, rows: usize, outputs: usize) -> usize {
        rows.div_ceil(self.rows) * outputs.div_ceil(self.outputs)
    }

    /// Bytes of shared memory, with values of `value_bytes` bytes: rows of whole runs, each padded with 16 bytes.
    fn shared_bytes(self, value_bytes: usize) -> usize {
        (self.rows + self.outputs) * (self.runs * RUN_COLUMNS * value_bytes + 16)
    }

    /// The tile for `products` products that run concurrently. See the module documentation.
    fn choose(
        tiles: &[Tile],
        fits: impl Fn(Tile) -> bool,
        (rows, outputs): (usize, usize),
        products: usize,
        busy_groups: usize,
    ) -> Option<Tile> {
        let usable = || tiles.iter().copied().filter(|tile| fits(*tile) && tile.rows <= rows.next_power_of_two());
        let many = usable().find(|tile| products * tile.count(rows, outputs) >= busy_groups);
        // Of tiles with equal counts this is the larger one, because `max_by_key` returns the last maximum.
        many.or_else(|| usable().rev().max_by_key(|tile| tile.count(rows, outputs)))
    }

    /// The tile of `tile.glsl` for `products` products of size (rows, outputs). Each row needs `row_bytes` additional
    /// bytes of shared memory.
    pub fn in_float32(device: &DeviceLimits, size: (usize, usize), products: usize, row_bytes: usize) -> Option<Tile> {
        let fits = |tile: Tile| {
            tile.parts() <= device.max_workgroup_size as usize
                && tile.shared_bytes(4) + tile.rows * row_bytes <= device.shared_memory_bytes as usize
        };
        Tile::choose(&TILES, fits, size, products, device.busy_groups())
    }

    /// The same for `cooperative.glsl`, with the shape of the matrices; `None` if the device has none.
    pub fn in_halves(
        device: &DeviceLimits,
        size: (usize, usize),
        products: usize,
        row_bytes: usize,
    ) -> Option<(Tile, [u32; 3])> {
        let shape = device.cooperative_matrix.filter(|shape| cooperative_shape_fits(*shape))?;
        let fits = |tile: Tile| {
            tile.parts() * device.subgroup_size as usize <= device.max_workgroup_size as usize
                && tile.shared_bytes(2) + tile.rows * row_bytes <= device.shared_memory_bytes as usize
        };
        let tile = Tile::choose(&COOPERATIVE_TILES, fits, size, products, device.busy_groups())?;
        Some((tile, shape))
    }

    /// The numbers of rows of the float32 tiles. Those of float16 tiles are among them.
    pub fn heights() -> impl Iterator<Item = usize> {
        TILES.iter().map(|tile| tile.rows)
    }

    /// The specialization constants of `tile.glsl`.
    pub fn constants(self) -> [(u32, usize); 5] {
        [(0, self.parts()), (1, self.rows), (2, self.outputs), (4, self.part_rows), (5, self.part_outputs)]
    }

    /// The specialization constants of `cooperative.glsl`.
    pub fn constants_in_halves(self, device: &DeviceLimits, [m, n, k]: [u32; 3]) -> [(u32, usize); 9] {
        [
            (0, self.parts() * device.subgroup_size as usize),
            (1, self.rows),
            (2, self.outputs),
            (4, self.part_rows),
            (5, self.part_outputs),
            (6, m as usize),
            (7, n as usize),
            (8, k as usize),
            (9, self.runs),
        ]
    }
}

/// How a product is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    MatVec,
    Tile(Tile),
    FewRows(FewRows, [u32; 3]),
    Cooperative(Tile, [u32; 3]),
}

impl Method {
    /// The method for a weight. Float32 weights, for example those of routers, are stored in float32 for precision, so
    /// they are not rounded.
    fn of(weight: &Weight, device: &DeviceLimits, deterministic: bool, rows: usize) -> Method {
        let cooperative_matrix = device.cooperative_matrix.filter(|_| weight.format != Format::F32);
        let device = DeviceLimits { cooperative_matrix, ..device.clone() };
        let run_bytes = (weight.format.block_bytes() * RUN_COLUMNS).div_ceil(weight.format.block_len());
        Method::choose(&device, deterministic, rows, weight.rows, run_bytes)
    }

    fn choose(device: &DeviceLimits, deterministic: bool, rows: usize, outputs: usize, run_bytes: usize) -> Method {
        let shape = device.cooperative_matrix.filter(|shape| cooperative_shape_fits(*shape));
        let most = if shape.is_some() { MAX_ROWS_BEFORE_MATRICES } else { MAX_ROWS_TOGETHER };
        if rows <= most || deterministic {
            return Method::MatVec;
        }
        let fits = |invocations: usize, shared_bytes: usize, tile: Tile| {
            let across = outputs.div_ceil(tile.outputs);
            invocations <= device.max_workgroup_size as usize
                && shared_bytes <= device.shared_memory_bytes as usize
                && rows.div_ceil(tile.rows) <= device.max_groups[0] as usize
                && across <= device.max_groups[1] as usize
        };
        if let Some(shape) = shape {
            let few = FewRows::choose(device, rows, outputs, run_bytes).filter(|_| rows <= MOST_FEW_ROWS);
            if let Some(tile) = few.filter(|tile| outputs.div_ceil(tile.outputs) <= device.max_groups[1] as usize) {
                return Method::FewRows(tile, shape);
            }
            let fits = |tile: Tile| fits(tile.parts() * device.subgroup_size as usize, tile.shared_bytes(2), tile);
            if let Some(tile) = Tile::choose(&COOPERATIVE_TILES, fits, (rows, outputs), 1, device.busy_groups()) {
                return Method::Cooperative(tile, shape);
            }
        }
        let fits = |tile: Tile| fits(tile.parts(), tile.shared_bytes(4), tile);
        Tile::choose(&TILES, fits, (rows, outputs), 1, device.busy_groups()).map_or(Method::MatVec, Method::Tile)
    }

    /// The method for a gated product of two such weights: with one tile for both, if possible.
    fn gated(self, device: &DeviceLimits) -> Method {
        match self {
            Method::FewRows(tile, shape) => Method::FewRows(tile.gated(device).unwrap_or(tile), shape),
            _ => self,
        }
    }

    /// Whether the input is rounded to float16 first.
    fn rounds_input(self) -> bool {
        matches!(self, Method::FewRows(..) | Method::Cooperative(..))
    }
}

/// Bytes that `halves.comp` writes for `rows` rows; 0 if it is not used.
pub(super) fn scratch_bytes(linear: &Linear, device: &DeviceLimits, rows: usize) -> u64 {
    let rounds = |weight: &Weight| Method::of(weight, device, false, rows).rounds_input();
    if linear.weights.iter().any(rounds) { halves_bytes(rows, linear.weights[0].columns) } else { 0 }
}

/// Bytes of the blocks of `rows` rows: whole runs in float16, and a float32 for each row.
pub(crate) fn halves_bytes(rows: usize, columns: usize) -> u64 {
    let row_bytes = columns.next_multiple_of(RUN_COLUMNS) * 2 + size_of::<f32>();
    (rows.next_multiple_of(BLOCK_ROWS) * row_bytes) as u64
}

/// One weight with its input and output.
struct Product<'a> {
    weight: &'a Weight,
    on_device: DeviceWeight,
    bias: Option<Region>,
    input: DeviceValue,
    output: DeviceValue,
    /// Heads of the input. The outputs are divided among the heads.
    heads: usize,
    /// The second weight (up) of a gated product. Only `mat_vec` and `few_rows` support it.
    gated: Option<Gated>,
}

/// The second weight of a gated product. It has the shape and format of the first.
struct Gated {
    on_device: DeviceWeight,
    bias: Option<Region>,
    activation: Activation,
}

/// One dispatch per weight, preceded by one for the input if it is rounded. The dispatches of the weights are
/// independent.
pub(super) fn dispatches(linear: &Linear, args: &GpuArgs<'_>) -> Vec<Dispatch> {
    let biases = biases(linear, args.tables);
    let weights = linear.weights.iter().zip(args.weights);
    let products = weights.zip(args.outputs).zip(biases).map(|(((weight, on_device), output), bias)| Product {
        weight,
        on_device: *on_device,
        bias,
        input: args.inputs[0],
        output: *output,
        heads: 1,
        gated: None,
    });
    let products: Vec<_> = products.map(|product| product.dispatch(args)).collect();
    let rounded = [Module::MatmulFewRows, Module::MatmulCooperative];
    let rounds = products.iter().any(|product| rounded.contains(&product.module));
    rounds.then(|| halves(args)).into_iter().chain(products).collect()
}

/// The bias of each weight that has one.
fn biases(linear: &Linear, tables: &[Region]) -> Vec<Option<Region>> {
    let mut tables = tables.iter().copied();
    linear.biases.iter().map(|bias| bias.as_ref().and_then(|_| tables.next())).collect()
}

/// The first half of a gated feed-forward layer. With few rows, one workgroup computes a value of both products and
/// applies the gate activation. With tiles of many rows each product would have only half of the registers, and an
/// additional pass over the values costs little compared with the products.
impl FusesWith<Glu> for Linear {
    const NAME: &'static str = "gated_linear";
    const INPUTS: usize = 1;
    const GIVES_BETWEEN: bool = false;

    fn fuses_with(&self, _: &Glu) -> bool {
        let [gate, up] = &self.weights[..] else { return false };
        (gate.format, gate.rows, gate.columns) == (up.format, up.rows, up.columns)
    }

    fn widths_between(&self, _: &Glu) -> Vec<usize> {
        self.weights.iter().map(|weight| weight.rows).collect()
    }

    fn scratch_bytes_with(&self, _: &Glu, device: &DeviceLimits, rows: usize, _: usize) -> u64 {
        match Method::of(&self.weights[0], device, false, rows).gated(device) {
            Method::MatVec => 0,
            Method::FewRows(FewRows { weights: 2, .. }, _) => halves_bytes(rows, self.weights[0].columns),
            _ => gates_bytes(self, rows) + scratch_bytes(self, device, rows),
        }
    }

    fn dispatches_with(&self, glu: &Glu, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let weight = &self.weights[0];
        let gated = || self.gated_product(glu.activation(), args);
        match Method::of(weight, args.device, args.deterministic, args.rows.most()).gated(args.device) {
            Method::MatVec => return vec![gated().mat_vec(args)],
            Method::FewRows(tile, shape) if tile.weights == 2 => {
                return vec![halves(args), gated().few_rows(args, tile, shape)];
            }
            _ => {}
        }
        // Store the product of gate in the scratch memory and that of up in the output, which the activation
        // overwrites.
        let (gates, scratch) = args.scratch.split_at(gates_bytes(self, args.rows.most()));
        let gates = DeviceValue { region: gates, ..args.outputs[0] };
        let both = [gates, args.outputs[0]];
        let products = dispatches(self, &GpuArgs { outputs: &both, scratch, ..*args });
        products.into_iter().chain(glu.dispatches(&GpuArgs { inputs: &both, ..*args })).collect()
    }
}

impl Linear {
    /// The product of both weights, with the gate activation.
    fn gated_product<'a>(&'a self, activation: Activation, args: &GpuArgs<'_>) -> Product<'a> {
        let biases = biases(self, args.tables);
        Product {
            weight: &self.weights[0],
            on_device: args.weights[0],
            bias: biases[0],
            input: args.inputs[0],
            output: args.outputs[0],
            heads: 1,
            gated: Some(Gated { on_device: args.weights[1], bias: biases[1], activation }),
        }
    }
}

/// Bytes of the gate product of `rows` rows, padded to the alignment of a region.
fn gates_bytes(linear: &Linear, rows: usize) -> u64 {
    ((rows * linear.weights[0].rows * size_of::<f32>()) as u64).next_multiple_of(256)
}

/// The product of each head with its rows of the weight. With many rows, each tile belongs to one head.
pub(super) fn dispatch_of_heads(weight: &Weight, heads: usize, args: &GpuArgs<'_>) -> Dispatch {
    let (input, output) = (args.inputs[0], args.outputs[0]);
    let product = Product { weight, on_device: args.weights[0], bias: None, input, output, heads, gated: None };
    let rows = args.rows.most();
    let size = (rows, weight.rows / heads.max(1));
    let fits = |tile: &Tile| {
        let [down, across] = product.tiles_down_and_across(rows, *tile);
        down <= args.device.max_groups[0] as usize && across <= args.device.max_groups[1] as usize
    };
    match Tile::in_float32(args.device, size, heads, 0).filter(fits) {
        Some(tile) if rows > MAX_ROWS_TOGETHER && !args.deterministic => product.tile(args, tile),
        _ => product.mat_vec(args),
    }
}

/// Rounds the input to float16 and stores it in the scratch memory.
fn halves(args: &GpuArgs<'_>) -> Dispatch {
    let rows = args.rows.most();
    Rounded { values: args.inputs[0], halves: input_as_halves(args), first_row: 0, each: 1, rows }.dispatch(args)
}

/// Rows that products in float16 matrices read.
pub(crate) struct Rounded {
    /// The rows in float32.
    pub values: DeviceValue,
    /// The rows as `halves.comp` stores them; see [`halves_bytes`].
    pub halves: Region,
    /// The row of the step to which the first of them belongs.
    pub first_row: usize,
    /// Rows for each row of the step.
    pub each: usize,
    /// The maximum number of rows.
    pub rows: usize,
}

impl Rounded {
    pub fn dispatch(&self, args: &GpuArgs<'_>) -> Dispatch {
        let width = self.values.width;
        let push = Push::new()
            .address(self.values.region.address)
            .address(self.halves.address)
            .address(args.step)
            .word(args.rows.kind())
            .size(width)
            .size(self.first_row);
        let whole_runs = width.is_multiple_of(RUN_COLUMNS);
        let lanes = word(halves_lanes(args.device, width));
        Dispatch {
            module: Module::MatmulHalves,
            constants: vec![(0, lanes), (3, u32::from(whole_runs)), (4, word(self.each))],
            push,
            groups: groups([1, self.rows, 1]),
            reads: vec![self.values.region],
            writes: vec![self.halves],
        }
    }
}

/// Invocations of `halves.comp`: a power of two, and about one for each 8 columns.
fn halves_lanes(device: &DeviceLimits, columns: usize) -> usize {
    const MOST: usize = 512;
    let most = MOST.min(device.max_workgroup_size as usize);
    let wanted = columns.div_ceil(8).next_power_of_two();
    wanted.max((device.subgroup_size as usize).next_power_of_two()).min(1 << most.ilog2())
}

/// The output of [`halves`].
fn input_as_halves(args: &GpuArgs<'_>) -> Region {
    let bytes = halves_bytes(args.rows.most(), args.inputs[0].width);
    assert!(bytes <= args.scratch.bytes, "the scratch memory has the size of `scratch_bytes`");
    Region { address: args.scratch.address, bytes }
}

fn groups(groups: [usize; 3]) -> [u32; 3] {
    groups.map(word)
}

impl Product<'_> {
    fn dispatch(&self, args: &GpuArgs<'_>) -> Dispatch {
        match Method::of(self.weight, args.device, args.deterministic, args.rows.most()) {
            Method::MatVec => self.mat_vec(args),
            Method::Tile(tile) => self.tile(args, tile),
            Method::FewRows(tile, shape) => self.few_rows(args, tile, shape),
            Method::Cooperative(tile, shape) => self.cooperative(args, tile, shape),
        }
    }

    fn mat_vec(&self, args: &GpuArgs<'_>) -> Dispatch {
        let weights = if self.gated.is_some() { 2 } else { 1 };
        let shape = MatVec::new(args.device, self.weight.columns, args.rows.most());
        let shape = if self.heads == 1 { shape } else { shape.in_heads_of(self.weight.rows / self.heads) };
        let groups =
            args.spread(self.weight.rows, shape.outputs_of_group() / weights, args.rows.most().div_ceil(shape.rows));
        let own = [(16, self.heads), (17, weights - 1), (18, self.activation())];
        let constants: Vec<_> = shape.constants().into_iter().chain(own).collect();
        self.dispatch_of(args, Module::MatmulMatVec, self.input.region, &constants, groups)
    }

    /// The activation of a gated product, as shaders have it.
    fn activation(&self) -> usize {
        self.gated.as_ref().map_or(0, |gated| gated.activation.variant() as usize)
    }

    fn few_rows(&self, args: &GpuArgs<'_>, tile: FewRows, [m, n, k]: [u32; 3]) -> Dispatch {
        let constants = [
            (0, tile.subgroups() * args.device.subgroup_size as usize),
            (1, tile.rows),
            (2, tile.outputs),
            (4, FewRows::SUBGROUP_OUTPUTS),
            (5, tile.deep),
            (6, m as usize),
            (7, n as usize),
            (8, k as usize),
            (9, tile.ahead),
            (17, tile.weights - 1),
            (18, self.activation()),
        ];
        let groups = groups([args.rows.most().div_ceil(tile.rows), self.weight.rows.div_ceil(tile.outputs), 1]);
        self.dispatch_of(args, Module::MatmulFewRows, input_as_halves(args), &constants, groups)
    }

    fn tile(&self, args: &GpuArgs<'_>, tile: Tile) -> Dispatch {
        let groups = self.tiles(args, tile);
        let constants = tile.constants().into_iter().chain([(16, self.heads)]).collect::<Vec<_>>();
        self.dispatch_of(args, Module::MatmulTile, self.input.region, &constants, groups)
    }

    fn cooperative(&self, args: &GpuArgs<'_>, tile: Tile, shape: [u32; 3]) -> Dispatch {
        let constants = tile.constants_in_halves(args.device, shape);
        let groups = self.tiles(args, tile);
        self.dispatch_of(args, Module::MatmulCooperative, input_as_halves(args), &constants, groups)
    }

    fn tiles(&self, args: &GpuArgs<'_>, tile: Tile) -> [u32; 3] {
        let [down, across] = self.tiles_down_and_across(args.rows.most(), tile);
        groups([down, across, 1])
    }

    /// The grid of tiles. The outputs of a tile belong to one head.
    fn tiles_down_and_across(&self, rows: usize, tile: Tile) -> [usize; 2] {
        let outputs = self.weight.rows / self.heads;
        [rows.div_ceil(tile.rows), self.heads * outputs.div_ceil(tile.outputs)]
    }

    /// The dispatch of a kernel, with the push constants of `product.glsl` and the constants of the weight format.
    fn dispatch_of(
        &self,
        args: &GpuArgs<'_>,
        module: Module,
        input: Region,
        constants: &[(u32, usize)],
        groups: [u32; 3],
    ) -> Dispatch {
        let Weight { format, rows: outputs, columns, .. } = *self.weight;
        let layout = WeightLayout::new(format, outputs, columns);
        let address = |bias: Option<Region>| bias.map_or(0, |bias| bias.address);
        let second = self.gated.as_ref();
        let planes = self.on_device.planes.into_iter().chain(second.map_or([0; 4], |second| second.on_device.planes));
        let push = planes
            .fold(Push::new(), Push::address)
            .address(input.address)
            .address(address(self.bias))
            .address(address(second.and_then(|second| second.bias)))
            .address(self.output.region.address)
            .address(args.step)
            .word(args.rows.kind())
            .size(columns)
            .size(outputs);
        let constants = constants.iter().map(|(id, value)| (*id, word(*value)));
        let has_second_bias = second.is_some_and(|second| second.bias.is_some());
        let own = [
            (3, u32::from(layout.whole_runs())),
            (19, u32::from(self.bias.is_some())),
            (20, u32::from(has_second_bias)),
        ];
        let mut constants: Vec<_> = constants.chain(own).chain(layout.constants()).collect();
        // The validation layer (1.4.309) looks up the matrix shapes by index and not by id. The first ids of
        // `cooperative.comp` and `few_rows.comp` have no gaps, so after sorting the index of each constant is its id.
        constants.sort_unstable();
        Dispatch { module, constants, push, groups, reads: vec![input], writes: vec![self.output.region] }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::quant::random;

    /// Bytes of a run of Q4_K.
    const RUN_BYTES: usize = 18;

    fn device(cooperative_matrix: Option<[u32; 3]>, shared_memory_bytes: u32) -> DeviceLimits {
        DeviceLimits { cooperative_matrix, ..DeviceLimits::of_large_gpu(shared_memory_bytes) }
    }

    fn rows_and_outputs(method: Method) -> (usize, usize) {
        match method {
            Method::MatVec => (0, 0),
            Method::FewRows(tile, _) => (tile.rows, tile.outputs),
            Method::Tile(tile) | Method::Cooperative(tile, _) => (tile.rows, tile.outputs),
        }
    }

    #[test]
    fn few_rows_and_deterministic_steps_use_mat_vec() {
        let device = device(Some([16, 16, 16]), 48 << 10);
        assert_eq!(Method::choose(&device, false, 4, 4096, RUN_BYTES), Method::MatVec);
        assert!(matches!(Method::choose(&device, false, 8, 4096, RUN_BYTES), Method::FewRows(..)));
        assert_eq!(Method::choose(&device, true, 512, 4096, RUN_BYTES), Method::MatVec);
        assert!(matches!(Method::choose(&device, false, 64, 4096, RUN_BYTES), Method::FewRows(..)));
        assert!(matches!(Method::choose(&device, false, 65, 4096, RUN_BYTES), Method::Cooperative(..)));
    }

    #[test]
    fn float32_weights_are_not_rounded() {
        let device = device(Some([16, 16, 16]), 48 << 10);
        let method = |format| {
            let weight = random::weight("w", format, 64, 256, 1);
            Method::of(&weight, &device, false, 512)
        };
        assert!(matches!(method(Format::F32), Method::Tile(_)));
        assert!(matches!(method(Format::F16), Method::Cooperative(..)));
    }

    #[test]
    fn the_largest_tile_that_occupies_the_device_is_used() {
        for (cooperative, shape) in [(None, "float32"), (Some([16, 16, 16]), "float16")] {
            let device = device(cooperative, 48 << 10);
            let chosen = |rows, outputs| rows_and_outputs(Method::choose(&device, false, rows, outputs, RUN_BYTES));
            assert_eq!(chosen(2048, 4096), (128, 128), "{shape}");
            assert_eq!(chosen(512, 1024), (64, 64), "{shape}");
            assert_eq!(chosen(128, 512), (32, 32), "{shape}");
            assert_eq!(chosen(16, 128_256), (16, 64), "{shape}");
            assert_eq!(chosen(512, 64), (32, 32), "{shape}");
        }
    }

    #[test]
    fn tiles_fit_the_limits_of_the_device() {
        let all = |tiles: &[Tile], bytes| tiles.iter().all(|tile| tile.shared_bytes(bytes) <= 48 << 10);
        assert!(all(&TILES, 4) && all(&COOPERATIVE_TILES, 2));
        assert_eq!(rows_and_outputs(Method::choose(&device(None, 32 << 10), false, 2048, 4096, RUN_BYTES)), (128, 64));
        let smaller = Method::choose(&device(Some([16, 16, 16]), 19 << 10), false, 2048, 4096, RUN_BYTES);
        assert_eq!(smaller, Method::Cooperative(tile(64, 64, 32, 32, 2), [16, 16, 16]));
        assert_eq!(Method::choose(&device(None, 1 << 10), false, 2048, 4096, RUN_BYTES), Method::MatVec);
        let few_invocations = DeviceLimits { max_workgroup_size: 64, ..device(Some([16, 16, 16]), 48 << 10) };
        assert_eq!(rows_and_outputs(Method::choose(&few_invocations, false, 2048, 4096, RUN_BYTES)), (32, 32));
    }

    #[test]
    fn every_tile_divides_into_equal_parts() {
        for tile in TILES {
            let (down, across) = (tile.rows / tile.part_rows, tile.outputs / tile.part_outputs);
            assert_eq!((down * tile.part_rows, across * tile.part_outputs), (tile.rows, tile.outputs), "{tile:?}");
        }
        for tile in COOPERATIVE_TILES {
            assert!(tile.part_rows.is_multiple_of(16) && tile.part_outputs.is_multiple_of(16), "{tile:?}");
            // Results of gate are stored together with those of up, which other subgroups compute.
            assert!((tile.outputs / tile.part_outputs).is_multiple_of(2), "{tile:?}");
            // Each subgroup stores its results through a matrix of 16 x 16 floats in shared memory.
            assert!(tile.parts() * 16 * 16 * 4 <= tile.shared_bytes(2), "{tile:?}");
        }
    }

    #[test]
    fn unsupported_matrix_shapes_are_rejected() {
        assert!(cooperative_shape_fits([16, 16, 16]) && cooperative_shape_fits([8, 8, 8]));
        assert!(cooperative_shape_fits([16, 8, 16]));
        for shape in [[64, 16, 16], [16, 16, 4], [12, 16, 16], [0, 16, 16], [16, 2, 16], [16, 16, 64]] {
            assert!(!cooperative_shape_fits(shape), "{shape:?}");
        }
    }
}
