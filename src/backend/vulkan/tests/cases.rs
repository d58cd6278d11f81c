//! Runs the table of cases on a device.

use std::collections::HashSet;

use cuelight_shaders::cases::Case;
use cuelight_shaders::gpu::{DeviceLimits, Module};
use cuelight_shaders::{attention, experts, fusion, matmul, ops};

use super::one_op::OneOp;
use super::{assert_clean, device_with_matrices, part_of, sampled, shared_device};

/// Runs cases on a device with changed limits and reports all wrong results together. Returns the shaders that ran; `None` if
/// there is no device.
fn check_with(cases: &[Case], deterministic: bool, change: impl Fn(&mut DeviceLimits)) -> Option<HashSet<Module>> {
    let device = shared_device()?;
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
    assert!(!ran.is_empty(), "no shader ran");
    assert_clean(&device);
    Some(ran)
}

/// Float16 has another error bound: see `linear_with_float16_matrices_computes_the_expected_values`.
fn in_float32(limits: &mut DeviceLimits) {
    limits.cooperative_matrix = None;
}

/// Ops with a test of their own below, which checks more than their cases.
const LARGE: [&str; 4] = ["attention", "experts", "fusion", "matmul"];

/// The cases of all other ops of the registry.
fn small_ops() -> Vec<Case> {
    let all = ops::ALL.iter().filter(|op| !LARGE.contains(&op.name)).flat_map(|op| (op.cases)());
    all.filter(|case| !case.op.runs_on_host()).collect()
}

#[test]
fn small_ops_compute_the_expected_values() {
    check_with(&small_ops(), false, |_| {});
}

#[test]
fn linear_computes_the_expected_values() {
    for deterministic in [false, true] {
        check_with(&sampled(matmul::cases()), deterministic, in_float32);
    }
}

#[test]
fn linear_with_float16_matrices_computes_the_expected_values() {
    if device_with_matrices().is_some() {
        // Half of a sample: these kernels take a software device the longest to compile.
        check_with(&part_of(sampled(matmul::half_cases()), 2, 0), false, |_| {});
    }
}

/// Each case runs in one of the two modes, which change from day to day.
#[test]
fn attention_computes_the_expected_values() {
    for deterministic in [false, true] {
        check_with(&part_of(sampled(attention::cases()), 2, deterministic.into()), deterministic, in_float32);
    }
}

#[test]
fn attention_with_float16_matrices_computes_the_expected_values() {
    if device_with_matrices().is_some() {
        let ran = check_with(&sampled(attention::half_cases()), false, |_| {});
        assert!(ran.is_some_and(|ran| ran.contains(&Module::AttentionAttendMatrices)));
    }
}

#[test]
fn routes_and_experts_compute_the_expected_values() {
    check_with(&sampled(experts::cases()), false, in_float32);
}

#[test]
fn routes_and_experts_compute_the_expected_values_deterministically() {
    check_with(&sampled(experts::cases()), true, in_float32);
}

#[test]
fn fused_ops_compute_the_expected_values() {
    check_with(&sampled(fusion::cases()), false, in_float32);
}

/// Each case runs in one of the two modes, which change from day to day.
#[test]
#[ignore = "slow tier: a software device compiles the shaders of all cases for minutes"]
fn every_case_of_products_computes_the_expected_values() {
    for deterministic in [false, true] {
        check_with(&part_of(matmul::cases(), 2, deterministic.into()), deterministic, in_float32);
    }
}

#[test]
#[ignore = "slow tier: a software device compiles the shaders of all cases for minutes"]
fn every_case_of_experts_computes_the_expected_values_with_every_kernel() {
    for deterministic in [false, true] {
        let Some(ran) = check_with(&experts::cases(), deterministic, in_float32) else { return };
        assert_eq!(ran.contains(&Module::ExpertsTile), !deterministic);
    }
}

#[test]
#[ignore = "slow tier: a software device compiles the shaders of all cases for minutes"]
fn every_case_of_fusion_computes_the_expected_values_with_every_kernel() {
    for deterministic in [false, true] {
        let Some(ran) = check_with(&fusion::cases(), deterministic, in_float32) else { return };
        assert_eq!(ran.contains(&Module::Glu), !deterministic, "with many rows the gate is a separate dispatch");
    }
}

#[test]
#[ignore = "slow tier: a software device compiles the shaders of all cases for minutes"]
fn every_case_of_attention_computes_the_expected_values_with_every_kernel() {
    for (deterministic, of_rows) in [(false, Module::AttentionAttendRow), (true, Module::AttentionAttend)] {
        let Some(ran) = check_with(&attention::cases(), deterministic, in_float32) else { return };
        for module in [of_rows, Module::AttentionAttendTile, Module::AttentionMerge] {
            assert!(ran.contains(&module), "{module:?} did not run");
        }
    }
}

#[test]
fn every_op_with_a_test_of_its_own_is_registered() {
    for name in LARGE {
        assert!(ops::ALL.iter().any(|op| op.name == name), "{name}");
    }
}

#[test]
fn a_grid_beyond_the_limit_of_one_dimension_uses_another() {
    let few_outputs = |case: &Case| case.op.weights().iter().all(|weight| weight.rows < 100);
    let cases: Vec<Case> = matmul::cases().into_iter().filter(few_outputs).collect();
    let change = |limits: &mut DeviceLimits| limits.max_groups[0] = 2;
    check_with(&sampled(cases), true, change);
    check_with(&experts::cases()[9..10], false, change);
}

/// Checks ops with a device of another vendor's subgroup size and with the minimum of shared memory. This tests the shapes of
/// workgroups only: shaders that use subgroup operations depend on the real device's subgroups.
fn check_workgroup_shapes(subgroup_size: u32, cases_of: impl Fn(Vec<Case>) -> Vec<Case>) {
    let change = |limits: &mut DeviceLimits| {
        in_float32(limits);
        limits.subgroup_size = subgroup_size;
        limits.max_workgroup_size = 128;
        limits.shared_memory_bytes = 16 << 10;
    };
    check_with(&small_ops(), false, change);
    for cases in [matmul::cases(), experts::cases(), fusion::cases()] {
        check_with(&cases_of(cases), false, change);
    }
    // Without tiles, for which 16 KiB are too little; with tiles of 16 queries; and, if the device allows it, of 32.
    let Some(device) = shared_device() else { return };
    for shared_memory_kib in [16, 32, 48] {
        if shared_memory_kib << 10 > device.info.limits.shared_memory_bytes {
            continue;
        }
        let ran = check_with(&cases_of(attention::cases()), false, |limits| {
            change(limits);
            limits.shared_memory_bytes = shared_memory_kib << 10;
        });
        let Some(ran) = ran else { return };
        assert_eq!(ran.contains(&Module::AttentionAttendTile), shared_memory_kib > 16);
    }
}

/// The first `count` cases.
fn first(count: usize) -> impl Fn(Vec<Case>) -> Vec<Case> {
    move |cases| cases.into_iter().take(count).collect()
}

#[test]
fn other_workgroup_shapes_give_the_same_results() {
    check_workgroup_shapes(32, first(1));
}

#[test]
#[ignore = "slow tier: a software device compiles shaders for minutes"]
fn all_workgroup_shapes_give_the_same_results() {
    for subgroup_size in [32, 128] {
        check_workgroup_shapes(subgroup_size, first(12));
    }
}
