//! Products of many rows with every kernel of the device. The table of cases is too small for them.

use std::sync::Arc;

use cuelight_shaders::cases::CaseBatch;
use cuelight_shaders::gpu::{DeviceLimits, RowCount};
use cuelight_shaders::matmul::{Linear, reference};
use cuelight_shaders::quant::{Format, random};
use cuelight_shaders::weight::Weight;

use super::one_op::OneOp;
use super::{assert_clean, device_with_matrices, shared_device};
use crate::backend::vulkan::Device;

/// Runs the product in float32 or with float16 matrices and compares it with the reference. `tolerance` is relative to the sum
/// of the magnitudes of the addends.
fn check(device: &Arc<Device>, matrices: bool, tolerance: f64, weight: &Weight, x: &[f32]) {
    let limits = device.info.limits.clone();
    let cooperative_matrix = limits.cooperative_matrix.filter(|_| matrices);
    check_with(device, DeviceLimits { cooperative_matrix, ..limits }, tolerance, weight, x);
}

/// The same with other limits.
fn check_with(device: &Arc<Device>, limits: DeviceLimits, tolerance: f64, weight: &Weight, x: &[f32]) {
    let rows = x.len() / weight.columns;
    let linear = Linear::new(vec![weight.clone()], vec![None]).unwrap();
    let mut op = OneOp::new(device, &linear, None).unwrap();
    let matrices = limits.cooperative_matrix.is_some();
    op.limits = limits;
    let found = op.run(&CaseBatch::of_rows(rows), RowCount::All(rows), &[x.to_vec()]).unwrap();
    let expected = reference::linear(weight, None, x);
    for (index, (found, expected)) in found[0].iter().zip(expected).enumerate() {
        let (row, output) = (index / weight.rows, index % weight.rows);
        assert!(
            (f64::from(*found) - expected.value).abs() <= tolerance * expected.magnitude,
            "matrices {matrices}, row {row}, output {output}: {found}, expected {expected:?}"
        );
    }
    assert_clean(device);
}

/// The tolerance of float16 matrices.
const HALVES: f64 = 2.0 / 1024.0;

fn check_both(weight: &Weight, x: &[f32]) {
    if let Some(device) = shared_device() {
        check(&device, false, 2e-6, weight, x);
    }
    if let Some(device) = device_with_matrices() {
        check(&device, true, HALVES, weight, x);
    }
}

#[test]
fn tiles_of_every_size_are_correct_when_full_and_partial() {
    // A device with 48 KiB of shared memory uses the largest tiles for the first case. In all cases the last tile is partial.
    for (rows, outputs) in [(530, 4200), (530, 1100), (70, 300), (20, 100)] {
        let weight = random::weight("w", Format::Q4_0, outputs, 96, 1);
        check_both(&weight, &random::activations(rows * 96, 2));
    }
}

#[test]
fn some_tens_of_rows_are_correct_with_any_number_of_outputs() {
    let Some(device) = device_with_matrices() else { return };
    let formats = ["Q4_K", "Q6_K", "Q8_0", "Q3_K", "IQ2_XS", "F16"];
    let formats = Format::ALL.iter().filter(|format| formats.contains(&format.name())).cycle();
    let sizes = [(9, 37, 512), (16, 200, 2304), (17, 131, 768), (33, 95, 256), (64, 33, 1280), (64, 1, 256)];
    for ((&format, (rows, outputs, columns)), compute_units) in formats.zip(sizes).zip([1, 128].into_iter().cycle()) {
        let weight = random::weight("w", format, outputs, columns, 1);
        let x = random::activations(rows * columns, 2);
        // A device with few compute units has enough tiles if each has more outputs.
        let limits = DeviceLimits { compute_units, ..device.info.limits.clone() };
        check_with(&device, limits, HALVES, &weight, &x);
    }
}

#[test]
fn activations_beyond_the_range_of_float16_stay_finite_and_precise() {
    let weight = random::weight("w", Format::Q8_0, 40, 64, 1);
    let mut x = random::activations(21 * 64, 2);
    for (row, x) in x.chunks_exact_mut(64).enumerate() {
        let scale = [1.0, 1e6, 1e-7, 1e30, 1e-30, 3e5, 0.0][row % 7];
        x.iter_mut().for_each(|x| *x *= scale);
    }
    check_both(&weight, &x);
}

#[test]
fn a_row_that_is_not_finite_affects_no_other_row() {
    let Some(device) = shared_device() else { return };
    let weight = random::weight("w", Format::Q8_0, 40, 64, 1);
    let linear = Linear::new(vec![weight], vec![None]).unwrap();
    let mut x = random::activations(20 * 64, 2);
    x[64 * 3 + 5] = f32::INFINITY;
    x[64 * 7 + 9] = f32::NAN;
    // With the kernel that the device prefers.
    let op = OneOp::new(&device, &linear, None).unwrap();
    let found = op.run(&CaseBatch::of_rows(20), RowCount::All(20), &[x]).unwrap();
    for (row, values) in found[0].chunks_exact(40).enumerate() {
        let finite = values.iter().all(|value| value.is_finite());
        assert_eq!(finite, row != 3 && row != 7, "row {row}: {values:?}");
    }
    assert_clean(&device);
}
