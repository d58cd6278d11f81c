//! Activations of feed-forwards without a gate.

use crate::cases::{Case, CaseStep, Expected};
use crate::elementwise::for_each_row;
use crate::glu::Activation;
use crate::gpu::{Dispatch, GpuArgs, Module};
use crate::lanes::{exp, without_negligible};
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
    /// `x/2 (1 + erf(x / sqrt(2)))`. Source: Hendrycks & Gimpel 2016, "Gaussian Error Linear Units".
    Gelu,
}

/// Every function, for cases.
const ALL: [Pointwise; 4] = [Pointwise::Silu, Pointwise::GeluTanh, Pointwise::ReluSquared, Pointwise::Gelu];

impl Pointwise {
    #[inline(always)]
    fn apply(self, x: f32) -> f32 {
        match self {
            Pointwise::Silu => Activation::Silu.apply(x, 1.0),
            Pointwise::GeluTanh => Activation::GeluTanh.apply(x, 1.0),
            Pointwise::ReluSquared => x.max(0.0) * x.max(0.0),
            Pointwise::Gelu => gelu(x),
        }
    }

    /// The formula in float64.
    #[must_use]
    pub fn reference(self, x: f64) -> f64 {
        match self {
            Pointwise::Silu => Activation::Silu.reference(x, 1.0),
            Pointwise::GeluTanh => Activation::GeluTanh.reference(x, 1.0),
            Pointwise::ReluSquared => x.max(0.0).powi(2),
            Pointwise::Gelu => x / 2.0 * erfc(-x * std::f64::consts::FRAC_1_SQRT_2),
        }
    }

    /// The number that represents the function in shaders.
    pub(crate) fn variant(self) -> u32 {
        match self {
            Pointwise::Silu => Activation::Silu.variant(),
            Pointwise::GeluTanh => Activation::GeluTanh.variant(),
            Pointwise::ReluSquared => 100,
            Pointwise::Gelu => 101,
        }
    }
}

/// `x/2 (1 + erf(x / sqrt(2)))`, within 2e-7 of the largest of 1 and `|x|`.
///
/// Source: Abramowitz & Stegun 1964, "Handbook of Mathematical Functions", 7.1.26.
#[inline(always)]
fn gelu(x: f32) -> f32 {
    const COEFFICIENTS: [f32; 5] = [1.061_405_4, -1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6];
    let z = x.abs() * std::f32::consts::FRAC_1_SQRT_2;
    let t = 1.0 / (1.0 + 0.327_591_1 * z);
    let series = COEFFICIENTS.iter().fold(0.0, |sum, coefficient| (sum + coefficient) * t);
    let tail = 0.5 * x * series * exp(-z * z);
    without_negligible(if x < 0.0 { tail } else { x - tail })
}

/// `1 - erf(x)` in float64: the series of erf for small values, the continued fraction for the others.
fn erfc(x: f64) -> f64 {
    const TERMS: i32 = 120;
    let root_pi = std::f64::consts::PI.sqrt();
    if x < 0.0 {
        return 2.0 - erfc(-x);
    }
    if x < 2.5 {
        let (mut term, mut sum) = (x, x);
        for n in 1..TERMS {
            term *= -x * x / f64::from(n);
            sum += term / f64::from(2 * n + 1);
        }
        return 1.0 - 2.0 / root_pi * sum;
    }
    let fraction = (1..TERMS).rev().fold(x, |below, n| x + f64::from(n) / 2.0 / below);
    (-x * x).exp() / root_pi / fraction
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
        Pointwise::Gelu => x.iter().zip(y).for_each(|(x, y)| *y = Pointwise::Gelu.apply(*x)),
    }
}

per_kernel! {
    /// One row, written over itself.
    pub(crate) fn activate_in_place = activate_in_place_lanes(function: Pointwise, x: &mut [f32])
}

#[inline(always)]
fn activate_in_place_lanes<const FMA: bool>(function: Pointwise, x: &mut [f32]) {
    match function {
        Pointwise::Silu => x.iter_mut().for_each(|x| *x = Pointwise::Silu.apply(*x)),
        Pointwise::GeluTanh => x.iter_mut().for_each(|x| *x = Pointwise::GeluTanh.apply(*x)),
        Pointwise::ReluSquared => x.iter_mut().for_each(|x| *x = Pointwise::ReluSquared.apply(*x)),
        Pointwise::Gelu => x.iter_mut().for_each(|x| *x = Pointwise::Gelu.apply(*x)),
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
    ALL.map(case).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_exact_gelu_agrees_with_the_reference_over_its_range() {
        for step in -1200..=1200 {
            let x = step as f32 / 100.0;
            let (found, expected) = (f64::from(Pointwise::Gelu.apply(x)), Pointwise::Gelu.reference(f64::from(x)));
            assert!(
                (found - expected).abs() < 3e-7 * f64::from(x.abs().max(1.0)),
                "gelu({x}) is {found}, not {expected}"
            );
        }
    }

    #[test]
    fn no_activation_of_very_negative_values_is_subnormal() {
        for step in 0..=4000 {
            let x = step as f32 / -20.0;
            for function in ALL {
                let y = function.apply(x);
                assert!(y == 0.0 || y.is_normal(), "{function:?}({x}) is {y:e}");
            }
        }
    }

    #[test]
    fn the_reference_of_gelu_has_the_known_values_of_erf() {
        // erf(1 / sqrt(2)) and erf(3 / sqrt(2)): the share of a normal distribution within one and three deviations.
        for (x, share) in
            [(1.0, 0.682_689_492_137_085_9), (3.0, 0.997_300_203_936_739_8), (5.0, 0.999_999_426_696_856_2)]
        {
            assert!((Pointwise::Gelu.reference(x) - x / 2.0 * (1.0 + share)).abs() < 1e-13);
        }
    }
}
