//! The largest values of a row: those above a cutoff that follows from their distribution.

use crate::cases::{Case, CaseStep, Expected};
use crate::elementwise::{CASE_SHAPES, for_each_row};
use crate::gpu::{Dispatch, GpuArgs, Module};
use crate::lanes::{sum, sum_of_squares};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;

/// What exceeds a cutoff: `y[i] = max(x[i] - cutoff, 0)` with `cutoff = mean(x) + deviations * deviation(x)`, [rows, width].
///
/// - The deviation is the root of the mean of the squared distances from the mean.
/// - Where values are normally distributed, a known part of them is above the cutoff.
/// - Source: Gemma Team 2025, "Gemma 3n", the sparsity of activations.
#[derive(Debug)]
pub struct Cutoff {
    deviations: f32,
}

impl Cutoff {
    /// A cutoff that is this many deviations above the mean.
    #[must_use]
    pub fn new(deviations: f32) -> Self {
        Cutoff { deviations }
    }
}

impl Op for Cutoff {
    fn name(&self) -> &'static str {
        "cutoff"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1)?;
        Ok(inputs.to_vec())
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let x = args.inputs[0];
        for_each_row(args, &|kernel, range, y| cut_row(kernel, &x[range], self.deviations, y));
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let dispatch = args.each_column(Module::Cutoff, args.elementwise(0, self.deviations), args.outputs[0].width);
        // One workgroup for each row.
        vec![Dispatch { groups: [1, dispatch.groups[1], 1], ..dispatch }]
    }
}

per_kernel! {
    fn cut_row = cut_row_lanes(x: &[f32], deviations: f32, y: &mut [f32])
}

#[inline(always)]
fn cut_row_lanes<const FMA: bool>(x: &[f32], deviations: f32, y: &mut [f32]) {
    let count = x.len() as f32;
    let mean = sum(x) / count;
    let cutoff = mean + deviations * (sum_of_squares::<FMA>(x, mean) / count).sqrt();
    for (y, x) in y.iter_mut().zip(x) {
        *y = (x - cutoff).max(0.0);
    }
}

/// The formula in float64, for one row.
#[must_use]
pub fn reference(x: &[f32], deviations: f64) -> Vec<f64> {
    let count = x.len() as f64;
    let mean = x.iter().map(|x| f64::from(*x)).sum::<f64>() / count;
    let variance = x.iter().map(|x| (f64::from(*x) - mean).powi(2)).sum::<f64>() / count;
    let cutoff = mean + deviations * variance.sqrt();
    x.iter().map(|x| (f64::from(*x) - cutoff).max(0.0)).collect()
}

/// The expected results: cutoffs at the mean, above and below, which leave many values, some or all but some.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |deviations: f32| {
        let step = |(rows, width): (usize, usize)| {
            let x: Vec<f32> = random::activations(rows * width, 1).iter().map(|x| x + 0.5).collect();
            let of_row = |row: &[f32]| reference(row, deviations.into());
            let expected = Expected::within(1e-5, x.chunks_exact(width).flat_map(of_row));
            CaseStep::of_rows(rows, vec![x], vec![expected])
        };
        Case::new(format!("{deviations} deviations"), Cutoff::new(deviations), CASE_SHAPES.map(step).into())
    };
    [0.0, 1.644_853_6, -0.5].map(case).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{assert_close, run, supported_kernels, values};

    proptest! {
        #[test]
        fn every_kernel_agrees_with_the_reference(width in 1usize..200, deviations in -2.0f32..2.0, seed: u64) {
            let x = values(seed, width);
            let expected = reference(&x, deviations.into());
            for kernel in supported_kernels() {
                assert_close(&run(&Cutoff::new(deviations), kernel, 1, &[(&x, width)])[0], &expected, 5e-6);
            }
        }
    }
}
