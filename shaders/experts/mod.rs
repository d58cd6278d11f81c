//! Mixture of experts: feed-forward networks of which each row uses only a few.
//!
//! - [`Route`]: selects the experts of each row and their weights
//! - [`Experts`]: applies the selected experts
//! - [`matrix`]: the weights of all experts of a layer
//! - [`ReadAhead`]: starts reading experts from their file before they are computed
//! - [`Reader`]: the thread that reads them
//! - [`pool`]: device slots for some of the experts of several layers
//! - `grouping`: sorts rows by expert, so that the weights of an expert are read once for all of its rows
//! - `cpu`: the CPU implementation; `low_rank`: adapters there
//! - `gpu`: the GPU dispatches; `adapted`: those of adapters
//! - [`mod@reference`]: the float64 reference
//! - `cases`: test cases
//!
//! **The bits of a row do not depend on the other rows.** The product of a row and an expert is computed as in
//! [`matmul`](crate::matmul), however many rows use the expert. The results of a row's experts are added in the order
//! of its routes.

mod adapted;
mod cases;
mod cpu;
mod gpu;
mod grouping;
mod low_rank;
pub mod matrix;
mod op;
pub mod pool;
mod read_ahead;
mod reader;
pub mod reference;
mod route;

use std::any::Any;

use crate::activate::Pointwise;
use crate::glu::Activation;
use crate::lora::target::Target;
use crate::op::{Op, ShapeError};
pub use cases::cases;
pub use cpu::ExpertRows;
pub use matrix::ExpertMatrix;
pub use read_ahead::{NextLayer, ReadAhead};
pub use reader::Reader;
pub use route::{Groups, Route, Scoring};

/// Where the weight of a route is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteWeighting {
    /// It multiplies the output of the expert.
    Output,
    /// It multiplies the input of the expert.
    Input,
}

/// What an expert computes between its first and its last product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExpertActivation {
    /// A function of gate and up.
    Gated(Activation),
    /// A function of up; there is no gate.
    Ungated(Pointwise),
}

/// The routed experts of a layer:
/// `y[r] = sum over the routes (e, w) of row r of w * down_e(activation(gate_e x, up_e x))`, or without gates
/// `w * down_e(activation(up_e x))`.
///
/// - Inputs: x [rows, hidden_size], routes [rows, 2 top_k] from [`Route`]; output [rows, hidden_size].
/// - With *slots* the routes are [rows, 3 top_k]: after the weights follows, for each route, the slot of its expert in
///   the tensors. The tensors then hold experts of several layers (see [`pool`]).
/// - A route to a negative expert adds nothing to the result. That expert is computed elsewhere.
/// - Each product is rounded as in [`Linear`](crate::matmul::Linear).
/// - Cost: reads the weights of every used expert once.
/// - Source: Shazeer et al. 2017, "Outrageously Large Neural Networks"; Fedus et al. 2021 (gated feed-forwards as
///   experts).
#[derive(Debug, Clone)]
pub struct Experts {
    gate: Option<ExpertMatrix>,
    up: ExpertMatrix,
    down: ExpertMatrix,
    activation: ExpertActivation,
    weighting: RouteWeighting,
    top_k: usize,
    n_experts: usize,
    uses_slots: bool,
    /// The matrices that adapters can change: gate if there is one, up and down; or none.
    adapters: Vec<Target>,
}

impl Experts {
    /// The op over the given weights (gate, up, down). Each row uses `top_k` experts.
    ///
    /// # Errors
    /// [`ShapeError`] when the matrices do not fit together.
    pub fn new(
        [gate, up, down]: [ExpertMatrix; 3],
        activation: Activation,
        weighting: RouteWeighting,
        top_k: usize,
    ) -> Result<Self, ShapeError> {
        check("experts", &gate, gate.n_experts(), up.n_experts())?;
        check("columns", &gate, gate.columns(), up.columns())?;
        check("outputs", &gate, gate.outputs(), up.outputs())?;
        Self::with_gate(Some(gate), [up, down], ExpertActivation::Gated(activation), (weighting, top_k))
    }

    /// The op over the given weights (up, down) of experts without gates.
    ///
    /// # Errors
    /// As [`Experts::new`].
    pub fn ungated(
        [up, down]: [ExpertMatrix; 2],
        function: Pointwise,
        weighting: RouteWeighting,
        top_k: usize,
    ) -> Result<Self, ShapeError> {
        Self::with_gate(None, [up, down], ExpertActivation::Ungated(function), (weighting, top_k))
    }

    /// The op with a gate that fits up, or without a gate.
    fn with_gate(
        gate: Option<ExpertMatrix>,
        [up, down]: [ExpertMatrix; 2],
        activation: ExpertActivation,
        (weighting, top_k): (RouteWeighting, usize),
    ) -> Result<Self, ShapeError> {
        check("experts", &down, down.n_experts(), up.n_experts())?;
        check("columns", &down, down.columns(), up.outputs())?;
        check("outputs", &down, down.outputs(), up.columns())?;
        let n_experts = up.n_experts();
        if top_k == 0 || top_k > n_experts {
            return Err(ShapeError::Mismatch {
                op: "experts",
                what: "number of experts that a row uses".to_owned(),
                found: top_k,
                expected: format!("between 1 and {n_experts}"),
            });
        }
        Ok(Experts { gate, up, down, activation, weighting, top_k, n_experts, uses_slots: false, adapters: Vec::new() })
    }

    /// The same experts with the changes of adapters of gate if there is one, up and down; or of none. The changes of a matrix are
    /// added to its product, after a bias and before the activation or the weight of the route.
    #[must_use]
    pub fn with_adapters(self, adapters: Vec<Target>) -> Self {
        Experts { adapters, ..self }
    }

    /// The largest rank of a change by an adapter.
    fn max_rank(&self) -> usize {
        self.adapters.iter().map(|target| target.max_rank).max().unwrap_or(0)
    }

    /// The number of matrices of an expert: two, or three with a gate.
    #[must_use]
    pub fn matrices_of_expert(&self) -> usize {
        self.matrices().count()
    }

    /// The number of experts that a row can be routed to.
    #[must_use]
    pub fn n_experts(&self) -> usize {
        self.n_experts
    }

    /// Whether routes contain the slots of their experts in the tensors.
    #[must_use]
    pub fn uses_slots(&self) -> bool {
        self.uses_slots
    }

    /// Values in a row of routes.
    #[must_use]
    pub fn routes_width(&self) -> usize {
        self.top_k * if self.uses_slots { 3 } else { 2 }
    }

    /// The number of experts that a row uses.
    #[must_use]
    pub fn top_k(&self) -> usize {
        self.top_k
    }

    /// Width of the rows.
    #[must_use]
    pub fn hidden_size(&self) -> usize {
        self.up.columns()
    }

    /// Width of an expert's hidden layer.
    #[must_use]
    pub fn intermediate_size(&self) -> usize {
        self.up.outputs()
    }

    /// Leaves the weights in their file and reads them when a row uses them, for models that are larger than memory.
    /// Products are then computed in float32. [`Experts::ask_for`] starts reading several experts at once.
    pub fn leave_in_file(&mut self) {
        self.matrices_mut().for_each(ExpertMatrix::leave_in_file);
    }

    /// Whether the weights are left in their file.
    #[must_use]
    pub fn is_left_in_file(&self) -> bool {
        self.up.is_left_in_file()
    }

    /// Gate if there is one, up and down.
    fn matrices(&self) -> impl Iterator<Item = &ExpertMatrix> {
        self.gate.iter().chain([&self.up, &self.down])
    }

    fn matrices_mut(&mut self) -> impl Iterator<Item = &mut ExpertMatrix> {
        self.gate.iter_mut().chain([&mut self.up, &mut self.down])
    }

    /// The expected number of experts that `rows` rows use, if each row selects its experts uniformly and
    /// independently.
    fn expected_experts(&self, rows: usize) -> f64 {
        let n_experts = self.n_experts() as f64;
        n_experts * (1.0 - (1.0 - self.top_k as f64 / n_experts).powi(i32::try_from(rows).unwrap_or(i32::MAX)))
    }
}

fn check(what: &str, matrix: &ExpertMatrix, found: usize, expected: usize) -> Result<(), ShapeError> {
    ShapeError::check("experts", format!("{what} of {:?}", matrix.tensor().name), found, expected)
}

impl dyn Op {
    /// The routed experts, if the op is such: a plan can be cut there, and some of the experts computed elsewhere.
    #[must_use]
    pub fn as_experts(&self) -> Option<&Experts> {
        let op: &dyn Any = self;
        op.downcast_ref()
    }

    /// The same, to be changed before the op is prepared.
    #[must_use]
    pub fn as_experts_mut(&mut self) -> Option<&mut Experts> {
        let op: &mut dyn Any = self;
        op.downcast_mut()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cpu::{ActivationBits, Kernel, Solo};
    use crate::quant::{Format, random};
    use crate::testing::supported_kernels;
    use crate::tuning::Tuning;
    use proptest::prelude::*;

    fn experts(format: Format) -> Experts {
        let matrix = |name: &str, outputs: usize, columns, seed| {
            ExpertMatrix::new(random::weight(name, format, 6 * outputs, columns, seed), 6, None).unwrap()
        };
        let matrices = [matrix("gate", 64, 96, 1), matrix("up", 64, 96, 2), matrix("down", 96, 64, 3)];
        Experts::new(matrices, Activation::Silu, RouteWeighting::Output, 2).unwrap()
    }

    fn compute(experts: &Experts, kernel: Kernel, x: &[f32], routes: &[f32]) -> Vec<f32> {
        let rows = ExpertRows { x, routes, rows: x.len() / 96, adapters: &[] };
        let mut scratch = vec![f32::NAN; experts.scratch_len(kernel, rows.rows, 0)];
        let mut output = vec![f32::NAN; x.len()];
        experts.compute((kernel, ActivationBits::default(), Tuning::default()), &Solo, rows, &mut scratch, &mut output);
        output
    }

    proptest! {
        #[test]
        fn a_row_has_the_same_bits_alone_and_in_a_batch(
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
    fn matrices_that_do_not_fit_together_are_refused() {
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
