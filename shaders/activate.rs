//! Activations of feed-forwards without a gate.

use crate::cases::{Case, CaseStep, Expected};
use crate::elementwise::for_each_row;
use crate::glu::Activation;
use crate::gpu::{Dispatch, GpuArgs, Module};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;

/// The function of an activation without a gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pointwise {
    /// `x / (1 + e^-x)`.
    Silu,
    /// `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    GeluTanh,
    /// `max(x, 0)^2`. Source: So et al. 2021, "Primer".
    ReluSquared,
}

impl Pointwise {
    #[inline(always)]
    fn apply(self, x: f32) -> f32 {
        match self {
            Pointwise::Silu => Activation::Silu.apply(x, 1.0),
            Pointwise::GeluTanh => Activation::GeluTanh.apply(x, 1.0),
            Pointwise::ReluSquared => x.max(0.0) * x.max(0.0),
        }
    }

    /// The formula in float64.
    #[must_use]
    pub fn reference(self, x: f64) -> f64 {
        match self {
            Pointwise::Silu => Activation::Silu.reference(x, 1.0),
            Pointwise::GeluTanh => Activation::GeluTanh.reference(x, 1.0),
            Pointwise::ReluSquared => x.max(0.0).powi(2),
        }
    }

    /// The number that represents the function in shaders.
    fn variant(self) -> u32 {
        match self {
            Pointwise::Silu => Activation::Silu.variant(),
            Pointwise::GeluTanh => Activation::GeluTanh.variant(),
            Pointwise::ReluSquared => 100,
        }
    }
}

/// `y[i] = function(x[i])`, [rows, width].
#[derive(Debug)]
pub struct Activate {
    function: Pointwise,
}

impl Activate {
    /// An activation with this function.
    #[must_use]
    pub fn new(function: Pointwise) -> Self {
        Activate { function }
    }
}

impl Op for Activate {
    fn name(&self) -> &'static str {
        "activate"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        Ok(inputs.to_vec())
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let x = args.inputs[0];
        for_each_row(args, &|kernel, range, y| activate_row(kernel, self.function, &x[range], y));
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![args.each_column(Module::Activate, args.elementwise(self.function.variant(), 0.0), args.outputs[0].width)]
    }
}

per_kernel! {
    fn activate_row = activate_row_lanes(function: Pointwise, x: &[f32], y: &mut [f32])
}

#[inline(always)]
fn activate_row_lanes<const FMA: bool>(function: Pointwise, x: &[f32], y: &mut [f32]) {
    // Each loop has a constant function, so that it vectorises.
    match function {
        Pointwise::Silu => x.iter().zip(y).for_each(|(x, y)| *y = Pointwise::Silu.apply(*x)),
        Pointwise::GeluTanh => x.iter().zip(y).for_each(|(x, y)| *y = Pointwise::GeluTanh.apply(*x)),
        Pointwise::ReluSquared => x.iter().zip(y).for_each(|(x, y)| *y = Pointwise::ReluSquared.apply(*x)),
    }
}

/// The expected results: all functions, from the range where they are linear to the one where an exponential overflows.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |function: Pointwise| {
        let step = |(rows, width, scale): (usize, usize, f32)| {
            let x: Vec<f32> = random::activations(rows * width, 1).iter().map(|x| x * scale).collect();
            let expected = Expected::within(1e-5, x.iter().map(|x| function.reference(f64::from(*x))));
            CaseStep::of_rows(rows, vec![x.clone()], vec![expected])
        };
        let shapes = [(1, 1, 1.0), (3, 1536, 0.01), (2, 77, 10.0), (64, 64, 100.0), (1, 500, 1e4)];
        Case::new(format!("{function:?}"), Activate::new(function), shapes.map(step).into())
    };
    [Pointwise::Silu, Pointwise::GeluTanh, Pointwise::ReluSquared].map(case).into()
}
