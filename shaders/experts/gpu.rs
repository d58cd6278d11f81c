//! What [`Route`] and [`Experts`] run on a GPU.
//!
//! Nothing comes back to the processor between the two: which experts are used, and by which rows, is read on the device.
//!
//! # Experts
//!
//! - `group.comp`: puts routes in *blocks*, each an expert and some of the routes to it
//! - `mat_vec.comp` or `tile.comp`: the products of each block with gate and up, and the activation of the two at once
//! - the same again with down
//! - `add_up.comp`: the results of a row's routes, weighted
//!
//! Every route has a place of its own for what comes out of its products, which does not depend on its block. A result is a sum
//! over columns in an order that no block changes, and the results of a row are added in the order of its routes: so a row's
//! bits depend on its company only by the kernel, as in [`matmul`](crate::matmul), and under `deterministic` not at all.
//!
//! # How many blocks there are
//!
//! Of R routes to E experts, in blocks of B routes, there are at most E + R / B blocks: every expert has one that is
//! not full at most. That many workgroups are dispatched, and those beyond the last block return at once.
//!
//! # Which kernel
//!
//! - Each route by itself, without blocks, where routes are so few that hardly two meet at an expert: what grouping
//!   takes would be a good part of the whole.
//! - `mat_vec.comp` in blocks of 4, where an expert has up to 8 routes on average, and always where bits must not depend on the
//!   bucket: the routes share what is unpacked of the weights. Most experts have fewer than 8 then, and larger blocks would
//!   keep registers and shared memory for routes that are not there.
//! - `tile.comp` where it has more: tiles no higher than that average, since a tile's missing rows are computed for nothing.
//!
//! # Memory to work in
//!
//! Two values a route and column, of the feed-forward and of the row. Where rows are many they are computed in parts.

use super::{ExpertMatrix, Experts, Route, RouteWeighting, Scoring};
use crate::gpu::weight::{RUN_COLUMNS, WeightLayout};
use crate::gpu::{DeviceLimits, DeviceWeight, Dispatch, GpuArgs, Module, Push, Region};
use crate::matmul::gpu::{Tile, mat_vec_lanes};
use crate::op::Op;

/// The best experts of each row.
pub(super) fn route(route: &Route, args: &GpuArgs<'_>) -> Vec<Dispatch> {
    let mut tables = args.tables.iter().map(|table| table.address);
    let mut table_of = |present: bool| if present { tables.next().unwrap_or(0) } else { 0 };
    let (bias, scales) = (table_of(route.bias().is_some()), table_of(route.expert_scales().is_some()));
    let (logits, routes) = (args.inputs[0].region, args.outputs[0].region);
    let push = Push::new()
        .address(logits.address)
        .address(bias)
        .address(scales)
        .address(routes.address)
        .address(args.step)
        .word(args.rows.kind())
        .float(route.scale());
    let (n_groups, used_groups) = route.groups().map_or((1, 1), |groups| (groups.count, groups.used));
    let constants = [
        (0, args.workgroup_size()),
        (1, word(route.n_experts())),
        (2, word(route.top_k())),
        (3, u32::from(route.scoring() == Scoring::Softmax)),
        (4, word(n_groups)),
        (5, word(used_groups)),
        (6, u32::from(bias != 0)),
        (7, u32::from(scales != 0)),
        (8, u32::from(route.renormalises())),
    ];
    vec![Dispatch {
        module: Module::Route,
        constants: constants.into(),
        push,
        groups: [1, word(args.rows.most()), 1],
        reads: vec![logits],
        writes: vec![routes],
    }]
}

/// Most routes of a part: a dispatch has a row of workgroups for each block, and each device allows 65535.
const MAX_ROUTES: usize = 16384;

/// Most bytes of values between the products, as far as a part of one row does not take more.
const MAX_VALUES_BYTES: usize = 128 << 20;

/// Routes that `mat_vec.comp` takes on at once.
const ROUTES_TOGETHER: usize = 4;

/// The most routes of an expert, on average, with which `mat_vec.comp` is used.
const FEW_ROUTES: usize = 8;

/// Rows of the lowest tile.
const LEAST_HEIGHT: usize = 16;

/// How the routes of a part are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    /// Each by itself.
    Direct,
    /// In blocks of a few.
    MatVec,
    /// In blocks as high as the tile.
    Tile(Tile),
}

impl Method {
    fn choose(experts: &Experts, device: &DeviceLimits, deterministic: bool, rows: usize) -> Method {
        const EXPERTS_FOR_EACH: usize = 4;
        let (routes, n_experts) = (rows * experts.top_k, experts.n_experts());
        if rows == 1 || EXPERTS_FOR_EACH * routes <= n_experts {
            return Method::Direct;
        }
        let usual = routes.div_ceil(n_experts);
        if usual <= FEW_ROUTES || deterministic {
            return Method::MatVec;
        }
        let height = (usual.next_power_of_two() / 2).max(LEAST_HEIGHT);
        let outputs = experts.intermediate_size().min(experts.hidden_size());
        // Beside the tile the routes of its rows are in shared memory.
        Tile::in_float32(device, (height, outputs), n_experts, size_of::<u32>()).map_or(Method::MatVec, Method::Tile)
    }

    /// Routes of a block; 0 where there are no blocks.
    fn block_routes(self) -> usize {
        match self {
            Method::Direct => 0,
            Method::MatVec => ROUTES_TOGETHER,
            Method::Tile(tile) => tile.rows,
        }
    }

    /// The most blocks that there may be of so many routes, or the most routes where each is by itself.
    fn most_blocks(self, routes: usize, n_experts: usize) -> usize {
        match self.block_routes() {
            0 => routes,
            block_routes => routes.min(n_experts + routes / block_routes),
        }
    }

    /// Bytes of the blocks (`blocks.glsl`).
    fn blocks_bytes(self, routes: usize, n_experts: usize) -> usize {
        match self.block_routes() {
            0 => 0,
            block_routes => 16 + self.most_blocks(routes, n_experts) * (16 + 4 * block_routes),
        }
    }
}

/// Where things are in the scratch memory.
#[derive(Debug, Clone, Copy)]
struct Places {
    blocks: Region,
    /// [routes, intermediate_size]
    activated: Region,
    /// [routes, hidden_size]
    results: Region,
}

impl Places {
    /// The places for so many routes, from an address on, and the bytes of all.
    fn new(experts: &Experts, routes: usize, address: u64) -> (Places, u64) {
        const ALIGNMENT: u64 = 256;
        // As much as any method takes: which one is chosen depends on more than is known where memory is planned.
        let heights = Tile::heights().chain([ROUTES_TOGETHER]);
        let bytes_of =
            |block_routes: usize| 16 + (experts.n_experts() + routes / block_routes) * (16 + 4 * block_routes);
        let mut end = address;
        let mut next = |bytes: usize| {
            let region = Region { address: end, bytes: bytes as u64 };
            end = (end + region.bytes).next_multiple_of(ALIGNMENT);
            region
        };
        let places = Places {
            blocks: next(heights.map(bytes_of).max().unwrap_or(0)),
            activated: next(routes * experts.intermediate_size() * size_of::<f32>()),
            results: next(routes * experts.hidden_size() * size_of::<f32>()),
        };
        (places, end - address)
    }
}

/// The most rows that are computed at once.
fn most_rows(experts: &Experts) -> usize {
    let route_bytes = (experts.intermediate_size() + experts.hidden_size()) * size_of::<f32>();
    (MAX_ROUTES.min(MAX_VALUES_BYTES / route_bytes) / experts.top_k).max(1)
}

/// Scratch memory for so many rows, or fewer.
pub(super) fn scratch_bytes(experts: &Experts, rows: usize) -> u64 {
    // Fewer rows may come in larger parts: three parts may each be smaller than two of not so many.
    Places::new(experts, rows.min(most_rows(experts)) * experts.top_k, 0).1
}

/// What computes the experts of all rows: in parts as large as one another.
pub(super) fn experts(experts: &Experts, args: &GpuArgs<'_>) -> Vec<Dispatch> {
    let rows = args.rows.most();
    let of_part = rows.div_ceil(rows.div_ceil(most_rows(experts)).max(1)).max(1);
    let part = |first: usize| Part::new(experts, args, first, of_part.min(rows - first)).dispatches();
    (0..rows).step_by(of_part).flat_map(part).collect()
}

/// What becomes of the results of a product (`product.glsl`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Store = 0,
    /// Multiplies what is stored already, activated.
    Activate = 1,
    /// Two matrices: one to activate the other with.
    Both = 2,
}

/// A matrix of all experts, on the device.
#[derive(Clone, Copy)]
struct DeviceMatrix<'a> {
    matrix: &'a ExpertMatrix,
    weight: DeviceWeight,
    /// Where the biases are, or 0.
    bias: u64,
}

/// Some rows of a step.
struct Part<'a> {
    experts: &'a Experts,
    args: &'a GpuArgs<'a>,
    first: usize,
    rows: usize,
    method: Method,
    places: Places,
}

/// One product of all routes of a part.
struct Product<'a> {
    kind: Kind,
    /// The second is read only of [`Kind::Both`].
    matrices: [DeviceMatrix<'a>; 2],
    input: Region,
    input_of_routes: bool,
    output: Region,
}

impl<'a> Part<'a> {
    fn new(experts: &'a Experts, args: &'a GpuArgs<'a>, first: usize, rows: usize) -> Self {
        let (places, bytes) = Places::new(experts, rows * experts.top_k, args.scratch.address);
        assert!(bytes <= args.scratch.bytes, "the scratch has room for what `scratch_bytes` asked for");
        let method = Method::choose(experts, args.device, args.deterministic, rows);
        let blocks =
            Region { bytes: method.blocks_bytes(rows * experts.top_k, experts.n_experts()) as u64, ..places.blocks };
        Part { experts, args, first, rows, method, places: Places { blocks, ..places } }
    }

    fn dispatches(&self) -> Vec<Dispatch> {
        let [gate, up, down] = self.matrices();
        let product = |kind, matrices| Product {
            kind,
            matrices,
            input: self.rows_of(self.args.inputs[0].region),
            input_of_routes: false,
            output: self.places.activated,
        };
        let group = (self.method != Method::Direct).then(|| self.group());
        let gate_and_up = if gate.weight_constants() == up.weight_constants() {
            vec![product(Kind::Both, [gate, up])]
        } else {
            vec![product(Kind::Store, [gate, gate]), product(Kind::Activate, [up, up])]
        };
        let down = Product {
            input: self.places.activated,
            input_of_routes: true,
            output: self.places.results,
            ..product(Kind::Store, [down, down])
        };
        let products = gate_and_up.into_iter().chain([down]).map(|product| self.product(&product));
        group.into_iter().chain(products).chain([self.add_up()]).collect()
    }

    /// Gate, up and down. Tensors and biases that two of them share are on the device once.
    fn matrices(&self) -> [DeviceMatrix<'a>; 3] {
        let (weights, biases) = (self.experts.weights(), self.experts.gpu_tables());
        self.experts.matrices().map(|matrix| {
            let weight = weights.iter().position(|weight| weight.name == matrix.tensor().name);
            let is_bias = |bias: &&[f32]| matrix.bias().is_some_and(|own| std::ptr::eq(own, *bias));
            DeviceMatrix {
                matrix,
                weight: self.args.weights[weight.expect("the tensor is among the op's weights")],
                bias: biases.iter().position(is_bias).map_or(0, |index| self.args.tables[index].address),
            }
        })
    }

    /// The rows of this part, of one of the op's values.
    fn rows_of(&self, value: Region) -> Region {
        let row_bytes = value.bytes / self.args.rows.most() as u64;
        Region { address: value.address + self.first as u64 * row_bytes, bytes: self.rows as u64 * row_bytes }
    }

    fn routes(&self) -> Region {
        self.rows_of(self.args.inputs[1].region)
    }

    fn route_constants(&self) -> [(u32, u32); 3] {
        let experts = self.experts;
        [(20, word(experts.n_experts())), (21, word(experts.top_k)), (32, u32::from(experts.is_placed()))]
    }

    fn group(&self) -> Dispatch {
        const MOST: u32 = 1024;
        let routes = word(self.rows * self.experts.top_k).next_power_of_two();
        let lanes = routes.clamp(self.args.workgroup_size(), MOST).min(self.args.device.max_workgroup_size);
        let (routes, blocks) = (self.routes(), self.places.blocks);
        let push = Push::new()
            .address(routes.address)
            .address(blocks.address)
            .address(self.args.step)
            .word(self.args.rows.kind())
            .size(self.first)
            .size(self.rows);
        let constants = [(0, lanes), (1, word(self.method.block_routes()))];
        Dispatch {
            module: Module::ExpertsGroup,
            constants: constants.into_iter().chain(self.route_constants()).collect(),
            push,
            groups: [1; 3],
            reads: vec![routes],
            writes: vec![blocks],
        }
    }

    fn product(&self, product: &Product<'_>) -> Dispatch {
        const OUTPUTS: usize = 4;
        let [DeviceMatrix { matrix, .. }, second] = product.matrices;
        let matrices = if product.kind == Kind::Both { 2 } else { 1 };
        let blocks = self.method.most_blocks(self.rows * self.experts.top_k, self.experts.n_experts());
        let mat_vec = |rows: usize| {
            let lanes = mat_vec_lanes(self.args.device, matrix.columns());
            (Module::ExpertsMatVec, vec![(0, lanes), (1, rows), (2, OUTPUTS)], OUTPUTS)
        };
        let (module, shape, outputs) = match self.method {
            Method::Direct => mat_vec(1),
            Method::MatVec => mat_vec(ROUTES_TOGETHER),
            Method::Tile(tile) => (Module::ExpertsTile, tile.constants().into(), tile.outputs),
        };
        let weighted = self.experts.weighting == RouteWeighting::Input && !product.input_of_routes;
        let [(first, stride), (second_first, second_stride)] =
            product.matrices.map(|matrix| matrix.matrix.first_and_stride());
        let own = [
            (3, u32::from(matrix.columns().is_multiple_of(RUN_COLUMNS))),
            (22, word(matrix.columns())),
            (23, word(matrix.outputs())),
            (24, product.kind as u32),
            (25, u32::from(product.input_of_routes)),
            (26, u32::from(weighted)),
            (27, self.experts.activation.variant()),
            (28, word(first)),
            (29, word(stride)),
            (30, word(second_first)),
            (31, word(second_stride)),
            (33, u32::from(product.matrices[0].bias != 0)),
            (34, u32::from(second.bias != 0)),
        ];
        let constants = shape.into_iter().map(|(id, value)| (id, word(value))).chain(own).chain(self.route_constants());
        let routes = self.routes();
        let reads = [vec![product.input, routes], self.blocks()].concat();
        let activates = (product.kind == Kind::Activate).then_some(product.output);
        Dispatch {
            module,
            constants: constants.chain(product.matrices[0].weight_constants()).collect(),
            push: self.push(product, second),
            groups: self.args.spread(matrix.outputs(), outputs / matrices, blocks),
            reads: reads.into_iter().chain(activates).collect(),
            writes: vec![product.output],
        }
    }

    fn blocks(&self) -> Vec<Region> {
        if self.method == Method::Direct { Vec::new() } else { vec![self.places.blocks] }
    }

    /// The push constants of `product.glsl`.
    fn push(&self, product: &Product<'_>, second: DeviceMatrix<'_>) -> Push {
        let [matrix, _] = product.matrices;
        let planes = matrix.weight.planes.iter().chain(&second.weight.planes);
        planes
            .fold(Push::new(), |push, plane| push.address(*plane))
            .address(product.input.address)
            .address(product.output.address)
            .address(self.routes().address)
            .address(self.blocks().first().map_or(0, |blocks| blocks.address))
            .address(matrix.bias)
            .address(second.bias)
            .address(self.args.step)
            .word(self.args.rows.kind())
    }

    fn add_up(&self) -> Dispatch {
        let (routes, output) = (self.routes(), self.rows_of(self.args.outputs[0].region));
        let hidden = self.experts.hidden_size();
        let push = Push::new()
            .address(self.places.results.address)
            .address(routes.address)
            .address(output.address)
            .address(self.args.step)
            .word(self.args.rows.kind())
            .size(self.first)
            .size(self.rows)
            .size(hidden);
        let lanes = self.args.workgroup_size();
        let weighted = (26, u32::from(self.experts.weighting == RouteWeighting::Output));
        Dispatch {
            module: Module::ExpertsAddUp,
            constants: [(0, lanes), weighted].into_iter().chain(self.route_constants()).collect(),
            push,
            groups: [word(hidden).div_ceil(lanes), word(self.rows), 1],
            reads: vec![self.places.results, routes],
            writes: vec![output],
        }
    }
}

impl DeviceMatrix<'_> {
    fn weight_constants(&self) -> [(u32, u32); 12] {
        let tensor = self.matrix.tensor();
        WeightLayout::new(tensor.format, tensor.rows, tensor.columns).constants()
    }
}

/// Sizes of values are checked when a model is planned; a dispatch that is too large is refused by its device.
fn word(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::glu::Activation;
    use crate::quant::{Format, random};

    fn experts(n_experts: usize, top_k: usize) -> Experts {
        let matrix = |outputs: usize, columns| {
            let weight = random::weight("w", Format::F16, n_experts * outputs, columns, 1);
            ExpertMatrix::new(weight, n_experts, None).unwrap()
        };
        let matrices = [matrix(4, 32), matrix(4, 32), matrix(32, 4)];
        Experts::new(matrices, Activation::Silu, RouteWeighting::Output, top_k).unwrap()
    }

    fn device() -> DeviceLimits {
        DeviceLimits {
            subgroup_size: 32,
            max_workgroup_size: 1024,
            max_groups: [65535; 3],
            shared_memory_bytes: 48 << 10,
            cooperative_matrix: None,
        }
    }

    #[test]
    fn the_more_routes_an_expert_has_the_more_are_computed_together() {
        let experts = experts(128, 8);
        let of = |rows, deterministic| Method::choose(&experts, &device(), deterministic, rows).block_routes();
        assert_eq!([1, 4, 8, 128, 256, 512, 2048].map(|rows| of(rows, false)), [0, 0, 4, 4, 16, 16, 64]);
        assert_eq!([1, 4, 8, 128, 256, 512, 2048].map(|rows| of(rows, true)), [0, 0, 4, 4, 4, 4, 4]);
    }

    #[test]
    fn a_grid_has_room_for_every_block_and_memory_for_every_part() {
        for (n_experts, top_k) in [(1, 1), (8, 2), (64, 6), (512, 10)] {
            let experts = experts(n_experts, top_k);
            for rows in [1, 2, 7, 300, 4096, 100_000] {
                let of_part = rows.min(most_rows(&experts));
                let routes = of_part * top_k;
                let method = Method::choose(&experts, &device(), false, of_part);
                assert!(method.most_blocks(routes, n_experts) <= 65535, "{rows} rows");
                let (places, bytes) = Places::new(&experts, routes, 0);
                assert!(
                    method.blocks_bytes(routes, n_experts) as u64 <= places.blocks.bytes,
                    "{rows} rows, {method:?}"
                );
                assert!(bytes <= scratch_bytes(&experts, rows), "{rows} rows");
                assert!(scratch_bytes(&experts, rows) <= scratch_bytes(&experts, rows + 1), "{rows} rows");
            }
        }
    }
}
