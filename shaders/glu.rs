//! Gated linear unit: the activation between the two projections of a feed-forward.

use crate::cases::{Case, CaseStep, Expected};
use crate::elementwise::for_each_row;
use crate::gpu::{Dispatch, GpuArgs, Module};
use crate::lanes::{exp, softplus, tanh, without_negligible};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;

/// The gate activation: a function of a gate and of the value that it gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activation {
    /// `gate / (1 + e^-gate) * up`.
    Silu,
    /// `gate/2 (1 + tanh(sqrt(2/pi) (gate + 0.044715 gate^3))) * up`.
    GeluTanh,
    /// `g / (1 + e^(-1.702 g)) * (u + 1)`, with `g = min(gate, 7)` and `u` between -7 and 7.
    ///
    /// Source: OpenAI 2025, "gpt-oss-120b & gpt-oss-20b Model Card" and its reference implementation.
    ClampedSwiglu,
    /// `1 / (1 + e^-gate) * up`.
    Sigmoid,
    /// `gate * up`.
    Bilinear,
    /// `ln(1 + e^gate) * up`.
    Softplus,
    /// `min(gate / (1 + e^-gate), limit) * u`, with `u = up` between -limit and limit. The value is the limit.
    ///
    /// Source: StepFun 2026, "Step 3.5 Flash" and its reference implementation.
    LimitedSilu(u16),
    /// `g / (1 + e^-g) * u`, with `g = min(gate, limit)` and `u = up` between -limit and limit. The value is the limit.
    ///
    /// Source: DeepSeek-AI 2026, "DeepSeek-V4" and its reference implementation.
    ClampedSilu(u16),
    /// `beta tanh(gate / beta) / (1 + e^-gate) * u`, with `u = linear tanh(up / linear)`, or `up` if `linear` is 0. Both are at
    /// most [`LARGEST_BETA`].
    ///
    /// Source: Kimi Team 2026, "Kimi K3" and its reference implementation.
    Situ {
        /// The bound of the gate.
        beta: u16,
        /// The bound of the value that it multiplies; 0 for none.
        linear: u16,
    },
}

/// The largest bound of [`Activation::Situ`].
pub const LARGEST_BETA: u16 = 0xfff;

/// [`Activation::ClampedSwiglu`]: the limit to which values are clamped.
const CLAMP: f32 = 7.0;
/// [`Activation::ClampedSwiglu`]: the slope of the logistic function.
const SLOPE: f32 = 1.702;

/// Every activation, for cases and tests.
const ALL: [Activation; 10] = [
    Activation::Silu,
    Activation::GeluTanh,
    Activation::ClampedSwiglu,
    Activation::Sigmoid,
    Activation::Bilinear,
    Activation::Softplus,
    Activation::LimitedSilu(2),
    Activation::ClampedSilu(2),
    Activation::Situ { beta: 4, linear: 25 },
    Activation::Situ { beta: 1, linear: 0 },
];

impl Activation {
    #[inline(always)]
    pub(crate) fn apply(self, gate: f32, up: f32) -> f32 {
        // Most activations are a logistic function, mostly times the gate: 1/2 (1 + tanh z) = 1 / (1 + e^-2z).
        const SQRT_8_OVER_PI: f32 = 1.595_769;
        let (factor, z, up) = match self {
            Activation::Bilinear => return gate * up,
            Activation::Softplus => return without_negligible(softplus(gate) * up),
            Activation::LimitedSilu(limit) => {
                let limit = f32::from(limit);
                return without_negligible((gate / (1.0 + exp(-gate))).min(limit) * up.clamp(-limit, limit));
            }
            Activation::Silu => (gate, gate, up),
            Activation::ClampedSilu(limit) => {
                let limit = f32::from(limit);
                let gate = gate.min(limit);
                (gate, gate, up.clamp(-limit, limit))
            }
            Activation::Situ { beta, linear } => {
                let linear = f32::from(linear);
                let up = if linear > 0.0 { linear * tanh(up / linear) } else { up };
                (f32::from(beta) * tanh(gate / f32::from(beta)), gate, up)
            }
            Activation::Sigmoid => (1.0, gate, up),
            Activation::GeluTanh => (gate, SQRT_8_OVER_PI * (gate + 0.044_715 * gate * gate * gate), up),
            Activation::ClampedSwiglu => {
                let gate = gate.min(CLAMP);
                (gate, SLOPE * gate, up.clamp(-CLAMP, CLAMP) + 1.0)
            }
        };
        without_negligible(factor / (1.0 + exp(-z)) * up)
    }

    /// The formula in float64.
    #[must_use]
    pub fn reference(self, gate: f64, up: f64) -> f64 {
        let logistic = |x: f64| 1.0 / (1.0 + (-x).exp());
        match self {
            Activation::Silu => gate * logistic(gate) * up,
            Activation::GeluTanh => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * (gate + 0.044715 * gate.powi(3));
                gate / 2.0 * (1.0 + inner.tanh()) * up
            }
            Activation::ClampedSwiglu => {
                let gate = gate.min(f64::from(CLAMP));
                gate * logistic(f64::from(SLOPE) * gate) * (up.clamp(-f64::from(CLAMP), f64::from(CLAMP)) + 1.0)
            }
            Activation::Sigmoid => logistic(gate) * up,
            Activation::Bilinear => gate * up,
            Activation::Softplus => (gate.max(0.0) + (-gate.abs()).exp().ln_1p()) * up,
            Activation::LimitedSilu(limit) => {
                let limit = f64::from(limit);
                (gate * logistic(gate)).min(limit) * up.clamp(-limit, limit)
            }
            Activation::ClampedSilu(limit) => {
                let (limit, gate) = (f64::from(limit), gate.min(f64::from(limit)));
                gate * logistic(gate) * up.clamp(-limit, limit)
            }
            Activation::Situ { beta, linear } => {
                let [beta, linear] = [f64::from(beta), f64::from(linear)];
                let up = if linear > 0.0 { linear * (up / linear).tanh() } else { up };
                beta * (gate / beta).tanh() * logistic(gate) * up
            }
        }
    }

    /// The number that represents the activation in shaders: its kind in the low 8 bits, and above them the limit if it has one,
    /// or two bounds of 12 bits.
    #[must_use]
    pub fn variant(self) -> u32 {
        match self {
            Activation::Silu => 0,
            Activation::GeluTanh => 1,
            Activation::ClampedSwiglu => 2,
            Activation::Sigmoid => 3,
            Activation::Bilinear => 4,
            Activation::Softplus => 5,
            Activation::LimitedSilu(limit) => 6 | u32::from(limit) << 8,
            Activation::ClampedSilu(limit) => 7 | u32::from(limit) << 8,
            Activation::Situ { beta, linear } => 8 | u32::from(beta) << 8 | u32::from(linear) << 20,
        }
    }
}

/// `y[i] = activation(gate[i], up[i])`; gate, up and y are [rows, intermediate_size].
///
/// Source: Shazeer 2020, "GLU Variants Improve Transformer".
#[derive(Debug, Clone)]
pub struct Glu {
    activation: Activation,
}

impl Glu {
    /// A unit with this activation.
    #[must_use]
    pub fn new(activation: Activation) -> Self {
        Glu { activation }
    }

    /// The gate activation.
    #[must_use]
    pub fn activation(&self) -> Activation {
        self.activation
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
        for_each_row(args, &|kernel, range, y| {
            glu_row(kernel, self.activation, &gate[range.clone()], &up[range], y);
        });
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![args.each_column(Module::Glu, args.elementwise(self.activation.variant(), 0.0), args.outputs[0].width)]
    }
}

per_kernel! {
    /// One row.
    fn glu_row = glu_row_lanes(activation: Activation, gate: &[f32], up: &[f32], y: &mut [f32])
}

per_kernel! {
    /// One row, written over its gate.
    pub(crate) fn glu_row_in_place = glu_row_in_place_lanes(activation: Activation, gate: &mut [f32], up: &[f32])
}

/// Expands a loop once for each activation as a constant, so that each loop vectorises.
macro_rules! each_activation {
    ($activation:expr, $apply:ident => $body:expr) => {
        match $activation {
            Activation::Silu => {
                let $apply = |gate, up| Activation::Silu.apply(gate, up);
                $body
            }
            Activation::GeluTanh => {
                let $apply = |gate, up| Activation::GeluTanh.apply(gate, up);
                $body
            }
            Activation::ClampedSwiglu => {
                let $apply = |gate, up| Activation::ClampedSwiglu.apply(gate, up);
                $body
            }
            Activation::Sigmoid => {
                let $apply = |gate, up| Activation::Sigmoid.apply(gate, up);
                $body
            }
            Activation::Bilinear => {
                let $apply = |gate, up| Activation::Bilinear.apply(gate, up);
                $body
            }
            Activation::Softplus => {
                let $apply = |gate, up| Activation::Softplus.apply(gate, up);
                $body
            }
            Activation::LimitedSilu(limit) => {
                let $apply = |gate, up| Activation::LimitedSilu(limit).apply(gate, up);
                $body
            }
            Activation::ClampedSilu(limit) => {
                let $apply = |gate, up| Activation::ClampedSilu(limit).apply(gate, up);
                $body
            }
            Activation::Situ { beta, linear } => {
                let $apply = |gate, up| Activation::Situ { beta, linear }.apply(gate, up);
                $body
            }
        }
    };
}

#[inline(always)]
fn glu_row_lanes<const FMA: bool>(activation: Activation, gate: &[f32], up: &[f32], y: &mut [f32]) {
    each_activation!(activation, apply => {
        for ((y, &gate), &up) in y.iter_mut().zip(gate).zip(up) {
            *y = apply(gate, up);
        }
    });
}

per_kernel! {
    /// A run of values that share one gate.
    pub(crate) fn gate_run = gate_run_lanes(activation: Activation, gate: f32, x: &[f32], y: &mut [f32])
}

#[inline(always)]
fn gate_run_lanes<const FMA: bool>(activation: Activation, gate: f32, x: &[f32], y: &mut [f32]) {
    each_activation!(activation, apply => {
        for (y, &x) in y.iter_mut().zip(x) {
            *y = apply(gate, x);
        }
    });
}

#[inline(always)]
fn glu_row_in_place_lanes<const FMA: bool>(activation: Activation, gate: &mut [f32], up: &[f32]) {
    each_activation!(activation, apply => {
        for (gate, &up) in gate.iter_mut().zip(up) {
            *gate = apply(*gate, up);
        }
    });
}

/// The expected results: all activations, from the range where they are linear to the one where an exponential
/// overflows.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |activation: Activation| {
        let step = |(rows, width, scale): (usize, usize, f32)| {
            let gate: Vec<f32> = random::activations(rows * width, 1).iter().map(|x| x * scale).collect();
            let up = random::activations(rows * width, 2);
            let values = gate.iter().zip(&up).map(|(g, u)| activation.reference(f64::from(*g), f64::from(*u)));
            let expected = Expected::within(1e-5, values);
            CaseStep::of_rows(rows, vec![gate, up], vec![expected])
        };
        let shapes = [(1, 1, 1.0), (3, 1536, 0.01), (2, 77, 10.0), (64, 64, 100.0), (1, 500, 1e4), (1, 500, 1e20)];
        Case::new(format!("{activation:?}"), Glu::new(activation), shapes.map(step).into())
    };
    ALL.map(case).into()
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
            for activation in ALL {
                let expected: Vec<f64> =
                    gate.iter().zip(&up).map(|(g, u)| activation.reference(f64::from(*g), f64::from(*u))).collect();
                for kernel in supported_kernels() {
                    let outputs = run(&Glu::new(activation), kernel, rows, &[(&gate, width), (&up, width)]);
                    assert_close(&outputs[0], &expected, 1e-6 * f64::from(scale.max(1.0)));
                }
            }
        }
    }
}
