//! Linear combinations of the residual streams of each row.

use std::sync::Arc;

use crate::cases::{Case, CaseStep, Expected};
use crate::cpu::for_each_chunk;
use crate::gpu::{Dispatch, GpuArgs, Module, Push};
use crate::lanes::multiply_add;
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;

/// Linear combinations of streams: `y[r, j] = sum over i of (k[j, i] + c[r, j, i]) * x[r, i]`, where x[r, i] and y[r, j] are
/// streams of `width` values.
///
/// - x: [rows, from * width], y: [rows, to * width]
/// - k: [to, from], the same for all rows
/// - c: [rows, to * from], a second input; without it, 0
/// - Terms are added in the order of i.
#[derive(Debug)]
pub struct MixStreams {
    from: usize,
    constant: Arc<[f32]>,
    varies: bool,
}

impl MixStreams {
    /// Combinations of `from` streams that are the same for all rows: `constant`, [to, from].
    ///
    /// # Errors
    /// [`ShapeError`] when `constant` is not a matrix with rows of `from` values.
    pub fn new(from: usize, constant: Arc<[f32]>) -> Result<Self, ShapeError> {
        let remainder = constant.len() % from.max(1);
        let what = || format!("{} constants modulo {from} streams", constant.len());
        ShapeError::check("mix_streams", what(), remainder, 0)?;
        ShapeError::check("mix_streams", "constants without a stream", usize::from(constant.is_empty()), 0)?;
        Ok(MixStreams { from, constant, varies: false })
    }

    /// The same, with a second input that is added to the constants.
    #[must_use]
    pub fn varied(self) -> Self {
        MixStreams { varies: true, ..self }
    }

    /// The number of streams of the output.
    fn to(&self) -> usize {
        self.constant.len() / self.from
    }
}

impl Op for MixStreams {
    fn name(&self) -> &'static str {
        "mix_streams"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 1 + usize::from(self.varies))?;
        let remainder = inputs[0] % self.from;
        ShapeError::check(self.name(), format!("width {} modulo {} streams", inputs[0], self.from), remainder, 0)?;
        if self.varies {
            ShapeError::check(self.name(), "coefficients of a row", inputs[1], self.constant.len())?;
        }
        Ok(vec![inputs[0] / self.from * self.to()])
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (x, varied) = (args.inputs[0], args.inputs.get(1).copied());
        let (rows, kernel, len) = (args.rows, args.kernel, self.constant.len());
        let columns = x.len() / rows.max(1);
        let width = columns / self.from;
        for_each_chunk(args.team, args.outputs[0], width * self.to(), &|row, y| {
            let x = &x[row * columns..(row + 1) * columns];
            for (index, y) in y.chunks_exact_mut(width).enumerate() {
                let constant = &self.constant[index * self.from..][..self.from];
                let varied = varied.map(|varied| &varied[row * len + index * self.from..][..self.from]);
                mix_row(kernel, x, constant, varied, y);
            }
        });
    }

    fn gpu_tables(&self) -> Vec<&[f32]> {
        vec![&self.constant]
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let y = args.outputs[0];
        let varied = args.inputs.get(1).map_or(0, |varied| varied.region.address);
        let push = Push::new()
            .address(args.inputs[0].region.address)
            .address(varied)
            .address(args.tables[0].address)
            .address(y.region.address)
            .address(args.step)
            .word(args.rows.kind())
            .size(y.width / self.to())
            .size(self.from)
            .size(self.to())
            .word(self.varies.into());
        vec![args.each_column(Module::MixStreams, push, y.width)]
    }
}

per_kernel! {
    /// One stream of the output.
    fn mix_row = mix_row_lanes(x: &[f32], constant: &[f32], varied: Option<&[f32]>, y: &mut [f32])
}

#[inline(always)]
fn mix_row_lanes<const FMA: bool>(x: &[f32], constant: &[f32], varied: Option<&[f32]>, y: &mut [f32]) {
    y.fill(0.0);
    for (index, x) in x.chunks_exact(y.len()).enumerate() {
        let factor = constant[index] + varied.map_or(0.0, |varied| varied[index]);
        for (y, x) in y.iter_mut().zip(x) {
            *y = multiply_add::<FMA>(factor, *x, *y);
        }
    }
}

/// The formula in float64, for one row.
#[must_use]
pub fn reference(x: &[f32], constant: &[f32], varied: Option<&[f32]>, from: usize) -> Vec<f64> {
    let width = x.len() / from;
    let factor = |index: usize| f64::from(constant[index]) + varied.map_or(0.0, |varied| f64::from(varied[index]));
    let value = |at: usize| {
        let (stream, column) = (at / width, at % width);
        (0..from).map(|index| factor(stream * from + index) * f64::from(x[index * width + column])).sum()
    };
    (0..constant.len() / from * width).map(value).collect()
}

/// The expected results: streams made of one, mixed and merged, with and without coefficients of rows.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |(from, to, width, varies): (usize, usize, usize, bool)| {
        let constant: Arc<[f32]> = random::activations(from * to, 1).into();
        let step = |rows: usize| {
            let x = random::activations(rows * from * width, rows as u64);
            let varied = random::activations(rows * from * to, 2);
            let of_row = |row: usize| {
                let varied = varies.then(|| &varied[row * from * to..][..from * to]);
                reference(&x[row * from * width..][..from * width], &constant, varied, from)
            };
            let expected = Expected::within(2e-6, (0..rows).flat_map(of_row));
            let inputs = if varies { vec![x, varied] } else { vec![x] };
            CaseStep::of_rows(rows, inputs, vec![expected])
        };
        let op = MixStreams::new(from, Arc::clone(&constant)).expect("whole rows of constants");
        let op = if varies { op.varied() } else { op };
        let name = format!("{from} streams of {width} to {to}, coefficients of rows: {varies}");
        Case::new(name, op, vec![step(1), step(3), step(33), step(5).of_selected()])
    };
    let sizes = [(4, 4, 96, true), (1, 4, 77, true), (4, 1, 640, false), (1, 3, 8, false), (1, 1, 1, true)];
    sizes.map(case).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{assert_close, run, supported_kernels, values};

    proptest! {
        #[test]
        fn every_kernel_agrees_with_the_reference(
            rows in 1usize..4, from in 1usize..5, to in 1usize..5, width in 1usize..60, seed: u64,
        ) {
            let x = values(seed, rows * from * width);
            let (constant, varied) = (values(seed ^ 1, from * to), values(seed ^ 2, rows * from * to));
            let of_row = |row: usize| {
                let varied = &varied[row * from * to..][..from * to];
                reference(&x[row * from * width..][..from * width], &constant, Some(varied), from)
            };
            let expected: Vec<f64> = (0..rows).flat_map(of_row).collect();
            let op = MixStreams::new(from, constant.clone().into()).unwrap().varied();
            for kernel in supported_kernels() {
                let inputs: [(&[f32], usize); 2] = [(&x, from * width), (&varied, from * to)];
                assert_close(&run(&op, kernel, rows, &inputs)[0], &expected, 2e-6);
            }
        }
    }

    #[test]
    fn shapes_that_do_not_fit_are_refused() {
        let op = || MixStreams::new(2, vec![1.0; 6].into()).unwrap();
        assert_eq!(op().output_widths(&[8]), Ok(vec![12]));
        assert_eq!(op().varied().output_widths(&[8, 6]), Ok(vec![12]));
        assert!(op().output_widths(&[7]).is_err());
        assert!(op().varied().output_widths(&[8]).is_err());
        assert!(op().varied().output_widths(&[8, 5]).is_err());
        assert!(MixStreams::new(2, vec![1.0; 5].into()).is_err());
        assert!(MixStreams::new(2, Vec::new().into()).is_err());
    }
}
