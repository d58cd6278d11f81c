//! Gated linear unit: the activation between the two halves of a feed-forward.

use crate::cases::{Case, CaseStep, Expected};
use crate::cpu::SharedMut;
use crate::gpu::{Dispatch, GpuArgs, Module};
use crate::lanes::exp;
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;

/// The function on the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `x / (1 + e^-x)`.
    Silu,
    /// `x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))`.
    GeluTanh,
}

impl Activation {
    #[inline(always)]
    fn apply(self, x: f32) -> f32 {
        // Both are x times a logistic function: 1/2 (1 + tanh z) = 1 / (1 + e^-2z).
        const SQRT_8_OVER_PI: f32 = 1.595_769;
        let z = match self {
            Activation::Silu => x,
            Activation::GeluTanh => SQRT_8_OVER_PI * (x + 0.044_715 * x * x * x),
        };
        x / (1.0 + exp(-z))
    }

    /// The formula in float64.
    #[must_use]
    pub fn reference(self, x: f64) -> f64 {
        match self {
            Activation::Silu => x / (1.0 + (-x).exp()),
            Activation::GeluTanh => {
                x / 2.0 * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh())
            }
        }
    }
}

/// `y[i] = activation(gate[i]) * up[i]`; gate, up and y are [rows, intermediate_size].
///
/// Source: Shazeer 2020, "GLU Variants Improve Transformer".
#[derive(Debug)]
pub struct Glu {
    activation: Activation,
}

impl Glu {
    /// A unit with this activation.
    #[must_use]
    pub fn new(activation: Activation) -> Self {
        Glu { activation }
    }
}

impl Op for Glu {
    fn name(&self) -> &'static str {
        "glu"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        ShapeError::check(self.name(), "width of up", inputs[1], inputs[0])?;
        Ok(vec![inputs[0]])
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (gate, up) = (args.inputs[0], args.inputs[1]);
        let width = gate.len() / args.rows.max(1);
        let y = SharedMut::new(args.outputs[0]);
        let kernel = args.kernel;
        args.team.for_each(args.rows, &|row| {
            let range = row * width..(row + 1) * width;
            // SAFETY: each task writes its own row.
            let y = unsafe { y.slice(range.start, width) };
            glu_row(kernel, self.activation, &gate[range.clone()], &up[range], y);
        });
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let variant = match self.activation {
            Activation::Silu => 0,
            Activation::GeluTanh => 1,
        };
        vec![args.each_column(Module::Glu, args.elementwise(variant, 0.0), args.outputs[0].width)]
    }
}

per_kernel! {
    /// One row.
    fn glu_row = glu_row_lanes(activation: Activation, gate: &[f32], up: &[f32], y: &mut [f32])
}

#[inline(always)]
fn glu_row_lanes<const FMA: bool>(activation: Activation, gate: &[f32], up: &[f32], y: &mut [f32]) {
    // The match is outside the loop, so that each loop vectorises.
    match activation {
        Activation::Silu => glu_loop(|x| Activation::Silu.apply(x), gate, up, y),
        Activation::GeluTanh => glu_loop(|x| Activation::GeluTanh.apply(x), gate, up, y),
    }
}

#[inline(always)]
fn glu_loop(activation: impl Fn(f32) -> f32, gate: &[f32], up: &[f32], y: &mut [f32]) {
    for ((y, gate), up) in y.iter_mut().zip(gate).zip(up) {
        *y = activation(*gate) * up;
    }
}

/// What it must compute: both activations, from where they are linear to where an exponential overflows.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |activation: Activation| {
        let step = |(rows, width, scale): (usize, usize, f32)| {
            let gate: Vec<f32> = random::activations(rows * width, 1).iter().map(|x| x * scale).collect();
            let up = random::activations(rows * width, 2);
            let values = gate.iter().zip(&up).map(|(g, u)| activation.reference(f64::from(*g)) * f64::from(*u));
            let expected = Expected::within(1e-5, values);
            CaseStep::of_rows(rows, vec![gate, up], vec![expected])
        };
        let shapes = [(1, 1, 1.0), (3, 1536, 0.01), (2, 77, 10.0), (64, 64, 100.0), (1, 500, 1e4), (1, 500, 1e20)];
        Case::new(format!("{activation:?}"), Glu::new(activation), shapes.map(step).into())
    };
    [Activation::Silu, Activation::GeluTanh].map(case).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, run, supported_kernels, values};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_kernel_agrees_with_the_reference(rows in 1usize..4, width in 1usize..100, scale in 0.1f32..30.0, seed: u64) {
            let gate: Vec<f32> = values(seed, rows * width).iter().map(|x| x * scale).collect();
            let up = values(seed ^ 1, rows * width);
            for activation in [Activation::Silu, Activation::GeluTanh] {
                let expected: Vec<f64> =
                    gate.iter().zip(&up).map(|(g, u)| activation.reference(f64::from(*g)) * f64::from(*u)).collect();
                for kernel in supported_kernels() {
                    let outputs = run(&Glu::new(activation), kernel, rows, &[(&gate, width), (&up, width)]);
                    assert_close(&outputs[0], &expected, 1e-6 * f64::from(scale.max(1.0)));
                }
            }
        }
    }
}
