//! Tests of codes, clipping and factors on small matrices.

use cuelight_shaders::quant::{Format, random};

use super::factors::{NormWeight, divided_bias, wanted};
use super::rows::{Rows, encoded};
use super::*;

const COLUMNS: usize = 64;

fn rows<'a>(format: Format, bytes: &'a [u8], factors: Option<&'a [f32]>) -> Rows<'a> {
    Rows { format, columns: COLUMNS, bytes, factors, threads: 3 }
}

fn decoded(format: Format, bytes: &[u8]) -> Vec<f32> {
    let mut values = vec![0.0; bytes.len() / format.block_bytes()];
    format.dequantize(bytes, &mut values);
    values
}

fn signed(codes: &[u8]) -> Vec<i8> {
    codes.iter().map(|code| i8::from_le_bytes([*code])).collect()
}

/// The values that codes stand for.
fn restored(format: Format, matrix: &Rows<'_>, clip: Clip) -> Vec<f32> {
    let codes = matrix.quantized(clip).unwrap();
    let scales = decoded(format, &codes.scales);
    let rows = codes.codes.chunks_exact(COLUMNS).zip(scales);
    rows.flat_map(|(row, scale)| signed(row).into_iter().map(move |code| f32::from(code) * scale)).collect()
}

#[test]
fn every_value_is_within_half_a_step_of_its_output() {
    for format in [Format::F32, Format::F16, Format::BF16] {
        let bytes = encoded(format, &random::activations(9000 * COLUMNS, 7));
        let (matrix, values) = (rows(format, &bytes, None), decoded(format, &bytes));
        let restored = restored(format, &matrix, Clip::Max);
        assert_eq!(restored.len(), values.len());
        for (row, restored) in values.chunks_exact(COLUMNS).zip(restored.chunks_exact(COLUMNS)) {
            let most = row.iter().fold(0.0_f32, |most, value| most.max(value.abs()));
            // A scale in BF16 is up to 2^-9 too small, and the largest code is 127 of them.
            let bound = most / 127.0 * if format == Format::BF16 { 0.76 } else { 0.54 };
            let error = row.iter().zip(restored).fold(0.0_f32, |most, (a, b)| most.max((a - b).abs()));
            assert!(error <= bound, "{format}: {error} of {most}");
        }
    }
}

#[test]
fn a_percentile_clips_the_largest_values_and_only_them() {
    let mut values: Vec<f32> = (0..COLUMNS).map(|column| (column as f32 - 31.5) / 100.0).collect();
    values[5] = 40.0;
    let bytes = encoded(Format::F32, &values);
    let matrix = rows(Format::F32, &bytes, None);
    let error = |restored: Vec<f32>| {
        let pairs = restored.into_iter().zip(&values).enumerate().filter(|(column, _)| *column != 5);
        pairs.fold(0.0_f32, |most, (_, (a, b))| most.max((a - b).abs()))
    };
    let whole = restored(Format::F32, &matrix, Clip::Max);
    assert!((whole[5] - 40.0).abs() < 1e-4 && error(whole) > 0.1);
    let clipped = restored(Format::F32, &matrix, "percentile:98".parse().unwrap());
    assert!((clipped[5] - 0.315).abs() < 1e-3, "{}", clipped[5]);
    assert!(error(clipped) < 0.002);
    let all: Clip = "percentile:100".parse().unwrap();
    assert_eq!(matrix.quantized(all).unwrap(), matrix.quantized(Clip::Max).unwrap());
}

#[test]
fn clips_and_strengths_outside_of_their_ranges_are_refused() {
    for text in ["", "mse", "percentile", "percentile:", "percentile:50", "percentile:100.1", "percentile:nan", "max:1"]
    {
        let error = text.parse::<Clip>().unwrap_err().to_string();
        assert!(error.contains("percentile:99.9"), "{error}");
    }
    for text in ["", "-0.1", "1.1", "nan", "half"] {
        assert!(text.parse::<Strength>().unwrap_err().to_string().contains("from 0 to 1"));
    }
}

#[test]
fn rows_of_zeros_have_codes_of_zero_and_other_values_must_be_finite() {
    let zeros = encoded(Format::BF16, &[0.0; COLUMNS]);
    assert!(rows(Format::BF16, &zeros, None).quantized(Clip::Max).unwrap().codes.iter().all(|code| *code == 0));
    let mut values = vec![1.0; 2 * COLUMNS];
    values[COLUMNS + 3] = f32::INFINITY;
    let bytes = encoded(Format::F32, &values);
    let error = rows(Format::F32, &bytes, None).quantized(Clip::Max).unwrap_err().to_string();
    assert!(error.contains("value 67 is inf"), "{error}");
}

#[test]
fn factors_make_activations_and_weights_meet_halfway() {
    let strength = "0.5".parse().unwrap();
    assert_eq!(wanted(&[16.0, 1.0, 0.0, 4.0], &[1.0, 4.0, 1.0, 0.0], strength), [4.0, 0.5, 1.0, 1.0]);
    assert_eq!(wanted(&[1e30], &[1e-30], strength), [1e4]);
    assert_eq!(wanted(&[f32::INFINITY], &[1.0], strength), [1.0]);
}

/// What remains of a norm's weight, times the factor of its matrices, is the weight, whatever was rounded.
#[test]
fn rounding_of_a_norm_is_in_the_factors_of_its_matrices() {
    let wanted: Vec<f32> = random::activations(COLUMNS, 3).iter().map(|value| (value * 4.0).exp()).collect();
    for (format, lacks_one) in [(Format::F32, false), (Format::BF16, false), (Format::BF16, true), (Format::F16, true)]
    {
        let bytes = encoded(format, &random::activations(COLUMNS, 4));
        let one = if lacks_one { 1.0 } else { 0.0 };
        let divided = NormWeight { format, bytes: &bytes, lacks_one }.divided(&wanted);
        let (before, after) = (decoded(format, &bytes), decoded(format, &divided.norm));
        for (column, (before, after)) in before.iter().zip(&after).enumerate() {
            let (whole, found) = (before + one, (after + one) * divided.columns[column]);
            assert!((whole - found).abs() <= 1e-6 * whole.abs(), "{format} {column}: {found} of {whole}");
        }
        let near = divided.columns.iter().zip(&wanted).filter(|(found, wanted)| (*found / *wanted - 1.0).abs() < 0.3);
        assert!(near.count() > COLUMNS / 2);
    }
    let zero = encoded(Format::F32, &[0.0; COLUMNS]);
    let of_zero = NormWeight { format: Format::F32, bytes: &zero, lacks_one: false }.divided(&wanted);
    assert_eq!((of_zero.norm, of_zero.columns), (zero, vec![1.0; COLUMNS]));
    let bias = divided_bias(Format::F32, &encoded(Format::F32, &[3.0, 5.0]), &[2.0, 0.5]);
    assert_eq!(decoded(Format::F32, &bias), [1.5, 10.0]);
}

#[test]
fn columns_have_their_factors_and_their_maxima_are_without_them() {
    let values: Vec<f32> = (0..2 * COLUMNS).map(|index| index as f32 - 100.0).collect();
    let bytes = encoded(Format::F32, &values);
    let factors: Vec<f32> = (0..COLUMNS).map(|column| column as f32).collect();
    let matrix = rows(Format::F32, &bytes, Some(&factors));
    let scaled = decoded(Format::F32, &matrix.scaled());
    assert!(scaled.iter().enumerate().all(|(index, value)| *value == values[index] * factors[index % COLUMNS]));
    let maxima = matrix.column_maxima();
    assert_eq!((maxima[0], maxima[1], maxima[40]), (100.0, 99.0, 60.0));
}
