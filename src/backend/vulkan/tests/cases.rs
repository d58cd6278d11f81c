//! The table of cases, on a device.

use std::collections::HashSet;

use cuelight_shaders::cases::Case;
use cuelight_shaders::gpu::{DeviceLimits, Module};
use cuelight_shaders::{
    attention, cases, choose_token, elementwise, embed, experts, fusion, glu, heads, matmul, rms_norm, rope,
    select_rows,
};

use super::one_op::OneOp;
use super::{assert_clean, device_with_matrices, shared_device};

/// Runs cases on a device with its limits changed, and collects all that is wrong: one run tells everything. Returns the
/// shaders that ran.
fn check_with(cases: &[Case], deterministic: bool, change: impl Fn(&mut DeviceLimits)) -> HashSet<Module> {
    let Some(device) = shared_device() else { return HashSet::new() };
    let (mut wrong, mut ran) = (Vec::new(), HashSet::new());
    for case in cases {
        let mut op = OneOp::new(&device, &*case.op, case.cache.as_ref()).unwrap();
        op.deterministic = deterministic;
        change(&mut op.limits);
        for (index, step) in case.steps.iter().enumerate() {
            let found = op.run(&step.batch, step.rows, &step.inputs).unwrap();
            wrong.extend(case.check(index, &found).err());
            ran.extend(op.ran.borrow().iter().copied());
        }
    }
    assert!(wrong.is_empty(), "{} steps are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert_clean(&device);
    ran
}

/// Float16 has another bound: see `linear_in_matrices_of_float16_computes_what_it_must`.
fn in_float32(limits: &mut DeviceLimits) {
    limits.cooperative_matrix = None;
}

/// The cases of ops with little to compute.
fn small_ops() -> Vec<Case> {
    let of_ops = [embed::cases, rms_norm::cases, rope::cases, glu::cases, elementwise::cases, heads::cases];
    let others = [select_rows::cases as fn() -> Vec<Case>, choose_token::cases::cases];
    of_ops.into_iter().chain(others).flat_map(|cases| cases()).collect()
}

#[test]
fn small_ops_compute_what_they_must() {
    check_with(&small_ops(), false, |_| {});
}

#[test]
fn linear_computes_what_it_must() {
    for deterministic in [false, true] {
        check_with(&matmul::cases(), deterministic, in_float32);
    }
}

#[test]
fn linear_in_matrices_of_float16_computes_what_it_must() {
    if device_with_matrices().is_some() {
        check_with(&matmul::half_cases(), false, |_| {});
    }
}

#[test]
fn attention_computes_what_it_must_in_rows_and_tiles_with_contexts_cut_and_whole() {
    let ran = check_with(&attention::cases(), false, |_| {});
    let ways = [Module::Attend, Module::AttendTile, Module::AttentionMerge];
    assert!(ran.is_empty() || ways.iter().all(|module| ran.contains(module)));
}

#[test]
fn routes_and_experts_compute_what_they_must() {
    for deterministic in [false, true] {
        let ran = check_with(&experts::cases(), deterministic, in_float32);
        assert!(ran.is_empty() || ran.contains(&Module::ExpertsTile) != deterministic);
    }
}

#[test]
fn fused_ops_compute_what_they_must() {
    for deterministic in [false, true] {
        let ran = check_with(&fusion::cases(), deterministic, in_float32);
        assert!(
            ran.is_empty() || ran.contains(&Module::Glu) != deterministic,
            "with many rows a gate is an op of its own"
        );
    }
}

#[test]
fn the_table_has_every_op() {
    let large = [matmul::cases, attention::cases, experts::cases, fusion::cases]
        .iter()
        .map(|cases| cases().len())
        .sum::<usize>();
    assert_eq!(cases::all().len(), small_ops().len() + large);
}

#[test]
fn a_grid_that_is_short_in_one_dimension_goes_on_in_another() {
    let few_outputs = |case: &Case| case.op.weights().iter().all(|weight| weight.rows < 100);
    let cases: Vec<Case> = matmul::cases().into_iter().filter(few_outputs).collect();
    let change = |limits: &mut DeviceLimits| limits.max_groups[0] = 2;
    check_with(&cases, true, change);
    check_with(&experts::cases()[9..12], false, change);
}

/// As wide as other makers' subgroups, and no more shared memory than any device has. It tries the shapes of workgroups:
/// shaders that use subgroups themselves must go by those of the real device.
#[test]
fn workgroups_of_other_shapes_compute_the_same() {
    for subgroup_size in [32, 128] {
        let change = |limits: &mut DeviceLimits| {
            in_float32(limits);
            limits.subgroup_size = subgroup_size;
            limits.max_workgroup_size = 128;
            limits.shared_memory_bytes = 16 << 10;
        };
        check_with(&small_ops(), false, change);
        check_with(&matmul::cases()[..4], false, change);
        check_with(&experts::cases()[..12], false, change);
        check_with(&fusion::cases()[..12], false, change);
        // Without tiles, for which 16 KiB are too few, with tiles of 16 queries, and where the device has as much of 32.
        let Some(device) = shared_device() else { return };
        for shared_memory_kib in [16, 32, 48] {
            if shared_memory_kib << 10 > device.info.limits.shared_memory_bytes {
                continue;
            }
            let ran = check_with(&attention::cases()[..4], false, |limits| {
                change(limits);
                limits.shared_memory_bytes = shared_memory_kib << 10;
            });
            assert_eq!(ran.contains(&Module::AttendTile), shared_memory_kib > 16);
        }
    }
}
