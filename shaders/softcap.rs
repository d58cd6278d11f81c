//! Soft cap: values are limited smoothly.

use crate::cases::{Case, CaseStep, Expected};
use crate::elementwise::for_each_row;
use crate::gpu::{Dispatch, GpuArgs, Module};
use crate::lanes::exp;
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;

/// Soft cap: `y[i] = cap * tanh(x[i] / cap)`, [rows, width].
///
/// Source: Gemma 2 technical report (2024), section 2.
#[derive(Debug)]
pub struct Softcap {
    cap: f32,
}

impl Softcap {
    /// A cap above 0.
    #[must_use]
    pub fn new(cap: f32) -> Self {
        Softcap { cap }
    }
}

impl Op for Softcap {
    fn name(&self) -> &'static str {
        "softcap"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        Ok(inputs.to_vec())
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let x = args.inputs[0];
        for_each_row(args, &|kernel, range, y| softcap_row(kernel, self.cap, &x[range], y));
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![args.each_column(Module::Softcap, args.elementwise(0, self.cap), args.outputs[0].width)]
    }
}

/// `cap * tanh(x / cap)`.
#[inline(always)]
#[must_use]
pub fn softcap(x: f32, cap: f32) -> f32 {
    cap * (1.0 - 2.0 / (1.0 + exp(2.0 * x / cap)))
}

per_kernel! {
    fn softcap_row = softcap_lanes(cap: f32, x: &[f32], y: &mut [f32])
}

#[inline(always)]
fn softcap_lanes<const FMA: bool>(cap: f32, x: &[f32], y: &mut [f32]) {
    for (y, x) in y.iter_mut().zip(x) {
        *y = softcap(*x, cap);
    }
}

/// The expected results: values from small ones to far beyond the cap.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |cap: f32| {
        let step = |(rows, width, scale): (usize, usize, f32)| {
            let x: Vec<f32> = random::activations(rows * width, 1).iter().map(|x| x * scale).collect();
            let wide = f64::from(cap);
            let expected = x.iter().map(|x| wide * (f64::from(*x) / wide).tanh());
            let expected = expected.map(|value| Expected { value, tolerance: 5e-6 * wide });
            CaseStep::of_rows(rows, vec![x.clone()], vec![expected.collect()])
        };
        let steps = vec![step((1, 1, 1.0)), step((3, 77, 100.0)), step((2, 1000, 1e6)).of_selected()];
        Case::new(format!("at {cap}"), Softcap::new(cap), steps)
    };
    [30.0, 0.5].map(case).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, run, supported_kernels, values};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_kernel_agrees_with_float64(width in 1usize..50, cap in 0.5f32..60.0, scale in 0.1f32..500.0, seed: u64) {
            let x: Vec<f32> = values(seed, width).iter().map(|x| x * scale).collect();
            let expected: Vec<f64> =
                x.iter().map(|x| f64::from(cap) * (f64::from(*x) / f64::from(cap)).tanh()).collect();
            for kernel in supported_kernels() {
                assert_close(&run(&Softcap::new(cap), kernel, 1, &[(&x, width)])[0], &expected, f64::from(cap) * 1e-6);
            }
        }
    }
}
