//! The expected results: rows of sequences with different adapters, with one that does not change the projection, and with none.

use std::sync::Arc;

use super::reference::reference;
use super::{Adapter, AdapterUse, LoraDelta, LowRank, Target};
use crate::cases::{Case, CaseStep, Expected};
use crate::quant::random;

/// Rows of each sequence of a step.
const ROWS_OF_SEQUENCE: usize = 3;

/// The number of the last of several projections.
const LAST_OF_SEVERAL: usize = 2;

/// Two matrices of a change: A [rank, columns] and B [outputs, rank].
struct Matrices {
    a: Vec<f32>,
    b: Vec<f32>,
    scale: f32,
}

impl Matrices {
    fn new(target: &Target, seed: u64) -> Self {
        let rank = 1 + (seed as usize % target.max_rank);
        let a = random::activations(rank * target.columns, seed);
        Matrices { a, b: random::activations(target.outputs * rank, seed ^ 0x55), scale: 0.25 + seed as f32 / 8.0 }
    }

    fn change(&self, target: &Target) -> Option<LowRank> {
        LowRank::new(self.a.clone().into(), &self.b, [target.outputs, target.columns], self.scale)
    }
}

/// The cases of the op.
#[must_use]
pub fn cases() -> Vec<Case> {
    let one = |outputs, columns, max_rank| vec![Target { index: 0, count: 1, outputs, columns, max_rank }];
    let of_one_input = [40, 8, 24].iter().enumerate();
    let several =
        of_one_input.map(|(index, outputs)| Target { index, count: 1, outputs: *outputs, columns: 33, max_rank: 6 });
    vec![
        case("one column", one(1, 1, 1)),
        case("small", one(37, 70, 9)),
        case("wide", one(300, 1030, 16)),
        case("three projections of one input", several.collect()),
        of_selected_rows(case("of selected rows", one(37, 70, 9))),
        of_tokens(),
    ]
}

/// The same case after an op that selects rows.
fn of_selected_rows(case: Case) -> Case {
    let select = |step: CaseStep| {
        let (sequences, tables, adapters) =
            (step.batch.sequences.clone(), step.batch.block_tables.clone(), step.batch.adapters.clone());
        let mut step = step.of_selected();
        // Of the rows 0, 1, 2, ... the odd ones are selected.
        step.batch.sequences =
            (0..step.batch.tokens.len()).map(|row| sequences[(row / 2).min(sequences.len() - 1)]).collect();
        step.batch.block_tables = tables;
        step.batch.adapters = adapters;
        step
    };
    Case { steps: case.steps.into_iter().map(select).collect(), ..case }
}

/// An embedding: the input of a row is 1 in the column of its token.
fn of_tokens() -> Case {
    let target = Target { index: 0, count: 1, outputs: 37, columns: 11, max_rank: 9 };
    let of_values = case("of tokens", vec![target.clone()]);
    let steps = of_values.steps.into_iter().enumerate().map(|(number, mut step)| {
        let rows = step.batch.tokens.len();
        step.batch.tokens = (0..rows).map(|row| ((row * row + number) % target.columns) as u32).collect();
        let columns = target.columns;
        let one_hot = |token: u32| (0..columns).map(move |column| f32::from(u8::from(column == token as usize)));
        let x: Vec<f32> = step.batch.tokens.iter().copied().flat_map(one_hot).collect();
        let used: Vec<Option<(u64, f32)>> = step
            .batch
            .adapters
            .iter()
            .map(|used| used.as_ref().map(|used| (u64::from(used.adapter.name().as_ref() == "1"), used.scale)))
            .collect();
        step.expected = vec![expected(&target, &used, &step.inputs[0], &x)];
        step.inputs.truncate(1);
        step
    });
    Case::new("of tokens", LoraDelta::of_tokens(target.clone()), steps.collect())
}

/// The expected rows: each sequence has its adapter, by number, with a factor.
fn expected(target: &Target, used: &[Option<(u64, f32)>], y: &[f32], x: &[f32]) -> Vec<Expected> {
    let rows = x.chunks_exact(target.columns).zip(y.chunks_exact(target.outputs)).enumerate();
    let of_row = |(row, (x, y)): (usize, (&[f32], &[f32]))| {
        let change =
            used[row / ROWS_OF_SEQUENCE].and_then(|(number, factor)| Some((matrices(number, target)?, factor)));
        match change {
            Some((Matrices { a, b, scale }, factor)) => {
                Expected::within(1e-4, reference(y, x, [&a, &b], f64::from(scale) * f64::from(factor)))
            }
            None => Expected::exactly(y),
        }
    };
    rows.flat_map(of_row).collect()
}

/// What an adapter changes of a projection: the second one leaves the last of several.
fn matrices(adapter: u64, target: &Target) -> Option<Matrices> {
    let is_changed = adapter == 0 || target.index < LAST_OF_SEVERAL;
    is_changed.then(|| Matrices::new(target, 1 + 10 * adapter + target.index as u64))
}

fn case(name: &str, targets: Vec<Target>) -> Case {
    let adapter = |number: u64| {
        let changes = targets.iter().map(|target| matrices(number, target)?.change(target));
        Arc::new(Adapter::new(changes.collect()).named(&number.to_string()))
    };
    let adapters = [adapter(0), adapter(1)];
    let step = |used: &[Option<(u64, f32)>]| {
        let rows = used.len() * ROWS_OF_SEQUENCE;
        let x = random::activations(rows * targets[0].columns, rows as u64);
        let ys = targets.iter().map(|target| random::activations(rows * target.outputs, target.index as u64));
        let ys: Vec<Vec<f32>> = ys.collect();
        let expected = targets.iter().zip(&ys).map(|(target, y)| expected(target, used, y, &x)).collect();
        let mut step = CaseStep::of_rows(rows, ys.iter().cloned().chain([x.clone()]).collect(), expected);
        step.batch.sequences = (0..rows).map(|row| (row / ROWS_OF_SEQUENCE) as u32).collect();
        step.batch.positions = (0..rows).map(|row| (row % ROWS_OF_SEQUENCE) as u32).collect();
        step.batch.block_tables = vec![Vec::new(); used.len()];
        let of_sequence = |(n, scale): (u64, f32)| AdapterUse { adapter: Arc::clone(&adapters[n as usize]), scale };
        step.batch.adapters = used.iter().map(|used| used.map(of_sequence)).collect();
        step
    };
    let steps = vec![
        step(&[Some((0, 1.0))]),
        step(&[None, Some((1, 0.5)), Some((0, 1.0)), None, Some((0, -2.0))]),
        step(&[None, None]),
    ];
    Case::new(name, LoraDelta::new(targets.clone()), steps)
}
