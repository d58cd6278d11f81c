//! Values scaled to the magnitude of others.

use crate::cases::{Case, CaseStep, Expected};
use crate::cpu::for_each_chunk;
use crate::gpu::{Dispatch, GpuArgs, Module, Push};
use crate::lanes::sum_of_squares;
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;

/// The least mean square of values that are scaled to it.
const LEAST: f32 = 1e-5;

/// Streams scaled to the magnitude of another: `y[r, i] = x[r, i] * rms(model[r]) / rms(x[r, i])`, where x[r, i] and y[r, i] are
/// streams as wide as the model, and rms is the root of the mean square.
///
/// - model: [rows, width], the first input; x, y: [rows, n * width]
/// - The mean square of x is at least 1e-5.
/// - Source: Gemma Team 2025, "Gemma 3n".
#[derive(Debug)]
pub struct MatchMagnitude;

impl Op for MatchMagnitude {
    fn name(&self) -> &'static str {
        "match_magnitude"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        let remainder = inputs[1] % inputs[0].max(1);
        ShapeError::check(self.name(), format!("width {} modulo {}", inputs[1], inputs[0]), remainder, 0)?;
        Ok(vec![inputs[1]])
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (model, x, kernel, rows) = (args.inputs[0], args.inputs[1], args.kernel, args.rows.max(1));
        let (width, columns) = (model.len() / rows, x.len() / rows);
        for_each_chunk(args.team, args.outputs[0], columns, &|row, y| {
            match_row(kernel, &model[row * width..][..width], &x[row * columns..][..columns], y);
        });
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let (model, x) = (args.inputs[0], args.inputs[1]);
        let push = Push::new()
            .address(model.region.address)
            .address(x.region.address)
            .address(args.outputs[0].region.address)
            .address(args.step)
            .word(args.rows.kind())
            .size(x.width)
            .size(model.width)
            .float(LEAST);
        // One workgroup for each stream.
        let dispatch = args.each_column(Module::MatchMagnitude, push, x.width);
        vec![Dispatch { groups: [(x.width / model.width) as u32, dispatch.groups[1], 1], ..dispatch }]
    }
}

per_kernel! {
    /// The streams of one row.
    fn match_row = match_row_lanes(model: &[f32], x: &[f32], y: &mut [f32])
}

#[inline(always)]
fn match_row_lanes<const FMA: bool>(model: &[f32], x: &[f32], y: &mut [f32]) {
    let count = model.len() as f32;
    let wanted = (sum_of_squares::<FMA>(model, 0.0) / count).sqrt();
    for (x, y) in x.chunks_exact(model.len()).zip(y.chunks_exact_mut(model.len())) {
        let factor = wanted / (sum_of_squares::<FMA>(x, 0.0) / count).max(LEAST).sqrt();
        for (y, x) in y.iter_mut().zip(x) {
            *y = x * factor;
        }
    }
}

/// The formula in float64, for one row.
#[must_use]
pub fn reference(model: &[f32], x: &[f32]) -> Vec<f64> {
    let mean_square = |x: &[f32]| x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64;
    let wanted = mean_square(model).sqrt();
    let scaled = |x: &[f32]| -> Vec<f64> {
        let factor = wanted / mean_square(x).max(f64::from(LEAST)).sqrt();
        x.iter().map(|x| f64::from(*x) * factor).collect()
    };
    x.chunks_exact(model.len()).flat_map(scaled).collect()
}

/// The expected results: one stream and several, and streams below the least magnitude.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |(streams, width, size): (usize, usize, f32)| {
        let step = |rows: usize| {
            let model = random::activations(rows * width, 1);
            let x = random::activations(rows * streams * width, rows as u64);
            let x: Vec<f32> = x.iter().map(|x| x * size).collect();
            let of_row =
                |row: usize| reference(&model[row * width..][..width], &x[row * streams * width..][..streams * width]);
            let expected = Expected::within(1e-5, (0..rows).flat_map(of_row));
            CaseStep::of_rows(rows, vec![model, x], vec![expected])
        };
        let name = format!("{streams} streams of {width}, times {size}");
        Case::new(name, MatchMagnitude, vec![step(1), step(3), step(33), step(5).of_selected()])
    };
    [(3, 96, 4.0), (1, 77, 0.25), (2, 640, 1.0 / 4096.0), (1, 1, 1.0)].map(case).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{assert_close, run, supported_kernels, values};

    proptest! {
        #[test]
        fn every_kernel_agrees_with_the_reference(rows in 1usize..4, streams in 1usize..4, width in 1usize..60, seed: u64) {
            let (model, x) = (values(seed, rows * width), values(seed ^ 1, rows * streams * width));
            let of_row = |row: usize| reference(&model[row * width..][..width], &x[row * streams * width..][..streams * width]);
            let expected: Vec<f64> = (0..rows).flat_map(of_row).collect();
            for kernel in supported_kernels() {
                let inputs: [(&[f32], usize); 2] = [(&model, width), (&x, streams * width)];
                assert_close(&run(&MatchMagnitude, kernel, rows, &inputs)[0], &expected, 5e-6);
            }
        }
    }

    #[test]
    fn a_width_that_is_not_whole_streams_is_refused() {
        assert_eq!(MatchMagnitude.output_widths(&[8, 24]), Ok(vec![24]));
        assert!(MatchMagnitude.output_widths(&[8, 20]).is_err());
        assert!(MatchMagnitude.output_widths(&[8]).is_err());
    }
}
