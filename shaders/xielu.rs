//! xIELU: an activation without a gate, with parameters that each layer has learnt.

use crate::cases::{Case, CaseStep, Expected};
use crate::elementwise::for_each_row;
use crate::gpu::{Dispatch, GpuArgs, Module, Push};
use crate::lanes::exp;
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;

/// `y[i] = alpha_p x^2 + beta x` where x is positive, else `alpha_n (e^min(x, epsilon) - 1 - x) + beta x`; x and y [rows, width].
///
/// Source: Huang & Schlag 2024, "Deriving Activation Functions Using Integration".
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Xielu {
    parameters: [f32; 4],
}

impl Xielu {
    /// The activation with these parameters: alpha_p, alpha_n, beta, epsilon.
    #[must_use]
    pub fn new(parameters: [f32; 4]) -> Self {
        Xielu { parameters }
    }
}

impl Op for Xielu {
    fn name(&self) -> &'static str {
        "xielu"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        Ok(inputs.to_vec())
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let x = args.inputs[0];
        for_each_row(args, &|kernel, range, y| xielu_row(kernel, self.parameters, &x[range], y));
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        vec![&self.parameters]
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let width = args.outputs[0].width;
        let push = Push::new()
            .address(args.inputs[0].region.address)
            .address(args.tables[0].address)
            .address(args.outputs[0].region.address)
            .address(args.step)
            .word(args.rows.kind())
            .size(width)
            .word(0)
            .float(0.0);
        vec![args.each_column(Module::Xielu, push, width)]
    }
}

per_kernel! {
    fn xielu_row = xielu_lanes(parameters: [f32; 4], x: &[f32], y: &mut [f32])
}

#[inline(always)]
fn xielu_lanes<const FMA: bool>([alpha_p, alpha_n, beta, epsilon]: [f32; 4], x: &[f32], y: &mut [f32]) {
    for (y, &x) in y.iter_mut().zip(x) {
        let curve = if x > 0.0 { alpha_p * x * x } else { alpha_n * (exp(x.min(epsilon)) - 1.0 - x) };
        *y = curve + beta * x;
    }
}

/// The formula in float64.
fn reference(parameters: [f32; 4], x: f32) -> f64 {
    let ([alpha_p, alpha_n, beta, epsilon], x) = (parameters.map(f64::from), f64::from(x));
    let curve = if x > 0.0 { alpha_p * x * x } else { alpha_n * (x.min(epsilon).exp_m1() - x) };
    curve + beta * x
}

/// The expected results: from values where an exponential is nearly 1 to those where it vanishes.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |parameters: [f32; 4]| {
        let step = |(rows, width, scale): (usize, usize, f32)| {
            let x: Vec<f32> = random::activations(rows * width, 1).iter().map(|x| x * scale).collect();
            let expected = Expected::within(1e-6, x.iter().map(|x| reference(parameters, *x)));
            CaseStep::of_rows(rows, vec![x.clone()], vec![expected])
        };
        let steps = [(1, 1, 1.0), (3, 77, 0.01), (2, 500, 4.0), (64, 64, 100.0)].map(step).into();
        Case::new(format!("{parameters:?}"), Xielu::new(parameters), steps)
    };
    [[0.8, 0.8, 0.5, -1e-6], [1.7, 0.3, 0.25, -0.125]].map(case).into()
}
