//! The table of cases, on a device.

use cuelight_shaders::cases::Case;
use cuelight_shaders::{attention, elementwise, embed, glu, matmul, rms_norm, rope, select_rows};

use super::one_op::OneOp;
use super::{assert_clean, device_with_matrices, shared_device};

/// Runs cases, in both modes where it matters, and collects all that is wrong: one run says everything.
fn check(cases: Vec<Case>) {
    let Some(device) = shared_device() else { return };
    let mut wrong = Vec::new();
    for case in &cases {
        let mut op = OneOp::new(&device, &*case.op, case.cache.as_ref()).unwrap();
        // Float16 has another bound: see `linear_in_matrices_of_float16_computes_what_it_must`.
        op.limits.cooperative_matrix = None;
        for deterministic in [false, true] {
            op.deterministic = deterministic;
            for (index, step) in case.steps.iter().enumerate() {
                let found = op.run(&step.batch, step.rows, &step.inputs).unwrap();
                if let Err(error) = case.check(index, &found) {
                    wrong.push(format!("deterministic {deterministic}: {error}"));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{} steps are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert_clean(&device);
}

#[test]
fn small_ops_compute_what_they_must() {
    for cases in [embed::cases, rms_norm::cases, rope::cases, glu::cases, elementwise::cases, select_rows::cases] {
        check(cases());
    }
}

#[test]
fn linear_computes_what_it_must() {
    check(matmul::cases());
}

#[test]
fn linear_in_matrices_of_float16_computes_what_it_must() {
    let Some(device) = device_with_matrices() else { return };
    let mut wrong = Vec::new();
    for case in matmul::half_cases() {
        let op = OneOp::new(&device, &*case.op, None).unwrap();
        for (index, step) in case.steps.iter().enumerate() {
            let found = op.run(&step.batch, step.rows, &step.inputs).unwrap();
            wrong.extend(case.check(index, &found).err());
        }
    }
    assert!(wrong.is_empty(), "{} steps are wrong:\n{}", wrong.len(), wrong.join("\n"));
    assert_clean(&device);
}

#[test]
fn attention_computes_what_it_must() {
    check(attention::cases());
}

#[test]
fn a_grid_that_is_short_in_one_dimension_goes_on_in_another() {
    let Some(device) = shared_device() else { return };
    for case in matmul::cases().iter().take(20) {
        let mut op = OneOp::new(&device, &*case.op, None).unwrap();
        op.limits.max_groups[0] = 2;
        op.limits.cooperative_matrix = None;
        for (index, step) in case.steps.iter().enumerate() {
            let found = op.run(&step.batch, step.rows, &step.inputs).unwrap();
            case.check(index, &found).unwrap();
        }
    }
    assert_clean(&device);
}
