//! A mean of the residual and of earlier ones, weighted by how they match a vector.

use std::sync::Arc;

use crate::cases::{Case, CaseStep, Expected};
use crate::cpu::for_each_chunk;
use crate::gpu::{Dispatch, GpuArgs, Module, Push, word};
use crate::lanes::{LANES, exp, horizontal_sum, multiply_add};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;

/// The mean of the residual and of `kept` earlier ones, by a softmax over all of them: `y[r] = sum over i of p[r, i] x[r, i]`
/// with `p[r] = softmax(s[r])` and `s[r, i] = w·x[r, i] / sqrt(mean(x[r, i]^2) + epsilon)`.
///
/// - The first input has the earlier ones, [rows, kept * width], and the second the residual itself, [rows, width].
/// - w: `[width]`; y: [rows, width]
/// - Source: Kimi Team 2026, "Kimi K3", attention residuals.
#[derive(Debug, Clone)]
pub struct MixResiduals {
    kept: usize,
    weight: Arc<[f32]>,
    epsilon: f32,
}

/// Most earlier residuals.
pub const MOST_KEPT: usize = 127;

impl MixResiduals {
    /// The mean of the residual and of `kept` earlier ones by this vector, `[width]`.
    ///
    /// # Errors
    /// [`ShapeError`] when there are no earlier ones or too many.
    pub fn new(kept: usize, weight: Arc<[f32]>, epsilon: f32) -> Result<Self, ShapeError> {
        if !(1..=MOST_KEPT).contains(&kept) {
            let (what, expected) = ("number of earlier residuals".to_owned(), format!("between 1 and {MOST_KEPT}"));
            return Err(ShapeError::Mismatch { op: "mix_residuals", what, found: kept, expected });
        }
        Ok(MixResiduals { kept, weight, epsilon })
    }
}

impl Op for MixResiduals {
    fn name(&self) -> &'static str {
        "mix_residuals"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        let width = self.weight.len();
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        ShapeError::check(self.name(), "width of earlier residuals", inputs[0], self.kept * width)?;
        ShapeError::check(self.name(), "width of the residual", inputs[1], width)?;
        Ok(vec![width])
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (kept, x, kernel, width) = (args.inputs[0], args.inputs[1], args.kernel, self.weight.len());
        for_each_chunk(args.team, args.outputs[0], width, &|row, y| {
            let kept = &kept[row * self.kept * width..][..self.kept * width];
            mix_row(kernel, self, [kept, &x[row * width..][..width]], y);
        });
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        vec![&self.weight]
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let width = self.weight.len();
        let push = Push::new()
            .address(args.inputs[0].region.address)
            .address(args.inputs[1].region.address)
            .address(args.tables[0].address)
            .address(args.outputs[0].region.address)
            .address(args.step)
            .word(args.rows.kind())
            .size(width)
            .size(self.kept)
            .float(self.epsilon);
        // One workgroup for each row.
        let dispatch = args.each_column(Module::MixResiduals, push, width);
        let constants = vec![(0, args.workgroup_size_for(width)), (1, word(self.kept) + 1)];
        vec![Dispatch { groups: [1, dispatch.groups[1], 1], constants, ..dispatch }]
    }
}

per_kernel! {
    /// One row: the earlier residuals and the residual itself.
    fn mix_row = mix_row_lanes(op: &MixResiduals, inputs: [&[f32]; 2], y: &mut [f32])
}

#[inline(always)]
fn mix_row_lanes<const FMA: bool>(op: &MixResiduals, [kept, x]: [&[f32]; 2], y: &mut [f32]) {
    let mut weights = [0.0; MOST_KEPT + 1];
    let weights = &mut weights[..=op.kept];
    let residuals = || kept.chunks_exact(x.len()).chain([x]);
    for (weight, x) in weights.iter_mut().zip(residuals()) {
        *weight = score::<FMA>(op, x);
    }
    softmax(weights);
    y.fill(0.0);
    for (weight, x) in weights.iter().zip(residuals()) {
        for (y, x) in y.iter_mut().zip(x) {
            *y = multiply_add::<FMA>(*weight, *x, *y);
        }
    }
}

/// The product of a normed residual with the vector.
#[inline(always)]
fn score<const FMA: bool>(op: &MixResiduals, x: &[f32]) -> f32 {
    let (mut squares, mut products) = ([0.0; LANES], [0.0; LANES]);
    for (x, weight) in x.chunks(LANES).zip(op.weight.chunks(LANES)) {
        for (lane, (x, weight)) in x.iter().zip(weight).enumerate() {
            squares[lane] = multiply_add::<FMA>(*x, *x, squares[lane]);
            products[lane] = multiply_add::<FMA>(*x, *weight, products[lane]);
        }
    }
    horizontal_sum(products) / (horizontal_sum(squares) / x.len() as f32 + op.epsilon).sqrt()
}

#[inline(always)]
fn softmax(scores: &mut [f32]) {
    let highest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    scores.iter_mut().for_each(|score| *score = exp(*score - highest));
    let sum: f32 = scores.iter().sum();
    scores.iter_mut().for_each(|score| *score /= sum);
}

/// The formula in float64, for one row.
#[must_use]
pub fn reference(op: &MixResiduals, kept: &[f32], x: &[f32]) -> Vec<f64> {
    let width = x.len();
    let residuals: Vec<&[f32]> = kept.chunks_exact(width).chain([x]).collect();
    let score = |x: &&[f32]| {
        let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / width as f64;
        let product: f64 = x.iter().zip(&*op.weight).map(|(x, weight)| f64::from(*x) * f64::from(*weight)).sum();
        product / (mean + f64::from(op.epsilon)).sqrt()
    };
    let scores: Vec<f64> = residuals.iter().map(score).collect();
    let highest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - highest).exp()).collect();
    let sum: f64 = weights.iter().sum();
    let value = |at: usize| residuals.iter().zip(&weights).map(|(x, weight)| weight / sum * f64::from(x[at])).sum();
    (0..width).map(value).collect()
}

/// The vector of a test: scores between about -3 and 3.
fn vector(width: usize) -> Arc<[f32]> {
    random::activations(width, 3).into_iter().map(|value| 3.0 * value / (width as f32).sqrt()).collect()
}

/// The expected results: few and many earlier residuals, widths that fill no vector, large values, and zeros.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |(kept, width, size): (usize, usize, f32)| {
        let op = MixResiduals::new(kept, vector(width), 1e-5).expect("a number of residuals within the bounds");
        let step = |rows: usize| {
            let values =
                |len: usize, seed: u64| random::activations(len, seed).into_iter().map(|value| size * value).collect();
            let (earlier, x): (Vec<f32>, Vec<f32>) =
                (values(rows * kept * width, rows as u64), values(rows * width, 2));
            let of_row =
                |row: usize| reference(&op, &earlier[row * kept * width..][..kept * width], &x[row * width..][..width]);
            let expected = Expected::within(1e-5 * f64::from(size.max(1.0)), (0..rows).flat_map(of_row));
            CaseStep::of_rows(rows, vec![earlier, x], vec![expected])
        };
        let name = format!("{kept} earlier residuals of {width}, times {size}");
        Case::new(name, op.clone(), vec![step(1), step(3), step(33), step(5).of_selected()])
    };
    [(1, 96, 1.0), (3, 77, 4.0), (8, 2560, 2.0), (2, 40, 0.0), (MOST_KEPT, 33, 1.0), (2, 1, 100.0)].map(case).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{assert_close, run, supported_kernels, values};

    proptest! {
        #[test]
        fn every_kernel_agrees_with_the_reference(rows in 1usize..4, kept in 1usize..6, width in 1usize..60, seed: u64) {
            let (earlier, x) = (values(seed, rows * kept * width), values(seed ^ 1, rows * width));
            let weight = values(seed ^ 2, width).into_iter().map(|value| value / (width as f32).sqrt());
            let op = MixResiduals::new(kept, weight.collect(), 1e-3).unwrap();
            let of_row = |row: usize| {
                reference(&op, &earlier[row * kept * width..][..kept * width], &x[row * width..][..width])
            };
            let expected: Vec<f64> = (0..rows).flat_map(of_row).collect();
            for kernel in supported_kernels() {
                let inputs: [(&[f32], usize); 2] = [(&earlier, kept * width), (&x, width)];
                assert_close(&run(&op, kernel, rows, &inputs)[0], &expected, 2e-5);
            }
        }
    }

    #[test]
    fn equal_scores_give_the_mean() {
        let op = MixResiduals::new(3, vec![0.0; 2].into(), 1e-6).unwrap();
        let earlier: [f32; 6] = [1.0, 2.0, 3.0, 4.0, 5.0, 6.0];
        let found = run(&op, crate::cpu::Kernel::Scalar, 1, &[(&earlier, 6), (&[7.0, 8.0], 2)]);
        assert_close(&found[0], &[4.0, 5.0], 1e-6);
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let op = |kept| MixResiduals::new(kept, vec![1.0; 4].into(), 1e-6);
        assert_eq!(op(2).unwrap().output_widths(&[8, 4]), Ok(vec![4]));
        assert!(op(2).unwrap().output_widths(&[4, 4]).is_err() && op(2).unwrap().output_widths(&[8, 8]).is_err());
        assert!(op(2).unwrap().output_widths(&[8]).is_err());
        let error = op(128).unwrap_err().to_string();
        assert_eq!(error, "mix_residuals: number of earlier residuals is 128, but must be between 1 and 127");
        assert!(op(0).is_err());
    }
}
