//! The dispatches of [`Experts`].
//!
//! No value returns to the CPU between the two: which experts are used, and by which rows, is read on the
//! device.
//!
//! # Experts
//!
//! - `group.comp`: groups routes into *blocks*; a block is an expert and some of the routes to it
//! - `mat_vec.comp`, `tile.comp` or `cooperative.comp`: the products of each block with gate and up, and the activation
//! - the same shader with down
//! - `add_up.comp`: the weighted sum of the results of a row's routes
//!
//! The results of a route are stored at the index of the route, which does not depend on its block. A result is a sum
//! over columns in an order that does not depend on the block, and the results of a row are added in the order of its
//! routes. So the bits of a row depend on the other rows only through the choice of the kernel, as in
//! [`matmul`](crate::matmul), and with `deterministic` not at all.
//!
//! # The number of blocks
//!
//! R routes to E experts, in blocks of B routes, need at most E + R / B blocks, because each expert has at most one
//! block that is not full. That many workgroups are dispatched, and those past the last block return immediately.
//!
//! # The choice of the kernel
//!
//! - Few routes, so that two rarely share an expert: each route by itself, without blocks. Grouping would take a large
//!   share of the time.
//! - Up to 8 routes per expert on average, or `deterministic`: `mat_vec.comp` in blocks of 4. The routes of a block
//!   share the unpacked weights. Most experts then have fewer than 8 routes, and larger blocks would reserve registers
//!   and shared memory for routes that do not exist.
//! - More routes per expert: `cooperative.comp` on a device that multiplies float16 matrices, otherwise `tile.comp`, with
//!   tiles that are not higher than the average, because the missing rows of a tile are computed in vain. Inputs of matrices
//!   are rounded first (`matmul/halves.comp`). Adapters, and inputs that are multiplied by the weights of routes, need
//!   float32.
//!
//! # Scratch memory
//!
//! For each route, its activated hidden layer and its result are stored in float32. Inputs of matrices are stored in float16,
//! too. Many rows are computed in chunks.

use super::adapted::{Adapted, RoutedInput};
use super::{ExpertActivation, ExpertMatrix, Experts, RouteWeighting};
use crate::gpu::weight::{RUN_COLUMNS, WeightConstants, WeightLayout};
use crate::gpu::{DeviceLimits, DeviceValue, DeviceWeight, Dispatch, GpuArgs, Module, Push, Region, word};
use crate::matmul::gpu::{Rounded, Tile, halves_bytes};
use crate::matmul::mat_vec::MatVec;
use crate::op::Op;
use crate::quant::Format;

/// The most routes of a chunk: a dispatch has one row of workgroups for each block, and every device allows 65535.
const MAX_ROUTES: usize = 16384;

/// The most bytes of intermediate values of a chunk, unless a single row needs more.
const MAX_VALUES_BYTES: usize = 128 << 20;

/// Routes of a block of `mat_vec.comp`.
const ROUTES_TOGETHER: usize = MatVec::SURE_ROWS;

/// The largest average number of routes per expert for which `mat_vec.comp` is used.
const FEW_ROUTES: usize = 8;

/// The rows of the smallest tile.
const LEAST_HEIGHT: usize = 16;

/// How the routes of a chunk are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Method {
    /// Each route by itself, without blocks.
    Direct,
    /// In blocks of [`ROUTES_TOGETHER`] routes.
    MatVec,
    /// In blocks of as many routes as the tile has rows.
    Tile(Tile),
    /// The same in float16 matrices of this shape.
    Matrices(Tile, [u32; 3]),
}

impl Method {
    fn choose(experts: &Experts, device: &DeviceLimits, deterministic: bool, rows: usize) -> Method {
        const EXPERTS_FOR_EACH: usize = 4;
        let (routes, n_experts) = (rows * experts.top_k, experts.n_experts());
        if rows == 1 || EXPERTS_FOR_EACH * routes <= n_experts {
            return Method::Direct;
        }
        let average = routes.div_ceil(n_experts);
        if average <= FEW_ROUTES || deterministic {
            return Method::MatVec;
        }
        let height = (average.next_power_of_two() / 2).max(LEAST_HEIGHT);
        let outputs = experts.intermediate_size().min(experts.hidden_size());
        // Shared memory holds the route of each row in addition to the tile.
        let (size, row_bytes) = ((height, outputs), size_of::<u32>());
        if let Some((tile, shape)) = Tile::in_halves(device, size, n_experts, row_bytes).filter(|_| may_round(experts))
        {
            return Method::Matrices(tile, shape);
        }
        Tile::in_float32(device, size, n_experts, row_bytes).map_or(Method::MatVec, Method::Tile)
    }

    /// Routes of a block; 0 for [`Method::Direct`].
    fn block_routes(self) -> usize {
        match self {
            Method::Direct => 0,
            Method::MatVec => ROUTES_TOGETHER,
            Method::Tile(tile) | Method::Matrices(tile, _) => tile.rows,
        }
    }

    /// The largest number of blocks of `routes` routes; for [`Method::Direct`] the number of routes.
    fn most_blocks(self, routes: usize, n_experts: usize) -> usize {
        match self.block_routes() {
            0 => routes,
            block_routes => routes.min(n_experts + routes / block_routes),
        }
    }

    /// Bytes of the blocks in the layout of `blocks.glsl`.
    fn blocks_bytes(self, routes: usize, n_experts: usize) -> usize {
        match self.block_routes() {
            0 => 0,
            block_routes => 16 + self.most_blocks(routes, n_experts) * (16 + 4 * block_routes),
        }
    }
}

/// Whether inputs may be rounded to float16. As in [`Linear`](crate::matmul::Linear), float32 weights are not rounded.
fn may_round(experts: &Experts) -> bool {
    let has_float32 = experts.weights().iter().any(|weight| weight.format == Format::F32);
    experts.adapters.is_empty() && experts.weighting != RouteWeighting::Input && !has_float32
}

/// The regions of the scratch memory.
#[derive(Debug, Clone, Copy)]
struct ScratchLayout {
    blocks: Region,
    /// [routes, intermediate_size]
    activated: Region,
    /// [routes, hidden_size]
    results: Region,
    /// The input of a product in float16 matrices.
    halves: Region,
    /// With adapters: the products of up, [routes, intermediate_size].
    up: Region,
    /// With adapters: the first products of the changes of two matrices, [routes, max_rank].
    low_rank: [Region; 2],
}

impl ScratchLayout {
    /// The layout for `routes` routes, starting at `address`, and its size in bytes.
    fn new(experts: &Experts, device: &DeviceLimits, routes: usize, address: u64) -> (ScratchLayout, u64) {
        const ALIGNMENT: u64 = 256;
        let of_rows = halves_bytes(routes.div_ceil(experts.top_k), experts.hidden_size());
        let halves = of_rows.max(halves_bytes(routes, experts.intermediate_size()));
        let has_halves = device.cooperative_matrix.is_some() && may_round(experts);
        // The most that any method needs: the method depends on data that is not known when memory is planned.
        let heights = Tile::heights().chain([ROUTES_TOGETHER]);
        let bytes_of =
            |block_routes: usize| 16 + (experts.n_experts() + routes / block_routes) * (16 + 4 * block_routes);
        let mut end = address;
        let mut next = |bytes: usize| {
            let region = Region { address: end, bytes: bytes as u64 };
            end = (end + region.bytes).next_multiple_of(ALIGNMENT);
            region
        };
        let layout = ScratchLayout {
            blocks: next(heights.map(bytes_of).max().unwrap_or(0)),
            activated: next(routes * experts.intermediate_size() * size_of::<f32>()),
            results: next(routes * experts.hidden_size() * size_of::<f32>()),
            halves: next(if has_halves { halves as usize } else { 0 }),
            up: next(if experts.adapters.is_empty() {
                0
            } else {
                routes * experts.intermediate_size() * size_of::<f32>()
            }),
            low_rank: [(); 2].map(|()| next(routes * experts.max_rank() * size_of::<f32>())),
        };
        (layout, end - address)
    }
}

/// The most rows of a chunk.
fn most_rows(experts: &Experts) -> usize {
    let route_bytes = (experts.intermediate_size() + experts.hidden_size()) * size_of::<f32>();
    (MAX_ROUTES.min(MAX_VALUES_BYTES / route_bytes) / experts.top_k).max(1)
}

/// Bytes of scratch memory for a step of up to `rows` rows.
pub(super) fn scratch_bytes(experts: &Experts, device: &DeviceLimits, rows: usize) -> u64 {
    // A step of fewer rows can have larger chunks, so this is the size for the largest chunk of any step.
    ScratchLayout::new(experts, device, rows.min(most_rows(experts)) * experts.top_k, 0).1
}

/// The dispatches of [`Experts`], in chunks of about the same size.
pub(super) fn experts(experts: &Experts, args: &GpuArgs<'_>) -> Vec<Dispatch> {
    let rows = args.rows.most();
    let chunk_rows = rows.div_ceil(rows.div_ceil(most_rows(experts)).max(1)).max(1);
    let chunk = |first: usize| Chunk::new(experts, args, first, chunk_rows.min(rows - first)).dispatches();
    (0..rows).step_by(chunk_rows).flat_map(chunk).collect()
}

/// The activation after a product (`GATE_ACTIVATION` in `product.glsl`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum GateActivation {
    /// Store the product.
    None = 0,
    /// The product is that of up; the product of gate is already stored at its output.
    StoredGate = 1,
    /// The dispatch computes the products of gate and up.
    Fused = 2,
    /// The product is that of up, and there is no gate.
    Ungated = 3,
}

/// A matrix of all experts, on the device.
#[derive(Clone, Copy)]
struct DeviceMatrix<'a> {
    matrix: &'a ExpertMatrix,
    weight: DeviceWeight,
    /// The address of biases and factors, or 0.
    table: u64,
}

/// Some rows of a step.
struct Chunk<'a> {
    experts: &'a Experts,
    args: &'a GpuArgs<'a>,
    first: usize,
    rows: usize,
    method: Method,
    scratch: ScratchLayout,
}

/// One product of all routes of a chunk.
struct Product<'a> {
    gate_activation: GateActivation,
    /// The second one is used only with [`GateActivation::Fused`].
    matrices: [DeviceMatrix<'a>; 2],
    input: Region,
    input_of_routes: bool,
    output: Region,
}

impl<'a> Chunk<'a> {
    fn new(experts: &'a Experts, args: &'a GpuArgs<'a>, first: usize, rows: usize) -> Self {
        let (scratch, bytes) = ScratchLayout::new(experts, args.device, rows * experts.top_k, args.scratch.address);
        assert!(bytes <= args.scratch.bytes, "the scratch memory has the size of `scratch_bytes`");
        let method = Method::choose(experts, args.device, args.deterministic, rows);
        let blocks =
            Region { bytes: method.blocks_bytes(rows * experts.top_k, experts.n_experts()) as u64, ..scratch.blocks };
        Chunk { experts, args, first, rows, method, scratch: ScratchLayout { blocks, ..scratch } }
    }

    fn dispatches(&self) -> Vec<Dispatch> {
        if !self.experts.adapters.is_empty() {
            return self.adapted_dispatches();
        }
        let (gate, up, down) = self.matrices();
        let product = |gate_activation, matrices| Product {
            gate_activation,
            matrices,
            input: self.rows_of(self.args.inputs[0].region),
            input_of_routes: false,
            output: self.scratch.activated,
        };
        let group = (self.method != Method::Direct).then(|| self.group());
        let gate_and_up = match gate {
            None => vec![product(GateActivation::Ungated, [up, up])],
            Some(gate) if gate.weight_constants() == up.weight_constants() => {
                vec![product(GateActivation::Fused, [gate, up])]
            }
            Some(gate) => {
                vec![product(GateActivation::None, [gate, gate]), product(GateActivation::StoredGate, [up, up])]
            }
        };
        let down = Product {
            input: self.scratch.activated,
            input_of_routes: true,
            output: self.scratch.results,
            ..product(GateActivation::None, [down, down])
        };
        let of_rows = self.round(gate_and_up[0].input, self.experts.hidden_size(), 1);
        let of_routes = self.round(down.input, self.experts.intermediate_size(), self.experts.top_k);
        let first = gate_and_up.iter().map(|product| self.product(product));
        let then = of_routes.into_iter().chain([self.product(&down), self.add_up()]);
        group.into_iter().chain(of_rows).chain(first).chain(then).collect()
    }

    /// Rounds the input of products in float16 matrices: `each` rows for each row of the step.
    fn round(&self, values: Region, width: usize, each: usize) -> Option<Dispatch> {
        let values = DeviceValue { region: values, width };
        let rounded =
            Rounded { values, halves: self.scratch.halves, first_row: self.first, each, rows: each * self.rows };
        matches!(self.method, Method::Matrices(..)).then(|| rounded.dispatch(self.args))
    }

    /// With adapters: each product by itself, and the activation after the changes.
    fn adapted_dispatches(&self) -> Vec<Dispatch> {
        let ScratchLayout { activated, results, up: up_products, low_rank, .. } = self.scratch;
        let (gate, up, down) = self.matrices();
        let x = self.rows_of(self.args.inputs[0].region);
        let product = |matrix, (input, input_of_routes), output| {
            let gate_activation = GateActivation::None;
            self.product(&Product { gate_activation, matrices: [matrix, matrix], input, input_of_routes, output })
        };
        let adapted = Adapted {
            experts: self.experts,
            args: self.args,
            rows: [self.first, self.rows],
            routes: self.routes(),
            route_constants: self.route_constants(),
        };
        let weighted = self.experts.weighting == RouteWeighting::Input;
        let of_rows = RoutedInput { values: x, of_routes: false, weighted };
        let of_routes = RoutedInput { values: activated, of_routes: true, weighted: false };
        let first = gate.into_iter().chain([up]).zip([activated, up_products]);
        let products = first.clone().map(|(matrix, output)| product(matrix, (x, false), output));
        let targets = self.experts.adapters.iter();
        let changes = targets
            .clone()
            .zip(first.zip(low_rank))
            .flat_map(|(target, ((_, output), h))| adapted.change(target, of_rows, [output, h]));
        let group = (self.method != Method::Direct).then(|| self.group());
        let mut dispatches: Vec<Dispatch> = group.into_iter().chain(products).chain(changes).collect();
        dispatches.push(adapted.activate(self.experts.activation.variant(), [activated, up_products]));
        dispatches.push(product(down, (activated, true), results));
        let of_down = targets.last().into_iter();
        dispatches.extend(of_down.flat_map(|target| adapted.change(target, of_routes, [results, low_rank[0]])));
        dispatches.push(self.add_up());
        dispatches
    }

    /// Gate if there is one, up and down. A tensor or table that two of them share is on the device once.
    fn matrices(&self) -> (Option<DeviceMatrix<'a>>, DeviceMatrix<'a>, DeviceMatrix<'a>) {
        let (weights, tables) = (self.experts.weights(), self.experts.gpu_tables());
        let on_device = |matrix: &'a ExpertMatrix| {
            let weight = weights.iter().position(|weight| weight.name == matrix.tensor().name);
            let is_own = |table: &&[f32]| matrix.table().is_some_and(|own| std::ptr::eq(own, *table));
            DeviceMatrix {
                matrix,
                weight: self.args.weights[weight.expect("the tensor is among the op's weights")],
                table: tables.iter().position(is_own).map_or(0, |index| self.args.tables[index].address),
            }
        };
        let Experts { gate, up, down, .. } = self.experts;
        (gate.as_ref().map(on_device), on_device(up), on_device(down))
    }

    /// The rows of this chunk in one of the op's values.
    fn rows_of(&self, value: Region) -> Region {
        let row_bytes = value.bytes / self.args.rows.most() as u64;
        Region { address: value.address + self.first as u64 * row_bytes, bytes: self.rows as u64 * row_bytes }
    }

    fn routes(&self) -> Region {
        self.rows_of(self.args.inputs[1].region)
    }

    fn route_constants(&self) -> [(u32, u32); 3] {
        let experts = self.experts;
        [(20, word(experts.n_experts())), (21, word(experts.top_k)), (32, u32::from(experts.uses_slots()))]
    }

    fn group(&self) -> Dispatch {
        const MOST: u32 = 1024;
        let routes = word(self.rows * self.experts.top_k).next_power_of_two();
        let lanes = routes.clamp(self.args.workgroup_size(), MOST).min(self.args.device.max_workgroup_size);
        let (routes, blocks) = (self.routes(), self.scratch.blocks);
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
        let [DeviceMatrix { matrix, .. }, second] = product.matrices;
        let matrices = if product.gate_activation == GateActivation::Fused { 2 } else { 1 };
        let blocks = self.method.most_blocks(self.rows * self.experts.top_k, self.experts.n_experts());
        let mat_vec = |rows: usize| {
            let shape = MatVec::new(self.args.device, matrix.columns(), rows);
            (Module::ExpertsMatVec, shape.constants().to_vec(), shape.outputs_of_group())
        };
        let (module, shape, outputs) = match self.method {
            Method::Direct => mat_vec(1),
            Method::MatVec => mat_vec(ROUTES_TOGETHER),
            Method::Tile(tile) => (Module::ExpertsTile, tile.constants().into(), tile.outputs),
            Method::Matrices(tile, shape) => {
                let constants = tile.constants_in_halves(self.args.device, shape);
                (Module::ExpertsCooperative, constants.into(), tile.outputs)
            }
        };
        let input = if matches!(self.method, Method::Matrices(..)) { self.scratch.halves } else { product.input };
        let weighted = self.experts.weighting == RouteWeighting::Input && !product.input_of_routes;
        let [(first, stride), (second_first, second_stride)] =
            product.matrices.map(|matrix| matrix.matrix.first_and_stride());
        let constants = [
            (3, u32::from(matrix.columns().is_multiple_of(RUN_COLUMNS))),
            (22, word(matrix.columns())),
            (23, word(matrix.outputs())),
            (24, product.gate_activation as u32),
            (25, u32::from(product.input_of_routes)),
            (26, u32::from(weighted)),
            (27, self.experts.activation.variant()),
            (28, word(first)),
            (29, word(stride)),
            (30, word(second_first)),
            (31, word(second_stride)),
            (33, u32::from(matrix.has_bias())),
            (34, u32::from(second.matrix.has_bias())),
            (35, u32::from(matrix.has_factors())),
            (36, u32::from(second.matrix.has_factors())),
        ];
        let shape = shape.into_iter().map(|(id, value)| (id, word(value)));
        let constants = shape.chain(constants).chain(self.route_constants());
        let routes = self.routes();
        let reads = [vec![input, routes], self.blocks()].concat();
        let stored_gate = (product.gate_activation == GateActivation::StoredGate).then_some(product.output);
        let mut constants: Vec<_> = constants.chain(product.matrices[0].weight_constants()).collect();
        // As in `matmul`: the validation layer needs the shapes of matrices at the index of their constant.
        constants.sort_unstable();
        Dispatch {
            module,
            constants,
            push: self.push(product, input, second),
            groups: self.args.spread(matrix.outputs(), outputs / matrices, blocks),
            reads: reads.into_iter().chain(stored_gate).collect(),
            writes: vec![product.output],
        }
    }

    fn blocks(&self) -> Vec<Region> {
        if self.method == Method::Direct { Vec::new() } else { vec![self.scratch.blocks] }
    }

    /// The push constants of `product.glsl`.
    fn push(&self, product: &Product<'_>, input: Region, second: DeviceMatrix<'_>) -> Push {
        let [matrix, _] = product.matrices;
        let planes = matrix.weight.planes.iter().chain(&second.weight.planes);
        planes
            .fold(Push::new(), |push, plane| push.address(*plane))
            .address(input.address)
            .address(product.output.address)
            .address(self.routes().address)
            .address(self.blocks().first().map_or(0, |blocks| blocks.address))
            .address(matrix.table)
            .address(second.table)
            .address(self.args.step)
            .word(self.args.rows.kind())
    }

    fn add_up(&self) -> Dispatch {
        let (routes, output) = (self.routes(), self.rows_of(self.args.outputs[0].region));
        let hidden = self.experts.hidden_size();
        let push = Push::new()
            .address(self.scratch.results.address)
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
            reads: vec![self.scratch.results, routes],
            writes: vec![output],
        }
    }
}

impl ExpertActivation {
    /// The number that represents the function in shaders.
    fn variant(self) -> u32 {
        match self {
            ExpertActivation::Gated(function) => function.variant(),
            ExpertActivation::Ungated(function) => function.variant(),
        }
    }
}

impl DeviceMatrix<'_> {
    fn weight_constants(&self) -> WeightConstants {
        let tensor = self.matrix.tensor();
        WeightLayout::new(tensor.format, tensor.rows, tensor.columns).constants()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::glu::Activation;
    use crate::quant::random;

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
            compute_units: 132,
            cooperative_matrix: None,
        }
    }

    #[test]
    fn blocks_grow_with_the_routes_per_expert() {
        let experts = experts(128, 8);
        let of = |rows, deterministic| Method::choose(&experts, &device(), deterministic, rows).block_routes();
        assert_eq!([1, 4, 8, 128, 256, 512, 2048].map(|rows| of(rows, false)), [0, 0, 4, 4, 16, 16, 64]);
        assert_eq!([1, 4, 8, 128, 256, 512, 2048].map(|rows| of(rows, true)), [0, 0, 4, 4, 4, 4, 4]);
    }

    #[test]
    fn large_blocks_are_multiplied_in_matrices_where_inputs_may_be_rounded() {
        let device = DeviceLimits { cooperative_matrix: Some([16, 16, 16]), ..device() };
        let in_matrices = |experts: &Experts, deterministic| {
            matches!(Method::choose(experts, &device, deterministic, 2048), Method::Matrices(..))
        };
        assert!(in_matrices(&experts(128, 8), false));
        assert!(!in_matrices(&experts(128, 8), true));
        let weighted = Experts { weighting: RouteWeighting::Input, ..experts(128, 8) };
        assert!(!in_matrices(&weighted, false));
    }

    #[test]
    fn blocks_fit_the_grid_and_chunks_fit_the_scratch_memory() {
        for (n_experts, top_k) in [(1, 1), (8, 2), (64, 6), (512, 10)] {
            let experts = experts(n_experts, top_k);
            for rows in [1, 2, 7, 300, 4096, 100_000] {
                let chunk_rows = rows.min(most_rows(&experts));
                let routes = chunk_rows * top_k;
                let method = Method::choose(&experts, &device(), false, chunk_rows);
                assert!(method.most_blocks(routes, n_experts) <= 65535, "{rows} rows");
                let (layout, bytes) = ScratchLayout::new(&experts, &device(), routes, 0);
                assert!(
                    method.blocks_bytes(routes, n_experts) as u64 <= layout.blocks.bytes,
                    "{rows} rows, {method:?}"
                );
                assert!(bytes <= scratch_bytes(&experts, &device(), rows), "{rows} rows");
                assert!(
                    scratch_bytes(&experts, &device(), rows) <= scratch_bytes(&experts, &device(), rows + 1),
                    "{rows} rows"
                );
            }
        }
    }
}
