//! The sum of two values: the residual connection.

use crate::cases::{Case, CaseStep, Expected};
use crate::elementwise::{CASE_SHAPES, for_each_row};
use crate::gpu::{Dispatch, GpuArgs, Module};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;

/// Residual connection: `y[i] = a[i] + b[i]`, all [rows, width].
#[derive(Debug, Clone)]
pub struct Add;

impl Op for Add {
    fn name(&self) -> &'static str {
        "add"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        ShapeError::check(self.name(), "width of the second input", inputs[1], inputs[0])?;
        Ok(vec![inputs[0]])
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (a, b) = (args.inputs[0], args.inputs[1]);
        for_each_row(args, &|kernel, range, y| add_row(kernel, &a[range.clone()], &b[range], y));
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        vec![args.each_column(Module::Add, args.elementwise(0, 0.0), args.outputs[0].width)]
    }
}

per_kernel! {
    fn add_row = add_lanes(a: &[f32], b: &[f32], y: &mut [f32])
}

#[inline(always)]
fn add_lanes<const FMA: bool>(a: &[f32], b: &[f32], y: &mut [f32]) {
    for ((y, a), b) in y.iter_mut().zip(a).zip(b) {
        *y = a + b;
    }
}

/// The expected results.
#[must_use]
pub fn cases() -> Vec<Case> {
    let step = |(rows, width): (usize, usize)| {
        let (a, b) = (random::activations(rows * width, 1), random::activations(rows * width, 2));
        let expected = Expected::within(1e-6, a.iter().zip(&b).map(|(a, b)| f64::from(*a) + f64::from(*b)));
        CaseStep::of_rows(rows, vec![a, b], vec![expected])
    };
    vec![Case::new("of any shape", Add, CASE_SHAPES.map(step).into())]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{assert_close, run, supported_kernels, values};
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn every_kernel_agrees_with_float64(rows in 1usize..4, width in 1usize..50, seed: u64) {
            let (a, b) = (values(seed, rows * width), values(seed ^ 1, rows * width));
            let expected: Vec<f64> = a.iter().zip(&b).map(|(a, b)| f64::from(*a) + f64::from(*b)).collect();
            for kernel in supported_kernels() {
                assert_close(&run(&Add, kernel, rows, &[(&a, width), (&b, width)])[0], &expected, 1e-6);
            }
        }
    }
}
