//! Each column times its own factor.

use std::sync::Arc;

use crate::cases::{Case, CaseStep, Expected};
use crate::elementwise::{CASE_SHAPES, for_each_row};
use crate::gpu::{Dispatch, GpuArgs, Module, Push};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;

/// `y[i] = factors[i] * x[i]`, [rows, width].
#[derive(Debug)]
pub struct ScaleColumns {
    factors: Arc<[f32]>,
}

impl ScaleColumns {
    /// Scales by these factors, `[width]`.
    #[must_use]
    pub fn new(factors: Arc<[f32]>) -> Self {
        ScaleColumns { factors }
    }
}

impl Op for ScaleColumns {
    fn name(&self) -> &'static str {
        "scale_columns"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        ShapeError::check(self.name(), "width of the input", inputs[0], self.factors.len())?;
        Ok(inputs.to_vec())
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let x = args.inputs[0];
        for_each_row(args, &|kernel, range, y| multiply_row(kernel, &x[range], &self.factors, y));
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        vec![&self.factors]
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let push = Push::new()
            .address(args.inputs[0].region.address)
            .address(args.tables[0].address)
            .address(args.outputs[0].region.address)
            .address(args.step)
            .word(args.rows.kind())
            .size(self.factors.len());
        vec![args.each_column(Module::ScaleColumns, push, args.outputs[0].width)]
    }
}

per_kernel! {
    fn multiply_row = multiply_row_lanes(x: &[f32], factors: &[f32], y: &mut [f32])
}

#[inline(always)]
fn multiply_row_lanes<const FMA: bool>(x: &[f32], factors: &[f32], y: &mut [f32]) {
    for ((y, x), factor) in y.iter_mut().zip(x).zip(factors) {
        *y = x * factor;
    }
}

/// The expected results.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |(rows, width): (usize, usize)| {
        let factors: Arc<[f32]> = random::activations(width, 2).into();
        let x = random::activations(rows * width, 1);
        let value = |(index, x): (usize, &f32)| f64::from(factors[index % width]) * f64::from(*x);
        let expected = Expected::within(1e-6, x.iter().enumerate().map(value));
        let step = CaseStep::of_rows(rows, vec![x.clone()], vec![expected]);
        Case::new(format!("{width} columns"), ScaleColumns::new(factors), vec![step])
    };
    CASE_SHAPES.map(case).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{assert_close, run, supported_kernels, values};

    proptest! {
        #[test]
        fn every_kernel_agrees_with_the_reference(rows in 1usize..4, width in 1usize..60, seed: u64) {
            let (x, factors) = (values(seed, rows * width), values(seed ^ 1, width));
            let value = |(index, x): (usize, &f32)| f64::from(factors[index % width]) * f64::from(*x);
            let expected: Vec<f64> = x.iter().enumerate().map(value).collect();
            let op = ScaleColumns::new(factors.clone().into());
            for kernel in supported_kernels() {
                assert_close(&run(&op, kernel, rows, &[(&x, width)])[0], &expected, 1e-6);
            }
        }
    }

    #[test]
    fn another_width_is_refused() {
        let op = ScaleColumns::new(vec![1.0; 3].into());
        assert_eq!(op.output_widths(&[3]), Ok(vec![3]));
        assert!(op.output_widths(&[4]).is_err());
    }
}
