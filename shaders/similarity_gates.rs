//! Gates of residual streams by how similar two values of each are.

use crate::cases::{Case, CaseStep, Expected};
use crate::cpu::for_each_chunk;
use crate::gpu::{Dispatch, GpuArgs, Module, Push};
use crate::lanes::{LANES, exp, horizontal_sum, multiply_add};
use crate::op::{CpuArgs, Op, ShapeError};
use crate::per_kernel;
use crate::quant::random;

/// The least magnitude of a product whose root is taken.
const LEAST: f32 = 1e-6;

/// One gate for each of `count` streams: `y[r, i] = 1 / (1 + e^-g)`, with `g = sign(s) sqrt(max(|s|, 1e-6))` and
/// `s = a[r, i]·b[r, i] / sqrt(width)`, where a[r, i] and b[r, i] are streams of `width` values. The sign of 0 is 0.
///
/// - a, b: [rows, count * width]; y: [rows, count]
/// - Source: Qwen Team 2026, "Qwen3.8-Flash-Next", and its reference code.
#[derive(Debug, Clone, Copy)]
pub struct SimilarityGates {
    /// Number of streams.
    pub count: usize,
}

impl SimilarityGates {
    /// The factor of products of streams of `columns` values together.
    fn scale(self, columns: usize) -> f32 {
        1.0 / ((columns / self.count) as f32).sqrt()
    }
}

impl Op for SimilarityGates {
    fn name(&self) -> &'static str {
        "similarity_gates"
    }

    fn output_widths(&self, inputs: &[usize]) -> Result<Vec<usize>, ShapeError> {
        ShapeError::check(self.name(), "number of inputs", inputs.len(), 2)?;
        ShapeError::check(self.name(), "width of the second input", inputs[1], inputs[0])?;
        let remainder = inputs[0].checked_rem(self.count).unwrap_or(1);
        ShapeError::check(self.name(), format!("width {} modulo {} streams", inputs[0], self.count), remainder, 0)?;
        Ok(vec![self.count])
    }

    fn run_cpu(&self, args: &mut CpuArgs<'_>) {
        let (a, b, kernel, count) = (args.inputs[0], args.inputs[1], args.kernel, self.count);
        let columns = a.len() / args.rows.max(1);
        let (width, scale) = (columns / count, self.scale(columns));
        for_each_chunk(args.team, args.outputs[0], count, &|row, y| {
            let of_row = row * columns..(row + 1) * columns;
            let streams = a[of_row.clone()].chunks_exact(width).zip(b[of_row].chunks_exact(width));
            y.iter_mut().zip(streams).for_each(|(y, (a, b))| *y = gate(kernel, a, b, scale));
        });
    }

    fn dispatches(&self, args: &GpuArgs<'_>) -> Vec<Dispatch> {
        let (a, b) = (args.inputs[0], args.inputs[1]);
        let push = Push::new()
            .address(a.region.address)
            .address(b.region.address)
            .address(args.outputs[0].region.address)
            .address(args.step)
            .word(args.rows.kind())
            .size(a.width)
            .size(a.width / self.count)
            .float(self.scale(a.width))
            .float(LEAST);
        // One workgroup for each stream.
        let dispatch = args.each_column(Module::SimilarityGates, push, a.width);
        vec![Dispatch { groups: [self.count as u32, dispatch.groups[1], 1], ..dispatch }]
    }
}

per_kernel! {
    /// The gate of one stream.
    fn gate = gate_lanes(a: &[f32], b: &[f32], scale: f32) -> f32
}

#[inline(always)]
fn gate_lanes<const FMA: bool>(a: &[f32], b: &[f32], scale: f32) -> f32 {
    let mut sums = [0.0; LANES];
    for (a, b) in a.chunks(LANES).zip(b.chunks(LANES)) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum = multiply_add::<FMA>(*a, *b, *sum);
        }
    }
    let product = horizontal_sum(sums) * scale;
    if product == 0.0 {
        return 0.5;
    }
    let root = product.abs().max(LEAST).sqrt();
    1.0 / (1.0 + exp(if product < 0.0 { root } else { -root }))
}

/// The formula in float64, for one row of `count` streams.
#[must_use]
pub fn reference(a: &[f32], b: &[f32], count: usize) -> Vec<f64> {
    let width = a.len() / count;
    let gate = |(a, b): (&[f32], &[f32])| {
        let products = a.iter().zip(b).map(|(a, b)| f64::from(*a) * f64::from(*b));
        let product = products.sum::<f64>() / (width as f64).sqrt();
        let root = product.abs().max(f64::from(LEAST)).sqrt();
        let signed = if product == 0.0 { 0.0 } else { root.copysign(product) };
        1.0 / (1.0 + (-signed).exp())
    };
    a.chunks_exact(width).zip(b.chunks_exact(width)).map(gate).collect()
}

/// Values whose streams are similar to those of `a`, or opposite in every second stream, so that no product is close to 0.
fn similar(a: &[f32], width: usize, noise: &[f32]) -> Vec<f32> {
    let value = |(index, (a, noise)): (usize, (&f32, &f32))| {
        let similar = if (index / width).is_multiple_of(2) { *a } else { -a };
        similar + 0.125 * noise
    };
    a.iter().zip(noise).enumerate().map(value).collect()
}

/// The expected results: streams of models, of widths that fill no vector, similar and opposite ones, and zeros.
#[must_use]
pub fn cases() -> Vec<Case> {
    let case = |(count, width, size): (usize, usize, f32)| {
        let step = |rows: usize| {
            let columns = count * width;
            let values = |seed: u64| random::activations(rows * columns, seed).into_iter().map(|value| size * value);
            let a: Vec<f32> = values(rows as u64).collect();
            let b = similar(&a, width, &values(2).collect::<Vec<_>>());
            let of_row = |row: usize| reference(&a[row * columns..][..columns], &b[row * columns..][..columns], count);
            let expected = Expected::within(2e-6, (0..rows).flat_map(of_row));
            CaseStep::of_rows(rows, vec![a, b], vec![expected])
        };
        let name = format!("{count} streams of {width}, times {size}");
        Case::new(name, SimilarityGates { count }, vec![step(1), step(3), step(33), step(5).of_selected()])
    };
    [(4, 96, 1.0), (3, 77, 4.0), (2, 2560, 2.0), (4, 40, 0.0)].map(case).into()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::testing::{assert_close, run, supported_kernels, values};

    proptest! {
        #[test]
        fn every_kernel_agrees_with_the_reference(rows in 1usize..4, count in 1usize..5, width in 4usize..60, seed: u64) {
            let columns = count * width;
            let a = values(seed, rows * columns);
            let b = similar(&a, width, &values(seed ^ 1, rows * columns));
            let of_row = |row: usize| reference(&a[row * columns..][..columns], &b[row * columns..][..columns], count);
            let expected: Vec<f64> = (0..rows).flat_map(of_row).collect();
            for kernel in supported_kernels() {
                let inputs: [(&[f32], usize); 2] = [(&a, columns), (&b, columns)];
                assert_close(&run(&SimilarityGates { count }, kernel, rows, &inputs)[0], &expected, 1e-5);
            }
        }
    }

    #[test]
    fn small_products_have_the_root_of_the_least_one() {
        let gate = |product: f32| {
            run(&SimilarityGates { count: 1 }, crate::cpu::Kernel::Scalar, 1, &[(&[product], 1), (&[1.0], 1)])[0][0]
        };
        assert_eq!(gate(0.0), 0.5);
        assert!((gate(1e-12) - 0.500_25).abs() < 1e-6 && (gate(-1e-12) - 0.499_75).abs() < 1e-6);
    }

    #[test]
    fn widths_that_do_not_fit_are_refused() {
        let op = SimilarityGates { count: 4 };
        assert_eq!(op.output_widths(&[8, 8]), Ok(vec![4]));
        assert!(op.output_widths(&[8, 4]).is_err() && op.output_widths(&[6, 6]).is_err());
        assert!(op.output_widths(&[8]).is_err() && SimilarityGates { count: 0 }.output_widths(&[8, 8]).is_err());
    }
}
