//! The op against a float64 reference, and that no row depends on the others.

use std::sync::Arc;

use proptest::prelude::*;

use super::reference::reference;
use super::{Adapter, AdapterUse, LoraDelta, LowRank, Target};
use crate::cpu::{ActivationBits, Kernel, Solo, Team};
use crate::kv::KvCache;
use crate::op::{Batch, CpuArgs, Op};
use crate::recurrent::StateCache;
use crate::testing::{assert_close, supported_kernels, values};
use crate::tuning::Tuning;

const TARGET: usize = 1;

/// Random matrices: A [rank, columns] and B [outputs, rank].
fn matrices(seed: u64, [outputs, columns]: [usize; 2], rank: usize) -> [Vec<f32>; 2] {
    [values(seed, rank * columns), values(seed ^ 0x55, outputs * rank)]
}

fn adapter(seed: u64, shape: [usize; 2], rank: usize, scale: f32) -> Arc<Adapter> {
    let [a, b] = matrices(seed, shape, rank);
    let change = LowRank::new(a.into(), &b, shape, scale).expect("the matrices fit");
    Arc::new(Adapter::new(vec![None, Some(change)]))
}

fn delta(index: usize, [outputs, columns]: [usize; 2], max_rank: usize) -> LoraDelta {
    LoraDelta::new(vec![Target { index, count: 1, outputs, columns, max_rank }])
}

/// Two threads that take turns: the tasks of each half in reverse.
struct Reversed;

impl Team for Reversed {
    fn threads(&self) -> usize {
        2
    }

    fn for_each(&self, tasks: usize, body: &(dyn Fn(usize) + Sync)) {
        (0..tasks).rev().for_each(body);
    }
}

/// Runs the op on rows of which row `r` is the only one of a sequence with adapter `used[r]`.
fn run(
    op: &LoraDelta,
    (kernel, team): (Kernel, &dyn Team),
    used: &[Option<AdapterUse>],
    [y, x]: [&[f32]; 2],
) -> Vec<f32> {
    let rows = used.len();
    let sequences: Vec<u32> = (0..rows as u32).collect();
    let adapters: Vec<Option<&AdapterUse>> = used.iter().map(Option::as_ref).collect();
    let batch = Batch { tokens: &sequences, sequences: &sequences, adapters: &adapters, ..Batch::default() };
    let mut output = vec![f32::NAN; y.len()];
    op.run_cpu(&mut CpuArgs {
        kernel,
        activation_bits: ActivationBits::default(),
        tuning: Tuning::default(),
        team,
        batch,
        kv: &KvCache::empty(),
        states: &StateCache::empty(),
        rows,
        scratch: &mut vec![f32::NAN; op.scratch_len(kernel, rows, 0)],
        inputs: &[y, x],
        outputs: &mut [&mut output],
    });
    output
}

proptest! {
    #[test]
    fn every_kernel_agrees_with_float64_and_leaves_other_rows(
        rows in 1usize..40, columns in 1usize..70, outputs in 1usize..150, rank in 1usize..20, seed: u64,
    ) {
        let shape = [outputs, columns];
        let scales = [0.5, 2.0];
        let adapters: Vec<Arc<Adapter>> = (0..2).map(|n| adapter(seed ^ n, shape, rank, scales[n as usize])).collect();
        let of_row = |row: usize| (seed as usize).wrapping_add(row * row) % 3;
        let factor = |row: usize| if row.is_multiple_of(2) { 1.0 } else { 0.25 };
        let used: Vec<Option<AdapterUse>> = (0..rows)
            .map(|row| adapters.get(of_row(row)).map(|a| AdapterUse { adapter: Arc::clone(a), scale: factor(row) }))
            .collect();
        let (y, x) = (values(seed ^ 9, rows * outputs), values(seed ^ 8, rows * columns));
        let op = delta(TARGET, shape, rank + 3);
        for kernel in supported_kernels() {
            let found = run(&op, (kernel, &Solo), &used, [&y, &x]);
            prop_assert_eq!(&found, &run(&op, (kernel, &Reversed), &used, [&y, &x]));
            for row in 0..rows {
                let (y, x) = (&y[row * outputs..][..outputs], &x[row * columns..][..columns]);
                let found = &found[row * outputs..][..outputs];
                prop_assert_eq!(found, run(&op, (kernel, &Solo), &used[row..=row], [y, x]));
                match of_row(row) {
                    2 => prop_assert_eq!(found, y),
                    n => {
                        let [a, b] = matrices(seed ^ n as u64, shape, rank);
                        let scale = f64::from(scales[n] * factor(row));
                        assert_close(found, &reference(y, x, [&a, &b], scale), 1e-4);
                    }
                }
            }
        }
    }
}

#[test]
fn an_adapter_without_a_change_of_the_projection_leaves_it() {
    let shape = [7, 5];
    let used = [Some(AdapterUse { adapter: adapter(1, shape, 2, 1.0), scale: 1.0 })];
    let (y, x) = (values(2, 7), values(3, 5));
    for target in [0, 2] {
        let op = delta(target, shape, 2);
        assert_eq!(run(&op, (Kernel::Scalar, &Solo), &used, [&y, &x]), y);
    }
}

#[test]
fn matrices_that_do_not_fit_are_refused() {
    let new = |a: usize, b: usize| LowRank::new(vec![0.0; a].into(), &vec![0.0; b], [3, 4], 1.0).map(drop);
    assert!(new(8, 6).is_some());
    assert!(new(7, 6).is_none() && new(8, 5).is_none());
    let op = delta(0, [3, 4], 2);
    assert_eq!(op.output_widths(&[3, 4]), Ok(vec![3]));
    assert!(op.output_widths(&[4, 3]).is_err());
}

#[test]
fn a_guard_is_dropped_with_the_last_use() {
    let guard = Arc::new(());
    let adapter = Arc::new(Adapter::new(Vec::new()).guarded_by(Arc::clone(&guard)));
    let used = AdapterUse { adapter: Arc::clone(&adapter), scale: 1.0 };
    drop(adapter);
    assert_eq!(Arc::strong_count(&guard), 2);
    drop(used);
    assert_eq!(Arc::strong_count(&guard), 1);
}
