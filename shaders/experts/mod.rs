//! Mixture of experts: feed-forwards of which every row uses only some.
//!
//! - [`Route`]: which experts a row uses, and how much each counts
//! - [`Experts`]: what they make of the row
//! - [`matrix`]: the weights of all experts of a layer
//! - [`ReadAhead`]: experts that are left in their file are asked for before they are computed
//! - [`Reader`]: the thread that reads them
//! - [`pool`]: room for some experts of several layers, which come and go
//! - `grouping`: rows sorted by expert, so that an expert's weights are read once for all of them
//! - `cpu`: how that is computed here
//! - `gpu`: what runs on a GPU
//! - [`mod@reference`]: the same in float64
//! - `cases`: what must come out
//!
//! **A row's bits do not depend on its neighbours.** The product of a row and an expert is formed as in
//! [`matmul`](crate::matmul), whoever else uses the expert; a row's experts are added up in the order of its routes.

mod cases;
mod cpu;
mod gpu;
mod grouping;
pub mod matrix;
pub mod pool;
mod read_ahead;
mod reader;
pub mod reference;
mod route;

use crate::cost::{Cost, CostArgs};
use crate::cpu::{Kernel, Team};
use crate::glu::Activation;
use crate::gpu::{DeviceLimits, Dispatch, GpuArgs};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::weight::Weight;
pub use cases::cases;
pub use cpu::ExpertRows;
pub use matrix::ExpertMatrix;
pub use read_ahead::{NextLayer, ReadAhead};
pub use reader::Reader;
pub use route::{Groups, Route, Scoring};

/// Where the weight of a route takes effect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteWeighting {
    /// It multiplies what the expert gives.
    Output,
    /// It multiplies what the expert is given.
    Input,
}

/// The routed experts of a layer: `y[r] = sum over the routes (e, w) of row r of w * down_e(activation(gate_e x, up_e x))`.
///
/// - Inputs: x [rows, hidden_size], routes [rows, 2 top_k] as [`Route`] gives them; output [rows, hidden_size].
/// - With *places* the routes are [rows, 3 top_k]: behind the weights stands for each route the place of its expert in
///   the tensors, which have other experts than one layer's (see [`pool`]).
/// - A route to a negative expert counts nothing: that expert is computed elsewhere.
/// - Each product rounds as [`Linear`](crate::matmul::Linear) says.
/// - Cost: reads the weights of every expert that any row uses once.
/// - Source: Shazeer et al. 2017, "Outrageously Large Neural Networks"; Fedus et al. 2021 (gated feed-forwards as experts).
#[derive(Debug, Clone)]
pub struct Experts {
    gate: ExpertMatrix,
    up: ExpertMatrix,
    down: ExpertMatrix,
    activation: Activation,
    weighting: RouteWeighting,
    top_k: usize,
    n_experts: usize,
    is_placed: bool,
}

impl Experts {
    /// Experts with these weights, of which each row uses `top_k`.
    ///
    /// # Errors
    /// [`ShapeError`] when the matrices do not fit together.
    pub fn new(
        [gate, up, down]: [ExpertMatrix; 3],
        activation: Activation,
        weighting: RouteWeighting,
        top_k: usize,
    ) -> Result<Self, ShapeError> {
        let check = |what: &str, matrix: &ExpertMatrix, found, expected| {
            ShapeError::check("experts", format!("{what} of {:?}", matrix.tensor().name), found, expected)
        };
        check("experts", &up, up.n_experts(), gate.n_experts())?;
        check("experts", &down, down.n_experts(), gate.n_experts())?;
        check("columns", &up, up.columns(), gate.columns())?;
        check("outputs", &up, up.outputs(), gate.outputs())?;
        check("columns", &down, down.columns(), gate.outputs())?;
        check("outputs", &down, down.outputs(), gate.columns())?;
        if top_k == 0 || top_k > gate.n_experts() {
            return Err(ShapeError::Mismatch {
                op: "experts",
                what: "number of experts that a row uses".to_owned(),
                found: top_k,
                expected: format!("between 1 and {}", gate.n_experts()),
            });
        }
        let n_experts = gate.n_experts();
        Ok(Experts { gate, up, down, activation, weighting, top_k, n_experts, is_placed: false })
    }

    /// How many experts a row may be routed to.
    #[must_use]
    pub fn n_experts(&self) -> usize {
        self.n_experts
    }

    /// Whether routes say where the tensors have their experts.
    #[must_use]
    pub fn is_placed(&self) -> bool {
        self.is_placed
    }

    /// Width of a row's routes.
    #[must_use]
    pub fn routes_width(&self) -> usize {
        self.top_k * if self.is_placed { 3 } else { 2 }
    }

    /// How many of them a row uses.
    #[must_use]
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// Width of the rows.
    #[must_use]
    pub fn hidden_size(&self) -> usize {
        self.gate.columns()
    }

    /// Width of an expert's feed-forward.
    #[must_use]
    pub fn intermediate_size(&self) -> usize {
        self.gate.outputs()
    }

    /// Leaves the weights in their file, to be read when a row uses them: for models that are larger than the memory. The
    /// products are formed in float32 then. [`Experts::ask_for`] has those read at once that some rows will use.
    pub fn leave_in_file(&mut self) {
        for matrix in [&mut self.gate, &mut self.up, &mut self.down] {
            matrix.leave_in_file();
        }
    }

    /// Whether the weights are left in their file.
    #[must_use]
    pub fn is_left_in_file(&self) -> bool {
        self.gate.is_left_in_file()
    }

    fn matrices(&self) -> [&ExpertMatrix; 3] {
        [&self.gate, &self.up, &self.down]
    }

    /// How many of the experts that many rows use, if they choose evenly and each by itself.
    fn expected_experts(&self, rows: usize) -> f64 {
        let n_experts = self.n_experts() as f64;
        n_experts * (1.0 - (1.0 - self.top_k as f64 / n_experts).powi(i32::try_from(rows).unwrap_or(i32::MAX)))
    }
}

impl Op for Experts {
    fn name(&self) -> &'static str {
        "experts"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        ShapeError::check(self.name(), "width of the input", inputs[0], self.hidden_size())?;
        ShapeError::check(self.name(), "width of the routes", inputs[1], self.routes_width())?;
        Ok(vec![inputs[0]])
    }

    fn weights(&self) -> Vec<&Weight> {
        let mut weights: Vec<&Weight> = self.matrices().map(ExpertMatrix::tensor).into();
        weights.dedup_by_key(|weight| &weight.name);
        weights
    }

    fn as_experts(&self) -> Option<&Experts> {
        Some(self)
    }

    fn as_experts_mut(&mut self) -> Option<&mut Experts> {
        Some(self)
    }

    fn prepare_cpu(&mut self, kernel: Kernel, team: &dyn Team) {
        for matrix in [&mut self.gate, &mut self.up, &mut self.down] {
            matrix.prepare_cpu(kernel, team);
        }
    }

    fn replaces(&self, kernel: Kernel, weight: &Weight) -> bool {
        kernel.is_integer() && weight.format.integers().is_some() && !self.is_left_in_file()
    }

    fn growth(&self, kernel: Kernel) -> u64 {
        self.matrices().iter().map(|matrix| matrix.growth(kernel)).sum()
    }

    fn scratch_len(&self, kernel: Kernel, rows: usize, _: usize) -> usize {
        cpu::scratch_len(self, kernel, rows)
    }

    /// Which experts the rows will use is not known before they are routed: as many as they would if they chose evenly.
    fn cost(&self, args: &CostArgs<'_>) -> Cost {
        let share = self.expected_experts(args.rows) / self.n_experts() as f64;
        let mut cost = Cost { activation_bytes: args.activation_bytes(), ..Cost::default() };
        for matrix in self.matrices() {
            cost.memory_bytes += (share * matrix.bytes(args.kernel) as f64) as u64;
            let operations = 2 * (args.rows * self.top_k * matrix.outputs() * matrix.columns()) as u64;
            if self.replaces(args.kernel, matrix.tensor()) {
                cost.integer_operations += operations;
            } else {
                cost.float_operations += operations;
            }
        }
        cost
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let rows = ExpertRows { x: args.inputs[0], routes: args.inputs[1], rows: args.rows };
        self.compute((args.kernel, args.activation_bits), args.team, rows, args.scratch, args.outputs[0]);
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        let mut biases: Vec<&[f32]> = self.matrices().into_iter().filter_map(ExpertMatrix::bias).collect();
        biases.dedup_by(|a, b| std::ptr::eq(*a, *b));
        biases
    }

    fn gpu_scratch_bytes(&self, _: &DeviceLimits, rows: usize, _: usize) -> u64 {
        gpu::scratch_bytes(self, rows)
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        gpu::experts(self, args)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::cpu::{ActivationBits, Solo};
    use crate::quant::{Format, random};
    use crate::testing::supported_kernels;
    use proptest::prelude::*;

    fn experts(format: Format) -> Experts {
        let matrix = |name: &str, outputs: usize, columns, seed| {
            ExpertMatrix::new(random::weight(name, format, 6 * outputs, columns, seed), 6, None).unwrap()
        };
        let matrices = [matrix("gate", 64, 96, 1), matrix("up", 64, 96, 2), matrix("down", 96, 64, 3)];
        Experts::new(matrices, Activation::Silu, RouteWeighting::Output, 2).unwrap()
    }

    fn compute(experts: &Experts, kernel: Kernel, x: &[f32], routes: &[f32]) -> Vec<f32> {
        let rows = ExpertRows { x, routes, rows: x.len() / 96 };
        let mut scratch = vec![f32::NAN; experts.scratch_len(kernel, rows.rows, 0)];
        let mut output = vec![f32::NAN; x.len()];
        experts.compute((kernel, ActivationBits::default()), &Solo, rows, &mut scratch, &mut output);
        output
    }

    proptest! {
        #[test]
        fn a_row_has_the_same_bits_alone_and_in_company(
            routes in prop::collection::vec((0..6_u8, 1..6_u8, 0.1..1.0_f32), 1..50),
            seed: u64,
            quantised: bool,
        ) {
            let format = if quantised { Format::Q4_0 } else { Format::F16 };
            let x: Vec<f32> = random::activations(routes.len() * 96, seed).iter().map(|x| x / 16.0).collect();
            let of_row = |&(first, distance, weight): &(u8, u8, f32)| {
                [f32::from(first), f32::from((first + distance) % 6), weight, 1.0 - weight]
            };
            let routes: Vec<f32> = routes.iter().flat_map(of_row).collect();
            for (kernel, left_in_file) in supported_kernels().flat_map(|kernel| [(kernel, false), (kernel, true)]) {
                let mut experts = experts(format);
                if left_in_file {
                    experts.leave_in_file();
                }
                experts.prepare_cpu(kernel, &Solo);
                let together = compute(&experts, kernel, &x, &routes);
                for (row, (x, routes)) in x.chunks_exact(96).zip(routes.chunks_exact(4)).enumerate() {
                    prop_assert_eq!(&compute(&experts, kernel, x, routes)[..], &together[row * 96..][..96], "{}", kernel);
                }
            }
        }
    }

    #[test]
    fn matrices_that_do_not_fit_are_refused() {
        let matrix = |outputs: usize, columns, n_experts: usize| {
            let weight = random::weight("w", Format::F32, n_experts * outputs, columns, 1);
            ExpertMatrix::new(weight, n_experts, None).unwrap()
        };
        let new = |matrices, top_k| {
            let experts = Experts::new(matrices, Activation::Silu, RouteWeighting::Output, top_k);
            experts.map(|_| ()).map_err(|error| error.to_string())
        };
        let fitting = || [matrix(4, 8, 3), matrix(4, 8, 3), matrix(8, 4, 3)];
        assert_eq!(new(fitting(), 3), Ok(()));
        let too_many = "experts: number of experts that a row uses is 4, but must be between 1 and 3";
        assert_eq!(new(fitting(), 4), Err(too_many.to_owned()));
        let [gate, up, _] = fitting();
        let wrong = new([gate, up, matrix(8, 5, 3)], 1);
        assert_eq!(wrong, Err("experts: columns of \"w\" is 5, but must be 4".to_owned()));
        let weight = random::weight("w", Format::F32, 10, 8, 1);
        assert!(ExpertMatrix::new(weight, 3, None).is_err());
    }
}
