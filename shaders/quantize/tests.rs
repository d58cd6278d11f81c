//! Tests of all targets: the error on random values, exact values, importance, and extreme values.

use proptest::prelude::*;

use super::*;
use crate::quant::random;

fn targets() -> impl Iterator<Item = Format> {
    Format::ALL.iter().copied().filter(|format| is_target(*format))
}

/// The values after quantization.
fn round_trip(format: Format, values: &[f32], importance: Option<&[f32]>) -> Vec<f32> {
    let mut bytes = vec![0; format.row_bytes(values.len()).unwrap()];
    quantize(format, values, importance, &mut bytes).unwrap();
    let mut found = vec![0.0; values.len()];
    format.dequantize(&bytes, &mut found);
    found
}

/// Values of about a normal distribution.
fn normal(count: usize, seed: u64) -> Vec<f32> {
    let uniform = random::activations(12 * count, seed);
    uniform.chunks_exact(12).map(|parts| parts.iter().sum::<f32>() * 0.01).collect()
}

fn relative_error(values: &[f32], found: &[f32], weights: impl Fn(usize) -> f64) -> f64 {
    let (mut error, mut sum) = (0.0, 0.0);
    for (index, (value, found)) in values.iter().zip(found).enumerate() {
        error += weights(index) * f64::from(value - found).powi(2);
        sum += weights(index) * f64::from(*value).powi(2);
    }
    (error / sum).sqrt()
}

/// Each bit halves the error; the table has the least that a format must reach on values of a normal distribution.
#[test]
fn the_error_on_normal_values_is_small_in_every_target() {
    let values = normal(256 * 64, 5);
    let gate = |format| match format {
        Format::F32 => 0.0,
        Format::F16 => 3e-4,
        Format::BF16 => 2e-3,
        Format::Q8_0 => 6e-3,
        Format::Q6_K => 0.022,
        Format::Q5_K | Format::Q5_1 => 0.040,
        Format::Q5_0 => 0.048,
        Format::Q4_K | Format::Q4_1 | Format::IQ4_XS | Format::IQ4_NL => 0.083,
        Format::Q4_0 => 0.094,
        Format::MXFP4 => 0.125,
        Format::Q3_K => 0.175,
        Format::Q2_K => 0.32,
        Format::Q2_0 => 0.36,
        Format::TQ1_0 | Format::TQ2_0 => 0.45,
        Format::Q1_0 => 0.63,
        other => panic!("{other} has no bound"),
    };
    let mut wrong = Vec::new();
    for format in targets() {
        let error = relative_error(&values, &round_trip(format, &values, None), |_| 1.0);
        println!("{format:8} {error:.4}");
        if error > gate(format) {
            wrong.push(format!("{format}: {error:.4} > {}", gate(format)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn values_of_a_format_without_group_scales_stay_as_they_are() {
    for format in [Format::Q4_0, Format::Q5_0, Format::IQ4_NL, Format::TQ1_0, Format::Q1_0] {
        let values = random::weight("w", format, 1, 16 * format.block_len(), 3).to_f32();
        let found = round_trip(format, &values, None);
        let error = relative_error(&values, &found, |_| 1.0);
        assert!(error < 1e-3, "{format}: {error:e}");
    }
}

#[test]
fn importance_moves_the_error_to_unimportant_columns() {
    let (columns, rows) = (512, 16);
    let values = normal(columns * rows, 7);
    let importance: Vec<f32> = (0..columns).map(|column| if column % 8 == 0 { 100.0 } else { 0.1 }).collect();
    let weight = |index: usize| f64::from(importance[index % columns]);
    for format in [Format::Q2_K, Format::Q3_K, Format::Q4_K, Format::Q5_K, Format::Q6_K, Format::IQ4_XS, Format::Q4_0] {
        let without = relative_error(&values, &round_trip(format, &values, None), weight);
        let with = relative_error(&values, &round_trip(format, &values, Some(&importance)), weight);
        assert!(with < 0.9 * without, "{format}: {with:.4} with importance, {without:.4} without");
    }
}

#[test]
fn a_value_that_is_not_finite_is_an_error() {
    let mut values = vec![0.5; 256];
    values[17] = f32::NAN;
    let error = quantize(Format::Q4_K, &values, None, &mut [0; 144]).unwrap_err();
    assert!(matches!(error, QuantizeError::NotFinite { index: 17, .. }), "{error}");
}

#[test]
fn a_format_without_packer_is_an_error_that_lists_the_targets() {
    let error = quantize(Format::IQ1_S, &[0.5; 256], None, &mut [0; 50]).unwrap_err().to_string();
    assert!(error.contains("IQ1_S") && error.contains("Q4_K"), "{error}");
}

proptest! {
    #[test]
    fn any_finite_values_quantize_to_finite_values(
        index in 0..Format::ALL.len(),
        values in prop::collection::vec(prop_oneof![Just(0.0_f32), -1e30_f32..1e30, -1.0_f32..1.0, -1e-30_f32..1e-30], 256),
    ) {
        let format = Format::ALL[index];
        if is_target(format) && format != Format::F16 {
            let found = round_trip(format, &values, None);
            prop_assert!(found.iter().all(|value| value.is_finite()), "{format}: {found:?}");
        }
    }

    #[test]
    fn zeros_stay_zeros(index in 0..Format::ALL.len()) {
        let format = Format::ALL[index];
        if is_target(format) {
            prop_assert!(round_trip(format, &[0.0; 256], None).iter().all(|value| *value == 0.0), "{format}");
        }
    }
}
