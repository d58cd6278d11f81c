//! Test cases of routes and experts.

use std::sync::Arc;

use super::{ExpertMatrix, Experts, Groups, Route, RouteWeighting, Scoring, reference};
use crate::activate::Pointwise;
use crate::cases::{Case, CaseStep, Expected};
use crate::glu::Activation;
use crate::lora::{Adapter, AdapterUse, LowRank, Target};
use crate::quant::{Format, random};
use crate::weight::Weight;

/// Every scoring and weighting, every weight format, one to many rows, biases, experts that no row or every row uses.
#[must_use]
pub fn cases() -> Vec<Case> {
    route_cases().into_iter().chain(expert_cases()).collect()
}

fn route_cases() -> Vec<Case> {
    let route = |scoring, n_experts, top_k| {
        Route::new(scoring, n_experts, top_k).expect("top_k is at most the number of experts")
    };
    let numbers = |len: usize, seed| -> Arc<[f32]> { random::activations(len, seed).into() };
    let grouped = |count, used| {
        let route = route(Scoring::Sigmoid, 32, 4).grouped(Some(Groups { count, used }));
        let route = route.and_then(|route| route.with_bias(Some(numbers(32, 3))));
        route.expect("the groups divide the experts").renormalised(true).scaled(2.5)
    };
    let own_scales = route(Scoring::Softmax, 9, 3).renormalised(true).with_expert_scales(Some(numbers(9, 4)));
    let named = [
        ("softmax", route(Scoring::Softmax, 60, 4)),
        ("renormalised", route(Scoring::Softmax, 128, 8).renormalised(true)),
        ("all of one", route(Scoring::Softmax, 1, 1)),
        ("all of seven", route(Scoring::Softmax, 7, 7)),
        ("sigmoid", route(Scoring::Sigmoid, 16, 1)),
        ("four groups", grouped(4, 2)),
        ("groups of one", grouped(32, 5)),
        ("scales of experts", own_scales.expect("there is one scale for each expert")),
        ("many", route(Scoring::Sigmoid, 384, 8).renormalised(true)),
        ("roots of softplus", route(Scoring::SqrtSoftplus, 40, 6).renormalised(true).scaled(1.5)),
        ("given experts", route(Scoring::SqrtSoftplus, 256, 6).renormalised(true).with_given_experts()),
    ];
    named.into_iter().map(|(name, route)| Case::new(name, route.clone(), route_steps(&route))).collect()
}

fn route_steps(route: &Route) -> Vec<CaseStep> {
    let step = |(rows, scale): (usize, f32)| {
        let logits = spread_logits(rows * route.n_experts(), rows as u64, scale);
        let given = |row: usize| (0..route.top_k()).map(move |k| (row * 31 + k * 7) % route.n_experts());
        let expected = logits.chunks_exact(route.n_experts()).enumerate().flat_map(|(index, row)| {
            let row: Vec<f64> = row.iter().map(|x| f64::from(*x)).collect();
            let given = route.takes_experts().then(|| given(index).collect::<Vec<_>>());
            let routes = reference::routes(route, &row, given.as_deref());
            let experts: Vec<f32> = routes.iter().map(|(expert, _)| *expert as f32).collect();
            let weights = routes.iter().map(|(_, weight)| *weight);
            Expected::exactly(&experts).into_iter().chain(Expected::within(1e-5, weights)).collect::<Vec<_>>()
        });
        let expected = vec![expected.collect()];
        let given = (0..rows).flat_map(given).map(|expert| expert as f32).collect();
        let inputs = [logits].into_iter().chain(route.takes_experts().then_some(given)).collect();
        CaseStep::of_rows(rows, inputs, expected)
    };
    [(1, 1.0), (5, 4.0), (33, 0.5)].map(step).into()
}

/// Logits whose order does not depend on rounding: distinct multiples of a step, for rows of up to 512.
fn spread_logits(len: usize, seed: u64, scale: f32) -> Vec<f32> {
    const STEPS: usize = 521;
    let value = |index: usize| (index.wrapping_mul(163).wrapping_add(seed as usize * 7) % STEPS) as f32 / STEPS as f32;
    (0..len).map(|index| scale * (value(index) - 0.5)).collect()
}

fn expert_cases() -> Vec<Case> {
    let usual = Spec::default();
    let of_format = |format: Format| {
        let block = format.block_len().max(32);
        Spec { formats: [format; 3], hidden: 2 * block, intermediate: block, ..usual }
    };
    let every_format = Format::ALL.iter().map(|format| of_format(*format));
    let special = [
        Spec { formats: [Format::Q4_0, Format::Q5_0, Format::F16], ..usual },
        Spec { formats: [Format::F32, Format::Q4_1, Format::Q5_0], bias: true, ..usual },
        Spec { bias: true, activation: Activation::ClampedSwiglu, ..usual },
        Spec { activation: Activation::LimitedSilu(1), ..usual },
        Spec { activation: Activation::Situ { beta: 2, linear: 3 }, ..usual },
        Spec { ungated: true, ..usual },
        Spec { ungated: true, formats: [Format::Q4_0; 3], bias: true, ..usual },
        Spec { factors: true, ..usual },
        Spec { ungated: true, factors: true, bias: true, ..usual },
        Spec { fused: true, factors: true, formats: [Format::Q4_0; 3], bias: true, ..usual },
        Spec { uses_slots: true, factors: true, formats: [Format::Q4_0, Format::Q5_0, Format::F16], ..usual },
        Spec { weighting: RouteWeighting::Input, top_k: 1, ..usual },
        Spec { weighting: RouteWeighting::Input, formats: [Format::Q5_0; 3], ..usual },
        Spec { fused: true, formats: [Format::Q4_0; 3], bias: true, activation: Activation::GeluTanh, ..usual },
        Spec { n_experts: 1, top_k: 1, ..usual },
        Spec { n_experts: 64, top_k: 8, formats: [Format::Q5_0; 3], ..usual },
        Spec { some_elsewhere: true, formats: [Format::Q5_0; 3], ..usual },
        Spec { uses_slots: true, some_elsewhere: true, ..usual },
        Spec { uses_slots: true, bias: true, fused: true, formats: [Format::Q4_0; 3], ..usual },
    ];
    let adapted = [
        usual,
        Spec { bias: true, fused: true, ..usual },
        Spec { ungated: true, ..usual },
        Spec { weighting: RouteWeighting::Input, some_elsewhere: true, ..usual },
    ];
    every_format.chain(special).map(Spec::case).chain(adapted.map(Spec::adapted_case)).collect()
}

/// The largest rank of the adapter of a case, and the scale of its changes.
const MOST_RANK: usize = 3;
const CHANGE_SCALE: f32 = 0.75;

/// The parameters of a case.
#[derive(Debug, Clone, Copy)]
struct Spec {
    n_experts: usize,
    top_k: usize,
    hidden: usize,
    intermediate: usize,
    formats: [Format; 3],
    fused: bool,
    ungated: bool,
    bias: bool,
    factors: bool,
    activation: Activation,
    weighting: RouteWeighting,
    some_elsewhere: bool,
    uses_slots: bool,
}

impl Default for Spec {
    fn default() -> Self {
        Spec {
            n_experts: 5,
            top_k: 2,
            hidden: 64,
            intermediate: 96,
            formats: [Format::F32; 3],
            fused: false,
            ungated: false,
            bias: false,
            factors: false,
            activation: Activation::Silu,
            weighting: RouteWeighting::Output,
            some_elsewhere: false,
            uses_slots: false,
        }
    }
}

impl Spec {
    fn case(self) -> Case {
        let experts = self.experts();
        let steps = [1, 2, 7, 40].map(|rows| self.step(&experts, rows)).into();
        let layout = match (self.ungated, self.fused) {
            (true, _) => "without gates",
            (false, true) => "fused",
            (false, false) => "separate",
        };
        let [gate, up, down] = self.formats;
        let slots = if self.uses_slots { ", slots" } else { "" };
        let factors = if self.factors { ", factors" } else { "" };
        let name = format!(
            "{} of {} experts [{}, {}] {gate} {up} {down}, {layout}, {:?}, {:?}{slots}{factors}",
            self.top_k, self.n_experts, self.intermediate, self.hidden, self.activation, self.weighting
        );
        Case::new(name, experts, steps)
    }

    /// The same with two sequences, the second of which has an adapter. The expected rows are those of merged weights.
    fn adapted_case(self) -> Case {
        let adapter = Arc::new(Adapter::new((0..3 * self.n_experts).map(|matrix| self.change(matrix)).collect()));
        let merged = self.experts_of(&|matrix, weight| self.merged(matrix, &weight));
        let shapes =
            [[self.intermediate, self.hidden], [self.intermediate, self.hidden], [self.hidden, self.intermediate]];
        let target = |index: usize| {
            let [outputs, columns] = shapes[index];
            Target { index: index * self.n_experts, count: self.n_experts, outputs, columns, max_rank: MOST_RANK }
        };
        let first = usize::from(self.ungated);
        let experts = self.experts().with_adapters((first..3).map(target).collect());
        let steps = [1, 2, 7, 40].map(|rows| {
            let (plain, changed) = (self.step(&experts, rows), self.step(&merged, rows));
            let of_plain = rows / 2 * self.hidden;
            let expected = [&plain.expected[0][..of_plain], &changed.expected[0][of_plain..]].concat();
            let mut step = CaseStep { expected: vec![expected], ..plain };
            step.batch.sequences = (0..rows).map(|row| u32::from(row >= rows / 2)).collect();
            step.batch.block_tables = vec![Vec::new(); 2];
            step.batch.adapters = vec![None, Some(AdapterUse { adapter: Arc::clone(&adapter), scale: 0.5 })];
            step
        });
        Case::new(format!("adapters, {self:?}"), experts, steps.into())
    }

    /// A and B of a matrix, counted through the experts of gate, up and down, each of rank 1 to 3.
    fn halves(&self, matrix: usize) -> ([Vec<f32>; 2], [usize; 2]) {
        let shape = if matrix < 2 * self.n_experts {
            [self.intermediate, self.hidden]
        } else {
            [self.hidden, self.intermediate]
        };
        let rank = 1 + matrix % MOST_RANK;
        let small = |len: usize, seed| random::activations(len, seed).iter().map(|x| x / 16.0).collect();
        ([small(rank * shape[1], matrix as u64), small(shape[0] * rank, 100 + matrix as u64)], shape)
    }

    /// What the adapter changes; every fifth matrix is left as it is.
    fn change(&self, matrix: usize) -> Option<LowRank> {
        let ([a, b], shape) = self.halves(matrix);
        if matrix % 5 == 4 { None } else { LowRank::new(a.into(), &b, shape, CHANGE_SCALE) }
    }

    /// The weights of all experts with half of the change added.
    fn merged(&self, index: usize, weight: &Weight) -> Weight {
        let mut values = weight.to_f32();
        let rows_of_expert = weight.rows / self.n_experts;
        // A tensor of gate and up has the rows of both, expert by expert.
        for (row, values) in values.chunks_exact_mut(weight.columns).enumerate() {
            let (expert, output) = (row / rows_of_expert, row % rows_of_expert);
            let is_up = self.fused && index == 0 && output >= self.intermediate;
            let output = if is_up { output - self.intermediate } else { output };
            let matrix = (index + usize::from(is_up)) * self.n_experts + expert;
            let Some(change) = self.change(matrix) else { continue };
            let ([a, b], _) = self.halves(matrix);
            let of_output = &b[output * change.rank()..][..change.rank()];
            for (column, value) in values.iter_mut().enumerate() {
                let product =
                    of_output.iter().enumerate().map(|(k, b)| b * a[k * weight.columns + column]).sum::<f32>();
                *value += 0.5 * CHANGE_SCALE * product;
            }
        }
        Weight::from_f32(&weight.name, weight.rows, weight.columns, &values)
    }

    fn experts(&self) -> Experts {
        self.experts_of(&|_, weight| weight)
    }

    /// The experts with changed weights, by the number of the matrix: gate, up and down.
    fn experts_of(&self, change: &dyn Fn(usize, Weight) -> Weight) -> Experts {
        let bias =
            |len: usize, seed| -> Option<Arc<[f32]>> { self.bias.then(|| random::activations(len, seed).into()) };
        let matrix = |index: usize, outputs: usize, columns: usize| {
            let rows = self.slots() * outputs;
            let weight = random::weight(&format!("w{index}"), self.formats[index], rows, columns, index as u64);
            (change(index, weight), bias(rows, 7 + index as u64))
        };
        let with_factors = |matrix: ExpertMatrix| {
            let factors: Vec<f32> = (0..self.slots()).map(|slot| 0.5 + slot as f32 / 8.0).collect();
            matrix.with_factors(self.factors.then_some(&factors)).expect("there is one for each expert")
        };
        let separate = |index, outputs, columns| {
            let (weight, bias) = matrix(index, outputs, columns);
            with_factors(ExpertMatrix::new(weight, self.slots(), bias).expect("the tensor has all experts"))
        };
        let [gate, up] = if self.fused {
            let (weight, bias) = matrix(0, 2 * self.intermediate, self.hidden);
            let halves = ExpertMatrix::halves(&weight, self.slots(), bias.as_ref());
            halves.expect("the tensor has all experts").map(with_factors)
        } else {
            [separate(0, self.intermediate, self.hidden), separate(1, self.intermediate, self.hidden)]
        };
        let down = separate(2, self.hidden, self.intermediate);
        let experts = if self.ungated {
            Experts::ungated([up, down], Pointwise::ReluSquared, self.weighting, self.top_k)
        } else {
            Experts::new([gate, up, down], self.activation, self.weighting, self.top_k)
        };
        let experts = experts.expect("the matrices fit together");
        if self.uses_slots { experts.with_slots(self.n_experts) } else { experts }
    }

    /// The experts in the tensors. With slots they are more than a row can be routed to.
    fn slots(&self) -> usize {
        if self.uses_slots { 2 * self.n_experts } else { self.n_experts }
    }

    /// The slot of an expert in the tensors.
    fn slot(&self, expert: usize) -> usize {
        if self.uses_slots { (3 * expert + 1) % self.slots() } else { expert }
    }

    /// A step in which the second half of the rows all use the same experts.
    fn step(&self, experts: &Experts, rows: usize) -> CaseStep {
        // Small values, so that the activations are not only evaluated where they are flat.
        let x: Vec<f32> = random::activations(rows * self.hidden, rows as u64).iter().map(|x| x / 64.0).collect();
        let mut routes = Vec::new();
        let mut expected = Vec::new();
        for row in 0..rows {
            let first = if row < rows.div_ceil(2) { row * 3 } else { 1 };
            let chosen = |k: usize| (first + k * k + k) % self.n_experts;
            let mut of_row: Vec<(usize, f64)> = Vec::new();
            for k in 0..self.top_k {
                // The quadratic sequence can repeat an expert; routes never do.
                let mut expert = chosen(k);
                while of_row.iter().any(|(other, _)| *other == expert) {
                    expert = (expert + 1) % self.n_experts;
                }
                of_row.push((expert, f64::from(1.0 / (k + 1) as f32)));
            }
            let elsewhere = |k: usize| self.some_elsewhere && (row + k).is_multiple_of(3);
            routes.extend(of_row.iter().enumerate().map(|(k, (e, _))| if elsewhere(k) { -1.0 } else { *e as f32 }));
            routes.extend(of_row.iter().map(|(_, weight)| *weight as f32));
            if self.uses_slots {
                routes.extend(of_row.iter().map(|(expert, _)| self.slot(*expert) as f32));
            }
            let here = of_row.iter().enumerate().filter(|(k, _)| !elsewhere(*k));
            let here = here.map(|(_, (expert, weight))| (self.slot(*expert), *weight));
            let x: Vec<f64> = x[row * self.hidden..][..self.hidden].iter().map(|x| f64::from(*x)).collect();
            let y = reference::output(experts, &x, &here.collect::<Vec<_>>());
            // Two roundings to 15 bits change a sum whose terms cancel out by a few thousandths of the row's root mean
            // square.
            let usual = (y.iter().map(|y| y * y).sum::<f64>() / y.len() as f64).sqrt();
            expected.extend(y.into_iter().map(|value| Expected { value, tolerance: 4e-3 * usual }));
        }
        CaseStep::of_rows(rows, vec![x, routes], vec![expected])
    }
}
