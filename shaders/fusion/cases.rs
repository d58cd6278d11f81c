//! The expected results of fused ops: those of their references one after the other.

use std::sync::Arc;

use super::case::FusedCase;
use crate::add::Add;
use crate::attention;
use crate::cases::{Case, CaseStep, Expected};
use crate::glu::{Activation, Glu};
use crate::matmul::{self, Linear};
use crate::quant::{Format, random};
use crate::rms_norm::{self, RmsNorm};

/// The cases of all pairs.
#[must_use]
pub fn cases() -> Vec<Case> {
    fused_cases().into_iter().map(|fused| fused.case).collect()
}

/// The cases of all pairs, with the two ops of each.
#[must_use]
pub fn fused_cases() -> Vec<FusedCase> {
    let norms = [(1, 576), (1, 77), (3, 64), (1, 4096)].map(add_norm);
    let products = [
        (Format::Q4_K, 37, 512, Activation::Silu),
        (Format::Q4_0, 64, 96, Activation::GeluTanh),
        (Format::Q8_0, 6, 64, Activation::ClampedSwiglu),
        (Format::F16, 33, 100, Activation::Silu),
        (Format::F32, 5, 33, Activation::Silu),
        (Format::Q6_K, 130, 256, Activation::Silu),
    ];
    norms.into_iter().chain(products.map(gated_linear)).chain(attention::rotated_cases()).collect()
}

/// The sum is exact, as it is rounded only once.
fn add_norm((groups, group): (usize, usize)) -> FusedCase {
    const EPSILON: f32 = 1e-5;
    let weight: Arc<[f32]> = random::activations(group, 1).into();
    let step = |rows: usize| {
        let [a, b] = [2, 3].map(|seed| random::activations(rows * groups * group, seed + rows as u64));
        let sum: Vec<f32> = a.iter().zip(&b).map(|(a, b)| a + b).collect();
        let normalised = Expected::within(4e-6, rms_norm::reference(&sum, &weight, EPSILON));
        CaseStep::of_rows(rows, vec![a, b], vec![Expected::exactly(&sum), normalised])
    };
    let steps = vec![step(1), step(3), step(64), step(5).of_selected()];
    FusedCase::new(&format!("{groups} groups of {group}"), Add, RmsNorm::new(weight.clone(), EPSILON), None, steps)
}

/// One row to many. The second of the two weights has a bias.
fn gated_linear((format, outputs, columns, activation): (Format, usize, usize, Activation)) -> FusedCase {
    let weights = [1, 2].map(|seed| random::weight(&format!("w{seed}"), format, outputs, columns, seed));
    let bias: Arc<[f32]> = random::activations(outputs, 9).into();
    let step = |rows: usize| {
        let x = matmul::exact_activations(rows * columns, rows as u64);
        let parts: Vec<f64> = x.chunks_exact(columns).map(matmul::parts).collect();
        let [gates, ups] = [(0, None), (1, Some(&*bias))]
            .map(|(index, bias): (usize, Option<&[f32]>)| matmul::reference::linear(&weights[index], bias, &x));
        let expected = gates.iter().zip(&ups).enumerate().map(|(index, (gate, up))| {
            let value = activation.reference(gate.value, up.value);
            let off = |magnitude: f64| 1e-6 * (magnitude + parts[index / outputs]);
            // No activation has a slope above 1.2, or a result larger than its input.
            let of_products =
                1.2 * (up.value.abs() + 1.0) * off(gate.magnitude) + (gate.value.abs() + 1.0) * off(up.magnitude);
            Expected { value, tolerance: 1e-5 * value.abs().max(1.0) + of_products }
        });
        let expected = expected.collect();
        CaseStep::of_rows(rows, vec![x], vec![expected])
    };
    let mut steps: Vec<CaseStep> = [1, 2, 8, 9, 33].map(step).into();
    steps.push(step(3).of_selected());
    let linear =
        Linear::new(weights.clone().into(), vec![None, Some(bias.clone())]).expect("the weights have the same shape");
    let name = format!("{activation:?} of {format} [{outputs}, {columns}]");
    FusedCase::new(&name, linear, Glu::new(activation), None, steps)
}
