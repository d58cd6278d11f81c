//! Tests of all targets: the error on random values, exact values, importance, and extreme values.

use proptest::prelude::*;

use super::*;
use crate::quant::random;

fn targets() -> impl Iterator<Item = Format> {
    Format::ALL.iter().copied().filter(|format| is_target(*format))
}

/// The targets whose codes are cells of a grid.
fn with_cells() -> impl Iterator<Item = Format> {
    targets().filter(|format| format.integers().is_some_and(|layout| layout.grid.is_some()))
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
        Format::MXFP4 | Format::NVFP4 => 0.125,
        Format::Q3_K => 0.175,
        Format::Q2_K => 0.32,
        Format::Q2_0 => 0.36,
        Format::TQ1_0 | Format::TQ2_0 => 0.45,
        Format::Q1_0 => 0.63,
        Format::IQ3_S => 0.135,
        Format::IQ3_XXS => 0.183,
        Format::IQ2_S => 0.245,
        Format::IQ2_XS => 0.293,
        Format::IQ2_XXS => 0.338,
        Format::IQ1_M => 0.425,
        Format::IQ1_S => 0.457,
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
    let others = [Format::Q2_K, Format::Q3_K, Format::Q4_K, Format::Q5_K, Format::Q6_K, Format::IQ4_XS, Format::Q4_0];
    for format in others.into_iter().chain(with_cells()) {
        let without = relative_error(&values, &round_trip(format, &values, None), weight);
        let with = relative_error(&values, &round_trip(format, &values, Some(&importance)), weight);
        assert!(with < 0.9 * without, "{format}: {with:.4} with importance, {without:.4} without");
    }
}

#[test]
fn a_value_that_is_not_finite_is_an_error() {
    for (format, bad) in [Format::Q4_K]
        .into_iter()
        .chain(with_cells())
        .flat_map(|format| [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].map(|bad| (format, bad)))
    {
        let mut values = vec![0.5; 256];
        values[17] = bad;
        let error = quantize(format, &values, None, &mut vec![0; format.block_bytes()]).unwrap_err();
        assert!(matches!(error, QuantizeError::NotFinite { index: 17, .. }), "{format}: {error}");
    }
}

/// Values that a block of cells represents are found again, up to the rounding of its scales: their signs and cells are exact in
/// all but few places.
#[test]
fn values_of_cells_hardly_change() {
    for format in with_cells() {
        let values = random::weight("w", format, 1, 32 * 256, 3).to_f32();
        let error = relative_error(&values, &round_trip(format, &values, None), |_| 1.0);
        let gate = if format.integers().is_some_and(|layout| layout.bits == 2) { 0.05 } else { 1e-4 };
        // The random blocks have integers around -1, 0 and 1 in proportions that fit other scales nearly as well.
        let gate = if [Format::IQ1_S, Format::IQ1_M].contains(&format) { 0.3 } else { gate };
        assert!(error < gate, "{format}: {error:e}");
        let again = round_trip(format, &round_trip(format, &values, None), None);
        let error = relative_error(&round_trip(format, &values, None), &again, |_| 1.0);
        assert!(error < gate, "{format}, the second time: {error:e}");
    }
}

/// Values with the scale that fits the largest value of each group exactly, and each cell the nearest to its values. Scales and
/// signs are not rounded to what the format can store.
fn with_the_scale_of_the_largest(format: Format, values: &[f32]) -> Vec<f32> {
    let layout = format.integers().unwrap();
    let (grid, codebook) = (layout.grid.unwrap(), layout.codebook.unwrap());
    let table = CellTable::new(&grid, &codebook);
    let is_signed = grid.signs == crate::quant::grid::Signs::Negate;
    let largest = codebook.iter().map(|integer| f32::from(*integer)).fold(0.0, f32::max);
    let of_cell = |values: &[f32], scale: f32| -> Vec<f32> {
        let target = |value: f32| if is_signed { value.abs() } else { value };
        let mut costs = [[0.0; cell_table::MAX_CELL_LEN]; cell_table::MAX_CODES];
        for (costs, integer) in costs.iter_mut().zip(codebook) {
            let error = |value: &f32| (target(*value) - scale * f32::from(integer)).powi(2);
            costs.iter_mut().zip(values).for_each(|(cost, value)| *cost = error(value));
        }
        let (cell, _) = table.cheapest(&costs, 0);
        let sign = |value: f32| if is_signed { value.signum() } else { 1.0 };
        values.iter().zip(table.integers(cell)).map(|(value, integer)| sign(*value) * scale * integer).collect()
    };
    let of_group = |group: &[f32]| -> Vec<f32> {
        let scale = group.iter().fold(0.0, |largest: f32, value| largest.max(value.abs())) / largest;
        group.chunks(grid.cell_len).flat_map(|values| of_cell(values, scale)).collect()
    };
    values.chunks(layout.group).flat_map(of_group).collect()
}

#[test]
fn a_search_of_scales_is_better_than_the_scale_of_the_largest_value() {
    let values = normal(256 * 32, 11);
    // Where the number of negative values must be even, blocks lack a freedom that the other values have.
    let is_free = |format: &Format| match format.packing() {
        Packing::Cells(rules) => rules.signs != crate::quant::pack::SignBits::Even,
        _ => false,
    };
    for format in with_cells().filter(is_free) {
        let naive = relative_error(&values, &with_the_scale_of_the_largest(format, &values), |_| 1.0);
        let found = relative_error(&values, &round_trip(format, &values, None), |_| 1.0);
        println!("{format:8} {found:.4}, with the scale of the largest {naive:.4}");
        assert!(found < naive, "{format}: {found:.4}, with the scale of the largest {naive:.4}");
    }
}

#[test]
fn importance_that_is_zero_everywhere_does_no_harm() {
    let values = normal(256 * 4, 13);
    for format in with_cells() {
        let error = relative_error(&values, &round_trip(format, &values, Some(&[0.0; 256])), |_| 1.0);
        assert!(error < 0.5, "{format}: {error}");
    }
}

#[test]
fn values_of_any_magnitude_that_a_unit_can_represent_have_the_same_error() {
    let values = normal(256 * 4, 17);
    for format in with_cells() {
        let error = |factor: f32| {
            let values: Vec<f32> = values.iter().map(|value| value * factor).collect();
            relative_error(&values, &round_trip(format, &values, None), |_| 1.0)
        };
        let usual = error(1.0);
        for factor in [0.01, 100.0, 10_000.0] {
            assert!(
                (error(factor) - usual).abs() < 0.02,
                "{format}: {} times {factor}, usually {usual}",
                error(factor)
            );
        }
    }
}

#[test]
fn a_format_without_packer_is_an_error_that_lists_the_targets() {
    let mut bytes = vec![0; Format::NF4.row_bytes(256).unwrap()];
    let error = quantize(Format::NF4, &[0.5; 256], None, &mut bytes).unwrap_err().to_string();
    assert!(error.contains("NF4") && error.contains("Q4_K"), "{error}");
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
