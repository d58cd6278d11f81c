//! What [`Linear`] and [`HeadLinear`](super::HeadLinear) must compute.
//!
//! Inputs are values that 15 bits hold exactly, so that kernels in integers are held to the same bound as the others: the
//! rounding of float32 sums.

use std::sync::Arc;

use super::Linear;
use super::reference::{self, Product};
use crate::cases::{Case, CaseStep, Expected};
use crate::quant::{Format, random};
use crate::weight::Weight;

/// Every format with one row to many, with and without bias; several weights of one input; rows that are not whole runs;
/// more outputs than a dimension of a GPU's grid has workgroups; a weight for each head.
#[must_use]
pub fn cases() -> Vec<Case> {
    let mut cases = cases_within(|product, parts| 1e-6 * (product.magnitude + parts));
    cases.extend(super::heads::cases());
    cases
}

/// The same with the bound of matrices of float16: x and w keep 11 bits, and a device may cut where it should round.
#[must_use]
pub fn half_cases() -> Vec<Case> {
    const BOTH_CUT: f64 = 2.0 / 1024.0;
    cases_within(|product, _| BOTH_CUT * product.magnitude)
}

/// How far a result may be off, given the reference and [`parts`] of its row.
type Tolerance = fn(&Product, f64) -> f64;

fn cases_within(tolerance: Tolerance) -> Vec<Case> {
    const ROWS: &[usize] = &[1, 2, 3, 8, 9, 33];
    let case = |weights: &[(Format, usize)], columns, rows: &[usize]| case(weights, columns, rows, tolerance);
    let every_format = Format::ALL.iter().map(|format| case(&[(*format, 19), (*format, 6)], 512, ROWS));
    let any_width = || Format::ALL.iter().filter(|format| format.block_len() == 1);
    let odd =
        any_width().flat_map(|format| [(1, 1), (7, 33), (3, 93)].map(|(n, c)| case(&[(*format, n)], c, &[1, 5, 20])));
    const OUTPUTS: [usize; 8] = [64, 1, 7, 30, 4, 5, 9, 33];
    let first: Vec<(Format, usize)> = Format::ALL.iter().copied().zip(OUTPUTS).collect();
    let last: Vec<(Format, usize)> = Format::ALL.iter().rev().copied().zip(OUTPUTS).collect();
    let unlike = [
        case(&first, 256, &[1, 4, 20]),
        case(&last, 256, &[1, 4, 20]),
        // Many runs for each result; a number of rows beyond any tile; a long first dimension.
        case(&first[1..4], 4608, &[1, 3]),
        case(&last[1..4], 4608, &[1, 3]),
        case(&first[..2], 64, &[300]),
        case(&[(Format::F16, 4 * 65_535 + 6)], 32, &[1, 2]),
    ];
    every_format.chain(odd).chain(unlike).collect()
}

/// Weights of these formats and numbers of outputs over one input, every second with a bias; the last step is one behind
/// selected rows.
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

/// Values in -2..2 that 15 bits hold exactly, when each block of 32 has a scale of its own.
pub(crate) fn exact_activations(len: usize, seed: u64) -> Vec<f32> {
    const LARGEST: f32 = 127.0 * 128.0;
    const STEP: f32 = 1.0 / 8192.0;
    let mut values = random::activations(len, seed);
    for block in values.chunks_mut(32) {
        block.iter_mut().for_each(|value| *value = (*value * LARGEST).round() * STEP);
        block[block.len() / 4] = LARGEST * STEP;
    }
    values
}

/// The sum of the magnitudes of what is added up for a row where codes, scales and minima are multiplied apart: where a
/// weight's value is at most [`random::LIMIT`], its code times its scale and its minimum are at most thrice that together.
pub(crate) fn parts(row: &[f32]) -> f64 {
    3.0 * f64::from(random::LIMIT) * row.iter().map(|x| f64::from(x.abs())).sum::<f64>()
}
