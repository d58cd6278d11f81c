//! Test cases of [`Linear`] and [`HeadLinear`](super::HeadLinear).
//!
//! 15 bits represent the inputs exactly, so that one bound, the rounding of float32 sums, applies to the integer
//! kernels too.

use std::sync::Arc;

use super::Linear;
use super::inputs::{exact_activations, parts};
use super::reference::{self, Product};
use crate::cases::{Case, CaseStep, Expected};
use crate::quant::{Format, random};
use crate::weight::Weight;

/// Every format with one to many rows, with and without bias; several weights with one input; rows that are not whole
/// runs; more outputs than a dimension of a GPU grid allows workgroups; one weight per head.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut cases = cases_within(&[1, 2, 3, 8, 9, 33], |product, terms| 1e-6 * (product.magnitude + terms));
    cases.extend(super::heads::cases());
    cases
}

/// The same cases with the tolerance of float16 matrices: x and w have 11 bits, and a device may truncate instead of
/// rounding. Every format has as many rows as need each kernel with such matrices.
#[must_use]
pub fn half_cases() -> Vec<Case> {
    const BOTH_TRUNCATED: f64 = 2.0 / 1024.0;
    cases_within(&[9, 70], |product, _| BOTH_TRUNCATED * product.magnitude)
}

/// The tolerance of a result, given the reference and the [`parts`] of its row.
type Tolerance = fn(&Product, f64) -> f64;

fn cases_within(rows_of_formats: &[usize], tolerance: Tolerance) -> Vec<Case> {
    let case = |weights: &[(Format, usize)], columns, rows: &[usize]| case(weights, columns, rows, tolerance);
    let every_format = Format::ALL.iter().map(|format| case(&[(*format, 19), (*format, 6)], 512, rows_of_formats));
    let any_width = || Format::ALL.iter().filter(|format| format.block_len() == 1);
    let odd =
        any_width().flat_map(|format| [(1, 1), (7, 33), (3, 93)].map(|(n, c)| case(&[(*format, n)], c, &[1, 5, 20])));
    const OUTPUTS: [usize; 8] = [64, 1, 7, 30, 4, 5, 9, 33];
    let first: Vec<(Format, usize)> = Format::ALL.iter().copied().zip(OUTPUTS).collect();
    let last: Vec<(Format, usize)> = Format::ALL.iter().rev().copied().zip(OUTPUTS).collect();
    let special = [
        case(&first, 256, &[1, 4, 20]),
        case(&last, 256, &[1, 4, 20]),
        // Many runs for each result; more rows than any tile; more outputs than a grid dimension.
        case(&first[1..4], 4608, &[1, 3]),
        case(&last[1..4], 4608, &[1, 3]),
        case(&first[..2], 64, &[300]),
        case(&[(Format::F16, 4 * 65_535 + 6)], 32, &[1, 2]),
    ];
    every_format.chain(odd).chain(special).collect()
}

/// Weights with the given formats and numbers of outputs, which share an input. Every second one has a bias. The last
/// step computes selected rows.
fn case(weights: &[(Format, usize)], columns: usize, rows: &[usize], tolerance: Tolerance) -> Case {
    let named = |(index, &(format, outputs)): (usize, &(Format, usize))| {
        random::weight(&format!("w{index}"), format, outputs, columns, index as u64)
    };
    let names: Vec<String> =
        weights.iter().map(|(format, outputs)| format!("{format} [{outputs}, {columns}]")).collect();
    let weights: Vec<Weight> = weights.iter().enumerate().map(named).collect();
    let bias = |(index, weight): (usize, &Weight)| -> Option<Arc<[f32]>> {
        (index % 2 == 0).then(|| random::activations(weight.rows, 9).into())
    };
    let biases: Vec<Option<Arc<[f32]>>> = weights.iter().enumerate().map(bias).collect();
    let mut steps: Vec<CaseStep> = rows.iter().map(|rows| step(&weights, &biases, *rows, tolerance)).collect();
    steps.extend(rows.last().map(|rows| step(&weights, &biases, (*rows).min(9), tolerance).of_selected()));
    let op = Linear::new(weights, biases).expect("the weights share their columns");
    Case::new(names.join(" and "), op, steps)
}

fn step(weights: &[Weight], biases: &[Option<Arc<[f32]>>], rows: usize, tolerance: Tolerance) -> CaseStep {
    let columns = weights[0].columns;
    let input = exact_activations(rows * columns, rows as u64);
    let magnitudes: Vec<f64> = input.chunks_exact(columns).map(parts).collect();
    let of_weight = |(weight, bias): (&Weight, &Option<Arc<[f32]>>)| {
        let products = reference::linear(weight, bias.as_deref(), &input).into_iter().enumerate();
        let expected = products.map(|(index, product)| Expected {
            value: product.value,
            tolerance: tolerance(&product, magnitudes[index / weight.rows]),
        });
        expected.collect()
    };
    let expected = weights.iter().zip(biases).map(of_weight).collect();
    CaseStep::of_rows(rows, vec![input], expected)
}
